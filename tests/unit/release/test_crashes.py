"""Releases with several processes at once, clocks that jump, and pointers that change between two looks."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from etude.adapters.objects import FolderBlobs
from etude.contracts.errors import ReleaseError
from etude.contracts.release import Action, ReleaseEntry
from etude.release.audit import replay
from etude.release.retention import expire
from tests.unit.release.traffic import SLOT, Traffic, make_artefact


@pytest.mark.parametrize("jump_h", [1, -1])
@pytest.mark.parametrize(("success", "ends"), [((0.2, 0.98), Action.PROMOTED), ((0.8, 0.3), Action.ROLLED_BACK)])
def test_a_clock_that_jumps_an_hour_changes_no_verdict(
    tmp_path: Path, jump_h: int, success: tuple[float, float], ends: Action
) -> None:
    traffic = Traffic(tmp_path, success=success)
    entry = traffic.start(config={"window_s": 60.0, "over_minutes": 9.0})
    controller = traffic.controller()
    traffic.serve(150)
    controller.reconcile(SLOT)
    traffic.now += timedelta(hours=jump_h)
    controller.reconcile(SLOT)
    traffic.until_decided()
    fates = [e.action for e in traffic.registry.history(SLOT) if e.version == traffic.new]
    assert Counter(fates)[ends] == 1
    assert not {Action.PROMOTED, Action.ROLLED_BACK} - {ends} & set(fates)
    ledger = traffic.registry.ledger(f"releases/{entry.evidence['release']}", ReleaseEntry)
    units = [unit.unit for step in ledger.entries() for unit in step.units]
    assert len(units) == len(set(units)), "a unit entered twice"


@pytest.mark.parametrize("broken", [True, False])
def test_an_outage_is_no_proof(tmp_path: Path, broken: bool) -> None:
    """Neither arm has a reward, whether the clock closed their windows too soon or nothing was ingested for days."""
    traffic = Traffic(tmp_path, success=(0.9, 0.2))
    traffic.start(config={"window_s": 3600.0})
    traffic.serve(1500, lost=frozenset(traffic.versions[: 1 + broken]), error={traffic.new: 0.0})
    traffic.now += timedelta(hours=1)
    steps = [entry.action for entry in traffic.controller().reconcile(SLOT)]
    assert (Action.PROMOTED in steps) is not broken, "an incumbent that breaks alone does not stop a candidate"
    assert bool(steps) is not broken


def test_controllers_in_several_processes_take_every_step_once(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path, success=(0.4, 0.95))
    traffic.start(config={"window_s": 60.0})
    clock = tmp_path / "now"
    clock.write_text(str(traffic.now.timestamp()))
    controllers = [_fork_controller(traffic, clock) for _ in range(3)]
    deadline = time.monotonic() + 60
    try:
        while traffic.registry.serving(SLOT).incumbent != traffic.new:
            assert time.monotonic() < deadline
            traffic.serve(50)
            draft = clock.with_suffix(".draft")
            draft.write_text(str(traffic.now.timestamp()))
            draft.rename(clock)
            if traffic.tasks % 500 == 0:
                _end(controllers.pop(0))
                controllers.append(_fork_controller(traffic, clock))
            time.sleep(0.02)
    finally:
        for pid in controllers:
            _end(pid)
    history = traffic.registry.history(SLOT)
    own = [entry.action for entry in history if entry.version == traffic.new]
    assert own.count(Action.PROMOTED) == 1
    assert own.count(Action.ADVANCED) == 2
    traffic.registry.slot_ledger(SLOT).verify()
    decided = [entry for entry in history if "log_e_values" in entry.evidence]
    assert decided
    assert all(replay(traffic.registry, entry).is_equal for entry in decided)
    ledger = traffic.registry.ledger(f"releases/{decided[0].evidence['release']}", ReleaseEntry)
    units = [unit.unit for step in ledger.entries() for unit in step.units]
    assert len(units) == len(set(units))


def _fork_controller(traffic: Traffic, clock: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        traffic.registry = traffic.open_registry()
        controller = traffic.controller()
        while True:
            traffic.now = traffic.now.fromtimestamp(float(clock.read_text()), traffic.now.tzinfo)
            controller.reconcile(SLOT)
    finally:
        os._exit(1)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_an_automatic_actor_promotes_the_first_policy_once_a_person_approved_it(tmp_path: Path) -> None:
    registry = Traffic(tmp_path).registry
    slot = "choice:other"
    version = registry.register(make_artefact(tmp_path / "first", "first"), slot, actor="coordinator")
    registry.record(slot, Action.GATES_PASSED, version, actor="coordinator")
    with pytest.raises(ReleaseError, match="is not approved"):
        registry.promote_directly(slot, version, by="coordinator", reason="the first one")
    with pytest.raises(ReleaseError, match="promotes only on proof"):
        registry.record(
            slot,
            Action.PROMOTED,
            version,
            actor="coordinator",
            evidence={"approved_by": "ada"},
            change=lambda serving: type(serving)(incumbent=version),
        )
    registry.approve(slot, version, by="ada")
    assert registry.promote_directly(slot, version, by="coordinator", reason="").serving.incumbent == version


def test_processes_that_load_a_new_version_at_once_all_get_it(tmp_path: Path) -> None:
    """As all servers do when a canary starts; they share one folder of copies."""
    traffic = Traffic(tmp_path)
    for round_ in range(10):
        made = make_artefact(tmp_path / f"v{round_}", "x" * 100_000 + str(round_))
        version = traffic.registry.register(made, SLOT, actor="test")
        pids = []
        for _ in range(6):
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    traffic.open_registry().artefact(version).file("policy.txt")
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 6
    assert not list((tmp_path / "cache").glob(".*"))


def test_a_damaged_copy_is_replaced(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path)
    copy = traffic.registry.artefact(traffic.old).path
    (copy / "manifest.json").write_text("{}")
    assert traffic.open_registry().artefact(traffic.old).file("policy.txt") == b"old"


def test_a_follower_sees_entries_in_one_tick_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's time of change may be the same before and after an entry: it says nothing."""
    traffic = Traffic(tmp_path)
    follower = traffic.open_registry().follow(SLOT)
    folder = tmp_path / "registry" / "slots" / SLOT
    stamp = os.stat(folder)
    other = Traffic.open_registry(traffic)
    put = FolderBlobs.put

    def put_in_no_time(self: FolderBlobs, key: str, data: bytes, *, replace: bool = True) -> bool:
        done = put(self, key, data, replace=replace)
        os.utime(folder, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        return done

    monkeypatch.setattr(FolderBlobs, "put", put_in_no_time)
    pid = os.fork()
    if not pid:
        try:
            other.record(SLOT, Action.APPROVED, traffic.new, actor="ada")
            other.promote_directly(SLOT, traffic.new, by="ada", reason="")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    time.sleep(0.005)
    assert follower.serving().incumbent == traffic.new


def test_deletion_that_is_killed_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(tmp_path)
    registry = traffic.registry
    delete, calls = FolderBlobs.delete, list[str]()

    def die(self: FolderBlobs, key: str) -> bool:
        calls.append(key)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return delete(self, key)

    monkeypatch.setattr(FolderBlobs, "delete", die)
    with pytest.raises(KeyboardInterrupt):
        registry.delete_files(SLOT, traffic.new, actor="ada", reason="old")
    traffic.now += timedelta(days=40)
    assert expire(registry, SLOT, days=30, actor="ada") == [traffic.new]
    assert registry.blobs.keys(f"artefacts/{traffic.new}/") == []
    actions = [entry.action for entry in registry.history(SLOT) if entry.version == traffic.new]
    assert actions[-2:] == [Action.RETIRED, Action.DELETED]
