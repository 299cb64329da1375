"""Training data for the planner: sets of expert examples in, encoded drafts and a held-out validation set out.

Several sets, each with its own catalogue, become one: task types and workers of the same name are the same, and each
example offers those of its own catalogue.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from etude.contracts.errors import ConfigError
from etude.problems.base import Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.encode import KnownNames, PolicyContext, TextReader, read_context, to_drafts
from etude.problems.workflow.examples import Example, augment
from etude.problems.workflow.memory import Memory, fit_memory
from etude.problems.workflow.plan import Limits, Plan, name_plan

MIN_EXAMPLES = 5
MAX_PAST_QUERIES = 4000
"""Maximum number of past queries in a memory: the time to fit it grows with their cube."""


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

    def without(self, left_out: Collection[int]) -> ExampleSets:
        """The same sets without these examples."""
        kept = [i for i in range(len(self.examples)) if i not in set(left_out)]
        examples, sets = tuple(self.examples[i] for i in kept), tuple(self.sets[i] for i in kept)
        return replace(self, examples=examples, sets=sets)


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
    if len(order) < MIN_EXAMPLES:
        raise ConfigError(
            f"there are {len(order)} examples to learn from: at least {MIN_EXAMPLES} are needed, some are held out"
        )
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
    # An augmented example shares its `targets` object with the example that it was made from.
    number = {id(example.targets): merged.sets[i] for example, i in zip(chosen, learn, strict=True)}
    texts = [example.instruction for example in (*chosen, *made, *validated)]
    votes = torch.cat([own_votes, memory.votes(reader.encoder, texts[len(past) :])])
    context = read_context(reader, merged.catalogue, limits, merged.known, memory, texts, votes)
    imitated = [*chosen, *made]
    drafts = to_drafts(context.rules, imitated, range(len(imitated)))
    drafts["offered"] = merged.offered[[number[id(example.targets)] for example in imitated]]
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


def to_plan(catalogue: Catalogue, example: Example) -> Plan:
    """The expert's plan, with the catalogue's names in place of ids."""
    t = example.targets
    return name_plan(catalogue, example.instruction, t.task_types, t.model_selections, t.dependencies)
