"""`etude experience`: shows, exports and erases collected trajectories, and handles dead letters."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import typer
from rich.markup import escape

from etude.adapters.objects import open_blobs
from etude.bootstrap.clock import now
from etude.bootstrap.executions import registered_logs
from etude.bootstrap.experience import experience, open_bus, open_outbox
from etude.bootstrap.release import settings_here, states_of
from etude.cli.display import SAID_BY, console, duration, print_json, progress_bar, sparkline, table
from etude.cli.options import ConfigFile
from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConfigError, DataError, StoreError
from etude.contracts.query import parse
from etude.contracts.services import mask_url
from etude.contracts.store import ExperienceStore, Stats, Summary, TrajectoryDetail
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Feedback, Rating
from etude.experience.cleaning import pseudonym
from etude.experience.forgetting import forget as forget_everywhere
from etude.experience.forward import Forwarding
from etude.experience.ingest import Counts, consume
from etude.files.durable import make_file
from etude.orchestrator.log import forget_in_logs

LAST = (1 << 63) - 1
"""The highest number of a dead letter."""
MAX_DAYS = 100_000.0
"""Maximum age in days."""
app = typer.Typer(no_args_is_help=True, help="Show, export and forget collected trajectories.")

WhereText = Annotated[
    str,
    typer.Option(
        "--where",
        metavar="CONDITIONS",
        help="Conditions, such as 'problem=choice:model and outcome=success and time>=2026-11-01'.",
    ),
]
RewardVersion = Annotated[
    int | None,
    typer.Option(min=1, max=LAST, help="Reward version to show.", show_default="the one in the settings"),
]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="Maximum number of rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command()
def stats(
    where: WhereText = "", reward_version: RewardVersion = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """Show numbers of trajectories by problem, policy and outcome, and their rewards."""
    with experience(config) as opened:
        found = opened.store.stats(parse(where), version=reward_version or opened.config.reward_version)
        letters = len(opened.bus.dead_letters(limit=1000))
    if as_json:
        print_json({**msgspec.to_builtins(found), "dead_letters": letters})
        return
    screen = console()
    if not found.trajectories:
        screen.print("there are no trajectories" + (f" where {escape(where)}" if where else " yet"))
    else:
        _print_stats(found)
    if found.waiting:
        screen.print(
            f"ratings whose trajectory has not arrived: {found.waiting:,} (it may be late, or its id is wrong)"
        )
    if letters:
        screen.print(f"{letters:,} dead letters: `etude experience dead-letters` shows them")


def _print_stats(found: Stats) -> None:
    screen = console()
    assert found.first is not None
    assert found.last is not None
    screen.print(
        f"{found.trajectories:,} trajectories of {found.users:,} users with {found.decisions:,} decisions and "
        f"{found.turns:,} turns, {found.bytes / 1e6:,.1f} MB, {found.first:%Y-%m-%d} to {found.last:%Y-%m-%d}"
    )
    if found.mean_reward is not None:
        screen.print(
            f"mean reward {found.mean_reward:.3f} with confidence {found.mean_confidence or 0:.2f}; "
            f"{found.rewards:,} rewards and {found.feedback:,} pieces of feedback are kept"
        )
    rows = [
        [
            escape(group.problem),
            escape(group.policy or "–"),
            _outcome(group.success),
            f"{group.count:,}",
            _number(group.mean_reward, ".3f"),
            _number(group.mean_cost_usd, ".4f"),
            _took(group.mean_latency_ms),
        ]
        for group in found.groups
    ]
    columns = ("problem", "policy", "outcome", "trajectories", "reward", "USD", "latency")
    screen.print(table(*columns, rows=rows, right=columns[3:]))
    said = ", ".join(f"{SAID_BY[by]} {count:,}" for by, count in found.successes_by.items())
    if said:
        screen.print(f"successes by who said so: {said}", soft_wrap=True)
    if len(found.days) > 1:
        screen.print(f"by day {sparkline([count for _, count in found.days])} {found.days[0][0]} … {found.days[-1][0]}")


@app.command("list")
def list_(
    where: WhereText = "",
    limit: Limit = 20,
    after: Annotated[str | None, typer.Option(help="Cursor at which the previous page ended.")] = None,
    reward_version: RewardVersion = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List trajectories, newest first."""
    with experience(config) as opened:
        version = reward_version or opened.config.reward_version
        page = opened.store.page(parse(where), version=version, after=after, limit=limit)
    if as_json:
        print_json({"rows": [msgspec.to_builtins(row._asdict()) for row in page.rows], "next": page.next})
        return
    columns = ("id", "time", "problem", "policy", "user", "outcome", "reward", "feedback")
    rows = [_listed(row) for row in page.rows]
    console().print(table(*columns, rows=rows, right=("reward", "feedback")) if rows else "there are none")
    if page.next is not None:
        console().print(f"more: --after {escape(page.next)}", soft_wrap=True)


