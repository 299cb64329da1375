"""What a choice keeps of past rows: no text, the sources, similar contexts, outcomes."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from etude.contracts.decision import LoggedDecision
from etude.contracts.trajectory import Outcome, Trajectory
from etude.experience.datasets import Example
from etude.learning.outcome_model import Observed
from etude.problems.choice.contexts import ContextReader, fit_contexts
from etude.problems.choice.memory import MAX_ROWS, Memory, remember
from etude.problems.choice.rows import LoggedRows, ReplayFile, Row
from etude.text.ngrams import NGramEncoder

TOPICS = {
    "sums": "add the numbers and integrate the polynomial of degree {}",
    "poems": "write a tender poem about the moon, stanza {}",
    "code": "def f(x): return x  # fix this function, ticket {}",
}


def make_rows(count: int) -> list[Row]:
    """Topics take turns; the size grows."""
    names = list(TOPICS)
    return [
        Row(
            context={"text": TOPICS[names[i % 3]].format(i), "topic": names[i % 3], "size": float(i)},
            outcomes={"a": {"score": i / count, "cost_usd": 2.0}} | ({"b": {"score": 1.0}} if i % 2 else {}),
            source=f"line {i + 1}",
        )
        for i in range(count)
    ]


def observed(rows: list[Row]) -> Observed:
    found = [
        (i, j, row.outcomes[name]) for i, row in enumerate(rows) for j, name in enumerate("ab") if name in row.outcomes
    ]
    value = [[outcome["score"], outcome.get("cost_usd", np.nan)] for _, _, outcome in found]
    return Observed(
        rows=len(rows),
        row=np.array([i for i, _, _ in found]),
        option=np.array([j for _, j, _ in found]),
        value=np.array(value),
        weight=np.ones(len(found)),
    )


@pytest.fixture(scope="module")
def reader() -> ContextReader:
    return fit_contexts([row.context for row in make_rows(240)], NGramEncoder())[0]


def memory_of(reader: ContextReader, rows: list[Row]) -> Memory:
    return remember(reader, rows, observed(rows))


def test_contexts_of_the_same_topic_are_the_most_similar(reader: ContextReader) -> None:
    rows = make_rows(240)
    memory = memory_of(reader, rows)
    similarity = memory.similarity(reader, rows[120].context)
    assert similarity.min() >= 0
    assert similarity.max() == pytest.approx(1)
    assert similarity[120] == pytest.approx(1)
    same = np.array([row.context["topic"] == "sums" for row in rows])
    assert same[np.argsort(-similarity)[:20]].all()
    assert similarity[same].mean() > similarity[~same].mean() + 0.3
    without_size = {key: value for key, value in rows[120].context.items() if key != "size"}
    assert memory.similarity(reader, without_size)[120] == pytest.approx(1)  # what is not known is not compared


def test_a_context_without_text_is_compared_by_its_entries(reader: ContextReader) -> None:
    rows = make_rows(240)
    similarity = memory_of(reader, rows).similarity(reader, {"topic": "poems"})
    assert similarity[1::3].min() > similarity[0::3].max()
    assert similarity[1::3].min() > similarity[2::3].max()


def test_outcomes_stay_with_their_rows_and_options(reader: ContextReader) -> None:
    memory = memory_of(reader, make_rows(10))
    assert memory.sources[3] == "line 4"
    assert memory.outcome(0, 0) == pytest.approx(np.arange(10) / 10)
    assert np.isnan(memory.outcome(1, 0)).tolist() == [True, False] * 5
    assert np.isnan(memory.outcome(1, 1)).all()
    assert memory.take(np.array([7, 2])).outcome(0, 0) == pytest.approx([0.7, 0.2])


def test_a_memory_is_bounded_and_samples_in_proportion(reader: ContextReader) -> None:
    rows = make_rows(3 * MAX_ROWS)
    first, second = memory_of(reader, rows[: 2 * MAX_ROWS]), memory_of(reader, rows[2 * MAX_ROWS :])
    assert len(first) == len(second) == MAX_ROWS
    both = first.plus(second)
    assert both.total == 3 * MAX_ROWS
    assert MAX_ROWS - 2 <= len(both) <= MAX_ROWS
    lines = np.array([int(source.removeprefix("line ")) for source in both.sources])
    assert (np.diff(lines) > 0).all()
    assert np.mean(lines <= 2 * MAX_ROWS) == pytest.approx(2 / 3, abs=0.01)
    assert both.outcome(0, 0) == pytest.approx((lines - 1) / len(rows))
    few = memory_of(reader, rows[:5]).plus(memory_of(reader, rows[5:9]))
    assert few.sources == tuple(f"line {i}" for i in range(1, 10))
    assert few.plus(second).sources[0] == "line 1"


def test_a_sample_of_more_rows_says_so(reader: ContextReader) -> None:
    rows = make_rows(6)
    assert remember(reader, rows, observed(rows), total=1000).total == 1000


def test_tensors_give_the_memory_back_and_hold_no_text(reader: ContextReader) -> None:
    memory = memory_of(reader, make_rows(50))
    tensors = memory.tensors()
    back = Memory.from_state(tensors)
    assert (back.sources, back.total) == (memory.sources, memory.total)
    assert (back.members == memory.members).all()
    assert back.outcome(0, 0) == pytest.approx(memory.outcome(0, 0))
    assert len(Memory.from_state(memory.take(np.arange(0)).tensors())) == 0
    stored = b"".join(x.tobytes() for x in tensors.values())
    assert b"poem" not in stored
    assert b"line 50" in stored


def test_a_row_says_where_it_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "past.jsonl"
    line = '{"context": "a text", "outcomes": {"a": 1, "b": 0}}'
    file.write_text(f"{line}\n\nno JSON\n{line}\n")
    assert [row.source for part in ReplayFile(file, None)() for row in part] == ["line 1", "line 4"]
    decision = LoggedDecision(
        problem="choice:model", context="a text", eligible=["a", "b"], action="a", propensity=0.5, policy="p"
    )
    trajectory = Trajectory(
        id="t7",
        time=datetime(2026, 11, 1, tzinfo=UTC),
        task="a task",
        problem="choice:model",
        policy="p",
        decisions=(decision,),
        outcome=Outcome(success=True),
    )
    example = Example(trajectory=trajectory, reward=1.0, confidence=1.0, weight=1.0, context="c")
    rows = LoggedRows(lambda: iter([[example]]), "choice:model")
    assert [row.source for part in rows() for row in part] == ["trajectory t7"]
