"""Texts to the tensors a network reads: instructions with their votes, task types and workers by what describes them.

A network refers to an instruction by its row in a `Library`, so a batch of decisions about the same few thousand
instructions carries numbers, not text. What it was trained on is known to it by name; anything else it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.contracts.ports import TextEncoder
from etude.problems.base import Obs
from etude.problems.workflow.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.examples import Example, readable
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.plan import Limits
from etude.text.sentence import sentences

MAX_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Library:
    """Instructions, one a row."""

    tokens: Tensor  # (rows, L, width) float16 vectors, or (rows, L) long ids where a network learns the vectors
    mask: Tensor  # (rows, L) bool: where there is a token
    votes: Tensor  # (rows, columns) of similar past queries

    def to(self, device: torch.device | str) -> Library:
        return Library(tokens=self.tokens.to(device), mask=self.mask.to(device), votes=self.votes.to(device))


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """All a network decides within, apart from its weights. T task types, W workers, as `Rules` counts them."""

    rules: Rules
    library: Library
    type_text: Tensor  # (T, width)
    worker_text: Tensor  # (W, width)
    type_row: Tensor  # (T,) long: which of the names it was trained with; −1 for one it only reads
    worker_row: Tensor  # (W,) long
    pairs: Tensor  # (pairs, 2) long: the memory's, in the ids of this catalogue; −2 for what is not in it
    links: Tensor  # (links, 2) long

    def to(self, device: torch.device | str) -> Surroundings:
        tensors = ("type_text", "worker_text", "type_row", "worker_row", "pairs", "links")
        moved = {name: getattr(self, name).to(device) for name in tensors}
        rules = Rules(self.rules.catalogue, self.rules.limits, device=device)
        return replace(self, rules=rules, library=self.library.to(device), **moved)


@dataclass(frozen=True, kw_only=True)
class Known:
    """The names a network was trained with, in the order of its tables."""

    task_types: tuple[str, ...]
    workers: tuple[str, ...]

    @staticmethod
    def of(catalogue: Catalogue) -> Known:
        return Known(
            task_types=tuple(t.name for t in catalogue.task_types), workers=tuple(w.name for w in catalogue.workers)
        )


def make_library(
    encoder: TextEncoder,
    texts: Sequence[str],
    votes: Tensor,
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None,
) -> Library:
    """With `tokenise`, rows of token ids instead of the encoder's vectors."""
    found: Sequence[NDArray[Any]] = (
        encoder.tokens(texts) if tokenise is None else [np.array(ids or [0]) for ids in tokenise(texts)]
    )
    found = [tokens[:MAX_TOKENS] for tokens in found]
    longest = max((len(tokens) for tokens in found), default=1)
    shape = (len(texts), longest)
    padded = np.zeros((*shape, encoder.width), np.float16) if tokenise is None else np.zeros(shape, np.int64)
    mask = np.zeros((len(texts), longest), bool)
    for row, tokens in enumerate(found):
        padded[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = True
    return Library(tokens=torch.from_numpy(padded), mask=torch.from_numpy(mask), votes=votes)


def surround(
    encoder: TextEncoder, catalogue: Catalogue, limits: Limits, known: Known, memory: Memory, library: Library
) -> Surroundings:
    """A network's surroundings under this catalogue, which may have gained and lost entries since it was trained."""
    place = {t.name: i for i, t in enumerate(catalogue.task_types)}
    stop = len(catalogue.task_types)
    # The memory's ids are those of `known`; its last two are stop and, read backwards, START.
    ids = torch.tensor([*(place.get(name, -2) for name in known.task_types), stop, -1])
    return Surroundings(
        rules=Rules(catalogue, limits),
        library=library,
        type_text=_described(encoder, catalogue.task_types),
        worker_text=_described(encoder, catalogue.workers),
        type_row=_rows([t.name for t in catalogue.task_types], known.task_types),
        worker_row=_rows([w.name for w in catalogue.workers] or [""], known.workers),
        pairs=ids[memory.pairs],
        links=ids[memory.links],
    )


def type_columns(surroundings: Surroundings, votes: Tensor) -> Tensor:
    """(n, columns) to (n, T): the votes for each task type of the catalogue, 0 for one the memory does not know."""
    rows = surroundings.type_row
    return votes[:, rows.clamp(min=0)] * (rows >= 0)


def _described(encoder: TextEncoder, entries: Sequence[TaskType] | Sequence[Worker]) -> Tensor:
    texts = [f"{readable(entry.name)}: {entry.description}" for entry in entries] or [""]
    return torch.from_numpy(sentences(encoder, texts))


def _rows(names: Sequence[str], known: Sequence[str]) -> Tensor:
    place = {name: i for i, name in enumerate(known)}
    return torch.tensor([place.get(name, -1) for name in names])


def to_drafts(rules: Rules, examples: Sequence[Example], rows: Sequence[int]) -> Obs:
    """Expert plans as finished drafts about the instructions in these rows; worker −1 where the expert named none."""
    d = rules.begin(len(examples))
    for i, example in enumerate(examples):
        t = example.targets
        count = len(t.task_types)
        d["types"][i, :count] = torch.tensor(t.task_types)
        if t.model_selections is not None:
            d["workers"][i, :count] = torch.tensor(t.model_selections)
        for node, earlier in enumerate(t.dependencies):
            d["links"][i, node, list(earlier)] = True
        d["length"][i] = count
    return d | {"instruction": torch.tensor(rows)}
