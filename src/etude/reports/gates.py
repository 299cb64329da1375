"""The report of a policy's gates as a page: its JSON in, one HTML file out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etude.reports.blocks import Section, Strong, Tile, table
from etude.reports.page import Page


def write_gates_page(report: Mapping[str, Any], path: Path) -> Path:
    """Write the page of a `GateReport`'s JSON."""
    results = report["results"]
    rows = [
        [
            r["name"],
            Strong(r["verdict"]),
            _number(r["value"]),
            _number(r["bound"]),
            r["reason"],
            f"{r['seconds']:.1f} s",
        ]
        for r in results
    ]
    counts = {verdict: sum(r["verdict"] == verdict for r in results) for verdict in ("pass", "fail", "cannot tell")}
    heads = ("verdict", "value", "bound", "why", "time")
    evidence = [
        Section(title=r["name"], note=r["reason"], body=[table(("value",), _facts(r["evidence"]))])
        for r in results
        if r["evidence"]
    ]
    compared = f"compared with {report['incumbent']}" if report["incumbent"] else "the first policy of its slot"
    page = Page(
        title=f"Gates of {report['version']}",
        state=report["verdict"],
        facts=[report["slot"], compared, f"{report['seconds']:.1f} s"],
        tiles=[Tile(label=verdict, value=str(count), note="gates") for verdict, count in counts.items()],
        sections=[Section(title="Verdicts", body=[table(heads, rows)]), *evidence],
    )
    return page.write(path)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _facts(evidence: Mapping[str, Any]) -> list[list[str]]:
    return [[name, value if isinstance(value, str) else json.dumps(value)] for name, value in evidence.items()]
