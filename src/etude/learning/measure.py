"""Measures a trained policy in its world, compared with the problem's baselines and an untrained network."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from etude.contracts.errors import ConfigError
from etude.learning.artefact import Artefact, load_weights
from etude.learning.comparison import POLICY, RANDOM, UNTRAINED, contenders, interpret
from etude.learning.compute import choose_threads, resolve_device
from etude.learning.evaluate import Score, evaluate, sampled
from etude.learning.from_logs import check_dataset
from etude.learning.off_policy import evaluate_off_policy
from etude.learning.requests import EvaluateRequest, Measurement
from etude.learning.run_folder import find_policy
from etude.learning.settings import read_own
from etude.problems.base import Problem
from etude.problems.spec import Metric, ProblemSpec, resolve

LATENCY_CALLS = 1000


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Scores of policies on the same episodes; the first policy is the measured one."""

    scores: Mapping[str, Score]
    notes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what was recorded, by kind and policy
    sentences: tuple[str, ...] = ()  # what the problem adds in words


def on_world(request: EvaluateRequest, spec: ProblemSpec) -> Measurement:
    artefact, compared = find_policy(request.run), compare(request, spec)
    found = to_measurement(
        request,
        compared.scores,
        spec.metrics,
        step=artefact.manifest.step,
        latency=latency_ms(artefact, spec),
    )
    return replace(found, sentences=(*found.sentences, *compared.sentences))


def compare(request: EvaluateRequest, spec: ProblemSpec) -> Comparison:
    """Measure the policy and, if requested, the baselines in its world."""
    if spec.compare is not None:
        found: Comparison = resolve(spec.compare)(request)
        return found
    if spec.problem is None:
        inputs = " or ".join((*spec.evaluations, "dataset"))
        raise ConfigError(f"the problem {spec.name!r} has no world to evaluate in: give {inputs}")
    problem, network = read_network(find_policy(request.run), spec)
    place = resolve_device(request.device)
    network.to(place)
    actors = contenders(problem, network, seed=0)
    if request.sampled:
        actors[POLICY] = sampled(network)
    torch.set_num_threads(choose_threads(network, request.episodes))
    scores, notes = {}, dict[str, dict[str, Any]]()
    for name, actor in actors.items() if request.baselines else [(POLICY, actors[POLICY])]:
        request.status(f"evaluating {name}: {request.episodes:,} episodes")
        recorder = resolve(spec.record)(actor) if spec.record is not None and name in (POLICY, RANDOM) else None
        playing = actor if recorder is None else recorder
        scores[name] = evaluate(problem, playing, episodes=request.episodes, seed=request.seed, device=place)
        for kind, note in ({} if recorder is None else recorder.notes()).items():
            notes.setdefault(kind, {})[name] = note
    return Comparison(scores=scores, notes=notes)


def on_dataset(request: EvaluateRequest, spec: ProblemSpec) -> Measurement:
    """Measure the policy off-policy on the test split, which no learner reads."""
    dataset = request.dataset
    assert dataset is not None
    if spec.read_logs is None:
        raise ConfigError(f"the problem {spec.name!r} does not read logged decisions: it cannot be judged on a dataset")
    check_dataset(dataset, spec.name, "test")
    reader = resolve(spec.read_logs)(find_policy(request.run), request.inputs, resolve_device(request.device))
    examples = partial(dataset.examples, "test")
    own = getattr(reader, "judge", lambda examples: None)(examples)  # a policy that is more than its network
    found = own or evaluate_off_policy(reader.policy, reader.shards(examples))
    return Measurement(
        title=f"{request.run}: judged on {dataset.splits['test']:,} logged trajectories that no policy learned from",
        json={"run": str(request.run), "dataset": dict(dataset.facts), **found.to_json()},
        columns=("estimate", "reward", "95 % interval"),
        rows=tuple((name, f"{mean:.3f}", f"{low:.3f} … {high:.3f}") for name, mean, low, high in found.rows()),
        sentences=tuple(found.sentences()),
    )


def read_network(artefact: Artefact, spec: ProblemSpec) -> tuple[Problem, Any]:
    """The problem that a policy was trained in, and its network."""
    assert spec.problem is not None
    own = read_own(resolve(spec.settings), artefact.manifest.settings, source=artefact.path)
    problem: Problem = resolve(spec.problem)(own)
    network: Any = problem.policy()
    load_weights(network, artefact)
    return problem, network.train(False)


def latency_ms(artefact: Artefact, spec: ProblemSpec) -> dict[str, float] | None:
    """Milliseconds per decision on this CPU, as `etude.load(…).act(…)` takes them; None for a policy without `act`."""
    policy = resolve(spec.load)(artefact)
    if not hasattr(policy, "act") or spec.problem is None:
        return None
    problem, _ = read_network(artefact, spec)
    observation = {name: value[0].numpy() for name, value in problem.world(1, device="cpu").reset(0).items()}
    times = []
    for _ in range(LATENCY_CALLS):
        began = time.perf_counter()
        policy.act(observation)
        times.append(1000 * (time.perf_counter() - began))
    del times[: LATENCY_CALLS // 10]  # the first calls load what the others find loaded
    return {"p50": float(np.percentile(times, 50)), "p99": float(np.percentile(times, 99))}


FORMATS: dict[str, Callable[[float], str]] = {
    "share": "{:.1%}".format,
    "usd": "{:.3f}".format,
    "ms": lambda ms: f"{ms / 1000:.1f}",
    "number": "{:.2f}".format,
}


def to_measurement(
    request: EvaluateRequest,
    scores: Mapping[str, Score],
    metrics: Mapping[str, Metric],
    *,
    step: int,
    latency: Mapping[str, float] | None = None,
) -> Measurement:
    """Scores as a table with a summary in words."""
    first = next(iter(scores.values()))
    shown = {name: metric for name, metric in metrics.items() if any(s.metrics.get(name) for s in scores.values())}
    digits = 1 if max(abs(score.mean) for score in scores.values()) >= 100 else 2
    rows = [
        (
            name,
            f"{score.mean:,.{digits}f}",
            f"{score.low:,.{digits}f} … {score.high:,.{digits}f}",
            *(FORMATS[metric.kind](score.metrics[name]) for name, metric in shown.items()),
        )
        for name, score in sorted(scores.items(), key=lambda item: -item[1].mean)
    ]
    shares = {name: (metric.label, metric.about) for name, metric in shown.items() if metric.kind == "share"}
    sentences = interpret(scores, shares=shares, digits=0 if digits == 1 else 2)
    if latency is not None:
        sentences.append(
            f"One decision takes {latency['p50']:.2f} ms (p50), {latency['p99']:.2f} ms (p99) on this CPU."
        )
    reported = {name: score.to_json() for name, score in scores.items()}
    return Measurement(
        title=f"{request.run}: policy of step {step:,}, {first.episodes:,} episodes each",
        json={
            "run": str(request.run),
            "seed": request.seed,
            "step": step,
            "policy": reported.pop(POLICY),
            "untrained": reported.pop(UNTRAINED, None),
            "baselines": reported,
            **({"latency_ms": dict(latency)} if latency is not None else {}),
        },
        columns=("policy", "return", "95 % interval", *(metric.label for metric in shown.values())),
        rows=tuple(rows),
        sentences=tuple(sentences),
    )
