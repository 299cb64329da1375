"""The record of a slot: unaltered, allowed step by step, and recomputed; a signed lie is found too."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from etude.contracts.errors import TamperedError
from etude.contracts.release import Action, Entry, ReleaseEntry, Serving, State
from etude.release.audit import verify
from tests.unit.release.traffic import SLOT, Traffic


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    """After a release that was rolled back."""
    made = Traffic(tmp_path_factory.mktemp("audit"), success=(0.9, 0.2))
    made.start()
    made.until_decided()
    return made


def test_an_honest_record_is_verified(traffic: Traffic) -> None:
    found = verify(traffic.open_registry(), SLOT)
    history = traffic.registry.history(SLOT)
    assert found.entries == len(history)
    assert (found.releases, found.replayed) == (1, 1)
    assert found.units == history[-1].evidence["units"] > 0
    assert verify(traffic.open_registry(), SLOT, remembered=found.head) == found
    with pytest.raises(TamperedError, match="cut off"):
        verify(traffic.open_registry(), SLOT, remembered="0" * 64)


def signed(traffic: Traffic, folder: Path, **changes: object) -> Entry:
    """An entry that somebody with the key wrote by hand, past the rules."""
    registry = traffic.open_registry()

    def lie(head: Entry | None) -> Entry:
        assert head is not None
        facts = {"actor": "ada", "action": Action.APPROVED, "version": traffic.old, "evidence": {}, **changes}
        return msgspec.structs.replace(head, number=head.number + 1, **facts)

    return registry.slot_ledger(SLOT).append(lie)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"action": Action.PAUSED}, "was not allowed"),
        ({"action": Action.ALARMED, "actor": "controller", "states": {}}, "other states"),
        ({"action": Action.ALARMED, "serving": Serving(incumbent="f" * 16)}, "only a promotion and a rollback"),
        ({"action": Action.ALARMED, "version": None}, "no version"),
    ],
)
def test_a_signed_step_that_breaks_a_rule_is_found(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    own = Traffic(tmp_path)
    signed(own, tmp_path, **changes)
    with pytest.raises(TamperedError, match=why):
        verify(own.open_registry(), SLOT)


def test_an_automatic_promotion_without_proof_is_found(tmp_path: Path) -> None:
    own = Traffic(tmp_path)
    serving = Serving(incumbent=own.new, previous=own.old)
    states = {own.old: State.PREVIOUS, own.new: State.SERVING}
    signed(own, tmp_path, action=Action.PROMOTED, actor="controller", version=own.new, serving=serving, states=states)
    with pytest.raises(TamperedError, match="only on proof"):
        verify(own.open_registry(), SLOT)


def test_e_values_that_do_not_recompute_are_found(tmp_path: Path) -> None:
    own = Traffic(tmp_path, success=(0.9, 0.2))
    own.start()
    (step,) = own.until_decided()
    ledger = own.registry.ledger(f"releases/{step.evidence['release']}", ReleaseEntry)
    assert step.evidence["through"] == ledger.entries()[-1].number
    later = Traffic(tmp_path / "other", success=(0.9, 0.2))
    later.start()
    head = later.registry.head(SLOT)
    assert head is not None
    lie = step.evidence | {"units": 7, "through": 1}
    later.registry.record(
        SLOT,
        Action.ROLLED_BACK,
        later.new,
        actor="controller",
        evidence=lie | {"release": head.evidence["release"]},
        change=lambda serving: msgspec.structs.replace(serving, exposure=None),
    )
    with pytest.raises(TamperedError, match="does not recompute"):
        verify(later.open_registry(), SLOT)
