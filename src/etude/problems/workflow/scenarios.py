"""Scenarios: instructions in plain words, each with its best plan. Written by a small grammar, or read from examples.

The grammar draws a DAG of steps that make sense of each other, then says it: a clause a step, in one of many
phrasings; steps left unsaid where what the next one works on implies them; clauses turned round; steps that are named
only to say that they are not wanted. The words always determine the plan, though not by keywords alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any, Literal

import torch
from torch import Tensor

from etude.contracts.errors import ConfigError, DataError
from etude.problems.workflow import phrases
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.examples import Example
from etude.problems.workflow.plan import Node, Plan, in_order

Phrasings = Literal["seen", "unseen"]
Steps = list[tuple[str, tuple[int, ...]]]
"""Task types in topological order, each with the indices of the steps it needs."""

SIZES = (0.06, 0.18, 0.27, 0.24, 0.15, 0.10)
"""Shares of plans with 1, 2, … nodes."""
IMPLIED_SOURCE, IMPLIED_STEP, TURN, NEEDLESS = 0.45, 0.4, 0.3, 0.15
SHAPES = (0.25, 0.45, 0.15, 0.15)
"""Shares of steps that extend a branch, join two, fork one, or start afresh."""
TRIES = 24
FEWEST = 5
"""Examples that a world is made of at least: some are kept aside."""


@dataclass(frozen=True, kw_only=True)
class Scenarios:
    """S instructions with plans of up to K nodes over a catalogue; a plan has no task type twice."""

    catalogue: Catalogue
    instructions: tuple[str, ...]
    types: Tensor  # (S, K) long in topological order, −1 beyond the length
    links: Tensor  # (S, K, K) bool: [s, i, j] node i needs node j
    length: Tensor  # (S,) long
    newcomers: tuple[str, ...] = ()  # names of the catalogue that exist only after the shift `new_tool`
    left_out: Mapping[str, int] = field(default_factory=dict)  # examples no scenario was made of, by what they have

    def __len__(self) -> int:
        return len(self.instructions)

    def plan(self, row: int) -> Plan:
        """The best plan, whoever does it."""
        nodes = tuple(
            Node(
                task_type=self.catalogue.task_types[int(self.types[row, i])].name,
                dependencies=tuple(self.links[row, i].nonzero()[:, 0].tolist()),
            )
            for i in range(int(self.length[row]))
        )
        return Plan(instruction=self.instructions[row], nodes=nodes)

    def records(self) -> list[dict[str, Any]]:
        """As a training file has them."""
        found = []
        for row, instruction in enumerate(self.instructions):
            count = int(self.length[row])
            needs = [self.links[row, i].nonzero()[:, 0].tolist() for i in range(count)]
            targets = {"task_types": self.types[row, :count].tolist(), "dependencies": needs}
            found.append({"instruction": instruction, "targets": targets})
        return found


def playable(examples: Sequence[Example], catalogue: Catalogue, *, max_nodes: int) -> Scenarios:
    """Expert workflows as scenarios, in their order; what a world cannot play is left out and counted."""
    workers = catalogue.workers
    able = [not workers or any(catalogue.able(w, t.name) for w in workers) for t in catalogue.task_types]
    kept: dict[str, Example] = {}
    left_out: Counter[str] = Counter()
    for example in examples:
        types = example.targets.task_types
        has = {
            "a task type twice": len(set(types)) < len(types),
            f"more than {max_nodes} subtasks": len(types) > max_nodes,
            "a subtask that no worker can do": not all(able[t] for t in types),
            "an instruction that came before": example.instruction.strip() in kept,
        }
        reason = next((reason for reason, applies in has.items() if applies), None)
        if reason is None:
            kept[example.instruction.strip()] = example
        else:
            left_out[reason] += 1
    if len(kept) < FEWEST:
        told = "".join(f"; {count} left out with {reason}" for reason, count in left_out.items())
        raise ConfigError(
            f"there are {len(kept)} examples to practise on{told}: at least {FEWEST} are needed, some are kept aside; "
            "give more with --data"
        )
    plans = ((e.instruction, e.targets.task_types, e.targets.dependencies) for e in kept.values())
    return replace(from_examples(plans, catalogue), left_out=left_out)


def from_examples(
    examples: Iterable[tuple[str, Sequence[int], Sequence[Sequence[int]]]],
    catalogue: Catalogue,
    *,
    newcomers: tuple[str, ...] = (),
) -> Scenarios:
    """(instruction, task type ids, dependencies) each. Plans with a task type twice are left out."""
    kept: list[tuple[str, list[int], list[list[int]]]] = []
    for number, (instruction, types, dependencies) in enumerate(examples):
        if len(types) != len(dependencies) or not types:
            raise DataError(f"example {number}: {len(types)} task types and {len(dependencies)} lists of dependencies")
        if not all(0 <= t < len(catalogue.task_types) for t in types):
            raise DataError(
                f"example {number}: task types {list(types)}, expected 0 to {len(catalogue.task_types) - 1}"
            )
        if not all(0 <= j < len(types) for needs in dependencies for j in needs):
            raise DataError(f"example {number}: dependencies {dependencies}, expected 0 to {len(types) - 1}")
        if len(set(types)) == len(types):
            order = in_order(dependencies)
            place = {old: new for new, old in enumerate(order)}
            moved = [[place[j] for j in dependencies[i]] for i in order]
            kept.append((instruction, [types[i] for i in order], moved))
    if not kept:
        raise DataError("no example has a plan without a repeated task type: there is nothing to make scenarios of")
    S, K = len(kept), max(len(types) for _, types, _ in kept)
    all_types, links = torch.full((S, K), -1), torch.zeros((S, K, K), dtype=torch.bool)
    for s, (_, types, dependencies) in enumerate(kept):
        all_types[s, : len(types)] = torch.tensor(types)
        for i, needed in enumerate(dependencies):
            links[s, i, needed] = True
    return Scenarios(
        catalogue=catalogue,
        instructions=tuple(instruction for instruction, _, _ in kept),
        types=all_types,
        links=links,
        length=(all_types >= 0).sum(1),
        newcomers=newcomers,
    )


@lru_cache(maxsize=8)
def generate(seed: int, count: int, phrasings: Phrasings = "seen", *, newcomers: bool = False) -> Scenarios:
    """`count` distinct instructions of the built-in office; with `newcomers`, half of them need the new tool."""
    random, ids = Random(seed), {t.name: i for i, t in enumerate(phrases.CATALOGUE.task_types)}
    plans: dict[str, Steps] = {}
    while len(plans) < count:
        steps = draw_steps(random, root="transcribe_audio" if newcomers and random.random() < 0.5 else None)
        plans.setdefault(Speaker(random, steps, phrasings).say(), steps)
    examples = ((text, [ids[name] for name, _ in s], [needs for _, needs in s]) for text, s in plans.items())
    return from_examples(examples, phrases.CATALOGUE, newcomers=phrases.NEWCOMERS)


def draw_steps(random: Random, *, root: str | None = None) -> Steps:
    """A chain that forks, starts afresh beside itself and joins again."""
    size = random.choices(range(1, 7), SIZES)[0]
    steps: Steps = [(root or random.choice(phrases.ROOTS), ())]
    for _ in range(TRIES):
        if len(steps) == size:
            break
        needed = {j for _, needs in steps for j in needs}
        leaves = [i for i in range(len(steps)) if i not in needed]
        shape = random.choices(("extend", "join", "fork", "fresh"), SHAPES)[0]
        needs = {
            "extend": (random.choice(leaves),),
            "join": tuple(sorted(random.sample(leaves, min(2, len(leaves))))),
            "fork": (random.randrange(len(steps)),),
            "fresh": (),
        }[shape]
        follow = set(phrases.FOLLOWS) if needs else set(phrases.ROOTS)
        follow = follow.intersection(*(phrases.FOLLOWS[steps[j][0]] for j in needs)) - {name for name, _ in steps}
        if follow:
            steps.append((random.choice(sorted(follow)), needs))
    return steps


class Speaker:
    """Says a plan."""

    def __init__(self, random: Random, steps: Steps, phrasings: Phrasings) -> None:
        self.random, self.steps, self.phrasings = random, steps, phrasings
        self.phrases = phrases.SEEN if phrasings == "seen" else phrases.UNSEEN
        self.said: list[int] = []
        self.objects = {i: self._object(name) for i, (name, needs) in enumerate(steps) if not needs}
        needed = {j for _, needs in steps for j in needs}
        self.silent = {i for i in needed if self._may_be_silent(i)}

    def say(self) -> str:
        spoken = [i for i in range(len(self.steps)) if i not in self.silent]
        text, place = "", 0
        while place < len(spoken):
            i, after = spoken[place], spoken[place + 1 : place + 2]
            beside = not set(self.said[-1:]) & self._reach(i)
            joint = self.random.choice((phrases.BESIDE if beside else phrases.THEN)[self.phrasings]) if text else ""
            turned = after and self.steps[after[0]][1] == (i,) and self.random.random() < TURN
            clause = self._turned(i, after[0]) if turned else self._clause(i)
            text += joint + clause
            place += 2 if turned else 1
        opening = "" if text.startswith(("before you", "do not")) else self._pick(phrases.OPENINGS)
        text = opening + text + "." + self._needless() + self._pick(phrases.CLOSINGS)
        return ". ".join(sentence[:1].upper() + sentence[1:] for sentence in text.split(". "))

    def _clause(self, i: int, x: str | None = None) -> str:
        name, needs = self.steps[i]
        if x is None:
            x = self._reference(needs) if needs else self.objects[i]
        self.said.append(i)
        return self._fill(self.random.choice(self.phrases[name]), x)

    def _turned(self, a: int, b: int) -> str:
        form, has_object = self.random.choice(phrases.TURNED[self.phrasings])
        if has_object == "a" or self.steps[a][0] == "write_code":
            form = phrases.TURNED[self.phrasings][0][0]
            first = self._clause(a)
            return form.format(a=first, b=self._clause(b, "it"))
        x = self._reference(self.steps[a][1]) if self.steps[a][1] else self.objects[a]
        first = self._clause(a, "it")
        return form.format(a=first, b=self._clause(b, x))

    def _reference(self, needs: Sequence[int]) -> str:
        if len(needs) == 2 and sorted(self.said[-2:]) == sorted(needs) and self.random.random() < 0.5:
            return "both"
        return " and ".join(self._refer(j) for j in needs)

    def _refer(self, j: int) -> str:
        name = self.steps[j][0]
        if j in self.silent and j not in self.said:
            return self._inline(j)
        if self.said[-1:] == [j]:
            return "it"
        return self.objects[j] if name in phrases.OBJECTS else self.random.choice(phrases.NOUNS[name])

    def _inline(self, j: int) -> str:
        name, needs = self.steps[j]
        form = "{x}" if name in phrases.OBJECTS else self.random.choice(phrases.INLINE[name])
        if name == "translate" and needs and needs[0] in self.silent - set(self.said):
            inner = needs[0]
            if self.steps[inner][0] == "summarise":  # "a French summary" is two steps in three words
                self.said.append(inner)
                form, j, needs = "a {lang} summary of {x}", inner, self.steps[inner][1]
        x = self._reference(needs) if needs else self.objects[j]
        self.said.append(j)
        return self._fill(form, x)

    def _may_be_silent(self, i: int) -> bool:
        name, needs = self.steps[i]
        share = IMPLIED_SOURCE if name in phrases.OBJECTS else IMPLIED_STEP
        return (name in phrases.OBJECTS or name in phrases.INLINE) and len(needs) < 2 and self.random.random() < share

    def _reach(self, i: int) -> set[int]:
        """What a clause speaks of: what it needs, through what is left unsaid."""
        found = set(self.steps[i][1])
        for j in list(found):
            found |= self._reach(j) if j in self.silent else set()
        return found

    def _object(self, name: str) -> str:
        if name == "schedule_meeting":
            return self._fill("{topic}")
        code = phrases.CODE if name in ("run_tests", "review_code") else phrases.PLAIN
        return self._fill(self.random.choice(phrases.OBJECTS.get(name, code)))

    def _needless(self) -> str:
        unwanted = sorted(set(phrases.NEEDLESS_NOUNS) - {name for name, _ in self.steps})
        if self.random.random() >= NEEDLESS:
            return ""
        return self._pick(phrases.NEEDLESS).format(noun=phrases.NEEDLESS_NOUNS[self.random.choice(unwanted)])

    def _pick(self, forms: dict[str, tuple[str, ...]]) -> str:
        return self.random.choice(forms[self.phrasings])

    def _fill(self, form: str, x: str = "") -> str:
        text = form.replace("{x}", x)
        while "{" in text:
            slot = text[text.index("{") + 1 : text.index("}")]
            text = text.replace(f"{{{slot}}}", self.random.choice(phrases.FILLERS[slot]), 1)
        return text
