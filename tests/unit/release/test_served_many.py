"""Requests that arrive together, and policies that are loaded while others decide."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError
from etude.contracts.release import Exposure, Mode, Serving
from etude.release.assignment import in_candidate_arm, new_lines
from etude.release.serving import LOADED, ServedPolicy

SLOT = "choice:model"


class Together:
    """A policy that decides requests together, and says with how many each was."""

    problem, quick = SLOT, True

    def __init__(self, version: str, *, answer: Callable[[DecisionRequest], Any] | None = None) -> None:
        self.version, self.groups = version, list[int]()
        self.answer = answer

    def decide(self, request: DecisionRequest) -> Decision:
        (found,) = self.decide_many([request])
        if isinstance(found, Exception):
            raise found
        return found

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Any]:
        self.groups.append(len(requests))
        return [self._made() if self.answer is None else self.answer(request) for request in requests]

    def _made(self) -> Decision:
        logged = LoggedDecision(problem=SLOT, action="a", propensity=1.0, policy=self.version)
        return Decision(action="a", propensity=1.0, policy=self.version, logged=(logged,))


class Pointer:
    """What serves now."""

    def __init__(self, **first: Any) -> None:
        self.now = Serving(**first)

    def serving(self) -> Serving:
        return self.now


class Files:
    """Policies by version; those in `held` are not there before `release` is set."""

    def __init__(self, *versions: str) -> None:
        self.policies = {version: Together(version) for version in versions}
        self.held, self.release, self.loaded = set[str](), threading.Event(), list[str]()

    def __call__(self, version: str) -> Together:
        if version in self.held:
            assert self.release.wait(20)
        self.loaded.append(version)
        return self.policies[version]


def served(folder: Path, pointer: Pointer, files: Files, **options: Any) -> ServedPolicy:
    return ServedPolicy(SLOT, follows=pointer, load=files, journal=folder, **options)


def canary(share: float = 0.5, mode: Mode = Mode.CANARY) -> Exposure:
    return Exposure(release="r-1", candidate="new", mode=mode, share=share)


def asked(number: int = 20, start: int = 0) -> list[DecisionRequest]:
    return [DecisionRequest(trajectory=f"t-{i}") for i in range(start, start + number)]


def policies(found: Sequence[Decision | Exception]) -> list[str]:
    return [one.policy if isinstance(one, Decision) else type(one).__name__ for one in found]


def until(done: Callable[[], bool]) -> None:
    waits = threading.Event()
    for _ in range(2000):
        if done():
            return
        waits.wait(0.005)
    raise AssertionError("it never came to be")


def test_each_arm_decides_its_units_together_and_answers_stay_in_order(tmp_path: Path) -> None:
    files = Files("old", "new")
    policy = served(tmp_path, Pointer(incumbent="old", exposure=canary()), files)
    policy.prepare()
    requests = [*asked(), DecisionRequest()]
    found = policies(policy.decide_many(requests))
    expected = ["new" if in_candidate_arm("r-1", f"t-{i}", 0.5) else "old" for i in range(20)]
    assert found == [*expected, "old"]  # without a trajectory, the incumbent
    assert files.policies["new"].groups == [expected.count("new")]
    assert files.policies["old"].groups == [expected.count("old") + 1]
    lines = list(new_lines(next(tmp_path.rglob("r-1")), {}))
    assert {line.trajectory: line.candidate for line in lines} == {
        f"t-{i}": version == "new" for i, version in enumerate(expected)
    }


@pytest.mark.parametrize(
    "broken",
    [lambda _: ValueError("no"), lambda _: "a text", lambda _: None],
    ids=["an error", "no decision", "nothing"],
)
def test_where_the_candidate_fails_the_other_arm_decides(tmp_path: Path, broken: Callable[[Any], Any]) -> None:
    files = Files("old", "new")
    files.policies["new"].answer = broken
    policy = served(tmp_path, Pointer(incumbent="old", exposure=canary()), files)
    policy.prepare()
    assert set(policies(policy.decide_many(asked()))) == {"old"}
    failed = [line for line in new_lines(next(tmp_path.rglob("r-1")), {}) if line.failed]
    assert len(failed) == files.policies["new"].groups[0]


def test_a_wrong_request_is_no_failure_of_the_candidate(tmp_path: Path) -> None:
    files = Files("old", "new")
    files.policies["new"].answer = lambda _: DataError("wrong")
    policy = served(tmp_path, Pointer(incumbent="old", exposure=canary(1.0)), files)
    policy.prepare()
    assert set(policies(policy.decide_many(asked()))) == {"DataError"}
    assert not [line for line in new_lines(next(tmp_path.rglob("r-1")), {}) if line.failed]


def test_in_shadow_the_incumbent_decides_all_together(tmp_path: Path) -> None:
    files = Files("old", "new")
    seen = threading.Semaphore(0)
    files.policies["new"].answer = lambda request: seen.release()
    policy = served(tmp_path, Pointer(incumbent="old", exposure=canary(0.0)), files)
    policy.prepare()
    assert set(policies(policy.decide_many(asked(5)))) == {"old"}
    assert files.policies["old"].groups == [5]
    for _ in range(5):
        assert seen.acquire(timeout=20)  # the candidate was asked, too


def test_no_request_waits_for_the_next_policy(tmp_path: Path) -> None:
    files, pointer = Files("old", "new"), Pointer(incumbent="old")
    policy = served(tmp_path, pointer, files, swap_when_loaded=True)
    files.held.add("new")
    pointer.now = Serving(incumbent="new", previous="old")
    assert policies(policy.decide_many(asked(3))) == ["old"] * 3
    assert policy.quick
    files.release.set()
    until(lambda: policies(policy.decide_many(asked(1))) == ["new"])
    pointer.now = Serving(incumbent="old")  # a rollback waits for nothing
    assert policies(policy.decide_many(asked(1))) == ["old"]
    assert files.loaded == ["old", "new"]


def test_without_that_a_request_waits_for_it(tmp_path: Path) -> None:
    files, pointer = Files("old", "new"), Pointer(incumbent="old")
    policy = served(tmp_path, pointer, files)
    pointer.now = Serving(incumbent="new", previous="old")
    assert not policy.quick
    assert policies(policy.decide_many(asked(1))) == ["new"]


def test_until_a_first_policy_is_loaded_the_start_decides(tmp_path: Path) -> None:
    files, pointer = Files("new"), Pointer()
    policy = served(tmp_path, pointer, files, first=Together("start"), swap_when_loaded=True)
    files.held.add("new")
    pointer.now = Serving(incumbent="new")
    assert policies(policy.decide_many(asked(1))) == ["start"]
    files.release.set()
    until(lambda: policies(policy.decide_many(asked(1))) == ["new"])


def test_no_unit_is_assigned_before_both_policies_of_a_holdback_are_loaded(tmp_path: Path) -> None:
    files, pointer = Files("old", "new"), Pointer(incumbent="new")
    policy = served(tmp_path, pointer, files, swap_when_loaded=True)
    files.held.add("old")
    pointer.now = Serving(incumbent="new", previous="old", exposure=canary(0.5, Mode.HOLDBACK))
    assert set(policies(policy.decide_many(asked()))) == {"new"}
    assert not list(tmp_path.rglob("*.jsonl"))
    files.release.set()
    until(lambda: set(policies(policy.decide_many(asked(start=100)))) == {"old", "new"})


def test_the_serving_policy_stays_loaded_however_many_candidates_come_and_go(tmp_path: Path) -> None:
    names = [f"candidate-{i}" for i in range(2 * LOADED)]
    files, pointer = Files("old", *names), Pointer(incumbent="old")
    policy = served(tmp_path, pointer, files, swap_when_loaded=True)
    for name in names:
        exposure = Exposure(release=name, candidate=name, mode=Mode.CANARY, share=0.5)
        pointer.now = Serving(incumbent="old", exposure=exposure)
        until(lambda: len(set(policies(policy.decide_many(asked())))) == 2)
    assert files.loaded == ["old", *names]
    assert policy.quick


def test_it_is_as_quick_as_the_slowest_policy_that_may_decide(tmp_path: Path) -> None:
    files, pointer = Files("old", "new"), Pointer(incumbent="old")
    files.policies["new"].quick = False
    policy = served(tmp_path, pointer, files)
    assert policy.quick
    pointer.now = Serving(incumbent="old", exposure=canary())
    policy.prepare()
    assert not policy.quick
    assert policy.batches
