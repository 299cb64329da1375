"""The off-policy and held-out gates: proven not worse, proven worse, or not enough evidence; never by training rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.evidence.ope import gate_evidence
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateConfig, GateContext, GateResult
from etude.release.gates.gate import run_gate
from etude.release.gates.held_out import held_out, held_out_examples
from etude.release.gates.off_policy import off_policy
from tests.unit.release.gates.policies import (
    NORTH,
    SOUTH,
    Logs,
    make_artefact,
    make_contender,
    make_context,
    make_examples,
)

LOGS = Logs(rows={"train": make_examples(10, first=10_000), "test": make_examples(1500)})
GOOD, WORSE = {"": 0.9}, {"": 0.1}


def judged(context: GateContext) -> GateResult:
    return run_gate("off_policy", off_policy, context)


def context_of(folder: Path, chances: dict[str, float], dataset: Logs | None = LOGS, **more: Any) -> GateContext:
    data = more.pop("data", [LOGS.content])
    candidate = make_artefact(folder / "candidate", chances=chances, data=data)
    return make_context(candidate, dataset=dataset, **more)


def test_a_better_policy_passes(tmp_path: Path) -> None:
    found = judged(context_of(tmp_path, GOOD))
    assert found.verdict is Verdict.PASS, found.reason
    assert found.value is not None
    assert found.value >= found.bound == 20  # type: ignore[operator]
    assert "behaviour policy" in found.evidence["compared_with"]
    assert "test split judges it" in found.evidence["held_out"]
    assert 0.6 < found.evidence["value_lower_bound"] < 0.76  # the truth


def test_a_worse_policy_fails(tmp_path: Path) -> None:
    found = judged(context_of(tmp_path, WORSE))
    assert found.verdict is Verdict.FAIL
    assert found.evidence["e_value_of_harm"] >= 20
    assert "proven to be worse" in found.reason


def test_few_logs_do_not_decide_about_an_equal_policy(tmp_path: Path) -> None:
    few = replace(LOGS, rows={"test": make_examples(150)})
    found = judged(context_of(tmp_path, {"": 0.5}, few))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "not proven" in found.reason


def test_thin_overlap_is_refused(tmp_path: Path) -> None:
    thin = replace(LOGS, rows={"test": make_examples(1500, chance=lambda group: 0.03)})
    found = judged(context_of(tmp_path, GOOD, thin))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "effective sample size" in found.reason
    assert found.evidence["candidate"]["overlap"]["ess"] < 100


def test_wrong_propensities_are_refused(tmp_path: Path) -> None:
    lied = [
        replace_propensity(example, 0.9 if example.trajectory.decisions[0].action == "a" else 0.1)
        for example in make_examples(1500)
    ]
    found = judged(context_of(tmp_path, {"": 0.5}, replace(LOGS, rows={"test": lied})))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "correct propensities give 1" in found.reason


def replace_propensity(example: Any, p: float) -> Any:
    from msgspec.structs import replace as changed

    trajectory = example.trajectory
    return changed(example, trajectory=changed(trajectory, decisions=(changed(trajectory.decisions[0], propensity=p),)))


def test_an_incumbent_that_did_not_log_is_compared_with(tmp_path: Path) -> None:
    """The candidate is better than the behaviour policy, and worse than the incumbent."""
    incumbent = make_contender(make_artefact(tmp_path / "incumbent", chances={"": 0.99}))
    assert judged(context_of(tmp_path / "1", {"": 0.55}, incumbent=incumbent)).verdict is Verdict.FAIL
    worst = make_contender(make_artefact(tmp_path / "worst", chances={"": 0.2}))
    better = judged(context_of(tmp_path / "2", {"": 0.5}, incumbent=worst))
    assert better.verdict is Verdict.PASS
    assert better.evidence["compared_with"] == "the incumbent"


def test_a_known_smallest_propensity_proves_that_nearly_the_incumbent_is_not_worse(tmp_path: Path) -> None:
    incumbent = make_contender(make_artefact(tmp_path / "incumbent", chances={"": 0.99}))
    context = context_of(tmp_path, {"": 0.98}, incumbent=incumbent)
    assert judged(context).verdict is Verdict.CANNOT_TELL
    assert judged(replace(context, config=GateConfig(min_propensity=0.5))).verdict is Verdict.PASS
    contradicted = GateConfig(min_propensity=0.9)  # the logs have smaller ones, so it is not used
    assert judged(replace(context, config=contradicted)).verdict is Verdict.CANNOT_TELL
    worse = context_of(tmp_path / "worse", {"": 0.5}, incumbent=incumbent, config=GateConfig(min_propensity=0.5))
    assert judged(worse).verdict is Verdict.FAIL


def test_with_the_behaviour_policy_as_incumbent_it_is_the_gate_of_the_design(tmp_path: Path) -> None:
    artefact = make_artefact(tmp_path / "incumbent", chances={"": 0.5})
    logs = replace(LOGS, policies={f"{artefact.version}+sampled": 1500})
    found = judged(context_of(tmp_path, GOOD, logs, incumbent=make_contender(artefact)))
    test = LOGS.rows["test"]
    w = np.array([1.8 if e.trajectory.decisions[0].action == "a" else 0.2 for e in test])
    r = np.array([e.reward for e in test])
    assert found.value == pytest.approx(gate_evidence(w, r, margin=0.02))


def test_false_passes_are_as_rare_as_delta_says(tmp_path: Path) -> None:
    """A candidate that is worse by the margin: each of 100 logs may pass it with probability .05 at most."""
    artefact = make_artefact(tmp_path / "candidate", chances={"": 0.45}, data=[LOGS.content])  # .02 worse
    passed = 0
    for seed in range(100):
        logs = replace(LOGS, rows={"test": make_examples(300, seed=seed)})
        passed += judged(make_context(artefact, dataset=logs)).verdict is Verdict.PASS
    assert passed <= 10


DIFFICULTY = {NORTH: 0.97, SOUTH: 0.03}
"""The reward of requests, nearly whatever is chosen."""


def of_difficulty(count: int, *, gain: float, seed: int = 0) -> Logs:
    def success(group: str, action: str) -> float:
        return DIFFICULTY[group] + (gain / 2 if action == "a" else -gain / 2) * (1 if group == SOUTH else -1)

    return replace(LOGS, rows={"test": make_examples(count, groups=(NORTH, SOUTH), success=success, seed=seed)})


def test_what_the_candidate_expects_of_a_request_makes_fewer_logs_suffice(tmp_path: Path) -> None:
    known = GateConfig(min_propensity=0.5)
    equal, logs = {"": 0.8}, of_difficulty(1500, gain=0.0)
    found = []
    for name, expected in {"without": {}, "with": DIFFICULTY}.items():
        candidate = make_artefact(tmp_path / name, chances=equal, data=[LOGS.content], expected=expected)
        found.append(judged(make_context(candidate, dataset=logs, config=known)).verdict)
    assert found == [Verdict.CANNOT_TELL, Verdict.PASS]


def test_false_passes_are_rare_whatever_the_candidate_expects(tmp_path: Path) -> None:
    """It is worse by the margin: .4 × .05 at requests of the south, and at others by as much."""
    known, passed = GateConfig(min_propensity=0.5), 0
    wrong = {NORTH: 0.1, SOUTH: 0.9}
    candidates = [
        make_artefact(tmp_path / str(i), chances={NORTH: 0.9, SOUTH: 0.1}, data=[LOGS.content], expected=expected)
        for i, expected in enumerate((DIFFICULTY, wrong))
    ]
    for seed in range(60):
        logs = of_difficulty(300, gain=0.05, seed=seed)
        for candidate in candidates:
            passed += judged(make_context(candidate, dataset=logs, config=known)).verdict is Verdict.PASS
    assert passed <= 12


def test_rewards_are_shares_of_their_range(tmp_path: Path) -> None:
    from msgspec.structs import replace as changed

    rows = [changed(example, reward=10 * example.reward - 5) for example in LOGS.rows["test"]]
    wide = judged(context_of(tmp_path, GOOD, replace(LOGS, rows={"test": rows}), reward_range=(-5.0, 5.0)))
    assert wide.value == pytest.approx(judged(context_of(tmp_path / "1", GOOD)).value)
    unbounded = judged(context_of(tmp_path / "2", GOOD, reward_range=None))
    assert unbounded.verdict is Verdict.CANNOT_TELL
    assert "bounds" in unbounded.reason


def test_without_a_dataset_it_cannot_tell_unless_the_settings_say_so(tmp_path: Path) -> None:
    context = context_of(tmp_path, GOOD, None)
    assert judged(context).verdict is Verdict.CANNOT_TELL
    trusting = replace(context, config=GateConfig(first_needs_evidence=False))
    assert judged(trusting).verdict is Verdict.PASS
    assert judged(trusting).evidence["applies"] is False
    later = replace(trusting, incumbent=make_contender(make_artefact(tmp_path / "incumbent")))
    assert judged(later).verdict is Verdict.CANNOT_TELL


def test_rows_that_trained_the_candidate_do_not_judge_it(tmp_path: Path) -> None:
    mine = replace(
        LOGS, rows={"train": LOGS.rows["test"][:900], "validation": LOGS.rows["test"][900:1000]}, content="m"
    )
    context = context_of(tmp_path, GOOD, data=["m"], trained_on=mine)
    judging = [example.trajectory.id for part in held_out_examples(context).examples() for example in part]
    assert judging == [f"t{i}" for i in range(1000, 1500)]
    assert "left out" in judged(context).evidence["held_out"]
    every = replace(context, trained_on=replace(mine, rows={"train": LOGS.rows["test"]}))
    assert judged(every).verdict is Verdict.CANNOT_TELL
    unknown = judged(replace(context, trained_on=None))
    assert unknown.verdict is Verdict.CANNOT_TELL
    assert "may have learned from these trajectories" in unknown.reason


def test_a_dataset_of_another_problem_or_without_a_test_split_cannot_tell(tmp_path: Path) -> None:
    other = judged(context_of(tmp_path, GOOD, replace(LOGS, problem="workflow")))
    assert other.verdict is Verdict.CANNOT_TELL
    assert "'workflow'" in other.reason
    empty = judged(context_of(tmp_path / "1", GOOD, replace(LOGS, rows={"train": LOGS.rows["test"]})))
    assert "no test split" in empty.reason


# Held-out evaluation


@pytest.mark.parametrize(("chances", "verdict"), [(GOOD, Verdict.PASS), (WORSE, Verdict.FAIL)])
def test_held_out_logs_judge_by_intervals(tmp_path: Path, chances: dict[str, float], verdict: Verdict) -> None:
    found = run_gate("held_out", held_out, context_of(tmp_path, chances))
    assert found.verdict is verdict, found.reason
    assert "behaviour policy" in found.reason


def test_held_out_logs_compare_with_the_incumbent(tmp_path: Path) -> None:
    incumbent = make_contender(make_artefact(tmp_path / "incumbent", chances={"": 0.99}))
    found = run_gate("held_out", held_out, context_of(tmp_path, {"": 0.3}, incumbent=incumbent))
    assert found.verdict is Verdict.FAIL
    assert "the incumbent" in found.reason


def test_held_out_evaluation_needs_logs_or_a_world(tmp_path: Path, artefact: Artefact) -> None:
    found = run_gate("held_out", held_out, make_context(artefact))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "neither a dataset nor a world" in found.reason
    thin = replace(LOGS, rows={"test": make_examples(80)})
    assert run_gate("held_out", held_out, context_of(tmp_path / "1", GOOD, thin)).verdict is Verdict.CANNOT_TELL
