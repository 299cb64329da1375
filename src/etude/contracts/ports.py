"""The sockets: what a room needs of another, as Protocols that state what every implementation guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from etude.contracts.work import Reply, Subtask, Verdict

Vectors = NDArray[np.float32]
"""Rows of float32: (tokens, width) of one text, or (texts, width)."""


class TextEncoder(Protocol):
    """Texts to vectors.

    Any `str` is a text: empty, enormous, binary-like, of any script, with lone surrogates. None of them raises; only
    a service that does not answer does. The same texts give the same vectors, in any process, and how texts are
    grouped into calls changes no more than the last digits.
    """

    @property
    def name(self) -> str:
        """Identifies the vectors (model, version, width, length): another name, other vectors. It holds no secret."""

    @property
    def width(self) -> int:
        """The length of every vector."""

    def tokens(self, texts: Sequence[str]) -> list[Vectors]:
        """For each text, in order, a new array (tokens, width), finite, of at least one token.

        An empty or blank text gives one zero vector; of a long one the beginning counts.
        """


class Worker(Protocol):
    """Carries subtasks out: an LLM, a tool, an agent, a person.

    Many attempts may be under way at once, as many as its `concurrency` says. An attempt that is cancelled leaves
    nothing behind: no process, no open connection. It may take a moment to end; nobody waits for it.
    """

    @property
    def name(self) -> str:
        """As the catalogue has it."""

    async def check(self) -> None:
        """Raises WorkersError or EndpointError where it could not do anything now, and says what to do about it."""

    def most_usd(self, subtask: Subtask) -> float | None:
        """What an attempt at this can cost at most; None where that is what a typical call costs."""

    async def do(self, subtask: Subtask) -> Reply:
        """The answer, or WorkerError with its Fault. Whatever else it raises is taken for Fault.UNKNOWN."""

    async def close(self) -> None:
        """Gives back what it holds. It may be called twice."""


class Verifier(Protocol):
    """Says whether an output is what the subtask asked for. Success is what it says."""

    async def check(self) -> None:
        """As a worker's."""

    async def __call__(self, subtask: Subtask, output: object) -> Verdict:
        """Of any output. WorkerError only where the verifier itself cannot be asked: then the attempt failed."""
