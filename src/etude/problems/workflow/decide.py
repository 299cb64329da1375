"""Decisions about one workflow, one at a time: its progress in, its next nodes or a correction out, as they are logged.

Whoever chooses, a network, rules or a lot, chooses among what the `Rules` allow, and says how probable the choice was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor

from etude.contracts.decision import Choice, Decision, Eligible, State
from etude.contracts.errors import PlanError
from etude.problems.base import Action, Actor, Obs
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.experts import Planner, Reader, patient, praised, random_choice, stubborn
from etude.problems.workflow.grammar import Correction, Rules
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.progress import Live, Progress, to_draft, to_state
from etude.problems.workflow.scenarios import from_examples


class Chooser(Protocol):
    """Chooses within drafts about one instruction, its first."""

    def __call__(self, draft: Obs) -> tuple[Action, float]:
        """An action and its probability."""


Luck = Generator
"""Where lots are drawn from."""
Choosers = Callable[[Rules, str, Luck], Chooser]
"""Somebody to choose about this instruction, with luck from a generator."""


@dataclass(kw_only=True)
class Decider:
    """A policy of workflows: who chooses, under which name, among what."""

    version: str
    catalogue: Catalogue
    limits: Limits
    choosers: Choosers

    def __post_init__(self) -> None:
        self.rules = Rules(self.catalogue, self.limits)

    def about(self, instruction: str, *, seed: int = 0) -> Deliberation:
        if not instruction.strip():
            raise PlanError("the instruction is empty: say what is to be done")
        chooser = self.choosers(self.rules, instruction, Generator().manual_seed(seed))
        return Deliberation(self.rules, chooser, self.version)


class Deliberation:
    """All decisions about one workflow."""

    def __init__(self, rules: Rules, chooser: Chooser, version: str) -> None:
        self.rules, self.chooser, self.version = rules, chooser, version
        self._told: tuple[Live, ...] | None = None

    @torch.inference_mode()
    def plan(self, progress: Progress, live: Sequence[Live], *, now_ms: float = 0.0) -> list[Decision]:
        """Add nodes to what there is, until *stop*."""
        draft = to_draft(self.rules, progress, live, now_ms=now_ms)
        if not progress.steps:
            self.rules.check(draft)
        state = to_state(progress) if progress.steps or progress.replans else None
        decisions: list[Decision] = []
        stopped = False
        while not stopped:
            action, propensity = self.chooser(draft)
            decisions.append(self._logged(draft, action, propensity, live, now_ms, None if decisions else state))
            choice = decisions[-1].choice
            draft, ends = self.rules.grow(draft, action)
            stopped = bool(ends)
            if choice.task_type is not None:
                assert choice.worker is not None
                needs = [progress.steps[j] for j in choice.dependencies or ()]
                progress.add(choice.task_type, needs, choice.worker, live[choice.worker], now_ms)
        return decisions

    @torch.inference_mode()
    def correct(self, progress: Progress, live: Sequence[Live], *, now_ms: float) -> Decision:
        """What to do about the step that failed; the progress is left as it is."""
        draft = to_draft(self.rules, progress, live, now_ms=now_ms)
        action, propensity = self.chooser(draft)
        return self._logged(draft, action, propensity, live, now_ms, to_state(progress))

    def options(self, progress: Progress, live: Sequence[Live], *, now_ms: float) -> list[Correction]:
        """Which corrections the rules allow, for a person to choose from."""
        legal = self.rules.corrections(to_draft(self.rules, progress, live, now_ms=now_ms))[0]
        return [Correction(i) for i in _true(legal)]

    def _logged(
        self,
        d: Obs,
        action: Action,
        propensity: float,
        live: Sequence[Live],
        now_ms: float,
        state: State | None,
    ) -> Decision:
        rules, correction, kind = self.rules, action["correction"], action["type"]
        failed = int(d["failed"]) if int(d["failed"]) >= 0 else None
        types = rules.task_types(d, correction)[0]
        workers = rules.workers_for(d, correction, kind, action["links"])[0]
        adds, of = int(kind) < rules.types, Correction(int(correction))
        grows, picks = adds and failed is None, adds or of == Correction.SWITCH
        seeks = failed is None or of == Correction.REPAIR
        eligible = Eligible(
            corrections=None if failed is None else tuple(named(Correction(i)) for i in _true(rules.corrections(d)[0])),
            task_types=tuple(_true(types[:-1])) if seeks else None,
            stop=bool(types[-1]) and failed is None,
            dependencies=tuple(_true(rules.dependencies(d, kind)[0])) if grows else None,
            workers=tuple(_true(workers)) if picks else None,
        )
        choice = Choice(
            correction=None if failed is None else named(of),
            task_type=int(kind) if adds else None,
            dependencies=tuple(_true(action["links"][0])) if grows else None,
            worker=int(action["worker"]) if picks else None,
        )
        _check(choice, eligible)
        known, self._told = self._told, tuple(live)
        return Decision(
            at_ms=now_ms,
            failed=failed,
            eligible=eligible,
            choice=choice,
            propensity=propensity,
            policy=self.version,
            live=None if known == self._told else self._told,
            state=state,
        )


def _check(choice: Choice, eligible: Eligible) -> None:
    """PlanError for what the rules do not allow, whoever chose it."""
    parts = {
        "correction": (choice.correction, eligible.corrections),
        "task type": (choice.task_type, eligible.task_types),
        "worker": (choice.worker, eligible.workers),
        **{f"dependency {j}": (j, eligible.dependencies) for j in choice.dependencies or ()},
    }
    for part, (chosen, allowed) in parts.items():
        if chosen is not None and chosen not in (allowed or ()):
            raise PlanError(
                f"the policy chose {part} {chosen!r}, which the rules do not allow: expected one of {allowed}"
            )
    if choice.task_type is None and choice.correction is None and not eligible.stop:
        raise PlanError("the policy stopped before its plan had a node")


def named(correction: Correction) -> str:
    return correction.name.lower()


def by_rules(*, retry_only: bool = False) -> Choosers:
    """The rule-based expert: reads keywords and descriptions, takes who is praised most, retries, then switches."""

    def choosers(rules: Rules, instruction: str, luck: Generator) -> Chooser:
        read = Reader(rules.catalogue, without=set()).read(instruction)
        plans = from_examples([(instruction, *read)], rules.catalogue)
        return certain(
            Planner(rules, plans, worker=praised(rules), correction=stubborn if retry_only else patient), luck
        )

    return choosers


def certain(actor: Actor, luck: Generator) -> Chooser:
    """An actor that draws no lots."""
    return lambda draft: (actor(draft, luck), 1.0)


def by_lot(rules: Rules, instruction: str, luck: Generator) -> Chooser:
    """Uniform over what is legal, part by part; every second dependency."""

    actor = random_choice(rules)

    def choose(draft: Obs) -> tuple[Action, float]:
        action = actor(draft, luck)
        return action, chance_by_lot(rules, draft, action)

    return choose


def chance_by_lot(rules: Rules, draft: Obs, action: Action) -> float:
    """The probability with which `by_lot` chooses this."""
    correction, kind = action["correction"], action["type"]
    ways = [
        rules.corrections(draft).sum(),
        rules.task_types(draft, correction).sum(),
        2 ** rules.dependencies(draft, kind).sum(),
        rules.workers_for(draft, correction, kind, action["links"]).sum(),
    ]
    return 1.0 / float(torch.stack(ways).double().prod())


def exploring(choosers: Choosers, share: float) -> Choosers:
    """Those that draw no lots, but for this share of decisions, which `by_lot` makes. Propensities are exact."""

    def about(rules: Rules, instruction: str, luck: Generator) -> Chooser:
        usual, lot = choosers(rules, instruction, luck), by_lot(rules, instruction, luck)

        def choose(draft: Obs) -> tuple[Action, float]:
            wanted, _ = usual(draft)
            drawn = float(torch.rand((), generator=luck, dtype=torch.float64)) < share
            action = lot(draft)[0] if drawn else wanted
            same = all(bool((action[name] == wanted[name]).all()) for name in action)
            return action, (1 - share) * same + share * chance_by_lot(rules, draft, action)

        return choose

    return about


def _true(mask: Tensor) -> list[int]:
    found: list[int] = mask.nonzero()[:, 0].tolist()
    return found
