"""A trained policy behind NumPy: one observation or a batch in, actions out, in well under a millisecond."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor, nn

from etude.contracts.errors import ObservationError
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import COLUMNS
from etude.problems.base import Obs

Array = NDArray[Any]
Observation = ArrayLike | Mapping[str, ArrayLike]


ALONE = 256
"""Observations at once up to which one thread is faster: waking others costs more than they do, above all when busy."""


class LoadedPolicy:
    """Decides as it learned to. `document` answers an array (agents, 3), `matched` named arrays (agents,)."""

    def __init__(self, policy: nn.Module, problem: AllocationProblem, *, seed: int = 0, step: int = 0) -> None:
        self.problem, self.step = problem, step
        self._policy: Any = policy.to("cpu").train(False)
        self._generator = Generator().manual_seed(seed)
        # What the world shows is what the policy takes.
        shown = problem.world(1, device="cpu").reset(0)
        self._shapes = {name: tuple(value.shape[1:]) for name, value in shown.items()}
        self._masks = {name for name, value in shown.items() if value.dtype == torch.bool}
        self._named = problem.config.variant == "matched"

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The named arrays of one observation and their shapes."""
        return self._shapes

    def act(
        self, observation: Observation, deterministic: bool = True, *, rng: np.random.Generator | int | None = None
    ) -> Any:
        """The most probable action, or one drawn by `rng` (or else by the seed given at loading).

        An observation is a vector (document only) or named arrays as `shapes` says; with a leading axis it is a batch,
        and the answer has one too. Of `matched`, `accept` holds the chosen slot, or the number of slots for none.
        """
        obs, is_batch = self._read(observation)
        with torch.inference_mode(), one_thread(only=len(next(iter(obs.values()))) <= ALONE):
            action = self._policy.choose(obs, greedy=deterministic, generator=self._draws(rng))
        arrays = {name: self._write(value if is_batch else value[0]) for name, value in action.items()}
        return arrays if self._named else np.stack([arrays[name] for name in COLUMNS], -1)

    def _draws(self, rng: np.random.Generator | int | None) -> Generator:
        if rng is None:
            return self._generator
        seed = rng if isinstance(rng, int) else int(rng.integers(2**63))
        return Generator().manual_seed(seed)

    def _read(self, observation: Observation) -> tuple[Obs, bool]:
        if isinstance(observation, Mapping):
            return self._read_named(observation)
        width = sum(math.prod(shape) for shape in self._shapes.values())
        if self._named:
            raise ObservationError(f"the observation is no mapping: expected named arrays {self._expected()}")
        vector = _numbers(observation, "the observation")
        if vector.ndim not in (1, 2) or vector.shape[-1] != width:
            raise ObservationError(f"the observation has shape {vector.shape}: expected ({width},) or (batch, {width})")
        rows = torch.from_numpy(vector).view(-1, width)
        parts = rows.split([math.prod(shape) for shape in self._shapes.values()], 1)
        shaped = zip(self._shapes.items(), parts, strict=True)
        return {name: part.unflatten(1, shape) for (name, shape), part in shaped}, vector.ndim == 2

    def _read_named(self, observation: Mapping[str, ArrayLike]) -> tuple[Obs, bool]:
        if observation.keys() != self._shapes.keys():
            raise ObservationError(
                f"the observation has {sorted(observation)}: expected named arrays {self._expected()}"
            )
        obs, leading = {}, set()
        for name, shape in self._shapes.items():
            array = _numbers(observation[name], f"observation[{name!r}]")
            if array.shape[-len(shape) :] != shape or array.ndim > len(shape) + 1:
                wanted = f"{shape} or (batch, {str(shape)[1:]}"
                raise ObservationError(f"observation[{name!r}] has shape {array.shape}: expected {wanted}")
            leading.add(array.shape[: -len(shape)])
            tensor = torch.from_numpy(array).view(-1, *shape)
            obs[name] = tensor.bool() if name in self._masks else tensor
        if len(leading) > 1:
            raise ObservationError(
                f"the observation's arrays have batch axes {sorted(leading)}: expected the same in all"
            )
        return obs, leading != {()}

    def _expected(self) -> str:
        return ", ".join(f"{name} {shape}" for name, shape in self._shapes.items())

    def _write(self, value: Tensor) -> Array:
        array = value.numpy()
        return array.clip(0, 1) if value.is_floating_point() else array  # a normal distribution may leave [0, 1]


@contextmanager
def one_thread(*, only: bool) -> Iterator[None]:
    """Setting the number of threads takes a microsecond; OpenMP keeps it for each calling thread by itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if only else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _numbers(value: ArrayLike, what: str) -> NDArray[np.float32]:
    try:
        array = np.array(value, dtype=np.float32, order="C")  # a copy: torch wants to be able to write
    except (TypeError, ValueError) as error:
        raise ObservationError(f"{what} is not an array of numbers ({error})") from error
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ObservationError(f"{what} has {array[where]} at {where}: expected finite numbers")
    return array
