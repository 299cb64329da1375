"""Running all gates: their order, the report, the approval, and exceptions that stop nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from etude.contracts.errors import ConfigError, DataError
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateConfig, GateContext, GateResult
from etude.release.gates.approval import approval
from etude.release.gates.gate import GateReport, PolicyFailedError, UndecidedError, run_gate
from etude.release.gates.run import gates_of, run_gates
from tests.unit.release.gates.policies import (
    SPEC,
    Logs,
    NoPropensity,
    make_artefact,
    make_context,
    make_examples,
)

QUICK = GateConfig(fuzz_cases=60, frequency_requests=1, frequency_draws=100, latency_calls=100)


def result(verdict: Verdict, name: str = "a") -> GateResult:
    return GateResult(name=name, verdict=verdict, reason="so")


@pytest.mark.parametrize(
    ("verdicts", "whole"),
    [
        ([Verdict.PASS, Verdict.PASS], Verdict.PASS),
        ([Verdict.PASS, Verdict.CANNOT_TELL], Verdict.CANNOT_TELL),
        ([Verdict.CANNOT_TELL, Verdict.FAIL, Verdict.PASS], Verdict.FAIL),
        ([], Verdict.CANNOT_TELL),
    ],
)
def test_a_report_is_as_good_as_its_worst_gate(verdicts: list[Verdict], whole: Verdict) -> None:
    report = GateReport(version="v", slot="choice:model", results=tuple(map(result, verdicts)))
    assert report.verdict is whole


def test_a_report_is_the_same_after_json() -> None:
    one = replace(result(Verdict.FAIL), value=0.5, bound=1.0, evidence={"n": 3}, seconds=0.25)
    report = GateReport(version="v", slot="s", results=(one, result(Verdict.PASS)), incumbent="w", about={"seed": 1})
    text = json.dumps(report.to_json())
    assert GateReport.from_json(text) == report
    assert json.loads(text)["verdict"] == "fail"
    assert report.reasons(Verdict.FAIL) == ["a: so"]
    assert report.rows()[0] == ("a", "fail", "0.5", "1", "so")


@pytest.mark.parametrize(
    "data", ["{}", "[]", "no", '{"format": 9}', '{"format": 1, "results": [{"verdict": "maybe"}]}']
)
def test_what_is_no_report_is_refused(data: str) -> None:
    with pytest.raises(DataError, match="report of gates"):
        GateReport.from_json(data)


def test_evidence_that_json_cannot_hold_is_made_plain(artefact: Artefact) -> None:
    odd = replace(result(Verdict.PASS), evidence={"nan": math.nan, "set": {1}, "text": "\ud800"})
    found = run_gate("odd", lambda context: odd, make_context(artefact))
    json.dumps(found.evidence, allow_nan=False).encode()
    assert found.name == "odd"


def test_exceptions_become_verdicts(artefact: Artefact) -> None:
    def raises(error: Exception) -> GateResult:
        def gate(context: GateContext) -> GateResult:
            raise error

        return run_gate("gate", gate, make_context(artefact))

    assert raises(PolicyFailedError("it broke")).verdict is Verdict.FAIL
    undecided = raises(UndecidedError("too few", {"n": 3}))
    assert (undecided.verdict, undecided.reason, undecided.evidence) == (Verdict.CANNOT_TELL, "too few", {"n": 3})
    own = raises(ZeroDivisionError("of the gate"))
    assert own.verdict is Verdict.CANNOT_TELL
    assert "ZeroDivisionError: of the gate" in own.reason
    assert "no trajectories" in raises(DataError("there are no trajectories")).reason


def test_approval_is_waited_for(artefact: Artefact) -> None:
    def judged(*, required: bool, approved: bool) -> GateResult:
        config = GateConfig(require_approval=required)
        return run_gate("approval", approval, make_context(artefact, config=config, approved=approved))

    assert judged(required=False, approved=False).verdict is Verdict.PASS
    assert judged(required=True, approved=True).verdict is Verdict.PASS
    missing = judged(required=True, approved=False)
    assert missing.verdict is Verdict.CANNOT_TELL  # it can still be approved
    assert f"etude models approve {artefact.version}" in missing.reason


def own_gate(context: GateContext) -> GateResult:
    return GateResult(name="?", verdict=Verdict.PASS, reason=f"of {context.slot}")


OWN = {"own": "tests.unit.release.gates.test_run:own_gate", "missing": "tests.nowhere:gate"}


def test_a_good_policy_passes_all_gates(tmp_path: Path) -> None:
    logs = Logs(rows={"train": make_examples(300, first=9_000), "test": make_examples(1500)})
    candidate = make_artefact(tmp_path / "candidate", chances={"": 0.9}, data=[logs.content])
    context = make_context(candidate, dataset=logs, config=QUICK)
    seen = list[tuple[str, int, int]]()
    report = run_gates(replace(context, reference=context.requests), progress=lambda *one: seen.append(one))
    assert report.verdict is Verdict.PASS, report.rows()
    names = [one.name for one in report.results]
    assert names == [name for name, _, _ in seen]
    assert names == [
        "safety",
        "red_team",
        "latency",
        "memory",
        "off_policy",
        "held_out",
        "fairness",
        "drift",
        "approval",
    ]
    assert seen[-1] == ("approval", 8, 9)
    assert report.about["dataset"]["id"] == "d"


def test_a_bad_policy_gets_a_complete_report(artefact: Artefact) -> None:
    report = run_gates(make_context(artefact, NoPropensity, config=QUICK, spec=replace(SPEC, gates=OWN)))
    verdicts = {one.name: one.verdict for one in report.results}
    assert report.verdict is verdicts["safety"] is verdicts["red_team"] is Verdict.FAIL
    assert verdicts["own"] is verdicts["latency"] is Verdict.PASS
    assert verdicts["off_policy"] is verdicts["missing"] is Verdict.CANNOT_TELL


def test_some_gates_are_run_by_name(artefact: Artefact) -> None:
    context = make_context(artefact, spec=replace(SPEC, gates=OWN))
    assert [one.name for one in run_gates(context, only=["approval", "own"]).results] == ["own", "approval"]
    with pytest.raises(ConfigError, match="did you mean 'safety'"):
        gates_of(context, ["saftey"])
