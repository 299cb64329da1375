"""The ports: Protocols that state what every implementation guarantees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.trajectory import Trajectory
from etude.contracts.work import Reply, Subtask, Verdict

Vectors = NDArray[np.float32]
"""Rows of float32: (tokens, width) of one text, or (texts, width)."""


class TextEncoder(Protocol):
    """Turns texts into vectors.

    Any `str` is a text: empty, enormous, binary-like, of any script, with lone surrogates. Only a service that does
    not answer raises an error. The same texts give the same vectors in any process; how texts are grouped into calls
    changes only the last digits.
    """

    @property
    def name(self) -> str:
        """Identifies the vectors (model, version, width, length); other vectors have another name. It is not secret."""

    @property
    def width(self) -> int:
        """The length of every vector."""

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """For each text, in order, a new array (tokens, width), finite, of at least one token.

        An empty or blank text gives one zero vector; a long text is cut at the encoder's maximum length.
        """


class Decider(Protocol):
    """A policy in use, called by the executor, `etude.task`, HTTP and benchmarks.

    Re-entrant: deciding writes nothing shared, so any number of threads may call it at once and each gets the answer
    that it would get alone. The same request gives the same answer: random numbers come from the request's seed.
    """

    @property
    def problem(self) -> str:
        """Name of the problem."""

    @property
    def version(self) -> str:
        """Version of the artefact and of how it is used: a sampling and a greedy decider have different versions."""

    def decide(self, request: DecisionRequest) -> Decision:
        """The decision; DataError if the request is not what the problem expects."""


class BatchDecider(Decider, Protocol):
    """A decider that answers requests that arrive together in one computation."""

    @property
    def quick(self) -> bool:
        """Whether it answers within about a millisecond, so that it is asked without a thread and a deadline."""

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        """For each request, in order, what `decide` gives, or the error that it raises."""


@runtime_checkable
class AsyncDecider(Decider, Protocol):
    """A decider that waits for a service, so that an event loop should not wait with it."""

    async def adecide(self, request: DecisionRequest) -> Decision:
        """As `decide`; it may be cancelled."""

    async def check(self) -> None:
        """Raises EndpointError, with what to do, if the service cannot be reached."""

    async def close(self) -> None:
        """Releases all resources; a second call does nothing."""


class Example(Protocol):
    """A trajectory of a dataset."""

    @property
    def trajectory(self) -> Trajectory: ...

    @property
    def reward(self) -> float: ...

    @property
    def weight(self) -> float:
        """Weight of the example; 1 unless the dataset is balanced by weights."""

    @property
    def context(self) -> str:
        """Hash of the request: equal for trajectories that answer the same request."""

    @property
    def rating(self) -> float | None:
        """Mean rating from 0 to 1, late feedback included; None without one."""


class LoggedDataset(Protocol):
    """A frozen selection of trajectories under one reward version, without trajectories that were forgotten since."""

    @property
    def problem(self) -> str: ...

    @property
    def content(self) -> str:
        """Hash of the content."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What a run records about it: id, location, reward version."""

    @property
    def splits(self) -> Mapping[str, int]:
        """Number of trajectories in train, validation and test."""

    @property
    def policies(self) -> Mapping[str, int]:
        """Number of trajectories by version of the behaviour policy."""

    def examples(self, split: str) -> Iterator[Sequence[Example]]:
        """Examples in parts that fit into memory; trajectories of one context are in the same part."""


class Worker(Protocol):
    """Carries out subtasks: an LLM, a tool, an agent, a person.

    Up to `concurrency` attempts may run at the same time. An attempt that is cancelled leaves
    nothing behind: no process, no open connection. It may take a moment to end; the executor does not wait for it.

    A worker may also have two methods that cost nothing: `needs_input(task_type)`, whether a subtask of this type is
    pointless without an input, and `check_subtask(subtask)`, which raises WorkerError for a subtask that it cannot be
    given. They are called when a subtask is planned, without outputs of earlier ones, and before every attempt.
    """

    name: str
    """Name of the worker in the catalogue."""

    async def check(self) -> None:
        """Raises WorkersError or EndpointError, with what to do, if the worker cannot be used now."""
        return

    def max_usd(self, subtask: Subtask) -> float | None:
        """Maximum cost of an attempt; None if it is the cost of a typical call."""
        return None

    async def do(self, subtask: Subtask) -> Reply:
        """The answer, or WorkerError with its Fault. Any other exception counts as Fault.UNKNOWN."""

    async def close(self) -> None:
        """Releases all resources; a second call does nothing."""
        return


class Verifier(Protocol):
    """Judges whether an output is what the subtask asked for; its verdict defines success."""

    async def check(self) -> None:
        """Like `Worker.check`."""
        return

    async def __call__(self, subtask: Subtask, output: object) -> Verdict:
        """The verdict on any output. WorkerError if the verifier itself cannot be asked: then the attempt failed."""
