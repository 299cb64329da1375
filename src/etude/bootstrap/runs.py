"""Starts, loads and evaluates runs of any problem by its spec."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from etude.bootstrap.datasets import find_behaviour, open_dataset, remember_lineage
from etude.contracts.errors import ConfigError
from etude.contracts.suggestions import did_you_mean
from etude.learning.measure import on_dataset, on_world
from etude.learning.passes import check_algorithm
from etude.learning.requests import EvaluateRequest, LearnRequest, Measurement
from etude.learning.run import Run
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.spec import FROM_LOGS, PRACTISE, ProblemSpec, resolve
from etude.problems.table import find_spec, spec_of
from etude.settings.sources import FILE
from etude.settings.tree import FLAGS, Settings, resolve_settings

EVALUATION_FILES = ("data", "replay", "catalogue", "plot")
"""Inputs of an evaluation: a policy is measured on the first two; the others are options of these."""
EVALUATION_OPTIONS = {
    "episodes": "episodes",
    "seed": "seed",
    "stochastic": "sampled",
    "baselines": "baselines",
    "device": "device",
}
"""Options of `etude evaluate` → fields of an EvaluateRequest."""


def choose_method(spec: ProblemSpec, inputs: Mapping[str, Any]) -> str:
    """The named method, or the one that the other inputs imply; ConfigError if they contradict each other."""
    named = inputs.get("method")
    if named is not None:
        spec.check_method(named)
    if spec.method is not None:
        chosen = str(resolve(spec.method)(inputs))
        if named not in (None, chosen):
            raise ConfigError(
                f"the method is {named!r}, but the other options are of {chosen!r}: leave one of them out"
            )
        return chosen
    if named is not None:
        return str(named)
    if inputs.get("dataset"):
        return FROM_LOGS
    return PRACTISE if PRACTISE in spec.learners else next(iter(spec.learners))


def make_request(
    problem: str,
    *,
    out: Path | None = None,
    inputs: Mapping[str, Any] | None = None,
    preset: str | None = None,
    config: Path | None = None,
    assignments: Sequence[str] = (),
    isolated: bool = False,
) -> LearnRequest:
    """A request from flags by name without dashes, those that set something and those that are inputs alike.

    `isolated` reads neither etude.yaml nor the environment.
    """
    spec, given = find_spec(problem), {name: value for name, value in (inputs or {}).items() if value not in (None, [])}
    method = choose_method(spec, given)
    if preset is None and spec.preset is not None:
        preset = resolve(spec.preset)(method, given)
    own = [flag.name.removeprefix("--") for flag in spec.flags if flag.setting]
    core = [flag.removeprefix("--") for flag in FLAGS]
    settings = resolve_settings(
        problem,
        preset=preset,
        config=config or (Path(FILE) if Path(FILE).exists() and not isolated else None),
        environ={} if isolated else os.environ,
        flags={f"--{name}": given[name] for name in (*core, *own) if name in given},
        assignments=assignments,
    ).settings
    place = out or Path("runs") / _name(spec, method, settings)
    request = LearnRequest(
        problem=problem,
        method=method,
        settings=settings,
        out=place,
        inputs=given,
        checkpoint=given.get("checkpoint"),
    )
    if not given.get("dataset"):
        return request
    check_algorithm(given.get("algorithm", "ppo"))
    dataset, checkpoint = open_dataset(given["dataset"], config), request.checkpoint
    if checkpoint is None and spec.continues:
        checkpoint = find_behaviour(dataset, place.absolute().parent)
    return replace(request, dataset=dataset, checkpoint=checkpoint)


def _name(spec: ProblemSpec, method: str, settings: Settings) -> str:
    """Default name of a run's folder: problem, variant, method if there are several, seed."""
    parts = [spec.name, *([method] if len(spec.learners) > 1 else []), str(settings.run.seed)]
    if spec.variants is not None:
        section, _, key = spec.variants[0].partition(".")
        parts.insert(1, str(getattr(getattr(settings, section), key)))
    return "-".join(parts)


