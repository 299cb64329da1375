"""The red-team gate: what the file holds, and that each rule catches a policy that breaks it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from etude.contracts.decision import DecisionRequest
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateConfig, GateResult, Rule
from etude.release.gates.gate import run_gate
from etude.release.gates.red_team import read_instructions, red_team
from tests.unit.release.gates.policies import (
    OPTIONS,
    REQUESTS,
    Crashes,
    Echoes,
    ExceedsCap,
    Good,
    Hangs,
    Obeys,
    RefusesAll,
    TakesLarge,
    make_context,
)


def judged(artefact: Artefact, kind: type[Good] = Good, **more: Any) -> GateResult:
    return run_gate("red_team", red_team, make_context(artefact, kind, **more))


def test_the_file_has_six_families_of_different_instructions() -> None:
    version, found = read_instructions()
    families = Counter(one.family for one in found)
    assert version == 1
    assert len(found) >= 200
    assert set(families) == {"injection", "toxicity", "refusal", "exfiltration", "limits", "malformed"}
    assert min(families.values()) >= 30
    assert len({one.id for one in found}) == len(found)
    assert len({(one.text, one.repeat) for one in found}) == len(found)
    assert all(Rule.ELIGIBLE in one.must for one in found)
    assert {rule for one in found for rule in one.must} == set(Rule)
    assert all("{option}" in one.text for one in found if Rule.MASKED in one.must)
    assert all("{secret}" in one.text for one in found if Rule.NO_SECRET in one.must)
    assert max(len(one.text) * one.repeat for one in found) >= 1_000_000


def test_a_good_policy_passes(artefact: Artefact) -> None:
    found = judged(artefact)
    assert (found.verdict, found.value) == (Verdict.PASS, 0.0), found.evidence["violations"]
    assert found.evidence["version"] == 1
    assert found.evidence["families"]["injection"] == {"answered": 36}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Obeys, "which the text demands and the mask excludes"),
        (ExceedsCap, "above max_cost_usd"),
        (Echoes, "repeats the secret"),
        (RefusesAll, "refused a valid request"),
    ],
)
def test_a_policy_that_breaks_a_rule_fails(artefact: Artefact, kind: type[Good], said: str) -> None:
    found = judged(artefact, kind)
    assert found.verdict is Verdict.FAIL
    assert any(said in one for one in found.evidence["violations"]), found.evidence["violations"]


def test_a_policy_that_crashes_fails(artefact: Artefact) -> None:
    instructions = [msgspec.structs.replace(read_instructions()[1][0], text="\ud800 {option}")]
    found = judged(artefact, Crashes, instructions=instructions)
    assert found.verdict is Verdict.FAIL
    assert "UnicodeEncodeError" in found.reason


def test_a_policy_that_hangs_fails(artefact: Artefact) -> None:
    found = judged(artefact, Hangs, config=GateConfig(decide_timeout_s=0.2))
    assert found.verdict is Verdict.FAIL
    assert "no answer within" in found.reason


def test_a_forbidden_option_fails_where_it_is_forbidden(artefact: Artefact) -> None:
    forbids = GateConfig(forbidden={"toxicity": ("large",)})
    assert judged(artefact, TakesLarge).verdict is Verdict.PASS
    found = judged(artefact, TakesLarge, config=forbids)
    assert found.verdict is Verdict.FAIL
    assert "'large', which is forbidden" in found.reason
    assert judged(artefact, config=GateConfig(forbidden={"all": ("small",)})).verdict is Verdict.FAIL
    assert judged(artefact, config=GateConfig(forbidden={"all": ("other",)})).verdict is Verdict.PASS


def test_harm_is_refused_where_an_option_refuses(artefact: Artefact) -> None:
    offer = (*OPTIONS, {"name": "decline", "description": "refuse the request politely"})
    requests = [msgspec.structs.replace(request, options=offer) for request in REQUESTS[:20]]
    config = GateConfig(refusals=("decline",))
    found = judged(artefact, requests=requests, config=config)
    assert found.verdict is Verdict.FAIL
    assert "instead of refusing by 'decline'" in found.reason

    class Declines(Good):
        def chances(self, names: Any, request: DecisionRequest) -> Any:
            return (
                [float(name == "decline") for name in names] if "decline" in names else super().chances(names, request)
            )

    assert judged(artefact, Declines, requests=requests, config=config).verdict is Verdict.PASS


def test_requests_without_text_are_not_asked(artefact: Artefact) -> None:
    found = judged(artefact, requests=[DecisionRequest(context={"load": [0.5, 1.0]})])
    assert found.verdict is Verdict.PASS
    assert found.evidence["applies"] is False


def test_without_instructions_it_cannot_tell(artefact: Artefact) -> None:
    assert judged(artefact, instructions=()).verdict is Verdict.CANNOT_TELL
