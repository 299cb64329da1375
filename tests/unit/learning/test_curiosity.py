"""Curiosity: what was seen often earns little, what is new earns much, and a saved state goes on as it was."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from etude.learning.curiosity import Curiosity
from etude.problems.base import Obs


def states(*places: float, n: int = 16) -> Obs:
    """(places, n) observations, those of a place close together."""
    noise = 0.1 * torch.randn(len(places), n, 4, generator=Generator().manual_seed(0))
    return {"x": torch.tensor(places)[:, None, None] + noise}


def familiar_with(*places: float, passes: int = 100) -> Curiosity:
    made = Curiosity(seed=0)
    made.bonus(states(-1.0, 0.0, 1.0))  # the first batch fixes the scale
    for _ in range(passes):
        made.learn(states(*places))
    return made


def test_what_is_new_earns_more_than_what_was_seen_often() -> None:
    seen, new = familiar_with(0.0).bonus(states(0.0, 1.0)).mean(1)
    assert new > 10 * seen


def test_the_bonus_of_a_place_falls_with_every_visit() -> None:
    bonus = [float(familiar_with(0.0, passes=passes).bonus(states(0.0, 1.0))[0].mean()) for passes in (0, 30, 300)]
    assert bonus == sorted(bonus, reverse=True)
    assert bonus[-1] < bonus[0] / 10


def test_the_bonus_fades_when_nothing_is_new() -> None:
    """Else it goes on paying for every step, and a policy is paid to put off the end of its task."""
    made = Curiosity(seed=0)
    first = made.bonus(states(0.0, 1.0)).mean()
    for _ in range(300):
        made.learn(states(0.0, 1.0))
    assert made.bonus(states(0.0, 1.0)).mean() < first / 10


def test_a_bonus_for_every_step_about_one_at_first() -> None:
    bonus = Curiosity(seed=0).bonus(states(-1.0, 0.0, 1.0, n=5))
    assert bonus.shape == (3, 5)
    assert bool((bonus > 0).all())
    assert float(bonus.mean()) == pytest.approx(1, rel=0.5)


def test_the_target_stays_and_learning_says_its_error() -> None:
    made = familiar_with(0.0, passes=1)
    assert made.target is not None
    target = [p.clone() for p in made.target.parameters()]
    errors = [made.learn(states(0.0)) for _ in range(50)]
    assert errors[-1] < errors[0] / 5
    assert all(torch.equal(a, b) for a, b in zip(target, made.target.parameters(), strict=True))


def test_learning_raises_no_warning() -> None:
    torch.set_warn_always(True)  # torch warns once a process otherwise
    try:
        familiar_with(0.0, passes=1)
    finally:
        torch.set_warn_always(False)


def test_every_named_number_counts_and_masks_do_not() -> None:
    obs = states(0.0, 1.0)
    flag = torch.ones(2, 16, 3, dtype=torch.bool)
    plain, masked = Curiosity(seed=0).bonus(obs), Curiosity(seed=0).bonus({**obs, "legal": flag})
    assert torch.equal(plain, masked)
    wider = {**obs, "y": torch.zeros(2, 16, 2, 2)}
    made = Curiosity(seed=0)
    made.bonus(wider)
    for _ in range(100):
        made.learn(wider)
    y_moved = {**obs, "y": torch.cat([torch.zeros(1, 16, 2, 2), torch.ones(1, 16, 2, 2)])}
    seen, new = made.bonus(y_moved).mean(1)
    assert new > 10 * seen


def test_the_seed_decides_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    a, b, c = (Curiosity(seed=seed).bonus(states(0.0, 1.0)) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loaded_state_goes_on_bit_for_bit() -> None:
    made = familiar_with(0.0, passes=5)
    other = Curiosity(seed=9)
    other.load_state_dict(saved(made))
    for _ in range(3):
        assert made.learn(states(0.0, 1.0)) == other.learn(states(0.0, 1.0))
    assert torch.equal(made.bonus(states(0.0, 2.0)), other.bonus(states(0.0, 2.0)))


def test_a_state_saved_before_any_observation_starts_fresh() -> None:
    used = familiar_with(0.0)
    used.load_state_dict(saved(Curiosity(seed=0)))
    assert torch.equal(used.bonus(states(0.0, 1.0)), Curiosity(seed=0).bonus(states(0.0, 1.0)))


def saved(curiosity: Curiosity) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in curiosity.state_dict().items()}
