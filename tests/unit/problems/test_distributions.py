"""Each distribution is one: its parts agree with each other and with torch.distributions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Generator, Tensor
from torch import distributions as reference
from torch.nn import functional as F

from etude.problems.distributions import Beta, Distribution, Gaussian, Levels, Threshold, sample_categorical

ALL = [Threshold(), Levels(), Levels(42), Beta(), Gaussian()]
DISCRETE = [d for d in ALL if isinstance(d, Threshold | Levels)]
CONTINUOUS = [d for d in ALL if isinstance(d, Beta | Gaussian)]
DRAWS = 40_000
LAW = settings(deadline=None, derandomize=True, max_examples=30)


def raws(distribution: Distribution, bound: float = 4) -> st.SearchStrategy[Tensor]:
    """Raw outputs (size,) of a network."""
    return arrays("float32", distribution.size, elements=st.floats(-bound, bound, width=32)).map(torch.from_numpy)


def support(distribution: Distribution) -> Tensor:
    """What a discrete one can give; a fine grid, by the middle of each cell, over nearly all of a continuous one."""
    if isinstance(distribution, Threshold):
        return torch.tensor([0.0, 1.0])
    if isinstance(distribution, Levels):
        return torch.arange(distribution.size) / (distribution.size - 1)
    low, high = (0.0, 1.0) if isinstance(distribution, Beta) else (-20.0, 21.0)
    cells = 200_000
    return low + (torch.arange(cells, dtype=torch.float64) + 0.5) * (high - low) / cells


def twin(distribution: Distribution, raw: Tensor) -> reference.Distribution:
    """torch's own, over level numbers where ours is over proportions."""
    match distribution:
        case Threshold():
            return reference.Bernoulli(logits=raw[..., 0])
        case Levels():
            return reference.Categorical(logits=raw)
        case Beta():
            return reference.Beta(1 + F.softplus(raw[..., 0]), 1 + F.softplus(raw[..., 1]))
        case _:
            return reference.Normal(0.5 + raw[..., 0], raw[..., 1].clamp(-4, 1).exp())


def draw(distribution: Distribution, raw: Tensor, seed: int = 0, count: int = DRAWS) -> Tensor:
    return distribution.sample(raw.expand(count, -1), Generator().manual_seed(seed))


@pytest.mark.parametrize("distribution", ALL, ids=str)
@LAW
@given(data=st.data())
def test_probabilities_sum_to_one(distribution: Distribution, data: st.DataObject) -> None:
    raw, points = data.draw(raws(distribution)), support(distribution)
    p = distribution.log_prob(raw.to(points.dtype).expand(len(points), -1), points).exp()
    cell = 1 if distribution in DISCRETE else points[1] - points[0]
    assert float(p.sum() * cell) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("distribution", DISCRETE, ids=str)
@LAW
@given(data=st.data())
def test_frequencies_match_probabilities(distribution: Distribution, data: st.DataObject) -> None:
    raw, points = data.draw(raws(distribution)), support(distribution)
    p = distribution.log_prob(raw.expand(len(points), -1), points).exp()
    frequency = (draw(distribution, raw)[:, None] == points).float().mean(0)
    assert float(frequency.sum()) == pytest.approx(1)  # nothing else is ever given
    assert float((frequency - p).abs().max()) < 5 * 0.5 / DRAWS**0.5  # five standard errors at their widest


@pytest.mark.parametrize("distribution", CONTINUOUS, ids=str)
@LAW
@given(data=st.data())
def test_quantiles_match_the_density(distribution: Distribution, data: st.DataObject) -> None:
    raw, points = data.draw(raws(distribution)), support(distribution)
    p = distribution.log_prob(raw.to(points.dtype).expand(len(points), -1), points).exp()
    below = p.cumsum(0) / p.sum()
    share = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    quantile = points[torch.searchsorted(below, share)]
    frequency = (draw(distribution, raw)[:, None] <= quantile).double().mean(0)
    assert float((frequency - share).abs().max()) < 5 * 0.5 / DRAWS**0.5


@pytest.mark.parametrize("distribution", ALL, ids=str)
@LAW
@given(data=st.data())
def test_agrees_with_torch(distribution: Distribution, data: st.DataObject) -> None:
    raw = data.draw(raws(distribution, bound=8))
    action = draw(distribution, raw, count=100)
    theirs = twin(distribution, raw)
    known = (action * (distribution.size - 1)).round() if isinstance(distribution, Levels) else action
    torch.testing.assert_close(
        distribution.log_prob(raw.expand(100, -1), action), theirs.log_prob(known), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(distribution.entropy(raw), theirs.entropy(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("distribution", ALL, ids=str)
@LAW
@given(data=st.data())
def test_entropy_is_the_mean_surprise(distribution: Distribution, data: st.DataObject) -> None:
    raw = data.draw(raws(distribution))
    surprise = -distribution.log_prob(raw.expand(DRAWS, -1), draw(distribution, raw))
    slack = 5 * float(surprise.std()) / DRAWS**0.5 + 1e-4
    assert float(distribution.entropy(raw)) == pytest.approx(float(surprise.mean()), abs=slack)


@pytest.mark.parametrize("distribution", ALL, ids=str)
@LAW
@given(data=st.data())
def test_nothing_is_likelier_than_the_mode(distribution: Distribution, data: st.DataObject) -> None:
    raw = data.draw(raws(distribution, bound=1) | raws(distribution, bound=30))
    best = distribution.log_prob(raw, distribution.mode(raw))
    others = distribution.log_prob(raw.expand(1000, -1), draw(distribution, raw, count=1000))
    assert bool((others <= best + 1e-3).all())


@pytest.mark.parametrize("distribution", ALL, ids=str)
def test_gradients_are_finite_for_extreme_outputs(distribution: Distribution) -> None:
    values = torch.tensor([-60.0, -20.0, 0.0, 20.0, 60.0])
    chosen = torch.randint(len(values), (200, distribution.size), generator=Generator().manual_seed(1))
    raw = values[chosen].requires_grad_()
    action = distribution.sample(raw.detach(), Generator().manual_seed(0))
    (distribution.log_prob(raw, action) + distribution.entropy(raw)).sum().backward()
    assert raw.grad is not None
    assert bool(raw.grad.isfinite().all())


@pytest.mark.parametrize("distribution", ALL, ids=str)
def test_the_generator_alone_decides_the_samples(distribution: Distribution) -> None:
    raw = torch.randn(100, distribution.size, generator=Generator().manual_seed(1))
    generator = Generator().manual_seed(2)
    state = generator.get_state()
    first, second = distribution.sample(raw, generator), distribution.sample(raw, generator)
    torch.rand(7)  # the global generator has no say
    again = distribution.sample(raw, generator.set_state(state))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("distribution", ALL, ids=str)
def test_any_leading_axes(distribution: Distribution) -> None:
    raw = torch.zeros(2, 3, 5, distribution.size)
    action = distribution.sample(raw, Generator().manual_seed(0))
    shapes = [action.shape, distribution.mode(raw).shape, distribution.entropy(raw).shape]
    assert {*shapes, distribution.log_prob(raw, action).shape} == {torch.Size((2, 3, 5))}


@LAW
@given(st.integers(2, 6).flatmap(lambda k: st.lists(st.booleans(), min_size=k, max_size=k)).filter(any))
def test_a_masked_choice_is_never_sampled(legal: list[bool]) -> None:
    mask = torch.tensor(legal)
    logits = torch.where(mask, -30.0, -math.inf).expand(2000, -1)  # however unlikely the legal ones are
    assert bool(mask[sample_categorical(logits, Generator().manual_seed(0))].all())
