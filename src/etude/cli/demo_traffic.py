"""Simulated users of `etude demo`: their queries go through `task.decide`, in a time that passes only as they ask.

The queries and outcomes are made up; the decisions, their propensities and all that is stored are real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from etude.contracts.decision import Decision
from etude.experience.task import Collector
from etude.problems.choice.demo_data import Query, described, make_rows

MODELS = ("coda-32b", "sage-70b", "theorem-r")
"""The models that the application offers."""
PATIENCE_MS = 12_000.0
"""Milliseconds after which a user gives up."""
GOOD_SCORE = 0.75
"""Score above which an answer solves the user's task."""
QUERIES_PER_DAY = 3_000
BATCH = 2_000
START = datetime(2026, 11, 2, 8, tzinfo=UTC)


@dataclass
class SimulatedClock:
    """A clock that stands still between queries."""

    time: datetime = START

    def __call__(self) -> datetime:
        return self.time

    def next_query(self) -> None:
        self.time += timedelta(days=1 / QUERIES_PER_DAY)


def offered() -> list[dict[str, Any]]:
    """The application's models, as a policy sees them."""
    return [model for model in described() if model["name"] in MODELS]


def queries(seed: int) -> Iterator[Query]:
    """Without end; the same seed gives the same."""
    for number in count():
        yield from make_rows(BATCH, 1_000 * seed + number)


@dataclass
class Application:
    """Answers the queries of simulated users with the model that is chosen for each."""

    collector: Collector
    clock: SimulatedClock
    asked: Iterator[Query]
    answers: int = 0
    chosen: dict[str, Counter[str]] = field(default_factory=dict)
    """By version of the policy that decided, how often each model was chosen."""
    solved: Counter[str] = field(default_factory=Counter)
    """By version, tasks that were solved."""

    def serve(self, number: int) -> None:
        """Answer the next queries."""
        options = offered()
        for _ in range(number):
            query = next(self.asked)
            self.clock.next_query()
            with self.collector.task(query.text) as task:
                model = task.decide("model", context=query.text, options=options)
                self._answer(task, query, model.decision)

    def _answer(self, task: Any, query: Query, decision: Decision) -> None:
        name, version = decision.logged[0].action, decision.policy.partition("+")[0]
        outcome = query.outcomes[name]
        gave_up = outcome["latency_ms"] > PATIENCE_MS
        is_solved = not gave_up and outcome["score"] > GOOD_SCORE
        task.outcome(
            success=is_solved,
            cost_usd=outcome["cost_usd"],
            quality={"judge": 0.0 if gave_up else outcome["score"]},
            error=f"no answer in {PATIENCE_MS / 1e3:.0f} s" if gave_up else None,
        )
        self.answers += 1
        self.chosen.setdefault(version, Counter())[name] += 1
        self.solved[version] += is_solved

    def solved_share(self, version: str) -> float:
        """Share of the queries of a policy that were solved."""
        return self.solved[version] / self.chosen[version].total()
