"""Report sections of any run that learned from logs: estimates of the policy's reward by pass.

The policy is not executed: every number is an estimate on held-out logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from etude.contracts.formats import duration, fixed, percent, whole
from etude.reports.blocks import Section, Tile
from etude.reports.page import Measure, Row, multiples

three = partial(fixed, digits=3)
MEASURES = {
    "estimate": Measure("estimated reward", "On held-out logs, with its 95 % interval where there is one", three),
    "ess": Measure("effective share", "Of the logs, for the policy after each pass", percent),
    "kl_logged": Measure("distance from the logs", "KL divergence, nats per decision"),
    "loss": Measure("loss", "What the algorithm minimises"),
    "policy_loss": Measure("policy loss", "What the algorithm minimises"),
    "entropy": Measure("entropy", "How undecided the policy is, nats"),
    "accuracy": Measure("preferences shared", "Pairs that the policy orders as their rewards do", percent),
    "grad_norm": Measure("gradient norm", "Before it is clipped"),
}


def estimate_tiles(rows: Sequence[Row]) -> list[Tile]:
    passes = [row for row in rows if row["step"] > 0 and "estimate" in row]
    if not passes:
        return [Tile("estimated reward", "–", "no pass is finished yet", kind="first")]
    best, wall = max(passes, key=lambda row: row["estimate"]), rows[-1].get("wall_s", math.nan)
    before = next((row for row in rows if row["step"] == 0 and "estimate" in row), {})
    effective = percent(passes[-1].get("ess", math.nan))
    note = _interval(best) or "on held-out logs; not a trial"
    return [
        Tile("estimated reward", three(best["estimate"]), note, kind="first"),
        Tile(
            "before",
            three(before.get("estimate", math.nan)),
            _interval(before) or "the policy before training, on the same logs",
        ),
        Tile("effective", effective, "of the logs, for the policy after the last pass"),
        Tile("training time", duration(wall), f"{whole(len(passes))} passes"),
    ]


def _interval(row: Row) -> str:
    low, high = (row.get(f"estimate_{side}", math.nan) for side in ("low", "high"))
    known = math.isfinite(low) and math.isfinite(high)
    return f"{three(low)} to {three(high)} (95\N{NO-BREAK SPACE}%), on held-out logs" if known else ""


def passes_section(rows: Sequence[Row]) -> Section:
    note = "One point per pass over the logs, the first before any. Only a trial can show what the policy really earns."
    body = multiples(rows, MEASURES, unit="passes", x_unit=1)
    return Section(title="Passes", name="passes", note=note if body else "No pass is finished yet.", body=body)
