"""`etude jobs`: lists training jobs, shows one, submits, cancels and retries them."""

from __future__ import annotations

import getpass
import json
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer
from msgspec.structs import replace
from rich.markup import escape

from etude.bootstrap.clock import now
from etude.bootstrap.loop import collected_slots, open_jobs, settings_here
from etude.cli.display import console, duration, print_json, table
from etude.cli.options import Assignments, ConfigFile
from etude.contracts.errors import ConfigError
from etude.contracts.formats import usd
from etude.contracts.jobs import Job, JobState, job_id
from etude.contracts.query import parse
from etude.contracts.training import TrainingRequest
from etude.loop.events import check_learnable, job_of
from etude.problems.spec import FROM_LOGS
from etude.problems.table import find_spec

app = typer.Typer(no_args_is_help=True, help="List training jobs, show, submit, cancel and retry them.")

AsJson = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
Which = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, or how it begins.", show_default=False)]


@app.command("list")
def list_jobs(
    slot: Annotated[str | None, typer.Option(help="Only jobs of this slot, such as choice:model.")] = None,
    state: Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 20,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, the newest first."""
    with open_jobs(settings_here(config)) as queue:
        jobs = queue.jobs(slot=slot, states=state or (), limit=limit)
    if as_json:
        print_json(msgspec.to_builtins(jobs))
        return
    if not jobs:
        console().print("no jobs: `etude loop run` starts them when due, `etude jobs submit` starts one now")
        return
    columns = ("job", "slot", "method", "trigger", "priority", "queued", "state", "progress", "policy", "cost")
    rows = [
        [
            job.id,
            escape(job.slot),
            job.method,
            job.request.trigger,
            str(job.priority),
            f"{job.created:%Y-%m-%d %H:%M}",
            _state(job),
            _progress(job),
            job.version or "–",
            usd(job.cost.usd),
        ]
        for job in jobs
    ]
    console().print(table(*columns, rows=rows, right=("priority", "cost")))


@app.command()
def show(job: Which, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show a job: what was requested, how far it is, what it cost, why it failed."""
    with open_jobs(settings_here(config)) as queue:
        found = queue.find(job)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    console().print(table("job", found.id, rows=[[name, escape(value)] for name, value in _facts(found) if value]))


def _facts(job: Job) -> list[tuple[str, str]]:
    cost = f"{usd(job.cost.usd)}, {job.cost.cpu_hours:.3f} CPU-hours, {job.cost.gpu_hours:.3f} GPU-hours"
    waited = duration((job.started - job.created).total_seconds()) if job.started else ""
    return [
        ("slot", job.slot),
        ("method", " ".join(part for part in (job.method, job.request.algorithm) if part)),
        ("trigger", f"{job.request.trigger}, by {job.request.requested_by or 'unknown'}"),
        ("state", _state(job)),
        ("progress", _progress(job)),
        ("queued", f"{job.created:%Y-%m-%d %H:%M:%S %Z}"),
        ("started", f"{job.started:%Y-%m-%d %H:%M:%S %Z}, {waited} after it was queued" if job.started else ""),
        ("ended", f"{job.ended:%Y-%m-%d %H:%M:%S %Z}" if job.ended else ""),
        ("attempts", f"{job.attempts}, {job.failures} failed"),
        ("retried at", f"{job.not_before:%H:%M:%S %Z}" if job.not_before else ""),
        ("run by", f"{job.lease.owner}, leased for {job.lease.left_s:.0f} s more" if job.lease else ""),
        ("dataset", f"{job.dataset_id} in {job.dataset}" if job.dataset else ""),
        ("run", job.run),
        ("policy", job.version or ""),
        ("release", " – ".join(part for part in (job.stage or "", job.stage_note) if part)),
        ("cost", cost),
        ("error", job.error.message if job.error is not None else ""),
    ]


@app.command()
def submit(
    problem: Annotated[str, typer.Option(help="Name of the problem.", show_default=False)],
    method: Annotated[str, typer.Option(help="Learning method, one of the problem's.")] = FROM_LOGS,
    slot: Annotated[
        str | None, typer.Option(help="Slot to train, such as choice:model.", show_default="the problem's only one")
    ] = None,
    priority: Annotated[int, typer.Option(min=0, max=9, help="Priority from 0 to 9; 9 runs first.")] = 5,
    algorithm: Annotated[
        str | None, typer.Option(metavar="ppo|rloo|dpo", help="Algorithm of the method.", show_default="the method's")
    ] = None,
    where: Annotated[
        str, typer.Option(metavar="CONDITIONS", help="Trajectories to learn from, such as `time>=2026-11-01`.")
    ] = "",
    policy: Annotated[
        str | None, typer.Option(help="Registered policy version to continue from.", show_default="the incumbent")
    ] = None,
    assignments: Assignments = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Queue a training job; `etude loop run` runs it."""
    settings, time = settings_here(config), now()
    key, slots = job_id(f"manual:{time.isoformat()}:{secrets.token_hex(8)}"), collected_slots(config)
    conditions = parse(where)
    request = TrainingRequest(
        id=key,
        time=time,
        problem=problem,
        method=method,
        algorithm=algorithm,
        dataset=conditions if slot is None else replace(conditions, problem=slot),
        reward_version=settings.experience.reward_version,
        policy=policy,
        hyperparameters=_hyperparameters(assignments or ()),
        priority=priority,
        requested_by=getpass.getuser(),
    )
    find_spec(problem.partition(":")[0])
    job = job_of(request, slots, time, id=key)
    check_learnable(job, slots)
    with open_jobs(settings) as queue:
        queue.submit(job)
    if as_json:
        print_json(msgspec.to_builtins(job))
        return
    console().print(f"job {job.id} of {escape(job.slot)} queued; `etude loop run` runs it", soft_wrap=True)


def _hyperparameters(assignments: Sequence[str]) -> dict[str, Any]:
    """Settings by dotted key; a value that is not JSON is text."""
    found: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise ConfigError(f"--set {text!r}: expected key=value, such as `--set ppo.lr=0.001`")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


@app.command()
def cancel(job: Which, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Cancel a job; a running one ends within seconds."""
    with open_jobs(settings_here(config)) as queue:
        found = queue.cancel(job)
    done = "is being cancelled" if found.state == JobState.RUNNING else "cancelled"
    _print_done(found, done, as_json=as_json)


@app.command()
def retry(job: Which, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Queue a failed job again; its run resumes where it stopped."""
    with open_jobs(settings_here(config)) as queue:
        found = queue.retry(job)
    _print_done(found, "queued again", as_json=as_json)


def _print_done(job: Job, done: str, *, as_json: bool) -> None:
    if as_json:
        print_json(msgspec.to_builtins(job))
    else:
        console().print(f"job {job.id} of {escape(job.slot)} {done}", soft_wrap=True)


def _state(job: Job) -> str:
    asked = ", cancellation requested" if job.cancel_requested and job.state == JobState.RUNNING else ""
    return f"{job.state}{asked}"


def _progress(job: Job) -> str:
    left = f", {duration(job.progress.eta_s)} left" if job.progress.eta_s and job.state == JobState.RUNNING else ""
    return f"{job.progress.share:.0%}{left}"
