"""A trained allocation policy in use: one observation or a batch in, NumPy actions or a `Decision` out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor, nn

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError, ObservationError
from etude.learning.artefact import Artefact, load_weights
from etude.learning.compute import one_thread
from etude.learning.settings import read_own
from etude.problems.allocation.problem import AllocationProblem, AllocationSettings, make_problem
from etude.problems.allocation.world import COLUMNS
from etude.problems.base import Obs

Array = NDArray[Any]
Observation = ArrayLike | Mapping[str, ArrayLike]
SINGLE_THREAD_BATCH = 256
"""Batch size up to which one thread is faster: waking others costs more than they save, above all on a busy machine."""


class LoadedPolicy:
    """A Decider for allocation. `act` answers `document` with an array (agents, 3), `matched` with named arrays."""

    def __init__(
        self, policy: nn.Module, problem: AllocationProblem, *, seed: int = 0, step: int = 0, version: str = ""
    ) -> None:
        self.problem, self.version, self.step = problem.name, version, step
        self._policy: Any = policy.to("cpu").train(False)
        self._generator = Generator().manual_seed(seed)
        # The policy takes what the world shows.
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
        """The most probable action, or one sampled with `rng` (or else with the seed given at loading).

        An observation is a vector (document only) or named arrays as `shapes` says; with a leading axis it is a batch,
        and the answer has one too. In `matched`, `accept` holds the chosen slot, or the number of slots for none.
        """
        obs, is_batch = self._read(observation)
        generator = self._generator
        if rng is not None:
            generator = Generator().manual_seed(rng if isinstance(rng, int) else int(rng.integers(2**63)))
        with torch.inference_mode(), one_thread(only=len(next(iter(obs.values()))) <= SINGLE_THREAD_BATCH):
            action = self._policy.choose(obs, greedy=deterministic, generator=generator)
        return self._write(action if is_batch else {name: value[0] for name, value in action.items()})

    def decide(self, request: DecisionRequest) -> Decision:
        """The most probable action for the one observation in `request.context`, as plain lists."""
        try:
            obs, is_batch = self._read(request.context)
        except ObservationError as error:
            raise DataError(f"context: {error}") from error
        if is_batch:
            raise DataError("context: the observation has a batch axis: expected one observation per request")
        with torch.inference_mode(), one_thread(only=True):
            chosen = self._policy.choose(obs, greedy=True)
        action, version = _plain(self._write({k: v[0] for k, v in chosen.items()})), self.version or "unknown"
        logged = LoggedDecision(
            problem=self.problem,
            at_ms=request.at_ms,
            context=_plain(request.context),
            action=action,
            propensity=1.0,
            policy=version,
        )
        return Decision(action=action, propensity=1.0, policy=version, logged=(logged,))

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
                expected = f"{shape} or (batch, {str(shape)[1:]}"
                raise ObservationError(f"observation[{name!r}] has shape {array.shape}: expected {expected}")
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

    def _write(self, action: Mapping[str, Tensor]) -> Any:
        """Named arrays, or for `document` one array (…, agents, 3) within [0, 1], which a normal sample may leave."""
        arrays = {
            name: value.numpy().clip(0, 1) if value.is_floating_point() else value.numpy()
            for name, value in action.items()
        }
        return arrays if self._named else np.stack([arrays[name] for name in COLUMNS], -1)


def _plain(value: Any) -> Any:
    """Arrays as nested lists, for JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return np.asarray(value).tolist()


def _numbers(value: ArrayLike, what: str) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, which is refused below
            array = np.array(value, dtype=np.float32, order="C")  # a copy: torch warns of read-only arrays
    except (TypeError, ValueError, OverflowError) as error:
        raise ObservationError(f"{what} is not an array of numbers ({error})") from error
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ObservationError(f"{what} has {array[where]} at {where}: expected finite numbers")
    return array


def load(artefact: Artefact, *, seed: int = 0) -> LoadedPolicy:
    problem = make_problem(read_own(AllocationSettings, artefact.manifest.settings, source=artefact.path))
    network = problem.policy()
    load_weights(network, artefact)
    return LoadedPolicy(network.eval(), problem, seed=seed, step=artefact.manifest.step, version=artefact.version)
