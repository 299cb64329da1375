"""The check of overlap accepts honest logs of any behaviour policy, and refuses propensities that belong elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Generator

from etude.contracts.errors import DataError
from etude.learning.logged import Logged
from etude.learning.overlap import OverlapConfig, check_overlap
from tests.learning.test_logged import Chooser, Small, by, mostly_greedy, play, untrained

CONFIG = OverlapConfig(minibatch=512, lr=0.01)
LOGGERS: dict[str, Callable[[int], Chooser]] = {
    "the policy itself": lambda seed: by(sharpened(untrained(seed), 10)),
    "another one": lambda seed: by(sharpened(untrained(seed + 100), 10)),
    "a greedy one that explores": lambda seed: mostly_greedy(untrained(seed + 200), 0.2),
}


def sharpened(policy: Small, factor: float) -> Small:
    with torch.no_grad():
        policy.scores.weight *= factor
    return policy


def start(seed: int) -> Small:
    return sharpened(untrained(seed), 10)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("logger", LOGGERS)
def test_honest_logs_pass(logger: str, seed: int) -> None:
    logs = play(LOGGERS[logger](seed), contexts=500, executions=4, seed=seed)
    policy = start(seed)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    found = check_overlap(policy, lambda: iter([logs]), CONFIG, seed=seed)
    assert found.behaviour == pytest.approx(1, abs=0.1)
    assert found.uniform == pytest.approx(1, abs=0.15)
    assert found.correlation > 0.2
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("logger", LOGGERS)
def test_shuffled_propensities_are_refused(logger: str, seed: int) -> None:
    logs = play(LOGGERS[logger](seed), contexts=500, executions=4, seed=seed)
    mixed = shuffled(logs, seed)
    with pytest.raises(DataError, match="logged propensities cannot be right: over 2000 decisions"):
        check_overlap(start(seed), lambda: iter([mixed]), CONFIG, seed=seed)
    with pytest.raises(DataError, match="logged propensities have nothing to do with the logged actions"):
        check_overlap(start(seed), lambda: iter([mixed]), replace(CONFIG, tolerance=100.0), seed=seed)


def shuffled(logs: Logged, seed: int) -> Logged:
    order = torch.randperm(len(logs), generator=Generator().manual_seed(seed))
    return replace(logs, log_propensity=logs.log_propensity[order])


def test_a_policy_that_the_logs_do_not_cover_is_refused() -> None:
    logs = play(mostly_greedy(untrained(1), 0.02), contexts=500, executions=4, seed=0)
    stranger = sharpened(untrained(9), 200)
    with pytest.raises(DataError, match="the logs say too little about what this policy does"):
        check_overlap(stranger, lambda: iter([logs]), replace(CONFIG, min_ess=0.2))


def test_parts_are_checked_as_the_whole_is() -> None:
    logs = play(by(start(1)), contexts=500, executions=4, seed=0)
    parts = [logs.only(some) for some in torch.arange(2000).split(400)]
    whole = check_overlap(start(1), lambda: iter([logs]), CONFIG)
    in_parts = check_overlap(start(1), lambda: iter(parts), CONFIG)
    assert whole.decisions == in_parts.decisions
    assert whole.policy == pytest.approx(in_parts.policy)


def test_the_eligible_actions_need_not_be_known() -> None:
    logs = play(by(start(1)), contexts=200, executions=4, seed=0)
    unknown = replace(logs, eligible=torch.full_like(logs.eligible, torch.nan))
    assert math.isnan(check_overlap(start(1), lambda: iter([unknown]), CONFIG).uniform)
