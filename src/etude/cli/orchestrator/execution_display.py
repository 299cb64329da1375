"""A summary of executions as tables."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.markup import escape

from etude.cli.display import SAID_BY, table
from etude.evidence.intervals import Estimate
from etude.orchestrator.metrics import Calls, Faults, Summary

SELF_DECLARED = (
    "self-declared: no verifier of the whole workflow; configure `verify:` in workers.yaml or label with `etude label`"
)
NUMBERS = ("calls", "success", "USD per call", "ms per call", "count", "done in the end")


def summary_tables(summary: Summary) -> list[RenderableType]:
    """All of them together, then by worker, task type and error category where there were any."""
    shown: list[RenderableType] = [_overall(summary)]
    if summary.workers:
        shown += ["", _calls("worker", summary.workers)]
    if summary.task_types:
        shown += ["", _calls("task type", summary.task_types)]
    if summary.faults:
        shown += ["", _faults(summary.faults)]
    return shown


def _overall(summary: Summary) -> RenderableType:
    violations = sum(summary.violations.values())
    rows = [
        ["workflows", f"{summary.count:,}", f"{summary.successes:,} of them succeeded"],
        ["how they ended", "", _ends(summary)],
        ["planned by", "", _shares(summary.planned_by)],
        *_halves(summary),
        ["success", *_share(summary.success)],
        ["cost, USD", *_mean(summary.cost_usd)],
        ["latency, ms", *_mean(summary.latency_ms)],
        ["reward", *_mean(summary.reward)],
        ["valid plans", *_share(summary.validity)],
        ["violations", f"{violations:,}", _counts(summary.violations) if violations else ""],
        ["corrections per workflow", *_mean(summary.corrections_per_workflow)],
        ["attempts per node", *_mean(summary.attempts_per_node)],
    ]
    return table("", "all", "95 % interval", rows=rows, right=("all",))


def _halves(summary: Summary) -> list[list[str]]:
    """How the shares moved, where several policies planned."""
    if len(summary.planned_by) < 2:
        return []
    return [
        [f"in the {which} half", "", _shares(part)]
        for which, part in zip(("first", "second"), summary.planned_by_half, strict=True)
    ]


def _ends(summary: Summary) -> str:
    """Successes apart from what was done without success."""
    others = {"done without success" if end == "done" else end: n for end, n in summary.unsuccessful.items()}
    return _counts(({"success": summary.successes} if summary.successes else {}) | others)


def success_sentence(successes_by: Mapping[str, int]) -> str:
    """Who said that workflows succeeded, in words; empty where none did."""
    if set(successes_by) == {"self"}:
        return f"success is {SELF_DECLARED}"
    said = ", ".join(f"{SAID_BY[by]} {count:,}" for by, count in successes_by.items())
    return (
        f"successes by who said so: {said}" + (f"; {SELF_DECLARED}" if "self" in successes_by else "") if said else ""
    )


def _calls(what: str, rows: Mapping[str, Calls]) -> RenderableType:
    cells = [
        [
            escape(name),
            f"{calls.calls:,}",
            _between(calls.success),
            _mean(calls.cost_usd)[0],
            _mean(calls.latency_ms)[0],
            _counts(calls.faults) or "–",
        ]
        for name, calls in rows.items()
    ]
    return table(what, "calls", "success", "USD per call", "ms per call", "faults", rows=cells, right=NUMBERS)


def _faults(rows: Mapping[str, Faults]) -> RenderableType:
    cells = [
        [escape(name), f"{fault.count:,}", _counts(fault.corrections), _between(fault.done)]
        for name, fault in rows.items()
    ]
    return table("error", "count", "what followed", "done in the end", rows=cells, right=NUMBERS)


def _between(share: Estimate) -> str:
    """A share with its interval in one cell."""
    return "{} ({})".format(*_share(share))


def _share(estimate: Estimate) -> tuple[str, str]:
    if estimate.count == 0:
        return "–", ""
    return f"{estimate.mean:.1%}", f"{estimate.low:.1%} – {estimate.high:.1%}"


def _mean(estimate: Estimate) -> tuple[str, str]:
    if estimate.count == 0:
        return "–", ""
    return _number(estimate.mean), f"{_number(estimate.low)} – {_number(estimate.high)}"


def _number(value: float) -> str:
    """Four digits: prices of calls are small, latencies large."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _shares(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    return escape(", ".join(f"{name} {count / total:.1%}" for name, count in counts.items()))


def _counts(counts: Mapping[str, int]) -> str:
    return escape(", ".join(f"{name} {count:,}" for name, count in counts.items()))
