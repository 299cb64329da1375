"""Failures of whole workflows are blamed on what caused them: a worker that is silently wrong, or a plan."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from etude.problems.workflow.attempts import Attempt
from etude.problems.workflow.credit import assign_credit

WRONG = {("extract", "cheap"): 0.7, ("sum", "cheap"): 0.0, ("extract", "dear"): 0.0, ("sum", "dear"): 0.05}
"""How often each worker is silently wrong."""


def attempt(trajectory: int, task_type: str, worker: str, *, request: str, plan: str, whole: bool | None) -> Attempt:
    return Attempt(
        trajectory=str(trajectory),
        request=request,
        task_type=task_type,
        worker=worker,
        failed=(),
        category=0,
        done=True,
        verified=False,
        whole=whole,
        plan=plan,
        finished=True,
        cost_usd=0.001,
        latency_ms=1.0,
    )


def logged(count: int, *, seed: int = 0, wrong_plans: float = 0.3, times: int = 2) -> list[Attempt]:
    """Workflows of two subtasks with workers at random; the plans of some requests do not suit them."""
    rng, found = random.Random(seed), list[Attempt]()
    for i in range(count):
        request = f"request {i // times}"
        suits = random.Random(request).random() >= wrong_plans
        workers = {t: rng.choice(["cheap", "dear"]) for t in ("extract", "sum")}
        right = all(rng.random() >= WRONG[t, w] for t, w in workers.items())
        found += [attempt(i, t, w, request=request, plan="both", whole=suits and right) for t, w in workers.items()]
    return found


def mean(attempts: list[Attempt], values: np.ndarray, of: Callable[[Attempt], object]) -> dict[object, float]:
    groups = defaultdict[object, list[float]](list)
    for one, value in zip(attempts, values, strict=True):
        groups[of(one)].append(value)
    return {key: float(np.mean(own)) for key, own in groups.items()}


def test_blame_goes_to_the_worker_that_is_wrong_and_not_to_those_in_the_same_workflow() -> None:
    given = logged(600)
    found = mean(given, assign_credit(given).right, lambda a: (a.task_type, a.worker))
    for cell, wrong in WRONG.items():
        assert found[cell] == pytest.approx(1 - wrong, abs=0.1)


def test_plans_that_never_succeed_are_blamed_and_those_that_did_once_suit() -> None:
    given = logged(600, times=6)
    suits = mean(given, assign_credit(given).suits, lambda a: a.request)
    for request, probability in suits.items():
        succeeded = any(a.whole for a in given if a.request == request)
        assert probability == 1.0 if succeeded else probability < 0.5


def test_without_worker_identity_no_worker_is_favoured_by_its_other_attempts() -> None:
    given = logged(600, wrong_plans=0.0)
    right = assign_credit(given, by_worker=False).right
    failed = [i for i, a in enumerate(given) if not a.whole and a.task_type == "extract"]
    assert np.ptp([right[i] for i in failed if given[i].request == given[failed[0]].request]) < 1e-9


def test_a_visible_failure_explains_the_failure_of_the_workflow() -> None:
    given = logged(200, wrong_plans=0.0)
    aborted = attempt(1000, "sum", "dear", request="new", plan="both", whole=False)
    given.append(replace(aborted, finished=False))
    assert assign_credit(given).right[-1] > 0.85  # as good as that worker usually is
    given[-1] = replace(aborted, done=False, finished=False)
    assert assign_credit(given).right[-1] == 0


def test_without_verdicts_what_is_done_is_right() -> None:
    given = [attempt(i, "sum", "cheap", request="x", plan="p", whole=None) for i in range(3)]
    found = assign_credit(given)
    assert (found.right.tolist(), found.suits.tolist()) == ([1, 1, 1], [1, 1, 1])
