"""Samples of a loss, and the replay of a gradient step over them as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from etude.problems.base import Action, Obs


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Independent samples (b, …) for the loss."""

    obs: Obs
    action: Action
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor

    def take(self, index: Tensor, weight: Tensor) -> Samples:
        return Samples(
            obs={name: value[index] for name, value in self.obs.items()},
            action={name: value[index] for name, value in self.action.items()},
            log_prob=self.log_prob[index],
            value=self.value[index],
            advantage=self.advantage[index],
            returns=self.returns[index],
            weight=weight,
        )

    def tensors(self) -> Iterator[Tensor]:
        yield from self.obs.values()
        yield from self.action.values()
        yield from (self.log_prob, self.value, self.advantage, self.returns, self.weight)


class CapturedStep:
    """A gradient step whose hundreds of small kernels are launched as one, so the host does not limit the GPU.

    A graph reads fixed addresses, so samples and indices are copied into tensors of its own. The first steps run
    without it, so that libraries allocate what must not be allocated during a capture.
    """

    def __init__(self, step: Callable[[Samples, Tensor, Tensor], Tensor], warm_up: int = 3) -> None:
        self._step, self._left = step, warm_up
        self._stream = torch.cuda.Stream()
        self._samples: Samples | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._index = self._weight = self._metrics = torch.empty(0)

    def load(self, samples: Samples) -> Samples:
        """The samples at the addresses the graph reads."""
        ours = self._samples
        if ours is None or [x.shape for x in ours.tensors()] != [x.shape for x in samples.tensors()]:
            self._samples, self._graph = samples, None
            return samples
        for old, new in zip(ours.tensors(), samples.tensors(), strict=True):
            old.copy_(new)
        return ours

    def __call__(self, samples: Samples, index: Tensor, weight: Tensor) -> Tensor:
        if self._left > 0:
            self._left -= 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                metrics = self._step(samples, index, weight)
            torch.cuda.current_stream().wait_stream(self._stream)
            return metrics
        if self._graph is None:
            self._index, self._weight = index.clone(), weight.clone()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._metrics = self._step(samples, self._index, self._weight)
        elif len(index) != len(self._index):
            return self._step(samples, index, weight)
        self._index.copy_(index)
        self._weight.copy_(weight)
        self._graph.replay()
        return self._metrics.clone()
