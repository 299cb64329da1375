"""Texts to the tensors that the planner network reads: instructions, and descriptions of task types and workers.

The network refers to an instruction by its row in `EncodedInstructions`, so a batch of decisions about the same few
thousand instructions carries row numbers, not text. Task types and workers of the training data have learned name
embeddings; all others are read by their descriptions alone.
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
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.examples import Example, described
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.similarity import SimilarityEncoder
from etude.text.sentence import sentences

MAX_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Reads texts: an encoder for all of them, and a tokeniser for instructions where their encoder is fine-tuned."""

    encoder: TextEncoder
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None
    network: Callable[[float], torch.nn.Module] | None = None  # from a dropout rate to the encoder to fine-tune


@dataclass(frozen=True, kw_only=True)
class EncodedInstructions:
    """Instructions as tensors, one per row."""

    tokens: Tensor  # (rows, L) int: indices into `vectors`, or token ids where the text encoder is fine-tuned
    vectors: Tensor | None  # (distinct, width) float16; None where the text encoder is fine-tuned
    mask: Tensor  # (rows, L) bool: true for tokens, false for padding
    votes: Tensor  # (rows, columns): votes of similar past queries
    similarity: Tensor  # (rows, T, SIMILARITIES): to the task types of a catalogue

    def to(self, device: torch.device | str) -> EncodedInstructions:
        moved: dict[str, Any] = {name: x if x is None else x.to(device) for name, x in vars(self).items()}
        return EncodedInstructions(**moved)

    def take(self, rows: Tensor) -> EncodedInstructions:
        own = {name: getattr(self, name)[rows] for name in ("tokens", "mask", "votes", "similarity")}
        return replace(self, **own)


@dataclass(frozen=True, kw_only=True)
class PolicyContext:
    """Everything a network decides with besides its weights. T task types, W workers, as `Rules` counts them."""

    rules: Rules
    encoded: EncodedInstructions
    type_text: Tensor  # (T, width)
    worker_text: Tensor  # (W, width)
    type_row: Tensor  # (T,) long: row of the name embedding; −1 for a type that was not in the training data
    worker_row: Tensor  # (W,) long: the same for workers
    pairs: Tensor  # (pairs, 2) long: the memory's pairs in the ids of this catalogue; −2 for a type that it lacks
    links: Tensor  # (links,) long, sorted: source · T + target of the memory's links between types of this catalogue
    link_columns: Tensor  # (links,) long: the column of their votes

    def to(self, device: torch.device | str) -> PolicyContext:
        if self.type_text.device == torch.device(device):
            return self
        tensors = ("type_text", "worker_text", "type_row", "worker_row", "pairs", "links", "link_columns")
        moved = {name: getattr(self, name).to(device) for name in tensors}
        rules = Rules(self.rules.catalogue, self.rules.limits, device=device)
        return replace(self, rules=rules, encoded=self.encoded.to(device), **moved)

    def votes_for(self, links: Tensor, votes: Tensor) -> Tensor:
        """(n, …): the votes (n, columns) for links by their codes (n, …); 0 for links that are not in the memory."""
        if not len(self.links):
            return torch.zeros_like(links, dtype=votes.dtype)
        place = torch.searchsorted(self.links, links.flatten(1)).clamp(max=len(self.links) - 1)
        found = votes.gather(1, self.link_columns[place]) * (self.links[place] == links.flatten(1))
        return found.view_as(links)

    def __deepcopy__(self, memo: object) -> PolicyContext:
        """Copies of a network share their context: it is never modified."""
        return self


@dataclass(frozen=True, kw_only=True)
class KnownNames:
    """The names in a network's training data, in the order of its embedding tables."""

    task_types: tuple[str, ...]
    workers: tuple[str, ...]

    @staticmethod
    def of(catalogue: Catalogue) -> KnownNames:
        return KnownNames(
            task_types=tuple(t.name for t in catalogue.task_types), workers=tuple(w.name for w in catalogue.workers)
        )


def encode_instructions(
    encoder: TextEncoder,
    texts: Sequence[str],
    votes: Tensor,
    similarity: Tensor,
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None,
) -> EncodedInstructions:
    """The encoder's token vectors of each text, or token ids where `tokenise` is given."""
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
    return EncodedInstructions(tokens=tokens, vectors=vectors, mask=there, votes=votes, similarity=similarity)


def _distinct(texts: Sequence[NDArray[np.float32]], width: int) -> tuple[list[list[int]], Tensor]:
    """Each text's token vectors as indices, and the distinct vectors: many texts share a word."""
    numbers: dict[bytes, int] = {}
    rows = [
        [numbers.setdefault(vector.tobytes(), len(numbers)) for vector in text.astype(np.float16)] for text in texts
    ]
    return rows, torch.from_numpy(np.frombuffer(bytearray(b"".join(numbers)), np.float16).reshape(-1, width))


def make_policy_context(
    encoder: TextEncoder,
    catalogue: Catalogue,
    limits: Limits,
    known: KnownNames,
    memory: Memory,
    encoded: EncodedInstructions,
) -> PolicyContext:
    """The context of a network under this catalogue, which may have gained and lost entries since training."""
    place = {t.name: i for i, t in enumerate(catalogue.task_types)}
    stop = len(catalogue.task_types)
    # The memory's ids index `known`; the two appended entries are *stop* and START, which is index −1.
    ids = torch.tensor([*(place.get(name, -2) for name in known.task_types), stop, -1])
    source, target = ids[memory.links].T
    codes, order = torch.where((source >= 0) & (target >= 0), source * stop + target, -1).sort()
    there = codes >= 0
    return PolicyContext(
        rules=Rules(catalogue, limits),
        encoded=encoded,
        type_text=_described(encoder, catalogue.task_types),
        worker_text=_described(encoder, catalogue.workers),
        type_row=_rows([t.name for t in catalogue.task_types], known.task_types),
        worker_row=_rows([w.name for w in catalogue.workers] or [""], known.workers),
        pairs=ids[memory.pairs],
        links=codes[there],
        link_columns=memory.columns - len(codes) + order[there],
    )


def read_context(
    reader: TextReader,
    catalogue: Catalogue,
    limits: Limits,
    known: KnownNames,
    memory: Memory,
    texts: Sequence[str],
    votes: Tensor | None = None,
) -> PolicyContext:
    """The context of a network about these instructions, by default with the memory's votes."""
    votes = memory.votes(reader.encoder, texts) if votes is None else votes
    similarity = SimilarityEncoder(reader.encoder, catalogue.task_types)(texts)
    encoded = encode_instructions(reader.encoder, texts, votes, similarity, reader.tokenise)
    return make_policy_context(reader.encoder, catalogue, limits, known, memory, encoded)


def type_columns(policy_context: PolicyContext, votes: Tensor) -> Tensor:
    """(n, columns) to (n, T): the votes for each task type of the catalogue, 0 for types not in the memory."""
    rows = policy_context.type_row
    return votes[:, rows.clamp(min=0)] * (rows >= 0)


def _described(encoder: TextEncoder, entries: Sequence[TaskType] | Sequence[Worker]) -> Tensor:
    return torch.from_numpy(sentences(encoder, [described(entry) for entry in entries] or [""]))


def _rows(names: Sequence[str], known: Sequence[str]) -> Tensor:
    place = {name: i for i, name in enumerate(known)}
    return torch.tensor([place.get(name, -1) for name in names])


def to_drafts(rules: Rules, examples: Sequence[Example], rows: Sequence[int]) -> Obs:
    """Expert plans as finished drafts for the instructions in these rows; worker −1 where the expert named none."""
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
