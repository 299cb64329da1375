"""The report page of any run, from its folder, its comparison with other policies and the problem's contribution.

Every run has its learning curve or its estimates, the comparison, its health and its settings. A problem adds what
only it can show, as a `Contribution`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etude.contracts.formats import compact, percent
from etude.learning.comparison import interpret
from etude.learning.run import STOPPED, StopReason
from etude.learning.run_folder import RunFolder
from etude.reports.blocks import Section, Tile
from etude.reports.estimates import estimate_tiles, passes_section
from etude.reports.page import Measure, Page, Row, read_rows
from etude.reports.returns import (
    Scores,
    health,
    learning_curve,
    return_histograms,
    return_tiles,
    score_table,
    time_tiles,
)


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """The data of a run. The first score, if any, is that of the run's own policy."""

    folder: RunFolder
    config: Mapping[str, Any]
    rows: Sequence[Row]
    scores: Scores
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Notes that the problem recorded during the comparison, by name."""

    @property
    def from_logs(self) -> bool:
        return "algorithm" in self.config or any("estimate" in row for row in self.rows)

    @property
    def digits(self) -> int:
        """Decimals of a return; 0 if returns are large."""
        returns = [*(row.get("eval_return", 0.0) for row in self.rows), *(score.mean for score in self.scores.values())]
        return 0 if any(abs(value) >= 100 for value in returns) else 2


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """What a problem adds to the page of its run."""

    sections: Sequence[Section] = ()
    measures: Mapping[str, Measure] = field(default_factory=dict)  # the metrics of a Score, in order
    title: str = ""
    facts: Sequence[str] = ()
    lead: str = ""  # comes before what the comparison says in words
    tiles: Sequence[Tile] | None = None  # None: those of returns, or of estimates
    learning: Sequence[Section] | None = None  # in place of the learning curve and the health; None: those


def run_report(
    folder: RunFolder,
    *,
    comparison: Scores | None = None,
    contribute: Callable[[RunContext], Contribution] | None = None,
    notes: Mapping[str, Any] | None = None,
    out: Path | None = None,
) -> Path:
    """Write the page, by default into the folder."""
    run = RunContext(
        folder=folder, config=folder.config(), rows=read_rows(folder), scores=comparison or {}, notes=notes or {}
    )
    names = dict.fromkeys(key for score in run.scores.values() for key in score.metrics)
    usual = {key: Measure(key.replace("_", " "), "", compact) for key in names}
    own = contribute(run) if contribute is not None else Contribution(measures=usual)
    summary = folder.summary()
    shares = {key: (m.label, m.about) for key, m in own.measures.items() if m.form is percent}
    heading = own.title or str(run.config.get("problem", "run"))
    seed = run.config.get("run", {}).get("seed")
    page = Page(
        title=f"{heading} · {folder.path.name}",
        heading=heading,
        state=f"stopped: {STOPPED[StopReason(summary['stopped'])]}" if summary else "in progress",
        facts=[*own.facts, *([] if seed is None else [f"seed {seed}"])],
        tiles=_tiles(run) if own.tiles is None else own.tiles,
        lead=" ".join([own.lead, *interpret(run.scores, shares=shares, digits=run.digits)]).strip(),
        sections=_sections(run, own),
        config=run.config,
    )
    return page.write(out or folder.report)


def _tiles(run: RunContext) -> list[Tile]:
    if run.from_logs:
        return estimate_tiles(run.rows)
    return [*return_tiles(run.rows, run.scores, digits=run.digits), *time_tiles(run.rows)]


def _sections(run: RunContext, own: Contribution) -> list[Section]:
    by_returns = own.learning is None and not run.from_logs
    learning = own.learning
    if by_returns:
        episodes = run.config.get("run", {}).get("eval_episodes", 0)
        learning = [learning_curve(run.rows, run.scores, episodes=episodes, digits=run.digits)]
    return [
        *([passes_section(run.rows)] if learning is None else learning),
        *score_table(run.scores, own.measures, digits=run.digits),
        *own.sections,
        *return_histograms(run.scores, digits=run.digits),
        *(health(run.rows) if by_returns else []),
    ]
