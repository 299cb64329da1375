"""Texts to the tensors a network reads: instructions with their votes, task types and workers by what describes them.

A network refers to an instruction by its row in a `Library`, so a batch of decisions about the same few thousand
instructions carries numbers, not text. What it was trained on is known to it by name; anything else it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from etude.contracts.ports import TextEncoder
from etude.problems.base import Obs
from etude.problems.workflow.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.examples import Example, described
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.plan import Limits
from etude.text.sentence import sentences

MAX_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Library:
    """Instructions, one a row."""

    tokens: Tensor  # (rows, L) int: which vector each token has, or its id where a network learns the vectors
    vectors: Tensor | None  # (distinct, width) float16; None where a network learns them
    mask: Tensor  # (rows, L) bool: where there is a token
    votes: Tensor  # (rows, columns) of similar past queries
    alike: Tensor  # (rows, T, LIKENESS) to the task types of a catalogue

    def to(self, device: torch.device | str) -> Library:
        vectors = None if self.vectors is None else self.vectors.to(device)
        tokens, mask, votes, alike = (x.to(device) for x in (self.tokens, self.mask, self.votes, self.alike))
        return Library(tokens=tokens, vectors=vectors, mask=mask, votes=votes, alike=alike)


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
    links: Tensor  # (links,) long, sorted: source · T + target of those that are in this catalogue
    link_columns: Tensor  # (links,) long: where their votes stand

    def to(self, device: torch.device | str) -> Surroundings:
        if self.type_text.device == torch.device(device):
            return self
        tensors = ("type_text", "worker_text", "type_row", "worker_row", "pairs", "links", "link_columns")
        moved = {name: getattr(self, name).to(device) for name in tensors}
        rules = Rules(self.rules.catalogue, self.rules.limits, device=device)
        return replace(self, rules=rules, library=self.library.to(device), **moved)

    def votes_for(self, links: Tensor, votes: Tensor) -> Tensor:
        """(n, …) of the votes (n, columns) for links by their codes (n, …); 0 for what the memory does not know."""
        if not len(self.links):
            return torch.zeros_like(links, dtype=votes.dtype)
        place = torch.searchsorted(self.links, links.flatten(1)).clamp(max=len(self.links) - 1)
        found = votes.gather(1, self.link_columns[place]) * (self.links[place] == links.flatten(1))
        return found.view_as(links)

    def __deepcopy__(self, memo: object) -> Surroundings:
        """A copy of a network decides within the same: nothing of this is ever changed."""
        return self


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
    alike: Tensor,
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None,
) -> Library:
    """With `tokenise`, rows of token ids instead of the encoder's vectors."""
    vectors = None
    if tokenise is None:
        found, vectors = _distinct([tokens[:MAX_TOKENS] for tokens in encoder.tokens(texts)], encoder.width)
    else:
        found = [(ids or [0])[:MAX_TOKENS] for ids in tokenise(texts)]
    padded = np.zeros((len(texts), max(map(len, found), default=1)), np.int64)
    mask = np.zeros(padded.shape, bool)
    for row, ids in enumerate(found):
        padded[row, : len(ids)], mask[row, : len(ids)] = ids, True
    tokens, there = torch.from_numpy(padded), torch.from_numpy(mask)
    return Library(tokens=tokens, vectors=vectors, mask=there, votes=votes, alike=alike)


def _distinct(texts: Sequence[NDArray[np.float32]], width: int) -> tuple[list[list[int]], Tensor]:
    """Vectors of each text's tokens to their numbers, and the vectors: the same word stands in many texts."""
    numbers: dict[bytes, int] = {}
    rows = [
        [numbers.setdefault(vector.tobytes(), len(numbers)) for vector in text.astype(np.float16)] for text in texts
    ]
    return rows, torch.from_numpy(np.frombuffer(bytearray(b"".join(numbers)), np.float16).reshape(-1, width))


def surround(
    encoder: TextEncoder, catalogue: Catalogue, limits: Limits, known: Known, memory: Memory, library: Library
) -> Surroundings:
    """A network's surroundings under this catalogue, which may have gained and lost entries since it was trained."""
    place = {t.name: i for i, t in enumerate(catalogue.task_types)}
    stop = len(catalogue.task_types)
    # The memory's ids are those of `known`; its last two are stop and, read backwards, START.
    ids = torch.tensor([*(place.get(name, -2) for name in known.task_types), stop, -1])
    source, target = ids[memory.links].T
    codes, order = torch.where((source >= 0) & (target >= 0), source * stop + target, -1).sort()
    there = codes >= 0
    return Surroundings(
        rules=Rules(catalogue, limits),
        library=library,
        type_text=_described(encoder, catalogue.task_types),
        worker_text=_described(encoder, catalogue.workers),
        type_row=_rows([t.name for t in catalogue.task_types], known.task_types),
        worker_row=_rows([w.name for w in catalogue.workers] or [""], known.workers),
        pairs=ids[memory.pairs],
        links=codes[there],
        link_columns=memory.columns - len(codes) + order[there],
    )


def type_columns(surroundings: Surroundings, votes: Tensor) -> Tensor:
    """(n, columns) to (n, T): the votes for each task type of the catalogue, 0 for one the memory does not know."""
    rows = surroundings.type_row
    return votes[:, rows.clamp(min=0)] * (rows >= 0)


def _described(encoder: TextEncoder, entries: Sequence[TaskType] | Sequence[Worker]) -> Tensor:
    return torch.from_numpy(sentences(encoder, [described(entry) for entry in entries] or [""]))


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
