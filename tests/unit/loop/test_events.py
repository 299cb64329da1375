"""Steps of releases as deployment events: which policies decide, with which shares, after each step."""

from __future__ import annotations

from pathlib import Path

import pytest

from etude.contracts.deployment import ModelDeployed
from etude.contracts.release import Mode
from etude.contracts.subjects import decode, encode
from etude.loop.events import deployed_of
from tests.unit.release.traffic import SLOT, Traffic


def deployments(traffic: Traffic) -> list[ModelDeployed]:
    found = [deployed_of(SLOT, entry) for entry in traffic.registry.history(SLOT)]
    for event in found:
        assert event is None or decode(encode(event)) == event
    return [event for event in found if event is not None]


def test_from_the_first_policy_to_a_promotion(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.5, 0.9))
    traffic.start(config={"holdback_days": 1.0})
    while traffic.registry.serving(SLOT).incumbent == traffic.old:
        traffic.serve(500, error=dict.fromkeys(traffic.versions, 0.0))
        traffic.controller().reconcile(SLOT)
    old, new = traffic.versions
    found = deployments(traffic)
    assert [event.stage for event in found] == ["full", "canary", "canary", "canary", "full"]
    assert [event.canary_stage for event in found] == [None, 0, 1, 2, None]
    assert [event.traffic for event in found] == [
        {old: 1.0}, {new: 0.1, old: 0.9}, {new: 0.25, old: 0.75}, {new: 0.5, old: 0.5},
        {new: 0.95, old: pytest.approx(0.05)},
    ]  # fmt: skip
    assert [event.replaces for event in found] == [None, old, old, old, old]
    assert [stage.share for stage in found[1].canary] == [0.1, 0.25, 0.5]
    assert len({event.id for event in found}) == 5


@pytest.mark.parametrize("mode", [Mode.CANARY, Mode.EXPERIMENT, Mode.SHADOW])
def test_a_release_that_is_held_or_ends_without_a_promotion(tmp_path: Path, mode: Mode) -> None:
    traffic = Traffic(tmp_path)
    traffic.start(mode)
    traffic.controller().pause(SLOT, by="ada")
    traffic.controller().abort(SLOT, by="ada")
    started, paused, ended = deployments(traffic)[1:]
    assert (started.stage, paused.stage, ended.stage) == (mode.value, "hold", "rolled_back")
    assert paused.traffic == ended.traffic == {traffic.old: 1.0}
    assert ended.reason == "by ada"
