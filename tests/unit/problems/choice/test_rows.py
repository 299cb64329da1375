"""Rows of replay files and of logged decisions: what is read, and what every bad one is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import DataError
from etude.contracts.option import Option
from etude.contracts.trajectory import Outcome, Trajectory
from etude.experience.datasets import Example
from etude.problems.choice import rows as module
from etude.problems.choice.rows import LoggedRows, ReplayFile, Row, Rows, find_options, read_options_file

GOOD = {"context": "a text", "outcomes": {"a": {"score": 1, "cost_usd": 0.5, "latency_ms": 20}, "b": 0}}


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def read(rows: Rows) -> list[Row]:
    return [row for part in rows() for row in part]


def line_of(tmp_path: Path, line: Any, options: tuple[Option, ...] | None = None) -> Row:
    (row,) = read(ReplayFile(write(tmp_path / "past.jsonl", line), options))
    return row


# Replay files: good lines


def test_a_line_is_a_context_with_outcomes(tmp_path: Path) -> None:
    row = line_of(tmp_path, GOOD)
    assert row.context == {"text": "a text"}
    assert row.outcomes == {"a": {"score": 1.0, "cost_usd": 0.5, "latency_ms": 20.0}, "b": {"score": 0.0}}
    assert (row.propensity, row.options, row.source) == (None, None, "line 1")


@pytest.mark.parametrize(
    ("line", "context"),
    [
        ({"context": 3}, {"number": 3.0}),
        ({"context": {"tier": "gold", "size": 2, "none": None}}, {"tier": "gold", "size": 2.0}),
        ({"instruction": "sum", "task_type": "math"}, {"text": "sum", "task_type": "math"}),
        ({"instruction": "sum"}, {"text": "sum"}),
    ],
)
def test_contexts(tmp_path: Path, line: dict[str, Any], context: Mapping[str, Any]) -> None:
    assert line_of(tmp_path, line | {"outcomes": {"a": 1}}).context == context


@pytest.mark.parametrize(
    ("outcome", "read"),
    [
        (True, {"score": 1.0}),
        (-0.5, {"score": -0.5}),
        ({"success": True}, {"score": 1.0, "success": 1.0}),
        ({"success": False, "quality": 0.9}, {"score": 0.0, "success": 0.0, "quality": 0.9}),
        ({"quality": 0.9, "score": None}, {"score": 0.9, "quality": 0.9}),
        ({"score": 0.1, "success": True}, {"score": 0.1, "success": 1.0}),
        ({"score": 1, "cost_usd": 0}, {"score": 1.0, "cost_usd": 0.0}),
    ],
)
def test_a_score_is_given_or_is_success_or_quality(tmp_path: Path, outcome: Any, read: dict[str, float]) -> None:
    assert line_of(tmp_path, {"context": "x", "outcomes": {"a": outcome}}).outcomes == {"a": read}


def test_a_sampled_option_has_its_propensity_and_what_was_offered(tmp_path: Path) -> None:
    line = {"context": "x", "outcomes": {"b": 1}, "propensity": 0.25, "options": ["a", {"name": "b", "price": 2}]}
    row = line_of(tmp_path, line)
    assert row.propensity == 0.25
    assert row.options == (Option(name="a"), Option(name="b", numbers={"price": 2.0}))
    known = (Option(name="a"),)
    assert line_of(tmp_path, line, known).outcomes.keys() == {"b"}  # what the line says comes first


def test_rows_of_the_same_context_are_one_group_and_all_are_kept(tmp_path: Path) -> None:
    other = GOOD | {"context": "another text"}
    turned = (
        {"context": {"b": 1, "a": "x"}, "outcomes": {"a": 1}},
        {"context": {"a": "x", "b": 1}, "outcomes": {"b": 1}},
    )
    rows = read(ReplayFile(write(tmp_path / "past.jsonl", GOOD, other, GOOD, *turned), None))
    assert len(rows) == 5
    assert rows[0].group == rows[2].group != rows[1].group
    assert rows[3].group == rows[4].group


def test_a_file_is_read_in_parts_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    file = ReplayFile(write(tmp_path / "past.jsonl", GOOD, "", GOOD, "  ", GOOD, "x"), None)
    for _ in range(2):
        assert [[row.source for row in part] for part in file()] == [["line 1", "line 3"], ["line 5"]]
        assert (file.unused.used, file.unused.reasons) == (3, {"no JSON": 1})


# Replay files: bad lines

BAD: list[tuple[str, Any, str]] = [
    ("no JSON", '{"context": "x"', "line 2: .*: expected one JSON object per line"),
    ("no JSON", '{"context": "\\ud800", "outcomes": {"a": 1}}', "line 2: .*: expected one JSON object per line"),
    ("no JSON", '{"context": "x", "outcomes": {"a": NaN}}', "line 2: "),
    ("no JSON", "[" * 100_000, "line 2: "),
    ("no object", "[1, 2]", r"line 2 is \[1, 2\]: expected a JSON object"),
    ("no object", "3", "line 2 is 3: expected a JSON object"),
    ("no context", {"outcomes": {"a": 1}}, "line 2: there is no context"),
    ("no context", {"context": "", "outcomes": {"a": 1}}, "line 2: there is no context"),
    ("no context", {"context": None, "outcomes": {"a": 1}}, "line 2: there is no context"),
    ("context", {"context": [1], "outcomes": {"a": 1}}, r"line 2: context is \[1\]: expected a text, a number"),
    ("context", {"context": {"a": {"b": 1}}, "outcomes": {"a": 1}}, r"line 2: context\.a is \{'b': 1\}"),
    ("no outcomes", {"context": "x"}, "line 2: outcomes is None: expected {option"),
    ("no outcomes", {"context": "x", "outcomes": {}}, "line 2: outcomes is {}"),
    ("no outcomes", {"context": "x", "outcomes": [1]}, r"line 2: outcomes is \[1\]"),
    ("no outcome", {"context": "x", "outcomes": {"a": "good"}}, "line 2: outcomes.a is 'good': expected {score"),
    (
        "unknown kind of outcome",
        {"context": "x", "outcomes": {"a": {"scores": 1}}},
        "a.scores is no kind of outcome.*'score'",
    ),
    (
        "outcome that is no number",
        {"context": "x", "outcomes": {"a": {"score": "1"}}},
        "a.score is '1': expected a finite number",
    ),
    (
        "outcome that is no number",
        '{"context": "x", "outcomes": {"a": 1' + "0" * 400 + "}}",
        "a.score is 1000.*expected a finite",
    ),
    (
        "negative cost or latency",
        {"context": "x", "outcomes": {"a": {"score": 1, "cost_usd": -1}}},
        "a.cost_usd is -1: expected 0 or",
    ),
    (
        "negative cost or latency",
        {"context": "x", "outcomes": {"a": {"score": 1, "latency_ms": -0.1}}},
        "a.latency_ms is -0.1",
    ),
    ("no score", {"context": "x", "outcomes": {"a": {"cost_usd": 1}}}, "a has no score: expected score, success or"),
    (
        "outcome that is too large",
        {"context": "x", "outcomes": {"a": 1e308}},
        "a.score is 1e.308: expected at most 1e.12",
    ),
    (
        "outcome that is too large",
        {"context": "x", "outcomes": {"a": {"score": 1, "cost_usd": 2e12}}},
        "a.cost_usd is 2000000000000.0: expected at most 1e.12; use a larger unit, or leave the row out",
    ),
    (
        "number of a context that is too large",
        {"context": {"size": -1e308}, "outcomes": {"a": 1}},
        r"context\.size is -1e.308: expected at most 1e.100; use a larger unit, or leave it out",
    ),
    (
        "option without a name",
        {"context": "x", "outcomes": {"": 1, "a": 1}},
        "outcomes has '': expected an option's name",
    ),
    (
        "option without a name",
        {"context": "x", "outcomes": {"a": 1, " ": 1}},
        "outcomes has ' ': expected an option's name",
    ),
    (
        "two outcomes of one option",
        {"context": "x", "outcomes": {"a": 1, " a": 0}},
        "outcomes has 'a' twice, with other",
    ),
    ("propensity", {"context": "x", "outcomes": {"a": 1}, "propensity": 0}, "propensity is 0: .*above 0 and up to 1"),
    ("propensity", {"context": "x", "outcomes": {"a": 1}, "propensity": 1.5}, "propensity is 1.5"),
    ("propensity", {"context": "x", "outcomes": {"a": 1}, "propensity": True}, "propensity is True"),
    ("propensity", {"context": "x", "outcomes": {"a": 1}, "propensity": "1"}, "propensity is '1'"),
    (
        "propensity of several outcomes",
        {"context": "x", "outcomes": {"a": 1, "b": 0}, "propensity": 0.5},
        "propensity is 0.5 and there are 2 outcomes: expected one",
    ),
    (
        "option that was not offered",
        {"context": "x", "outcomes": {"aa": 1}, "options": ["aaa", "b"]},
        r"outcomes has 'aa', which was not offered: did you mean 'aaa'\? add it to the options",
    ),
    ("options", {"context": "x", "outcomes": {"a": 1}, "options": ["a", {"price": 1}]}, r"options\[1\] is .*no name"),
    ("options", {"context": "x", "outcomes": {"a": 1}, "options": ["a", "a"]}, r"options\[1\] has the name 'a', as"),
    ("options", {"context": "x", "outcomes": {"a": 1}, "options": "ab"}, "options is 'ab': expected a list"),
    ("options", {"context": "x", "outcomes": {"a": 1}, "options": []}, "options is empty"),
]


@pytest.mark.parametrize(("reason", "line", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_line_is_counted_with_its_reason_and_the_others_are_learned_from(
    tmp_path: Path, reason: str, line: Any, message: str
) -> None:
    path = write(tmp_path / "past.jsonl", GOOD, line, GOOD, line)
    file = ReplayFile(path, None)
    assert [row.source for row in read(file)] == ["line 1", "line 3"]
    assert (file.unused.reasons, file.unused.used) == ({reason: 2}, 2)
    (sentence,) = file.unused.sentences()
    assert sentence.startswith(f"2 rows are not used: {path}, line 2")
    with pytest.raises(DataError, match=message) as error:
        read(ReplayFile(write(tmp_path / "bad.jsonl", "", line), None))
    assert "no row can be learned from" in str(error.value)
    assert len(str(error.value)) < 700


def test_names_are_read_as_those_of_options_are(tmp_path: Path) -> None:
    row = line_of(tmp_path, {"context": "x", "outcomes": {" a": 1, "b c ": 0}, "options": ["a ", "b c"]})
    assert list(row.outcomes) == ["a", "b c"]


def test_one_row_is_not_several(tmp_path: Path) -> None:
    file = ReplayFile(write(tmp_path / "past.jsonl", GOOD, "x"), None)
    read(file)
    assert file.unused.sentences()[0].startswith("1 row is not used: ")


def test_options_of_a_file_are_those_that_are_offered(tmp_path: Path) -> None:
    known = (Option(name="a"), Option(name="c"))
    file = ReplayFile(write(tmp_path / "past.jsonl", GOOD, {"context": "x", "outcomes": {"c": 1}}), known)
    assert [row.source for row in read(file)] == ["line 2"]
    assert file.unused.reasons == {"option that was not offered": 1}


def test_a_file_without_rows_or_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no row can be learned from: it is empty"):
        read(ReplayFile(write(tmp_path / "past.jsonl"), None))
    with pytest.raises(DataError, match="cannot be read"):
        read(ReplayFile(tmp_path / "none.jsonl", None))


# Files of options


def test_options_lie_next_to_the_outcomes(tmp_path: Path) -> None:
    replay = tmp_path / "past.jsonl"
    assert find_options(replay, None) is None
    (tmp_path / "catalogue.json").write_text('{"task_types": [], "workers": [{"name": "c"}]}')
    assert find_options(replay, None) == (Option(name="c"),)
    (tmp_path / "options.json").write_text('["b"]')
    assert find_options(replay, None) == (Option(name="b"),)
    (tmp_path / "given.json").write_text('{"options": ["a"]}')
    assert find_options(replay, tmp_path / "given.json") == (Option(name="a"),)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a JSON list of options"),
        ('"a"', "options is 'a'"),
        ("{}", "options is None"),
        ("[{}]", "no name"),
    ],
)
def test_a_file_that_holds_no_options_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "options.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as error:
        read_options_file(path)
    assert str(error.value).startswith(str(path))


# Logged decisions


def example(
    outcome: Outcome | None = None, *, reward: float = 0.5, rating: float | None = None, **more: Any
) -> Example:
    given = {"context": {"mood": "good"}, "eligible": ["a", {"name": "b"}], "action": "b", "propensity": 0.25}
    decision = LoggedDecision(**{"problem": "choice:tone", "policy": "p", **given, **more})
    trajectory = Trajectory(
        id="t1",
        time=datetime(2026, 11, 1, tzinfo=UTC),
        task="a task",
        problem="choice:tone",
        decisions=(decision, LoggedDecision(problem="choice:other", policy="p", action=3)),
        outcome=outcome or Outcome(success=True, cost_usd=0.5),
    )
    return Example(trajectory=trajectory, reward=reward, confidence=1.0, weight=1.0, context="c1", rating=rating)


def logged(*examples: Example, score: str = "reward") -> LoggedRows:
    return LoggedRows(lambda: iter([examples[:1], examples[1:]]), "choice:tone", score=score)


def test_a_logged_decision_is_a_row_with_one_outcome() -> None:
    (row,) = read(logged(example()))
    assert row.context == {"mood": "good"}
    assert row.outcomes == {"b": {"score": 0.5, "success": 1.0, "cost_usd": 0.5}}
    assert row.options == (Option(name="a"), Option(name="b"))
    assert (row.propensity, row.group, row.source) == (0.25, "c1", "trajectory t1")


def test_the_score_is_the_reward_success_or_quality() -> None:
    outcome = Outcome(success=False, quality={"judge": 0.6, "tests": 0.9}, latency_ms=7.0)
    rated = example(outcome, rating=0.75)
    scores = {
        kind: read(logged(rated, score=kind))[0].outcomes["b"]["score"] for kind in ("reward", "success", "quality")
    }
    assert scores == pytest.approx({"reward": 0.5, "success": 0.0, "quality": (0.6 + 0.9 + 0.75) / 3})
    assert read(logged(rated))[0].outcomes["b"]["latency_ms"] == 7.0


@pytest.mark.parametrize(
    ("bad", "score", "reason", "message"),
    [
        (example(propensity=None), "reward", "no propensity", "the probability of the decision was not logged"),
        (example(action="c"), "reward", "option that was not offered", "'c' was chosen and not offered"),
        (example(action=None), "reward", "option that was not offered", "'' was chosen"),
        (example(eligible=None), "reward", "options", "eligible is None: expected a list"),
        (example(eligible=["a", "a"]), "reward", "options", "has the name 'a'"),
        (example(context={"x": {"y": 1}}), "reward", "context", r"context\.x is \{'y': 1\}"),
        (example(Outcome(cost_usd=1.0)), "success", "no outcome", r"its success is not known \(yet\)"),
        (example(Outcome(success=True)), "quality", "no outcome", r"its quality is not known \(yet\)"),
        (example(reward=1e300), "reward", "outcome that is too large", r"outcome\.score is 1e\+300: expected at most"),
        (example(reward=float("nan")), "reward", "no outcome", r"its reward is not known \(yet\)"),
    ],
)
def test_a_decision_that_cannot_be_used_is_counted(bad: Example, score: str, reason: str, message: str) -> None:
    good = example(Outcome(success=True, quality={"judge": 1.0}))
    rows = logged(bad, good, bad, score=score)
    assert len(read(rows)) == 1
    assert rows.unused.reasons == {reason: 2}
    assert rows.unused.used == 1
    with pytest.raises(DataError, match=message) as error:
        read(logged(bad, score=score))
    assert "trajectory t1" in str(error.value)
    assert "decisions of 'choice:tone': no row can be learned from" in str(error.value)


def test_without_a_decision_there_is_nothing_to_learn_from() -> None:
    with pytest.raises(DataError, match="decisions of 'choice:tone': no row can be learned from: it is empty"):
        read(logged())
