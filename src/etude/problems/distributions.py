"""Distributions over one number of an action, each a few functions of the network's raw outputs.

Parameters come in as (…, size), actions in [0, 1] go out as (…). Samples come from an explicit generator, so the same
generator state gives the same actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Threshold:
    """Bernoulli, yes (1) or no (0): for numbers that are only compared with a threshold."""

    size: int = 1

    def sample(self, raw: Tensor, generator: Generator | None) -> Tensor:
        return (uniform_like(raw[..., 0], generator) < raw[..., 0].sigmoid()).to(raw.dtype)

    def mode(self, raw: Tensor) -> Tensor:
        return (raw[..., 0] > 0).to(raw.dtype)

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        return -F.softplus((1 - 2 * action) * raw[..., 0])

    def entropy(self, raw: Tensor) -> Tensor:
        logit = raw[..., 0]
        return F.softplus(logit) - logit * logit.sigmoid()


@dataclass(frozen=True)
class Levels:
    """Categorical over `size` evenly spaced proportions from 0 to 1."""

    size: int = 5

    def sample(self, raw: Tensor, generator: Generator | None) -> Tensor:
        return sample_categorical(raw, generator) / (self.size - 1)

    def mode(self, raw: Tensor) -> Tensor:
        return raw.argmax(-1) / (self.size - 1)

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        level = (action * (self.size - 1)).round().long()
        return raw.log_softmax(-1).gather(-1, level[..., None])[..., 0]

    def entropy(self, raw: Tensor) -> Tensor:
        log_p = raw.log_softmax(-1)
        return -(log_p.exp() * log_p.clamp(min=-1e9)).sum(-1)


@dataclass(frozen=True)
class Beta:
    """A density on [0, 1] with one mode: both shape parameters are above 1 (Chou et al., 2017)."""

    size: int = 2

    def sample(self, raw: Tensor, generator: Generator | None) -> Tensor:
        gammas = torch._standard_gamma(1 + F.softplus(raw.float()), generator=generator)
        return (gammas[..., 0] / gammas.sum(-1)).clamp(1e-6, 1 - 1e-6)

    def mode(self, raw: Tensor) -> Tensor:
        excess = F.softplus(raw)
        return (excess[..., 0] / excess.sum(-1)).nan_to_num(0.5).clamp(1e-6, 1 - 1e-6)

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        a, b = (1 + F.softplus(raw)).unbind(-1)
        log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        return (a - 1) * action.log() + (b - 1) * (-action).log1p() - log_beta

    def entropy(self, raw: Tensor) -> Tensor:
        a, b = (1 + F.softplus(raw)).unbind(-1)
        log_beta = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        own = (a - 1) * torch.digamma(a) + (b - 1) * torch.digamma(b)
        return log_beta - own + (a + b - 2) * torch.digamma(a + b)


@dataclass(frozen=True)
class Gaussian:
    """A normal distribution centred in [0, 1]; the world clips samples outside, as most PPO libraries do."""

    size: int = 2

    def sample(self, raw: Tensor, generator: Generator | None) -> Tensor:
        mean, log_std = self._split(raw)
        noise = torch.randn(mean.shape, generator=generator, device=raw.device, dtype=raw.dtype)
        return mean + log_std.exp() * noise

    def mode(self, raw: Tensor) -> Tensor:
        return self._split(raw)[0]

    def log_prob(self, raw: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self._split(raw)
        return -0.5 * ((action - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)

    def entropy(self, raw: Tensor) -> Tensor:
        return self._split(raw)[1] + 0.5 * math.log(2 * math.pi * math.e)

    def _split(self, raw: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 + raw[..., 0], raw[..., 1].clamp(-4, 1)


Distribution = Threshold | Levels | Beta | Gaussian


def masked(scores: Tensor, legal: Tensor) -> Tensor:
    """Scores with −inf for illegal choices; legal ones stay finite whatever the weights, so only masks exclude."""
    return finite(scores).masked_fill(~legal, -torch.inf)


def finite(x: Tensor) -> Tensor:
    return x.nan_to_num(0.0).clamp(-1e4, 1e4)


def sample_categorical(logits: Tensor, generator: Generator | None) -> Tensor:
    """Logits (…, k) to indices (…). A logit of −inf is never sampled while another is finite."""
    return (logits + gumbel(logits, generator)).argmax(-1)


def gumbel(x: Tensor, generator: Generator | None) -> Tensor:
    """Noise of x's shape; the argmax of logits + noise is a sample of their softmax."""
    return -(-uniform_like(x, generator).clamp_(min=1e-20).log()).log()


def uniform_like(x: Tensor, generator: Generator | None) -> Tensor:
    return torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float32)
