"""`etude dataset`: freeze what the store holds into a dataset, list datasets, look into one, check one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from etude.cli.config import ConfigFile
from etude.cli.display import console, print_json, table
from etude.cli.experience import stored
from etude.contracts.errors import ConfigError, DatasetError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

    from etude.contracts.blobs import BlobStore
    from etude.experience.datasets import Manifest

app = typer.Typer(no_args_is_help=True, help="Freeze experience into datasets, list them, look into one, check one.")

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON; the rest goes to stderr.")]
Which = Annotated[str, typer.Argument(metavar="DATASET", help="Its id, folder, or s3://….", show_default=False)]


@app.command()
def create(
    problem: Annotated[str, typer.Option(help="Such as workflow, allocation, or your own.", show_default=False)],
    out: Annotated[
        str,
        typer.Option(
            help="An empty folder, below experience.blobs if that is set, or s3://bucket/prefix?endpoint=…&region=….",
            show_default=False,
        ),
    ],
    where: Annotated[
        str, typer.Option(metavar="CONDITIONS", help="Such as `outcome=success and time>=2026-11-01`.")
    ] = "",
    reward_version: Annotated[
        int | None,
        typer.Option(min=1, help="The reward definition to learn from.", show_default="the one in the settings"),
    ] = None,
    split: Annotated[
        Literal["context", "time"],
        typer.Option(help="context: never the same request in two splits; time: the newest are the test."),
    ] = "context",
    shares: Annotated[str, typer.Option(help="Of train, validation and test.")] = "0.8,0.1,0.1",
    balance: Annotated[
        Literal["none", "outcome", "policy"], typer.Option(help="Let each of these weigh as much as the others.")
    ] = "none",
    prioritise: Annotated[
        float, typer.Option(min=0.0, help="Weigh by distance from the context's mean reward, to this power; 0 is off.")
    ] = 0.0,
    deduplicate: Annotated[
        bool, typer.Option("--deduplicate", help="Keep one of those with the same request, actions and ending.")
    ] = False,
    limit: Annotated[int | None, typer.Option("--max", min=1, help="At most so many.", show_default="all")] = None,
    min_confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Leave out rewards that less is known of.")
    ] = 0.0,
    require_propensity: Annotated[
        bool, typer.Option("--require-propensity", help="Leave out what was decided without a logged propensity.")
    ] = False,
    cap: Annotated[
        float | None, typer.Option(min=1.0, help="No weight above so many times the mean.", show_default="none")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of splits, and of what --max takes.")] = 0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Freeze what matches into a dataset: trajectories with their rewards, split, in shards, hashed."""
    from msgspec.structs import replace

    from etude.bootstrap.experience import config_here, open_place
    from etude.contracts.query import parse
    from etude.experience.datasets import DatasetConfig
    from etude.experience.datasets import create as create_dataset

    chosen = DatasetConfig(
        split=split,
        shares=_shares(shares),
        seed=seed,
        balance=balance,
        prioritise=prioritise,
        deduplicate=deduplicate,
        limit=limit,
        min_confidence=min_confidence,
        require_propensity=require_propensity,
        cap=cap,
    )
    here = config_here(config)
    version = reward_version or here.reward_version
    conditions, blobs, screen = parse(where), open_place(out, here), console(stderr=as_json)
    with stored(config) as store:
        matching = replace(conditions, problem=conditions.problem or problem)
        total = store.stats(matching, version=version).trajectories
        with _bar("reading", total, screen, MofNCompleteColumn()) as progress:
            manifest = create_dataset(
                store,
                blobs,
                problem=problem,
                where=conditions,
                version=version,
                config=chosen,
                time=datetime.now(UTC),
                progress=progress,
                source=_source(config),
            )
    if as_json:
        print_json(_to_json(manifest))
    _tell(manifest, screen)


