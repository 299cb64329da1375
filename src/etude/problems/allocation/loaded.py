"""A trained allocation policy in use: one observation or a batch in, NumPy actions or a `Decision` out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, nn

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError, ObservationError
from etude.learning.artefact import Artefact, load_weights
from etude.learning.compute import one_thread
from etude.learning.settings import read_own
from etude.problems.allocation.arrays import FLAT, as_arrays
from etude.problems.allocation.problem import AllocationProblem, AllocationSettings, make_problem
from etude.problems.allocation.world import COLUMNS

Array = NDArray[Any]
Arrays = dict[str, Array]
"""By name, (n, …)."""
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
        self._arrays = None if self._named else as_arrays(self._policy)

    @property
    def quick(self) -> bool:
        """Whether it decides in NumPy, within a fraction of a millisecond."""
        return self._arrays is not None

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
        found = self._write(self._chosen(obs, greedy=deterministic, generator=generator))
        return found if is_batch else _row(found, 0)

    def decide(self, request: DecisionRequest) -> Decision:
        """The most probable action for the one observation in `request.context`, as plain lists."""
        (found,) = self.decide_many([request])
        if isinstance(found, Exception):
            raise found
        return found

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        """In one computation; a request whose context is no observation fails alone."""
        read = [self._of(request.context) for request in requests]
        good = [one for one in read if not isinstance(one, Exception)]
        if not good:
            return [one for one in read if isinstance(one, Exception)]
        together = {name: np.concatenate([one[name] for one in good]) for name in self._shapes}
        acted = self._write(self._chosen(together, greedy=True))
        places = iter(range(len(good)))
        return [
            one if isinstance(one, Exception) else self._decision(request, _row(acted, next(places)))
            for request, one in zip(requests, read, strict=True)
        ]

    def _of(self, context: Any) -> Arrays | DataError:
        """One observation, with a batch axis; what is wrong with it."""
        try:
            obs, is_batch = self._read(context)
        except ObservationError as error:
            return DataError(f"context: {error}")
        if is_batch:
            return DataError("context: the observation has a batch axis: expected one observation per request")
        return obs

    def _decision(self, request: DecisionRequest, acted: Any) -> Decision:
        action, version = _plain(acted), self.version or "unknown"
        logged = LoggedDecision(
            problem=self.problem,
            at_ms=request.at_ms,
            context=_plain(request.context),
            action=action,
            propensity=1.0,
            policy=version,
        )
        return Decision(action=action, propensity=1.0, policy=version, logged=(logged,))

    def _chosen(self, obs: Arrays, *, greedy: bool, generator: Generator | None = None) -> Arrays:
        """(n, …) to (n, agents) by name: in NumPy where that gives what torch would, and is quicker."""
        n = len(next(iter(obs.values())))
        if greedy and self._arrays is not None and n <= SINGLE_THREAD_BATCH:
            return {**self._arrays.choose(np.concatenate([obs[name].reshape(n, -1) for name in FLAT], 1))}
        with torch.inference_mode(), one_thread(only=n <= SINGLE_THREAD_BATCH):
            action = self._policy.choose(
                {name: torch.from_numpy(array) for name, array in obs.items()}, greedy=greedy, generator=generator
            )
        return {name: value.numpy() for name, value in action.items()}

    def _read(self, observation: Observation) -> tuple[Arrays, bool]:
        if isinstance(observation, Mapping):
            return self._read_named(observation)
        width = sum(math.prod(shape) for shape in self._shapes.values())
        if self._named:
            raise ObservationError(f"the observation is no mapping: expected named arrays {self._expected()}")
        vector = _numbers(observation, "the observation")
        if vector.ndim not in (1, 2) or vector.shape[-1] != width:
            raise ObservationError(f"the observation has shape {vector.shape}: expected ({width},) or (batch, {width})")
        rows, ends = vector.reshape(-1, width), list(accumulate(math.prod(shape) for shape in self._shapes.values()))
        shaped = zip(self._shapes.items(), np.split(rows, ends[:-1], 1), strict=True)
        return {name: part.reshape(-1, *shape) for (name, shape), part in shaped}, vector.ndim == 2

    def _read_named(self, observation: Mapping[str, ArrayLike]) -> tuple[Arrays, bool]:
        if observation.keys() != self._shapes.keys():
            raise ObservationError(
                f"the observation has {sorted(observation)}: expected named arrays {self._expected()}"
            )
        obs, leading = dict[str, Array](), set()
        for name, shape in self._shapes.items():
            array = _numbers(observation[name], f"observation[{name!r}]")
            if array.shape[-len(shape) :] != shape or array.ndim > len(shape) + 1:
                expected = f"{shape} or (batch, {str(shape)[1:]}"
                raise ObservationError(f"observation[{name!r}] has shape {array.shape}: expected {expected}")
            leading.add(array.shape[: -len(shape)])
            rows = array.reshape(-1, *shape)
            obs[name] = rows.astype(bool) if name in self._masks else rows
        if len(leading) > 1:
            raise ObservationError(
                f"the observation's arrays have batch axes {sorted(leading)}: expected the same in all"
            )
        return obs, leading != {()}

    def _expected(self) -> str:
        return ", ".join(f"{name} {shape}" for name, shape in self._shapes.items())

    def _write(self, action: Arrays) -> Any:
        """Named arrays, or for `document` one array (…, agents, 3) within [0, 1], which a normal sample may leave."""
        arrays = {
            name: value.clip(0, 1) if np.issubdtype(value.dtype, np.floating) else value
            for name, value in action.items()
        }
        return arrays if self._named else np.stack([arrays[name] for name in COLUMNS], -1)


def _row(acted: Any, i: int) -> Any:
    """Of one observation."""
    return {name: value[i] for name, value in acted.items()} if isinstance(acted, dict) else acted[i]


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
