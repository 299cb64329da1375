"""Expert workflows made ready to learn from: sets of examples in, drafts, surroundings and what was kept aside out.

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
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.encode import Known, Surroundings, make_library, surround, to_drafts
from etude.problems.workflow.examples import Example, augment
from etude.problems.workflow.likeness import Likeness
from etude.problems.workflow.memory import Memory, remember
from etude.problems.workflow.plan import Limits, Node, Plan

Tokenise = Callable[[Sequence[str]], list[list[int]]]

REMEMBERED = 4000
"""Past queries that a memory holds at most: fitting it takes the cube of their number."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How texts are read: vectors for all of them, and token ids of instructions where a network learns theirs."""

    encoder: TextEncoder
    tokenise: Tokenise | None = None
    network: Callable[[float], torch.nn.Module] | None = None  # given its dropout


@dataclass(frozen=True, kw_only=True)
class Course:
    """Examples of several sets over one catalogue."""

    catalogue: Catalogue
    examples: tuple[Example, ...]
    sets: tuple[int, ...]  # of each example
    offered: torch.Tensor  # (sets, T) bool

    @property
    def known(self) -> Known:
        return Known.of(self.catalogue)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What one training goes through."""

    surroundings: Surroundings
    memory: Memory
    drafts: Obs  # expert plans to imitate
    exam: Obs  # empty drafts about the instructions kept aside
    wanted: list[Plan]  # the experts' plans for them


def make_course(sets: Sequence[tuple[Catalogue, Sequence[Example]]]) -> Course:
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
    return Course(catalogue=merged, examples=tuple(examples), sets=tuple(numbers), offered=offered)


def _renumbered(example: Example, ids: Sequence[int], worker_ids: Sequence[int]) -> Example:
    t = example.targets
    chosen = None if t.model_selections is None else tuple(worker_ids[i] for i in t.model_selections)
    targets = msgspec.structs.replace(t, task_types=tuple(ids[i] for i in t.task_types), model_selections=chosen)
    return msgspec.structs.replace(example, targets=targets)


def split(course: Course, *, share: float, size: int | None, seed: int) -> tuple[list[int], list[int]]:
    """Indices to learn from and to keep aside, drawn from at most `size` examples."""
    order = random.Random(seed).sample(range(len(course.examples)), len(course.examples))[:size]
    aside = min(max(1, round(share * len(order))), len(order) - 1)
    if len(order) < 5:
        raise ConfigError(f"there are {len(order)} examples to learn from: at least 5 are needed, some are kept aside")
    return sorted(order[aside:]), sorted(order[:aside])


def make_lesson(
    course: Course,
    learn: Sequence[int],
    aside: Sequence[int],
    *,
    reader: Reader,
    limits: Limits,
    augmentations: int,
    ridge: float,
    seed: int,
) -> Lesson:
    """The examples `learn`, with new ones made from them, and the exam on those `aside`."""
    luck = random.Random(seed)
    if len(learn) > REMEMBERED:  # of every set some
        learn = luck.sample(learn, len(learn))
    chosen, kept = [course.examples[i] for i in learn], [course.examples[i] for i in aside]
    past = chosen[:REMEMBERED]
    memory, own_votes = remember(reader.encoder, past, types=len(course.catalogue.task_types), ridge=ridge)
    made = augment(chosen, course.catalogue, augmentations, luck)
    numbers = _sets_of(made, chosen, [course.sets[i] for i in learn])
    texts = [example.instruction for example in (*chosen, *made, *kept)]
    votes = torch.cat([own_votes, memory.votes(reader.encoder, texts[len(past) :])])
    alike = Likeness(reader.encoder, course.catalogue.task_types)(texts)
    library = make_library(reader.encoder, texts, votes, alike, reader.tokenise)
    around = surround(reader.encoder, course.catalogue, limits, course.known, memory, library)
    taught = [*chosen, *made]
    drafts = to_drafts(around.rules, taught, range(len(taught)))
    drafts["offered"] = course.offered[[*(course.sets[i] for i in learn), *numbers]]
    exam = around.rules.begin(len(kept)) | {"instruction": torch.arange(len(taught), len(texts))}
    exam["offered"] = course.offered[[course.sets[i] for i in aside]]
    wanted = [to_plan(course.catalogue, example) for example in kept]
    return Lesson(surroundings=around, memory=memory, drafts=drafts, exam=exam, wanted=wanted)


def _sets_of(made: Sequence[Example], chosen: Sequence[Example], sets: Sequence[int]) -> list[int]:
    """A made example shares its targets with the one it was made from."""
    known = {id(example.targets): number for example, number in zip(chosen, sets, strict=True)}
    return [known[id(example.targets)] for example in made]


def to_plan(catalogue: Catalogue, example: Example) -> Plan:
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
