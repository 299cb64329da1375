"""A unit keeps its arm and its probability, in a space that does not grow with the number of units."""

from __future__ import annotations

import tracemalloc
from itertools import count
from pathlib import Path

import pytest

from etude.contracts.release import Exposure, Mode
from etude.release import remembered
from etude.release.assignment import Assignments, in_candidate_arm, new_lines
from etude.release.remembered import Remembered, Units


def exposed(share: float, *, unit: str = "trajectory", release: str = "r-1") -> Exposure:
    return Exposure(release=release, candidate="new", mode=Mode.CANARY, share=share, unit=unit)


def made(folder: Path) -> Assignments:
    return Assignments(folder, clock_ns=count(1).__next__)


def test_a_unit_keeps_its_first_arm_and_probability(tmp_path: Path) -> None:
    assignments, units = made(tmp_path), [f"t-{i}" for i in range(300)]
    first = {unit: assignments.assign(exposed(0.3), unit) for unit in units}
    later = {unit: assignments.assign(exposed(0.9), unit) for unit in units}
    for unit in units:
        assert first[unit].candidate == later[unit].candidate == in_candidate_arm("r-1", unit, 0.3)
        assert first[unit].share == later[unit].share == 0.3
    assert assignments.assign(exposed(0.9), "t-new").share == 0.9
    assert len(list(new_lines(tmp_path / "r-1", {}))) == 301


def test_a_conversation_keeps_its_arm_in_all_processes(tmp_path: Path) -> None:
    one, other = made(tmp_path), made(tmp_path)
    units = [f"c-{i}" for i in range(40)]
    for unit in units:
        one.assign(exposed(0.5, unit="conversation"), unit, f"{unit}-1")
    for unit in units:
        again = other.assign(exposed(1.0, unit="conversation"), unit, f"{unit}-2")
        assert (again.share, again.candidate) == (0.5, in_candidate_arm("r-1", unit, 0.5))
        assert other.assign(exposed(1.0, unit="conversation"), unit, f"{unit}-2").share == 0.5
    lines = list(new_lines(tmp_path / "r-1", {}))
    assert sorted(line.trajectory for line in lines) == sorted(f"{unit}-{i}" for unit in units for i in (1, 2))


def test_another_release_begins_again(tmp_path: Path) -> None:
    assignments = made(tmp_path)
    assert assignments.assign(exposed(0.3), "t-1").share == 0.3
    assert assignments.assign(exposed(0.6, release="r-2"), "t-1").share == 0.6


def test_units_take_the_same_space_however_many_there_are(tmp_path: Path) -> None:
    assignments = made(tmp_path)
    assignments.assign(exposed(0.5), "t-first")
    tracemalloc.start()
    try:
        for i in range(5000):
            assignments.assign(exposed(0.5), f"t-{i}")
        assert tracemalloc.get_traced_memory()[0] < 50_000
    finally:
        tracemalloc.stop()


def test_of_the_units_that_share_their_places_the_oldest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "WAYS", 4)
    monkeypatch.setattr(remembered, "SETS", 2)
    units = Units()
    for mark in (2, 4, 6, 8, 3):
        units.keep(mark, Remembered(mark / 10, mark))
    units.keep(2, Remembered(0.2, 7))
    units.keep(10, Remembered(1.0, 10))
    assert units.find(2) is None
    assert [units.find(mark) for mark in (4, 3, 10)] == [Remembered(0.4, 4), Remembered(0.3, 3), Remembered(1.0, 10)]
