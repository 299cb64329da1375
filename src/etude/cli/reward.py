"""`etude reward`: definitions, a history rescored, one reward explained, and signs that a reward is gamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from etude.cli.config import ConfigFile
from etude.cli.display import console, print_json, table
from etude.cli.experience import stored
from etude.contracts.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from etude.contracts.reward import Baseline
    from etude.contracts.store import ExperienceStore
    from etude.experience.definitions import RewardDefinition
    from etude.experience.hacking import RewardWarning
    from etude.experience.rewards import Explanation, Rescored

app = typer.Typer(no_args_is_help=True, help="Define rewards, rescore history, explain a reward, look for gaming.")

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON; the rest goes to stderr.")]
Condition = Annotated[
    str, typer.Option(metavar="CONDITIONS", help="Which trajectories, such as `problem=workflow and time>=2026-11-01`.")
]


@app.command("list")
def list_definitions(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Every reward definition: built in, and stored."""
    from etude.experience.definitions import BUILT_IN, definitions

    with stored(config) as store:
        found = definitions(store)
    if as_json:
        print_json([_to_json(definition) for definition in found.values()])
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
    file: Annotated[Path, typer.Argument(help="A definition as YAML or JSON.", show_default=False)],
    config: ConfigFile = None,
) -> None:
    """Store a reward definition of your own. A version never changes: another content needs another version."""
    from etude.experience.definitions import add_definition, read_definition

    definition = read_definition(_read_yaml(file), origin=str(file))
    with stored(config) as store:
        add_definition(store, definition)
    screen = console()
    screen.print(f"stored version {definition.version}, {escape(definition.name)} ({definition.hash}):", soft_wrap=True)
    for component in _components(definition):
        screen.print(f"  {escape(component)}", soft_wrap=True)
    screen.print(f"next: etude reward rescore --version {definition.version}", soft_wrap=True)


@app.command()
def rescore(
    version: Annotated[int, typer.Option(min=1, help="The definition to reward by.", show_default=False)],
    where: Condition = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Reward the history under a definition, oldest first. Other versions stay; interrupted, run it again."""
    from etude.contracts.query import parse
    from etude.experience.definitions import find_definition
    from etude.experience.rewards import rescore as rescore_history

    screen, chosen = console(stderr=as_json), parse(where)
    with stored(config) as store:
        definition = find_definition(store, version)
        total = store.stats(chosen, version=version).trajectories
        with _bar("rescoring", total, screen) as advance:
            rescored = rescore_history(store, definition, where=chosen, progress=advance)
        if not where:
            _keep_baselines(store, rescored)
    became = {name.value: count for name, count in rescored.stored.items()}
    if as_json:
        numbers = {"mean": rescored.mean, "confidence": rescored.confidence}
        told = {"version": version, "definition": definition.hash, "trajectories": rescored.trajectories}
        print_json(told | {"stored": became} | numbers)
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


def _keep_baselines(store: ExperienceStore, rescored: Rescored) -> None:
    """What comes in next is compared with this history, unless it already has its own baselines."""
    from etude.experience.ingest import BASELINES

    key = str(rescored.definition.version)
    if key not in store.documents(BASELINES):
        store.put(BASELINES, key, rescored.state)


@app.command("explain")
def explain_reward(
    trajectory: Annotated[str, typer.Argument(metavar="ID", help="The trajectory.", show_default=False)],
    version: Annotated[
        int | None, typer.Option(min=1, help="Of the definition.", show_default="the highest it was rewarded under")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """How a trajectory's reward came about: each part, what it was compared with, what is missing, every revision."""
    import msgspec

    from etude.experience.definitions import definitions
    from etude.experience.rewards import explain

    with stored(config) as store:
        story, known = store.story(trajectory), definitions(store)
    if story is None:
        raise ConfigError(f"there is no trajectory {trajectory!r}: check the id; erased and expired ones are not kept")
    explanation = explain(story, known, version=version)
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
    return f"{baseline.mean:.3g} ± {baseline.std:.2g} of {baseline.count:,}"


@app.command("check")
def check_rewards(
    version: Annotated[
        int | None, typer.Option(min=1, help="Whose rewards.", show_default="experience.reward_version")
    ] = None,
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="COMPONENT|VERSION",
            help="What is not learned from and should not fall.",
            show_default="components of weight 0; success and feedback always are",
        ),
    ] = None,
    where: Condition = "",
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Look for signs that the newest rewards are gamed, or teach nothing. Leaves with 2 where there are any."""
    from etude.bootstrap.experience import config_here
    from etude.contracts.query import parse
    from etude.experience.hacking import HackingConfig, check, read_samples

    limits, chosen = HackingConfig(), parse(where)
    version = config_here(config).reward_version if version is None else version
    limit, screen = limits.recent + limits.reference, console(stderr=as_json)
    with stored(config) as store, _bar("reading", limit, screen) as advance:
        samples = read_samples(store, version=version, where=chosen, audit=audit, limit=limit, progress=advance)
    found = check(samples, limits)
    if as_json:
        print_json({"version": version, "samples": len(samples), "warnings": [_warning_json(w) for w in found]})
    for warning in found:
        screen.print(
            f"[yellow]warning:[/] [bold]{warning.name}[/]: {escape(warning.message)}\n"
            f"         what to do: {escape(warning.advice)}",
            soft_wrap=True,
        )
    audits = sorted({name for sample in samples for name in sample.audits})
    few = "" if len(samples) >= limits.fewest else f"; {limits.fewest} are needed to compare the newest with the rest"
    screen.print(
        f"{len(samples):,} rewards of version {version} looked at, {len(found) or 'no'} warnings; "
        f"audits: {escape(', '.join(audits)) or 'none'}{few}",
        soft_wrap=True,
    )
    if found:
        raise typer.Exit(2)


def _warning_json(warning: RewardWarning) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(warning)


@contextmanager
def _bar(text: str, total: int, screen: Console) -> Iterator[Any]:
    columns = (TextColumn(text), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _read_yaml(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        told = " ".join(str(error).split())
        raise ConfigError(f"{file}: cannot be read as YAML or JSON ({told}): correct it there") from error


def _components(definition: RewardDefinition) -> list[str]:
    """`efficiency 20% zscore`."""
    return [
        f"{component.name} {definition.shares[component.name]:.0%}"
        + (f" of {component.source}" if component.source != component.name else "")
        + (f" {component.normalise}" if component.normalise != "none" else "")
        + (" held out" if component.weight == 0 else "")
        for component in definition.components
    ]


def _to_json(definition: RewardDefinition) -> dict[str, Any]:
    import msgspec

    made: dict[str, Any] = msgspec.to_builtins(definition)
    return made | {"hash": definition.hash, "shares": definition.shares}


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