def _listed(row: Summary) -> list[str]:
    return [
        escape(row.id),
        f"{row.time:%Y-%m-%d %H:%M:%S}",
        escape(row.problem),
        escape(row.policy or "–"),
        escape(row.user or "–"),
        _outcome(row.success),
        _number(row.reward, ".3f"),
        _number(row.feedback, ".2f"),
    ]


@app.command()
def show(
    id: Annotated[str, typer.Argument(metavar="ID", help="Id of the trajectory.", show_default=False)],
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show everything that is stored about one trajectory."""
    with experience(config) as opened:
        detail = opened.store.detail(id)
        if detail is None:
            gone = id in opened.store.forgotten([id])
            raise DataError(
                f"{id!r} was forgotten on its user's request"
                if gone
                else f"there is no trajectory {id!r}: `etude experience list` shows them"
            )
    if as_json:
        print_json(msgspec.to_builtins(detail))
    else:
        _print_detail(detail)


def _print_detail(detail: TrajectoryDetail) -> None:
    screen, t = console(), detail.trajectory
    about = {"user": t.user, "group": t.group, "tenant": t.tenant, "agent": t.agent, "model": t.model}
    screen.print(f"[bold]{escape(t.id)}[/]  {t.time:%Y-%m-%d %H:%M:%S %Z}  {escape(t.problem)}", soft_wrap=True)
    screen.print(escape(t.task), soft_wrap=True)
    known = [f"{name} {escape(value)}" for name, value in about.items() if value is not None]
    if known:
        screen.print(", ".join(known), soft_wrap=True, style="dim")
    for decision in t.decisions:
        chance = "propensity unknown" if decision.propensity is None else f"propensity {decision.propensity:.3g}"
        screen.print(
            f"  {decision.at_ms:8.0f} ms  {escape(decision.problem)} by {escape(decision.policy)}: "
            f"{escape(_short(decision.action))}  [dim]{chance}[/]",
            soft_wrap=True,
        )
    for turn in t.turns:
        shown = f"[red]{escape(turn.error)}[/]" if turn.error else escape(_short(turn.result))
        screen.print(f"  {turn.at_ms:8.0f} ms  {escape(_short(turn.action))} → {shown}", soft_wrap=True)
    outcome = t.outcome
    cost = "" if outcome.cost_usd is None else f", {outcome.cost_usd:.4f} USD"
    took = "" if outcome.latency_ms is None else f", {_took(outcome.latency_ms)}"
    by = "" if outcome.success_by is None else f", {SAID_BY[outcome.success_by]}"
    screen.print(f"{_outcome(outcome.success)} ({outcome.ended}{cost}{took}{by})", soft_wrap=True)
    ratings: list[Rating | Feedback] = [*t.feedback, *detail.feedback]
    for rating in ratings:
        parts = [rating.thumbs and f"thumbs {rating.thumbs}", rating.stars and f"{rating.stars} stars", rating.comment]
        screen.print(f"feedback: {escape(', '.join(part for part in parts if part))}", soft_wrap=True)
    for reward in detail.rewards:
        screen.print(
            f"reward {reward.total:.3f} (version {reward.version}, revision {reward.revision}, "
            f"confidence {reward.confidence:.2f})"
        )
    if t.redacted:
        screen.print("redacted: " + ", ".join(f"{count} {kind}" for kind, count in t.redacted.items()), style="dim")


@app.command()
def export(
    where: WhereText = "",
    out: Annotated[Path | None, typer.Option(help="Output file.", show_default="standard output")] = None,
    feedback: Annotated[bool, typer.Option("--feedback", help="Include later feedback.")] = False,
    config: ConfigFile = None,
) -> None:
    """Write trajectories as JSON Lines, oldest first; `etude ingest` reads them."""
    with experience(config) as opened:
        rows = opened.store.scan(parse(where), version=opened.config.reward_version)
        screen = console(stderr=True)
        count = 0
        with _opened(out) as file, progress_bar("exporting", None, screen) as advance:
            for row in rows:
                file.write(row.body + b"\n")
                if feedback and (detail := opened.store.detail(row.summary.id)) is not None:
                    file.writelines(encode(rating) + b"\n" for rating in detail.feedback)
                count += 1
                advance(1)
    if out is not None:
        screen.print(f"{count:,} trajectories written to {escape(str(out))}", soft_wrap=True)


def _opened(out: Path | None) -> BinaryIO:
    if out is None:
        return open(sys.stdout.fileno(), "wb", closefd=False)
    make_file(out)
    return out.open("wb")


@app.command()
def forget(
    user: Annotated[str, typer.Option(help="User to forget.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Erase a user everywhere: in the store, on the bus, in datasets and execution logs. It cannot be undone.

    Names the policies that already learned from the data; later trainings do not use it.
    """
    if not yes and not as_json and sys.stdin.isatty():
        typer.confirm(f"Erase everything about {user!r}?", abort=True)
    with experience(config) as opened:
        buses = [opened.bus] if opened.is_embedded else [opened.bus, open_outbox(opened.config)]
        try:
            gone = forget_everywhere(user, opened.store, buses, open_dataset=_datasets(opened.store), time=now())
            logged, failed = forget_in_logs(registered_logs(opened.store), (user, pseudonym(user)))
        finally:
            for bus in buses[1:]:
                bus.close()
    if as_json:
        unreachable = {str(folder): why for folder, why in failed.items()}
        print_json({**msgspec.to_builtins(gone), "executions": logged, "logs_unreachable": unreachable})
        return
    screen = console()
    screen.print(
        f"{gone.trajectories:,} trajectories, {gone.messages:,} messages and {logged:,} logged executions erased"
    )
    for folder, why in failed.items():
        screen.print(f"not erased in the log {escape(str(folder))}: {escape(why)}; repeat this command", soft_wrap=True)
    for dataset, count in gone.datasets.items():
        where = " – not reachable: erase them there too" if dataset in gone.unreachable else ""
        screen.print(f"{count:,} were in dataset {escape(dataset)}{where}", soft_wrap=True)
    registered = states_of(settings_here(config)) if gone.policies else {}
    for record in gone.policies:
        where = escape(record.run + registered.get(record.version, ""))
        screen.print(
            f"policy {escape(record.version)} ({where}) learned from dataset {record.dataset}: train it again to "
            "remove what it learned from them",
            soft_wrap=True,
        )


def _datasets(store: ExperienceStore) -> Callable[[str], BlobStore | None]:
    """A function that opens a registered dataset by its id; None if it no longer exists."""

    def opened(dataset: str) -> BlobStore | None:
        body = store.documents("dataset").get(dataset)
        url = msgspec.json.decode(body).get("url") if body else None
        if not isinstance(url, str):
            return None
        try:
            blobs = open_blobs(url)
            return blobs if blobs.get("manifest.json") is not None else None
        except StoreError:
            return None

    return opened


@app.command("opt-out")
def opt_out(
    user: Annotated[str, typer.Option(help="User to opt out.", show_default=False)],
    undo: Annotated[bool, typer.Option("--undo", help="Undo an earlier opt-out.")] = False,
    config: ConfigFile = None,
) -> None:
    """Store nothing about a user from now on. Stored data stays until `forget`."""
    with experience(config) as opened:
        for name in (user, pseudonym(user)):
            opened.store.set_opt_out(name, not undo)
    kept = "trajectories are kept again" if undo else "nothing is kept from now on"
    console().print(f"of {user!r} {kept}", markup=False)


@app.command("dead-letters")
def dead_letters(
    limit: Limit = 20,
    after: Annotated[int, typer.Option(min=0, max=LAST, help="Show only dead letters with higher numbers.")] = 0,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List messages that could not be processed, with the reason."""
    with experience(config) as opened:
        letters = opened.bus.dead_letters(after=after, limit=limit)
    if as_json:
        print_json(
            [
                {
                    "number": letter.number,
                    "time": letter.time.isoformat(),
                    "subject": letter.message.subject,
                    "id": letter.message.id,
                    "reason": letter.reason,
                    "attempts": letter.attempts,
                    "body": letter.message.body.decode("utf-8", "replace"),
                }
                for letter in letters
            ]
        )
        return
    rows = [
        [
            str(letter.number),
            f"{letter.time:%Y-%m-%d %H:%M:%S}",
            escape(letter.message.subject),
            escape(letter.reason),
            escape(letter.message.body[:60].decode("utf-8", "replace")),
        ]
        for letter in letters
    ]
    columns = ("number", "buried", "subject", "reason", "begins")
    console().print(table(*columns, rows=rows, right=("number",)) if rows else "there are none")
    if rows:
        console().print("`etude experience replay-dead-letters` processes them again", soft_wrap=True)


@app.command("replay-dead-letters")
def replay_dead_letters(
    numbers: Annotated[
        list[int] | None, typer.Argument(min=1, max=LAST, help="Numbers of dead letters; all by default.")
    ] = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Process dead letters again, for example after an upgrade or when their trajectory has arrived."""
    with experience(config) as opened:
        chosen, replayed, after = list(numbers or ()), 0, 0
        if chosen:
            replayed = opened.bus.replay(chosen)
        else:
            last = 0  # the highest number now: letters that are buried again during the replay have higher ones
            while found := opened.bus.dead_letters(after=last, limit=1000):
                last = found[-1].number
            while batch := [x.number for x in opened.bus.dead_letters(after=after) if x.number <= last]:
                replayed, after = replayed + opened.bus.replay(batch), batch[-1]
        counts = opened.catch_up() if opened.is_embedded else None
    if as_json:
        print_json({"replayed": replayed, **_became(counts)})
        return
    console().print(f"{replayed:,} dead letters replayed")
    for kind, count in _became(counts).items():
        console().print(f"{count:,} became {kind.replace('_', ' ')}")


def _became(counts: Counts | None) -> dict[str, int]:
    if counts is None:
        return {}
    again = {"dead_letter": counts.buried} if counts.buried else {}
    return {**{str(kind): count for kind, count in counts.stored.items()}, **again}


@app.command()
def work(config: ConfigFile = None) -> None:
    """Ingest events from the bus until interrupted. Any number of these consumers may share the work."""
    screen, stop = console(stderr=True), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with experience(config, catch_up=False) as opened:
        screen.print(f"ingesting events from {escape(mask_url(opened.config.bus))}; Ctrl-C ends it", soft_wrap=True)
        outbox = None if opened.is_embedded else open_outbox(opened.config)
        # Events that an ended process left in the outbox of this machine.
        forwarding = None if outbox is None else Forwarding(outbox, lambda: open_bus(opened.config))
        try:
            counts = consume(opened.bus, opened.ingest(), stop=stop)
        finally:
            if forwarding is not None and outbox is not None:
                forwarding.end()
                outbox.close()
    counted = [f"{count:,} {kind.replace('_', ' ')}" for kind, count in _became(counts).items()]
    screen.print(f"ingested {', '.join(counted) or 'nothing'}", soft_wrap=True)


@app.command()
def expire(
    days: Annotated[
        float | None,
        typer.Option(min=0, help="Minimum age in days.", show_default="experience.retention_days"),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Remove trajectories older than the retention time."""
    with experience(config) as opened:
        chosen = opened.config.retention_days if days is None else days
        if chosen is None:
            raise ConfigError("experience.retention_days is null, which keeps everything: set it, or give --days")
        count = opened.store.expire(now() - timedelta(days=min(chosen, MAX_DAYS)))
    console().print(f"{count:,} trajectories older than {chosen:g} days removed")


def _outcome(success: bool | None) -> str:
    return {True: "success", False: "failure", None: "unknown"}[success]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _took(latency_ms: float | None) -> str:
    """A duration as text; reported latencies may sum to infinity."""
    return "–" if latency_ms is None or not isfinite(latency_ms) else duration(latency_ms / 1e3)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 120 else text[:119] + "…"
