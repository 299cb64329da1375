"""`etude reward`: lists and adds definitions, rescores history, explains a reward, and checks for gaming."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from etude.bootstrap.experience import config_here, experience
from etude.cli.display import console, print_json, print_warning, progress_bar, table
from etude.cli.options import ConfigFile
from etude.contracts.errors import ConfigError
from etude.contracts.query import parse
from etude.contracts.reward import Baseline
from etude.experience.definitions import (
    BUILT_IN,
    RewardDefinition,
    add_definition,
    definitions,
    find_definition,
    read_definition,
)
from etude.experience.ingest import BASELINES
from etude.experience.reward_checks import RewardChecksConfig, check, read_samples
from etude.experience.rewards import Explanation, explain
from etude.experience.rewards import rescore as rescore_history
from etude.files.yaml_source import read_source

app = typer.Typer(no_args_is_help=True, help="Define rewards, rescore history, explain a reward, check for gaming.")

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON; the rest goes to stderr.")]
Condition = Annotated[
    str, typer.Option(metavar="CONDITIONS", help="Conditions, such as `problem=choice:model and time>=2026-11-01`.")
]


@app.command("list")
def list_definitions(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List the built-in and stored reward definitions."""
    with experience(config) as opened:
        found = definitions(opened.store)
    if as_json:
        print_json([msgspec.to_builtins(d) | {"hash": d.hash, "shares": d.shares} for d in found.values()])
        return
    rows = [
        [
            str(version),
            escape(definition.name),
            escape(" · ".join(_components(definition))),
            definition.hash,
            "built in" if version in BUILT_IN and BUILT_IN[version].hash == definition.hash else "stored",
        ]
        for version, definition in found.items()
    ]
    console().print(table("version", "name", "components", "hash", "from", rows=rows, right=("version",)))


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="YAML or JSON file with a definition.", show_default=False)],
    config: ConfigFile = None,
) -> None:
    """Store a reward definition of your own. A version never changes: another content needs another version."""
    _, tree = read_source(file, kind=ConfigError, expected="a reward definition as YAML or JSON")
    definition = read_definition(tree, origin=str(file))
    with experience(config) as opened:
        add_definition(opened.store, definition)
    screen = console()
    screen.print(f"stored version {definition.version}, {escape(definition.name)} ({definition.hash}):", soft_wrap=True)
    for component in _components(definition):
        screen.print(f"  {escape(component)}", soft_wrap=True)
    screen.print(f"next: etude reward rescore --version {definition.version}", soft_wrap=True)


