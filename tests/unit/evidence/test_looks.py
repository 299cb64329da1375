"""The course of a release is the evidence itself, looked at after some of the units."""

from __future__ import annotations

import random

from etude.evidence.eprocess import EarlyError, Evidence, EvidenceConfig, Unit
from etude.evidence.looks import looks


def units(number: int) -> list[Unit]:
    rng = random.Random(0)
    return [Unit(candidate=rng.random() < 0.25, share=0.25, score=rng.random()) for _ in range(number)]


def test_the_last_look_is_the_evidence() -> None:
    made, evidence = units(500), Evidence(EvidenceConfig())
    for unit in made:
        evidence.update(unit)
    last = looks(Evidence(EvidenceConfig()), made, most=7)[-1]
    assert last.units == 500
    assert last.e_values == evidence.e_values()
    assert last.candidates == evidence.candidates
    assert last.effect == evidence.interval()
    assert last.share == 0.25


def test_looks_are_few_and_include_those_asked_for() -> None:
    found = [look.units for look in looks(Evidence(EvidenceConfig()), units(1_000), at=[123, 124], most=10)]
    assert found == [100, 123, 124, *range(200, 1_001, 100)]
    assert [look.units for look in looks(Evidence(EvidenceConfig()), units(5))] == [1, 2, 3, 4, 5]
    assert looks(Evidence(EvidenceConfig()), []) == []


def test_early_errors_are_in_the_looks_that_follow_them() -> None:
    early = [EarlyError(candidate=True, share=0.25, error=True)] * 3
    made = units(2)
    first, second = looks(Evidence(EvidenceConfig(), early_errors=True), [made[0], *early, made[1]])
    assert first.e_values["early_errors"] == second.e_values["early_errors"] > 1, (
        "a look is after all that came by then"
    )
