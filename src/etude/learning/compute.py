"""The device and the number of threads that torch uses, and the step of an optimiser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from etude.contracts.errors import ConfigError


def resolve_device(name: str) -> torch.device:
    """The device of the setting `run.device`: `auto` takes the GPU when there is one."""
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("run.device is 'cuda', but torch sees no GPU: use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def choose_threads(policy: torch.nn.Module, minibatch: int) -> int:
    """All cores if a minibatch's matrix products are large enough, else one: waking a thread costs time too."""
    weights = sum(p.numel() for p in policy.parameters())
    return (os.cpu_count() or 1) if weights * minibatch > 50_000_000 else 1


@contextmanager
def one_thread(*, only: bool) -> Iterator[None]:
    """Compute with one thread inside the block if `only`, and with the caller's number of threads again after it.

    Setting the number takes a microsecond; OpenMP keeps it separately for each calling thread.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if only else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def descend(optimizer: torch.optim.Optimizer, policy: Any, loss: torch.Tensor, *, max_norm: float) -> torch.Tensor:
    """One step of an optimiser, with gradients scaled down to this norm; returns their norm before that."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    optimizer.step()
    return norm
