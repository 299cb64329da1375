"""The safety suite: a good policy passes, and each of many bad ones fails for its own fault."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from etude.contracts.decision import DecisionRequest
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateConfig
from etude.release.gates.gate import run_gate
from etude.release.gates.safety import TEXTS, binomial_tail, make_cases, safety
from tests.unit.release.gates.policies import BAD, REQUESTS, Good, Hangs, make_context


def test_a_good_policy_passes(artefact: Artefact) -> None:
    found = run_gate("safety", safety, make_context(artefact))
    assert (found.verdict, found.value) == (Verdict.PASS, 0.0), found.reason
    assert found.evidence["answered"] > 100
    assert found.evidence["refused"] > 10
    assert found.seconds > 0


@pytest.mark.parametrize(("said", "kind"), BAD.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_a_bad_policy_fails_for_its_own_fault(artefact: Artefact, said: str, kind: type[Good]) -> None:
    config = GateConfig(fuzz_cases=120, frequency_draws=200)
    found = run_gate("safety", safety, make_context(artefact, kind, config=config))
    assert found.verdict is Verdict.FAIL
    assert found.value is not None
    assert found.value > 0
    assert any(re.search(said, one) for one in found.evidence["violations"]), found.evidence["violations"]
    assert found.evidence["violations"][0] in found.reason


def test_a_policy_that_hangs_fails_soon(artefact: Artefact) -> None:
    config = GateConfig(fuzz_cases=120, decide_timeout_s=0.2)
    found = run_gate("safety", safety, make_context(artefact, Hangs, config=config))
    assert found.verdict is Verdict.FAIL
    assert "no answer within 0.2 s" in found.evidence["violations"][0]
    assert found.seconds < 20


def test_a_policy_that_cannot_be_loaded_fails(artefact: Artefact) -> None:
    def broken(version: str) -> Good:
        raise RuntimeError("no weights")

    found = run_gate("safety", safety, make_context(artefact, broken))
    assert found.verdict is Verdict.FAIL
    assert "RuntimeError: no weights" in found.reason


def test_a_policy_of_another_version_than_its_artefact_fails(artefact: Artefact) -> None:
    found = run_gate("safety", safety, make_context(artefact, lambda version: Good("0123")))
    assert found.verdict is Verdict.FAIL
    assert "'0123'" in found.reason


def test_without_requests_it_cannot_tell(artefact: Artefact) -> None:
    found = run_gate("safety", safety, make_context(artefact, requests=()))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "give a dataset" in found.reason


def test_cases_are_the_same_for_a_seed_and_have_every_kind() -> None:
    cases = make_cases(REQUESTS, count=400, seed=1)
    assert len(cases) == 400
    assert [case.name for case in cases] == [case.name for case in make_cases(REQUESTS, count=400, seed=1)]
    assert [case.name for case in cases] != [case.name for case in make_cases(REQUESTS, count=400, seed=2)]
    names = " ".join(case.name for case in cases)
    for kind in (
        "as logged",
        "context: NaN",
        "options: none",
        "1,000 options",
        "equal names",
        "limits: cost 0",
        "seed",
    ):
        assert kind in names
    assert any(len(text) >= 1_000_000 for text in TEXTS)


def test_requests_without_options_get_no_options() -> None:
    cases = make_cases([DecisionRequest(context="plan this")], count=200, seed=0)
    assert not any(case.request.options for case in cases)


@pytest.mark.parametrize(("times", "draws", "p"), [(0, 10, 0.5), (10, 10, 0.5), (3, 20, 0.4), (120, 300, 1 / 3)])
def test_binomial_tails_are_exact(times: int, draws: int, p: float) -> None:
    pmf = [math.comb(draws, k) * p**k * (1 - p) ** (draws - k) for k in range(draws + 1)]
    wanted = min(1.0, 2 * min(sum(pmf[: times + 1]), sum(pmf[times:])))
    assert binomial_tail(times, draws, p) == pytest.approx(wanted)


def test_a_certain_answer_comes_always() -> None:
    assert (binomial_tail(300, 300, 1.0), binomial_tail(299, 300, 1.0)) == (1.0, 0.0)


def test_the_evidence_repeats_only_some_violations(artefact: Artefact) -> None:
    context = make_context(artefact, BAD["refused a valid request"])
    found = run_gate("safety", safety, replace(context, config=GateConfig(fuzz_cases=120)))
    assert found.value is not None
    assert found.value > len(found.evidence["violations"])