@app.command("list")
def list_datasets(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Every dataset made from the store, newest last."""
    from etude.experience.datasets import registered

    with stored(config) as store:
        found = sorted(registered(store).values(), key=lambda manifest: (manifest.created, manifest.id))
    if as_json:
        print_json([_to_json(manifest) for manifest in found])
        return
    if not found:
        console().print("no datasets: `etude dataset create --problem workflow --out datasets/a` makes one")
        return
    rows = [
        [
            manifest.id,
            f"{manifest.created:%Y-%m-%d %H:%M}",
            escape(manifest.problem),
            str(manifest.version),
            f"{manifest.counts.trajectories:,}",
            escape(manifest.query),
            escape(manifest.url),
        ]
        for manifest in found
    ]
    columns = ("dataset", "created", "problem", "reward", "trajectories", "where", "place")
    console().print(table(*columns, rows=rows, right=("reward", "trajectories")))


@app.command()
def show(dataset: Which, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """What is in a dataset, from where, and what was left out."""
    from etude.experience.datasets import Dataset

    manifest = Dataset(_open(dataset, config), verify=False).manifest
    if as_json:
        print_json(_to_json(manifest))
        return
    _tell(manifest, console())


@app.command()
def verify(dataset: Which, config: ConfigFile = None) -> None:
    """Compare every shard of a dataset with its hash."""
    from etude.experience.datasets import Dataset
    from etude.experience.datasets import verify as verify_dataset

    blobs, screen = _open(dataset, config), console()
    total = sum(shard.bytes for shard in Dataset(blobs, verify=False).manifest.shards)
    with _bar("checking", total, screen, DownloadColumn()) as progress:
        manifest = verify_dataset(blobs, progress=progress)
    shards = f"{len(manifest.shards):,} shards, {total:,} bytes"
    screen.print(f"{escape(blobs.url)}: unaltered: {shards}, content {manifest.content}", soft_wrap=True)


def _shares(text: str) -> tuple[float, float, float]:
    try:
        train, validation, test = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--shares is {text!r}: expected three numbers, as 0.8,0.1,0.1") from error
    return train, validation, test


@contextmanager
def _bar(what: str, total: int, screen: Console, count: ProgressColumn) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn(what), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda many: bar.advance(task, many)


def _source(config: Path | None) -> str:
    """The store without its password."""
    from etude.bootstrap.experience import STORE, config_here
    from etude.experience.config import EMBEDDED

    chosen = config_here(config)
    if chosen.store == EMBEDDED:
        return str(Path(chosen.folder).absolute() / STORE)
    parts = urlsplit(chosen.store)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _open(dataset: str, config: Path | None) -> BlobStore:
    """By its place, or by its id or how that begins."""
    from etude.adapters.objects import open_blobs
    from etude.bootstrap.experience import config_here, open_place
    from etude.experience.datasets import MANIFEST, registered

    if "://" in dataset or Path(dataset).exists():
        return open_blobs(dataset)
    there = open_place(dataset, config_here(config))
    if there.get(MANIFEST) is not None:
        return there
    with stored(config) as store:
        known = registered(store)
    found = [manifest for key, manifest in known.items() if key.startswith(dataset)]
    if len(found) != 1:
        what = f"{len(found)} datasets begin with it" if found else "there is no such dataset or folder"
        raise DatasetError(f"{dataset!r}: {what}: `etude dataset list` shows those made from the store")
    return open_blobs(found[0].url)


def _tell(manifest: Manifest, screen: Console) -> None:
    counts = manifest.counts
    rows = [
        ["", "trajectories", f"{counts.trajectories:,}", ""],
        ["", "decisions", f"{counts.decisions:,}", ""],
        *_shared("split", counts.splits, counts.trajectories),
        *_shared("policy", counts.policies, counts.trajectories),
        *_shared("outcome", counts.outcomes, counts.trajectories),
        *_shared("propensity", counts.propensities, counts.trajectories),
        *(["left out", why, f"{many:,}", ""] for why, many in manifest.left_out.items()),
        *(["erased", f"{erasure.time:%Y-%m-%d}", f"{erasure.trajectories:,}", ""] for erasure in manifest.erasures),
    ]
    lines = [
        f"[bold]dataset {manifest.id}[/]  {escape(manifest.url)}",
        f"{escape(manifest.query)}, reward version {manifest.version} ({escape(manifest.definition or 'unknown')}), "
        f"{manifest.first:%Y-%m-%d %H:%M} to {manifest.last:%Y-%m-%d %H:%M}",
    ]
    for line in lines:
        screen.print(line, soft_wrap=True)
    screen.print(table("", "", "count", "share", rows=rows, right=("count", "share")))
    size = sum(shard.bytes for shard in manifest.shards)
    screen.print(f"{len(manifest.shards):,} shards, {size:,} bytes, content {manifest.content}", soft_wrap=True)


def _shared(name: str, counts: dict[str, int], total: int) -> list[list[str]]:
    """The name beside the first only."""
    return [
        [name if i == 0 else "", escape(kind), f"{many:,}", f"{many / total:.1%}" if total else "–"]
        for i, (kind, many) in enumerate(counts.items())
    ]


def _to_json(manifest: Manifest) -> Any:
    import msgspec

    return msgspec.to_builtins(manifest)
