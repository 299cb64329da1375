"""The drift gate: requests that no longer look like the training data fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from etude.contracts.decision import DecisionRequest
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.release.gates.drift import drift
from etude.release.gates.gate import GateResult, run_gate
from tests.unit.release.gates.policies import OPTIONS, Crashes, Logs, make_artefact, make_context


def requests(count: int, *, shift: float = 0.0, tiers: tuple[str, ...] = ("gold", "basic")) -> list[DecisionRequest]:
    return [
        DecisionRequest(
            context={"text": "some words " * (3 + i % 7), "tier": tiers[i % len(tiers)], "size": float(i % 50) + shift},
            options=OPTIONS,
            seed=i,
        )
        for i in range(count)
    ]


def judged(artefact: Artefact, **more: Any) -> GateResult:
    return run_gate("drift", drift, make_context(artefact, **more))


def test_the_same_kind_of_requests_passes(artefact: Artefact) -> None:
    found = judged(artefact, reference=requests(300), requests=requests(350)[50:])
    assert found.verdict is Verdict.PASS, found.reason
    assert found.value is not None
    assert found.value < 0.1
    assert {"tier", "size", "text: words", "predicted score"} <= set(found.evidence["psi"])


@pytest.mark.parametrize(
    ("now", "feature"),
    [(requests(300, shift=20), "size"), (requests(300, tiers=("gold", "basic", "new", "newer")), "tier")],
)
def test_drifted_requests_fail_and_the_feature_is_named(
    artefact: Artefact, now: list[DecisionRequest], feature: str
) -> None:
    found = judged(artefact, reference=requests(300), requests=now)
    assert found.verdict is Verdict.FAIL
    assert repr(feature) in found.reason
    assert found.evidence["psi"][feature] >= 0.25


def test_a_feature_that_is_new_has_drifted(artefact: Artefact) -> None:
    now = [msgspec.structs.replace(r, context={**r.context, "plan": "pro"}) for r in requests(300)]
    assert judged(artefact, reference=requests(300), requests=now).evidence["psi"]["plan"] > 1


@pytest.mark.parametrize("offered", [OPTIONS[:1], OPTIONS[1:], (*OPTIONS, {"name": "new"}), ({"name": "new"},)])
def test_a_changed_catalogue_is_no_drift_of_the_requests(artefact: Artefact, offered: tuple[Any, ...]) -> None:
    now = [msgspec.structs.replace(r, options=offered) for r in requests(300)]
    assert judged(artefact, reference=requests(300), requests=now).verdict is Verdict.PASS
    moved = [msgspec.structs.replace(r, options=offered) for r in requests(300, shift=20)]
    assert judged(artefact, reference=requests(300), requests=moved).verdict is Verdict.FAIL


def test_sides_of_different_size_are_compared_alike(artefact: Artefact) -> None:
    """The candidate is asked about some requests only."""
    found = judged(artefact, reference=requests(1000), requests=requests(400))
    assert found.evidence["psi"]["predicted score"] < 0.1


def test_few_requests_cannot_tell(artefact: Artefact) -> None:
    found = judged(artefact, reference=requests(300), requests=requests(250))
    assert found.verdict is Verdict.CANNOT_TELL
    assert "at least 300" in found.reason


def test_a_policy_that_raises_fails(artefact: Artefact) -> None:
    broken = [DecisionRequest(context="\ud800", options=OPTIONS)] * 300
    found = run_gate("drift", drift, make_context(artefact, Crashes, reference=broken, requests=broken))
    assert found.verdict is Verdict.FAIL
    assert "UnicodeEncodeError" in found.reason


def test_without_the_training_requests_it_cannot_tell(artefact: Artefact, tmp_path: Path) -> None:
    assert judged(artefact).verdict is Verdict.CANNOT_TELL
    from_files = make_artefact(tmp_path / "files", method="replay")
    assert judged(from_files, dataset=Logs(rows={"test": []})).evidence["applies"] is False