def train(
    problem: str,
    *,
    out: str | Path | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """Train a run to its end, from Python."""
    request = make_request(
        problem,
        out=None if out is None else Path(out),
        inputs=_as_flags(find_spec(problem), options or {}),
        preset=preset,
        assignments=[f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()],
    )
    with RunFolder(request.out).locked():
        run = start_run(request)
        for _ in run.updates():
            continue
        finish_run(run)
    return run


def _as_flags(spec: ProblemSpec, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments by the names of flags; paths may be given as text."""
    kinds: dict[str, type] = {flag.name.removeprefix("--"): flag.type for flag in spec.flags}
    kinds |= {"seed": int, "device": str, "tracker": str, "method": str}
    if FROM_LOGS in spec.learners:
        kinds |= {"checkpoint": Path, "dataset": str, "algorithm": str}
    multiple = {flag.name.removeprefix("--") for flag in spec.flags if flag.multiple} | {"tracker"}
    given = {}
    for option, value in options.items():
        name = option.replace("_", "-")
        if name not in kinds:
            hint = did_you_mean(option, [kind.replace("-", "_") for kind in kinds])
            raise ConfigError(
                f"unknown option {option!r} of the problem {spec.name!r}: {hint}settings go into `settings={{…}}`"
            )
        if name in multiple:
            given[name] = [_as_flag(option, one, kinds[name]) for one in _listed(value)]
        else:
            given[name] = _as_flag(option, value, kinds[name])
    return given


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _as_flag(option: str, value: Any, kind: type) -> Any:
    """A path as a Path, and where a text is expected as a text; the settings check numbers."""
    if value is None or kind not in (Path, str):
        return value
    if not isinstance(value, str | os.PathLike):
        what = "a path" if kind is Path else "a text"
        raise ConfigError(f"{option} is {value!r:.80}: expected {what}")
    return Path(value) if kind is Path else os.fspath(value)


def start_run(request: LearnRequest) -> Run:
    """The run of a request, new or resumed."""
    run: Run = find_spec(request.problem).learner(request.method)(request)
    return run


def finish_run(run: Run, config: Path | None = None) -> None:
    """Record the end of a run in its folder and the store."""
    spec = find_spec(run.about.problem)
    if spec.finish is not None:
        resolve(spec.finish)(run)
    if "dataset" in run.about.extra:
        remember_lineage(run.folder, config)


def evaluate_path(path: str | Path, options: Mapping[str, Any]) -> Measurement:
    """Evaluate a policy from Python: `options` are those of `etude evaluate`."""
    known = (*EVALUATION_FILES, "dataset", *EVALUATION_OPTIONS)
    for name in options:
        if name not in known:
            raise ConfigError(f"unknown option {name!r} of evaluate: expected one of {', '.join(known)}")
    place = options.get("dataset")
    request = EvaluateRequest(
        run=Path(path),
        inputs={
            name: _as_flag(name, options[name], Path) for name in EVALUATION_FILES if options.get(name) is not None
        },
        dataset=open_dataset(_as_flag("dataset", place, str)) if place is not None else None,
        **{EVALUATION_OPTIONS[name]: value for name, value in options.items() if name in EVALUATION_OPTIONS},
    )
    return evaluate(request)


BESIDES = ("catalogue", "plot", "against", "peer", "workers", "max-cost")
"""Inputs of an evaluation that go with another one."""


def evaluate(request: EvaluateRequest) -> Measurement:
    """Evaluate a policy on the dataset of the request, on a problem's own inputs, or in its world."""
    spec = spec_of(request.run, find_policy(request.run).manifest.problem)
    given = [name for name in request.inputs if name not in BESIDES]
    if len(given) + (request.dataset is not None) > 1:
        raise ConfigError("a policy is measured on one thing at a time: give one of data, replay and dataset")
    if request.dataset is not None:
        return on_dataset(request, spec)
    if given and given[0] not in spec.evaluations:
        raise ConfigError(
            f"{request.run} is a policy of {spec.name!r}, which is not measured on {given[0]}: leave it out"
        )
    if given:
        found: Measurement = resolve(spec.evaluations[given[0]])(request)
        return found
    return on_world(request, spec)