@app.command()
def rescore(
    version: Annotated[int, typer.Option(min=1, help="Reward version to use.", show_default=False)],
    where: Condition = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Reward the history under a definition, oldest first. Other versions stay; an interrupted call can be repeated."""
    screen, chosen = console(stderr=as_json), parse(where)
    with experience(config) as opened:
        definition = find_definition(opened.store, version)
        total = opened.store.stats(chosen, version=version).trajectories
        with progress_bar("rescoring", total, screen) as advance:
            rescored = rescore_history(opened.store, definition, where=chosen, progress=advance)
        if not where and str(version) not in opened.store.documents(BASELINES):
            opened.store.put(BASELINES, str(version), rescored.state)  # for new trajectories
    became = {name.value: count for name, count in rescored.stored.items()}
    if as_json:
        numbers = {"mean": rescored.mean, "confidence": rescored.confidence}
        about = {"version": version, "definition": definition.hash, "trajectories": rescored.trajectories}
        print_json(about | {"stored": became} | numbers)
    counts = ", ".join(f"{count:,} {name}" for name, count in became.items()) or "none there"
    screen.print(
        f"{rescored.trajectories:,} trajectories rewarded under version {version}, {escape(definition.name)}: {counts}"
        f"; mean {rescored.mean:.3f}, confidence {rescored.confidence:.2f}",
        soft_wrap=True,
    )
    if "conflict" in became:
        screen.print(
            f"{became['conflict']:,} were already rewarded under this version, with other baselines or feedback: "
            "those rewards stay",
            soft_wrap=True,
        )


@app.command("explain")
def explain_reward(
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="The trajectory.", show_default=False)],
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Reward version to explain.", show_default="the highest one of the trajectory"),
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain a trajectory's reward: its components, their baselines, what is missing, every revision."""
    with experience(config) as opened:
        detail, known = opened.store.detail(trajectory), definitions(opened.store)
    if detail is None:
        raise ConfigError(f"there is no trajectory {trajectory!r}: check the id; erased and expired ones are not kept")
    explanation = explain(detail, known, version=version)
    if as_json:
        print_json(msgspec.to_builtins(explanation))
        return
    _tell(explanation, known.get(explanation.reward.version))


def _tell(explanation: Explanation, definition: RewardDefinition | None) -> None:
    screen, reward = console(), explanation.reward
    name = definition.name if definition is not None and definition.hash == reward.definition else reward.definition
    screen.print(
        f"[bold]{escape(reward.trajectory_id)}[/]  version {reward.version}, {escape(name)}, "
        f"revision {reward.revision} ({reward.reason})\n"
        f"total [bold]{reward.total:.4f}[/], confidence {reward.confidence:.2f}\n",
        soft_wrap=True,
    )
    rows = [
        [
            escape(part.component.name),
            _number(part.component.raw),
            _compared_with(part.component.baseline),
            _number(part.component.value),
            "–" if part.weight_before is None else f"{part.weight_before:.0%}",
            f"{part.component.weight:.1%}",
            f"{part.contribution:.4f}",
            escape(part.component.why),
        ]
        for part in explanation.parts
    ]
    heads = ("component", "raw", "compared with", "value", "weight", "here", "contribution", "why")
    screen.print(table(*heads, rows=rows, right=("raw", "value", "weight", "here", "contribution")))
    for missing, why in explanation.missing.items():
        screen.print(f"missing: {escape(missing)} ({escape(why)}); its weight went to the rest", soft_wrap=True)
    screen.print("\n[bold]revisions[/]")
    revisions = [
        [str(r.revision), f"{r.time:%Y-%m-%d %H:%M:%S %Z}", r.reason, f"{r.total:.4f}", f"{r.confidence:.2f}"]
        for r in explanation.history
    ]
    numbers = ("revision", "total", "confidence")
    screen.print(table("revision", "time", "reason", "total", "confidence", rows=revisions, right=numbers))
    others = [str(version) for version in explanation.versions if version != reward.version]
    if others:
        screen.print(f"also rewarded under version {', '.join(others)}", soft_wrap=True)


def _compared_with(baseline: Baseline | None) -> str:
    if baseline is None:
        return "–"
    if baseline.method == "minmax":
        return f"{baseline.low:.3g} to {baseline.high:.3g} of {baseline.count:,}"
    return f"{baseline.mean:.3g} ± {max(baseline.std, baseline.floor):.2g} of {baseline.count:,}"


@app.command("check")
def check_rewards(
    version: Annotated[
        int | None, typer.Option(min=1, help="Whose rewards.", show_default="experience.reward_version")
    ] = None,
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="COMPONENT|VERSION",
            help="Value that policies do not learn from and that should not fall. May be repeated.",
            show_default="components of weight 0; success and feedback always are",
        ),
    ] = None,
    where: Condition = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Check whether the newest rewards are gamed or constant. The exit code is 2 if there are warnings."""
    limits, chosen = RewardChecksConfig(), parse(where)
    version = config_here(config).reward_version if version is None else version
    limit, screen = limits.recent + limits.reference, console(stderr=as_json)
    with experience(config) as opened, progress_bar("reading", limit, screen) as advance:
        samples = read_samples(opened.store, version=version, where=chosen, audit=audit, limit=limit, progress=advance)
    found = check(samples, limits)
    if as_json:
        print_json({"version": version, "samples": len(samples), "warnings": [asdict(warning) for warning in found]})
    for warning in found:
        print_warning(f"[bold]{warning.name}[/]: {escape(warning.message)}", screen, advice=warning.advice)
    audits = sorted({name for sample in samples for name in sample.audits})
    few = (
        ""
        if len(samples) >= limits.min_samples
        else f"; {limits.min_samples} are needed to compare the newest with the rest"
    )
    screen.print(
        f"{len(samples):,} rewards of version {version} looked at, {len(found) or 'no'} warnings; "
        f"audits: {escape(', '.join(audits)) or 'none'}{few}",
        soft_wrap=True,
    )
    if found:
        raise typer.Exit(2)


def _components(definition: RewardDefinition) -> list[str]:
    """`efficiency 20% zscore`."""
    return [
        f"{component.name} {definition.shares[component.name]:.0%}"
        + (f" of {component.source}" if component.source != component.name else "")
        + (f" {component.normalise}" if component.normalise != "none" else "")
        + (" held out" if component.weight == 0 else "")
        for component in definition.components
    ]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
