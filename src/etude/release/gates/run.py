"""Runs the gates in order: a context in, a report out. A failed gate does not stop the others: a report is complete."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping

from etude.contracts.errors import ConfigError
from etude.contracts.suggestions import did_you_mean
from etude.learning.gate import Gate, GateContext
from etude.release.gates.approval import approval
from etude.release.gates.drift import drift
from etude.release.gates.fairness import fairness
from etude.release.gates.gate import GateReport, run_gate
from etude.release.gates.held_out import held_out
from etude.release.gates.latency import latency, memory
from etude.release.gates.off_policy import off_policy
from etude.release.gates.red_team import red_team
from etude.release.gates.safety import safety

BEFORE: Mapping[str, Gate] = {"safety": safety, "red_team": red_team}
AFTER: Mapping[str, Gate] = {
    "latency": latency,
    "memory": memory,
    "off_policy": off_policy,
    "held_out": held_out,
    "fairness": fairness,
    "drift": drift,
    "approval": approval,
}
Progress = Callable[[str, int, int], None]
"""Called with the gate that begins, its number from 0, and the number of gates."""


def gates_of(context: GateContext, only: Collection[str] = ()) -> dict[str, Gate]:
    """The gates of a context by name, those of its problem after the general ones on safety; ConfigError for a name in
    `only` that none of them has."""
    own = {name: _resolved(reference) for name, reference in context.spec.gates.items()}
    found = {**BEFORE, **own, **AFTER}
    for name in only:
        if name not in found:
            raise ConfigError(f"there is no gate {name!r}: {did_you_mean(name, found)}there are {', '.join(found)}")
    return {name: gate for name, gate in found.items() if not only or name in only}


def _resolved(reference: str) -> Gate:
    """What "module:attribute" names, imported when the gate runs: a gate that cannot be imported cannot tell."""
    module, _, attribute = reference.partition(":")
    return lambda context: getattr(importlib.import_module(module), attribute)(context)


def run_gates(context: GateContext, *, only: Collection[str] = (), progress: Progress | None = None) -> GateReport:
    """Run all gates, or those in `only`."""
    chosen, results = gates_of(context, only), []
    for number, (name, gate) in enumerate(chosen.items()):
        if progress is not None:
            progress(name, number, len(chosen))
        results.append(run_gate(name, gate, context))
    dataset = context.dataset
    return GateReport(
        version=context.candidate.artefact.version,
        slot=context.slot,
        results=tuple(results),
        incumbent=None if context.incumbent is None else context.incumbent.artefact.version,
        about={
            "dataset": None if dataset is None else dict(dataset.facts),
            "test": 0 if dataset is None else dataset.splits.get("test", 0),
            "requests": len(context.requests),
            "red_team": context.instructions_version,
            "seed": context.seed,
            "only": sorted(only),
        },
    )
