"""Training data for the planner: sets of expert examples in, encoded drafts and a held-out validation set out.

Several sets, each with its own catalogue, become one: task types and workers of the same name are the same, and each
example offers those of its own catalogue.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch

from etude.contracts.errors import ConfigError
from etude.contracts.ports import TextEncoder
from etude.problems.base import Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.encode import (
    KnownNames,
    PolicyContext,
    encode_instructions,
    make_policy_context,
    to_drafts,
)
from etude.problems.workflow.examples import Example, augment
from etude.problems.workflow.memory import Memory, fit_memory
from etude.problems.workflow.plan import Limits, Node, Plan
from etude.problems.workflow.similarity import SimilarityEncoder

Tokenise = Callable[[Sequence[str]], list[list[int]]]

MAX_PAST_QUERIES = 4000
"""Maximum number of past queries in a memory: the time to fit it grows with their cube."""


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Reads texts: an encoder for all of them, and a tokeniser for instructions where their encoder is fine-tuned."""

    encoder: TextEncoder
    tokenise: Tokenise | None = None
    network: Callable[[float], torch.nn.Module] | None = None  # from a dropout rate to the encoder to fine-tune


@dataclass(frozen=True, kw_only=True)
class ExampleSets:
    """Examples of several sets over one merged catalogue of T task types."""

    catalogue: Catalogue
    examples: tuple[Example, ...]
    sets: tuple[int, ...]  # the set that each example comes from
    offered: torch.Tensor  # (sets, T) bool: the task types of each set

    @property
    def known(self) -> KnownNames:
        return KnownNames.of(self.catalogue)


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """Everything that one training needs."""

    policy_context: PolicyContext
    memory: Memory
    drafts: Obs  # expert plans to imitate
    validation: Obs  # empty drafts for the held-out instructions
    validation_drafts: Obs  # the experts' plans for them, as drafts
    expected: list[Plan]  # the same as plans


def merge_sets(sets: Sequence[tuple[Catalogue, Sequence[Example]]]) -> ExampleSets:
    """One catalogue for all sets, and their examples with ids into it."""
    types = {t.name: t for catalogue, _ in reversed(sets) for t in reversed(catalogue.task_types)}
    workers = {w.name: w for catalogue, _ in reversed(sets) for w in reversed(catalogue.workers)}
    merged = Catalogue(task_types=tuple(reversed(types.values())), workers=tuple(reversed(workers.values())))
    place = {t.name: i for i, t in enumerate(merged.task_types)}
    worker_place = {w.name: i for i, w in enumerate(merged.workers)}
    offered = torch.zeros((len(sets), len(place)), dtype=torch.bool)
    examples: list[Example] = []
    numbers: list[int] = []
    for number, (catalogue, own) in enumerate(sets):
        ids = [place[t.name] for t in catalogue.task_types]
        worker_ids = [worker_place[w.name] for w in catalogue.workers]
        offered[number, ids] = True
        examples += [_renumbered(example, ids, worker_ids) for example in own]
        numbers += [number] * len(own)
    return ExampleSets(catalogue=merged, examples=tuple(examples), sets=tuple(numbers), offered=offered)


def _renumbered(example: Example, ids: Sequence[int], worker_ids: Sequence[int]) -> Example:
    t = example.targets
    chosen = None if t.model_selections is None else tuple(worker_ids[i] for i in t.model_selections)
    targets = msgspec.structs.replace(t, task_types=tuple(ids[i] for i in t.task_types), model_selections=chosen)
    return msgspec.structs.replace(example, targets=targets)


def split(merged: ExampleSets, *, share: float, size: int | None, seed: int) -> tuple[list[int], list[int]]:
    """Indices to learn from and indices to hold out, a random sample of at most `size` examples."""
    order = random.Random(seed).sample(range(len(merged.examples)), len(merged.examples))[:size]
    count = min(max(1, round(share * len(order))), len(order) - 1)
    if len(order) < 5:
        raise ConfigError(f"there are {len(order)} examples to learn from: at least 5 are needed, some are held out")
    return sorted(order[count:]), sorted(order[:count])


def make_training_set(
    merged: ExampleSets,
    learn: Sequence[int],
    held_out: Sequence[int],
    *,
    reader: TextReader,
    limits: Limits,
    augmentations: int,
    ridge: float,
    seed: int,
) -> TrainingSet:
    """A training set of the examples `learn`, augmented, with validation on those `held_out`."""
    rng = random.Random(seed)
    if len(learn) > MAX_PAST_QUERIES:  # the memory then has some of every set
        learn = rng.sample(learn, len(learn))
    chosen, validated = [merged.examples[i] for i in learn], [merged.examples[i] for i in held_out]
    past = chosen[:MAX_PAST_QUERIES]
    memory, own_votes = fit_memory(reader.encoder, past, types=len(merged.catalogue.task_types), ridge=ridge)
    made = augment(chosen, merged.catalogue, augmentations, rng)
    numbers = _sets_of(made, chosen, [merged.sets[i] for i in learn])
    texts = [example.instruction for example in (*chosen, *made, *validated)]
    votes = torch.cat([own_votes, memory.votes(reader.encoder, texts[len(past) :])])
    similarity = SimilarityEncoder(reader.encoder, merged.catalogue.task_types)(texts)
    encoded = encode_instructions(reader.encoder, texts, votes, similarity, reader.tokenise)
    context = make_policy_context(reader.encoder, merged.catalogue, limits, merged.known, memory, encoded)
    imitated = [*chosen, *made]
    drafts = to_drafts(context.rules, imitated, range(len(imitated)))
    drafts["offered"] = merged.offered[[*(merged.sets[i] for i in learn), *numbers]]
    validation = context.rules.begin(len(validated)) | {"instruction": torch.arange(len(imitated), len(texts))}
    validation["offered"] = merged.offered[[merged.sets[i] for i in held_out]]
    targets = to_drafts(context.rules, validated, range(len(imitated), len(texts)))
    return TrainingSet(
        policy_context=context,
        memory=memory,
        drafts=drafts,
        validation=validation,
        validation_drafts=targets | {"offered": validation["offered"]},
        expected=[to_plan(merged.catalogue, example) for example in validated],
    )


def _sets_of(made: Sequence[Example], chosen: Sequence[Example], sets: Sequence[int]) -> list[int]:
    """The set of each augmented example: it shares its `targets` object with the example that it was made from."""
    known = {id(example.targets): number for example, number in zip(chosen, sets, strict=True)}
    return [known[id(example.targets)] for example in made]


def to_plan(catalogue: Catalogue, example: Example) -> Plan:
    """The expert's plan, with the catalogue's names in place of ids."""
    t = example.targets
    chosen = t.model_selections or [None] * len(t.task_types)
    nodes = tuple(
        Node(
            task_type=catalogue.task_types[kind].name,
            dependencies=earlier,
            worker=None if worker is None else catalogue.workers[worker].name,
        )
        for kind, earlier, worker in zip(t.task_types, t.dependencies, chosen, strict=True)
    )
    return Plan(instruction=example.instruction, nodes=nodes)
