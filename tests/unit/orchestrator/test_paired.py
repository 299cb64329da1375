"""Two policies on the same instructions: paired differences, within a budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.contracts.errors import ConfigError
from etude.contracts.trajectory import Outcome
from etude.orchestrator.paired import Pair, carry_out_pairs, measured
from etude.orchestrator.workplace import fresh_instructions, make_workplace
from tests.office import first_phase
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]


def test_both_carry_out_every_instruction() -> None:
    place = make_workplace(None)
    asked = fresh_instructions(place, 12)
    pairs = carry_out_pairs("rules", "random", place, asked, max_cost_usd=None, seed=0)
    assert [pair.instruction for pair in pairs] == asked
    found = measured(pairs, "rules", "random", place, asked=12)
    success = found.json["success"]
    assert success["new"] - success["old"] == pytest.approx(success["difference"]["mean"])
    assert found.json["answer"] == "better than"  # rules do about half, random choices hardly any
    assert "simulated" in found.title


def test_a_policy_is_not_distinguishable_from_itself_and_the_budget_holds() -> None:
    place = make_workplace(None)
    asked = fresh_instructions(place, 30)
    pairs = carry_out_pairs("rules", "rules", place, asked, max_cost_usd=0.5, seed=0)
    assert 1 <= len(pairs) < 30
    found = measured(pairs, "rules", "rules", place, asked=30)
    assert found.json["answer"] == "not distinguishable from"
    assert any(f"after {len(pairs)} of 30 instructions" in sentence for sentence in found.sentences)
    with pytest.raises(ConfigError, match="raise max-cost"):
        measured([], "rules", "rules", place, asked=30)


def test_an_instruction_that_is_repeated_is_one_piece_of_evidence() -> None:
    right, wrong = Outcome(success=True), Outcome(success=False)
    repeated = [Pair(instruction=text, new=right, old=old) for text, old in (("a", wrong), ("b", right))] * 20
    found = measured(repeated, "new", "old", make_workplace(None), asked=40)
    assert found.json["success"]["difference"]["ci95"][0] < 0
    assert found.json["answer"] == "not distinguishable from"
    different = [Pair(instruction=f"{i}", new=pair.new, old=pair.old) for i, pair in enumerate(repeated)]
    assert measured(different, "new", "old", make_workplace(None), asked=40).json["answer"] == "better than"


WORKERS = """
task_types: {count: {description: count words}}
workers:
  wc: {kind: command, command: [wc, -w], stdin: "{instruction}", task_types: [count]}
"""


def test_on_workers_of_ones_own(tmp_path: Path, capsys: Captured, tmp_path_factory: pytest.TempPathFactory) -> None:
    planner = first_phase(tmp_path_factory)
    (tmp_path / "workers.yaml").write_text(WORKERS)
    (tmp_path / "asked.txt").write_text("count these words\ncount those\n")
    given = ["--workers", tmp_path / "workers.yaml", "--instructions", tmp_path / "asked.txt"]
    found = json_output(capsys, "evaluate", planner, "rules", *given)
    assert found["instructions"] == 2
    assert found["judged_by"] == ["self"] or found["judged_by"] == ["None"]
    assert etude("evaluate", planner, "rules", *given) == 0
    assert "name the other one too" in refused(capsys, "evaluate", planner, *given)
    assert "go with --instructions" in refused(capsys, "evaluate", planner, "rules")
