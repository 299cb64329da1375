"""The fairness gate: a policy that is worse for one group fails; small groups cannot be judged."""

from __future__ import annotations

from pathlib import Path

from etude.evidence.overlap import Verdict
from etude.learning.gate import GateResult
from etude.release.gates.fairness import fairness
from etude.release.gates.gate import run_gate
from tests.unit.release.gates.policies import NORTH, SOUTH, Logs, make_artefact, make_context, make_examples


def right(group: str, action: str) -> float:
    """`a` is right for the north, `b` for the south."""
    return 0.9 if action == ("a" if group == NORTH else "b") else 0.3


def judged(folder: Path, chances: dict[str, float], *, groups: tuple[str | None, ...], count: int = 1600) -> GateResult:
    logs = Logs(rows={"test": make_examples(count, success=right, groups=groups)})
    candidate = make_artefact(folder / "candidate", chances=chances, data=[logs.content])
    return run_gate("fairness", fairness, make_context(candidate, dataset=logs))


def test_a_policy_that_is_worse_for_a_group_fails(tmp_path: Path) -> None:
    found = judged(tmp_path, {NORTH: 0.95, SOUTH: 0.95}, groups=(NORTH, SOUTH))
    assert found.verdict is Verdict.FAIL
    assert "'south'" in found.reason
    assert found.evidence["groups"][SOUTH]["high"] < -0.05
    assert found.evidence["groups"][SOUTH]["difference"] < -0.4


def test_a_policy_that_serves_both_groups_passes(tmp_path: Path) -> None:
    found = judged(tmp_path, {NORTH: 0.95, SOUTH: 0.05}, groups=(NORTH, SOUTH))
    assert found.verdict is Verdict.PASS, found.reason
    assert set(found.evidence["groups"]) == {NORTH, SOUTH}


def test_a_small_group_cannot_be_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, {NORTH: 0.95, SOUTH: 0.05}, groups=(*[NORTH] * 9, SOUTH), count=1500)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "150 trajectories, fewer than 200" in found.reason


def test_without_groups_there_is_nothing_to_compare(tmp_path: Path) -> None:
    found = judged(tmp_path, {}, groups=(None,), count=300)
    assert found.verdict is Verdict.PASS
    assert found.evidence["applies"] is False
    assert judged(tmp_path / "1", {}, groups=(NORTH,), count=300).evidence["applies"] is False


def test_without_logs_it_cannot_tell(tmp_path: Path) -> None:
    context = make_context(make_artefact(tmp_path / "candidate"))
    assert run_gate("fairness", fairness, context).verdict is Verdict.CANNOT_TELL
