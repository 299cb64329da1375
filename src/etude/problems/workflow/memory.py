"""Votes of similar past queries: how strongly the plans of similar past instructions support each choice.

Kernel ridge regression from instructions to what their plans contain: each task type, each pair of consecutive types
(with the start and *stop*), each link. It is fitted in closed form, and so are its leave-one-out predictions for the
past instructions: the network trains on votes of the same quality as those it will see for new instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from etude.contracts.ports import TextEncoder
from etude.problems.workflow.examples import Example
from etude.text.ngrams import COLUMNS
from etude.text.sentence import sentences
from etude.text.tfidf import count_matrix, inverse_document_frequency, tfidf

START = -1
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The fitted regression over past instructions and their plans. T task types; votes are (n, T + pairs + links)."""

    types: int
    pairs: Tensor  # (pairs, 2) long: a type or START, and the type after it or `types` for *stop*
    links: Tensor  # (links, 2) long: source and target type
    grams: csr_array  # (past, 2^18) TF-IDF rows at unit length
    idf: Floats  # (2^18,)
    vectors: Floats  # (past, width) sentence vectors
    weights: Floats  # (past, columns)

    @property
    def columns(self) -> int:
        return self.types + len(self.pairs) + len(self.links)

    def votes(self, encoder: TextEncoder, texts: Sequence[str]) -> Tensor:
        """(texts, columns): votes for instructions that are not in the memory."""
        grams = tfidf(count_matrix(texts), self.idf)
        kernel = _kernel(grams, sentences(encoder, texts), self._by_gram, self.vectors)
        return torch.from_numpy(kernel @ self.weights)

    @cached_property
    def _by_gram(self) -> csr_array:
        """(2^18, past): the transpose, computed once because products with it are fast."""
        return csr_array(self.grams.T)

    def state_dict(self) -> dict[str, Tensor]:
        arrays = {
            "grams.data": self.grams.data,
            "grams.indices": self.grams.indices,
            "grams.indptr": self.grams.indptr,
            "idf": self.idf,
            "vectors": self.vectors,
            "weights": self.weights.astype(np.float16),
        }
        return {name: torch.from_numpy(array) for name, array in arrays.items()} | {
            "pairs": self.pairs,
            "links": self.links,
        }

    @staticmethod
    def from_state(state: Mapping[str, Tensor], *, types: int) -> Memory:
        data, indices, indptr = (state[f"grams.{part}"].numpy() for part in ("data", "indices", "indptr"))
        return Memory(
            types=types,
            pairs=state["pairs"],
            links=state["links"],
            grams=csr_array((data, indices, indptr), shape=(len(indptr) - 1, COLUMNS)),
            idf=state["idf"].numpy(),
            vectors=state["vectors"].numpy(),
            weights=state["weights"].float().numpy(),
        )


def fit_memory(
    encoder: TextEncoder, examples: Sequence[Example], *, types: int, ridge: float = 0.2
) -> tuple[Memory, Tensor]:
    """The memory of these examples, and their own leave-one-out votes."""
    texts = [example.instruction for example in examples]
    counts = count_matrix(texts)
    idf = inverse_document_frequency(counts)
    grams, vectors = tfidf(counts, idf), sentences(encoder, texts)
    pairs, links = [_steps(example, types) for example in examples], [_links(example) for example in examples]
    distinct = [list(dict.fromkeys(chain.from_iterable(found))) for found in (pairs, links)]
    targets = _indicators([[e.targets.task_types for e in examples], pairs, links], [range(types), *distinct])
    gram_matrix = _kernel(grams, vectors, csr_array(grams.T), vectors)
    inverse = np.linalg.inv(gram_matrix.astype(np.float64) + ridge * np.eye(len(texts)))
    weights = inverse @ targets
    left_out = targets - weights / np.diag(inverse)[:, None]
    memory = Memory(
        types=types,
        pairs=torch.tensor(distinct[0], dtype=torch.long).view(-1, 2),
        links=torch.tensor(distinct[1], dtype=torch.long).view(-1, 2),
        grams=grams,
        idf=idf,
        vectors=vectors,
        weights=weights.astype(np.float32),
    )
    return memory, torch.from_numpy(left_out.astype(np.float32))


def _kernel(grams: csr_array, vectors: Floats, by_gram: csr_array, past_vectors: Floats) -> Floats:
    """(texts, past): shared n-grams weigh most; sentence vectors help where the words differ."""
    lexical = (grams @ by_gram).toarray()
    semantic = ((vectors @ past_vectors.T + 1) / 2) ** 6
    kernel: Floats = (0.7 * lexical + 0.3 * semantic).astype(np.float32)
    return kernel


def _steps(example: Example, types: int) -> list[tuple[int, int]]:
    chosen = example.targets.task_types
    return list(zip((START, *chosen), (*chosen, types), strict=True))


def _links(example: Example) -> list[tuple[int, int]]:
    t = example.targets
    return [(t.task_types[j], t.task_types[i]) for i, earlier in enumerate(t.dependencies) for j in earlier]


def _indicators(found: Sequence[Sequence[Sequence[Any]]], columns: Sequence[Sequence[Any]]) -> NDArray[np.float64]:
    """(examples, all columns): 1 for what each example has, of each kind by the columns of that kind."""
    blocks = []
    for per_example, names in zip(found, columns, strict=True):
        place = {name: i for i, name in enumerate(names)}
        block = np.zeros((len(per_example), len(place)))
        for row, own in enumerate(per_example):
            block[row, [place[name] for name in own]] = 1
        blocks.append(block)
    return np.concatenate(blocks, 1)
