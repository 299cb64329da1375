"""`etude dataset`: freezes stored trajectories into a dataset, lists datasets, shows one, verifies one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import msgspec
import typer
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape

from etude.adapters.objects import open_blobs
from etude.bootstrap.experience import STORE, config_here, experience, open_place
from etude.cli.display import console, print_json, progress_bar, table
from etude.cli.options import ConfigFile
from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConfigError, DatasetError
from etude.contracts.query import parse
from etude.experience.config import EMBEDDED
from etude.experience.datasets import MANIFEST, Dataset, DatasetConfig, Manifest, registered
from etude.experience.datasets import create as create_dataset
from etude.experience.datasets import verify as verify_dataset

app = typer.Typer(no_args_is_help=True, help="Freeze experience into datasets, list them, show one, verify one.")

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON; the rest goes to stderr.")]
Which = Annotated[
    str, typer.Argument(metavar="DATASET", help="Dataset: its id, folder, or s3://….", show_default=False)
]


@app.command()
def create(
    problem: Annotated[
        str, typer.Option(help="Name of the problem; choice:NAME for a choice of your own.", show_default=False)
    ],
    out: Annotated[
        str,
        typer.Option(
            help="Empty folder, below experience.blobs if that is set, or s3://bucket/prefix?endpoint=…&region=….",
            show_default=False,
        ),
    ],
    where: Annotated[
        str, typer.Option(metavar="CONDITIONS", help="Conditions, such as `outcome=success and time>=2026-11-01`.")
    ] = "",
    reward_version: Annotated[
        int | None,
        typer.Option(min=1, help="Reward version to use.", show_default="the one in the settings"),
    ] = None,
    split: Annotated[
        Literal["context", "time"],
        typer.Option(help="context: a request is in one split only; time: the newest are the test split."),
    ] = "context",
    shares: Annotated[str, typer.Option(help="Shares of train, validation and test.")] = "0.8,0.1,0.1",
    balance: Annotated[
        Literal["none", "outcome", "policy", "task_type"],
        typer.Option(help="Give each outcome, policy or set of task types the same total weight."),
    ] = "none",
    prioritise: Annotated[
        float, typer.Option(min=0.0, help="Weight by distance from the context's mean reward, to this power; 0 is off.")
    ] = 0.0,
    deduplicate: Annotated[
        bool,
        typer.Option("--deduplicate", help="Keep one trajectory of those with the same request, actions and ending."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--max", min=1, help="Maximum number of trajectories.", show_default="all")
    ] = None,
    min_confidence: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Leave out rewards with a lower confidence.")
    ] = 0.0,
    require_propensity: Annotated[
        bool,
        typer.Option(
            "--require-propensity", help="Leave out trajectories with a decision without a logged propensity."
        ),
    ] = False,
    cap: Annotated[
        float | None,
        typer.Option(min=1.0, help="Largest weight, as a multiple of the mean weight.", show_default="none"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the splits and of the sample that --max takes.")] = 0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Freeze matching trajectories with their rewards into a dataset: split, sharded and hashed."""
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
    with experience(config) as opened:
        matching = replace(conditions, problem=conditions.problem or problem)
        total = opened.store.stats(matching, version=version).trajectories
        with progress_bar("reading", total, screen) as progress:
            manifest = create_dataset(
                opened.store,
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
        print_json(msgspec.to_builtins(manifest))
    _tell(manifest, screen)


@app.command("list")
def list_datasets(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """List every dataset made from the store, newest last."""
    with experience(config) as opened:
        found = sorted(registered(opened.store).values(), key=lambda manifest: (manifest.created, manifest.id))
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    if not found:
        console().print("no datasets: `etude dataset create --problem choice:model --out datasets/a` makes one")
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
    """Show the content of a dataset, its source, and what was left out."""
    manifest = Dataset(_open(dataset, config), verify=False).manifest
    if as_json:
        print_json(msgspec.to_builtins(manifest))
    else:
        _tell(manifest, console())


@app.command()
def verify(dataset: Which, config: ConfigFile = None) -> None:
    """Compare every shard of a dataset with its hash."""
    blobs, screen = _open(dataset, config), console()
    total = sum(shard.bytes for shard in Dataset(blobs, verify=False).manifest.shards)
    with progress_bar("checking", total, screen, in_bytes=True) as progress:
        manifest = verify_dataset(blobs, progress=progress)
    shards = f"{len(manifest.shards):,} shards, {total:,} bytes"
    screen.print(f"{escape(blobs.url)}: unaltered: {shards}, content {manifest.content}", soft_wrap=True)


def _shares(text: str) -> tuple[float, float, float]:
    try:
        train, validation, test = (float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(f"--shares is {text!r}: expected three numbers, as 0.8,0.1,0.1") from error
    return train, validation, test


def _source(config: Path | None) -> str:
    """URL of the store without its password."""
    chosen = config_here(config)
    if chosen.store == EMBEDDED:
        return str(Path(chosen.folder).absolute() / STORE)
    parts = urlsplit(chosen.store)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _open(dataset: str, config: Path | None) -> BlobStore:
    """Open a dataset by its location, its id, or a prefix of its id."""
    if "://" in dataset or Path(dataset).exists():
        return open_blobs(dataset)
    there = open_place(dataset, config_here(config))
    if there.get(MANIFEST) is not None:
        return there
    with experience(config) as opened:
        known = registered(opened.store)
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
    """Rows of counts with their shares; only the first has the name."""
    return [
        [name if i == 0 else "", escape(kind), f"{many:,}", f"{many / total:.1%}" if total else "–"]
        for i, (kind, many) in enumerate(counts.items())
    ]
