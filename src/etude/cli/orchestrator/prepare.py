"""`etude prepare`: makes a training file of execution logs and experts' plans, and says what it left out and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from etude.cli.display import console, print_json, print_warning, progress_bar, table
from etude.contracts.errors import DataError
from etude.orchestrator.expert_plans import ExpertPlans, find_experts, read_experts
from etude.orchestrator.log import log_catalogue, log_files
from etude.orchestrator.prepare import Change, Prepared, Reason, write_prepared
from etude.orchestrator.prepare import prepare as prepare_logs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.examples import Targets, named_targets

SHOWN = 5
"""Changed plans shown."""


def prepare(
    logs: Annotated[Path, typer.Option(help="Folder of execution logs (*.jsonl), or one of them.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Training file to write; catalogue.json is put next to it.")] = Path(
        "training_data.json"
    ),
    experts: Annotated[
        Path | None,
        typer.Option(
            help="Training file of the experts, to mix in.",
            show_default="that of the policy that logged, if it is found here or next to the logs",
        ),
    ] = None,
    max_nodes: Annotated[
        int | None, typer.Option(min=1, help="Leave out plans with more subtasks.", show_default="no limit")
    ] = None,
    trust_self_declared: Annotated[
        bool,
        typer.Option("--trust-self-declared", help="Learn subtasks from self-declared successes, too."),
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Write ids of the catalogue instead of names, as in the source document.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was kept and dropped as JSON; the rest goes to stderr.")
    ] = False,
) -> None:
    """Make a training file of execution logs: of each instruction, the plan that did best.

    Labels of `etude label` override logged outcomes. A self-declared success shows which workers do well; which
    subtasks a plan has is learned from experts, verifiers, judges and people.
    """
    screen = console(stderr=as_json)
    file = experts or find_experts(logs, Path("runs"), (Path(), logs.parent))
    plans = _read_experts(file, out, log_catalogue(logs), max_nodes, screen)
    total = sum(file.stat().st_size for file in log_files(logs))
    with progress_bar("reading", total, screen, in_bytes=True) as advance:
        prepared = prepare_logs(
            logs, max_nodes=max_nodes, experts=plans, trust_self_declared=trust_self_declared, progress=advance
        )
    tell_prepared(prepared, logs, screen)
    write_prepared(prepared, out, ids=ids)
    if as_json:
        print_json({"out": str(out), "experts_file": None if file is None else str(file), **_json(prepared)})
    mixed = f" and {len(prepared.experts):,} of the experts" if plans is not None else ""
    screen.print(f"{len(prepared.examples):,} examples{mixed} written to {escape(str(out))}", soft_wrap=True)
    learn = f"etude train workflow --data {escape(str(out))}"
    screen.print(f"next, judged against the planner that logged: {learn} --dataset D --checkpoint RUN", soft_wrap=True)
    screen.print(f"or from nothing: {learn} --phase 1 --out runs/p1", soft_wrap=True)


def _read_experts(
    file: Path | None, out: Path, catalogue: Catalogue, max_nodes: int | None, screen: Console
) -> ExpertPlans | None:
    if file is None:
        screen.print(
            "no experts are mixed in: --experts FILE names their training file; without one, only verifiers, judges "
            "and people say which subtasks a plan needs",
            soft_wrap=True,
        )
        return None
    if out.exists() and out.samefile(file):
        raise DataError(f"{out}: is the experts' own file, and would be overwritten: choose another --out")
    plans, unusable = read_experts(file, catalogue, max_nodes=max_nodes)
    screen.print(f"experts: {len(plans.examples):,} examples of {escape(str(file))}", soft_wrap=True)
    if unusable:
        said = (
            f"{file}: {unusable:,} examples are left out: the log's catalogue lacks a task type, or they are too long"
        )
        print_warning(escape(said), screen)
    return plans


def tell_prepared(prepared: Prepared, logs: Path, screen: Console) -> None:
    kept, dropped = len(prepared.examples), sum(prepared.dropped.values())
    screen.print(
        f"{escape(str(logs))}: {prepared.read:,} executions read, {kept:,} kept, {dropped:,} dropped", soft_wrap=True
    )
    rows = [
        [reason, f"{count:,}", escape(prepared.places[reason][0])] for reason, count in prepared.dropped.most_common()
    ]
    if rows:
        screen.print(table("dropped", "count", "for example", rows=rows, right=("count",)))
    if prepared.labelled:
        screen.print(f"{prepared.labelled:,} executions have the outcome that a person gave them")
    if prepared.self_declared:
        screen.print(
            f"{prepared.self_declared:,} self-declared successes give their workers to plans of known subtasks"
        )
    if prepared.workers:
        most = ", ".join(f"{change} ({count:,})" for change, count in prepared.workers.most_common(SHOWN))
        screen.print(f"workers by what all attempts show: {escape(most)}", soft_wrap=True)
    if prepared.changes:
        _print_changes(prepared, screen)
    if prepared.dropped[Reason.SELF_DECLARED.value]:
        screen.print(
            "self-declared: only its own plan says that it succeeded, so it does not teach which subtasks a plan "
            "has; configure `verify:` in workers.yaml, label with `etude label`, or name experts",
            soft_wrap=True,
        )
    for warning in prepared.warnings:
        print_warning(escape(warning), screen)


def _print_changes(prepared: Prepared, screen: Console) -> None:
    rows = [
        [escape(_short(c.instruction)), *(escape(_words(t, prepared.catalogue)) for t in (c.before, c.after)), c.reason]
        for c in prepared.changes[:SHOWN]
    ]
    screen.print(table("plans that differ", "before", "after", "why", rows=rows))
    if len(prepared.changes) > SHOWN:
        screen.print(f"and {len(prepared.changes) - SHOWN:,} more: --json lists them all")


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


def _words(plan: Targets | None, catalogue: Catalogue) -> str:
    if plan is None:
        return "–"
    workers = plan.model_selections or (None,) * len(plan.task_types)
    return ", ".join(
        catalogue.task_types[i].name + ("" if worker is None else f" by {catalogue.workers[worker].name}")
        for i, worker in zip(plan.task_types, workers, strict=True)
    )


def _json(prepared: Prepared) -> dict[str, Any]:
    places, counts = prepared.places, prepared.dropped.most_common()
    return {
        "read": prepared.read,
        "kept": len(prepared.examples),
        "experts": len(prepared.experts),
        "labelled": prepared.labelled,
        "self_declared": prepared.self_declared,
        "workers": dict(prepared.workers.most_common()),
        "dropped": {reason: {"count": count, "places": places[reason]} for reason, count in counts},
        "changes": [_change(change, prepared.catalogue) for change in prepared.changes],
        "warnings": prepared.warnings,
    }


def _change(change: Change, catalogue: Catalogue) -> dict[str, Any]:
    plans = {"before": change.before, "after": change.after}
    named = {when: None if plan is None else named_targets(plan, catalogue) for when, plan in plans.items()}
    return {"instruction": change.instruction, "reason": change.reason, **named}
