"""A trained planner behind text: an instruction in, a checked plan out, under the catalogue of the moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from etude.contracts.errors import PlanError
from etude.problems.base import Action, Obs
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.decide import Chooser, Decider, Luck
from etude.problems.workflow.decode import ask, plan_by_beam, plan_greedily
from etude.problems.workflow.encode import Known, Library, Surroundings, make_library, surround
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.lesson import Reader
from etude.problems.workflow.likeness import Likeness
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlanPolicy, Reading
from etude.problems.workflow.plan import Limits, Plan
from etude.serving.runtime import one_thread

LONGEST = 20_000
"""Characters of an instruction that are read; networks look at its first hundred tokens, the memory at all of these."""


class Planner:
    """Plans as it learned to. Whatever the instruction, the plan is one of the catalogue, within the limits."""

    def __init__(
        self,
        policy: PlanPolicy,
        *,
        reader: Reader,
        known: Known,
        memory: Memory,
        catalogue: Catalogue,
        limits: Limits,
        beam: int = 5,
        step: int = 0,
        version: str = "",
    ) -> None:
        self.policy, self.reader, self.known, self.memory = policy, reader, known, memory
        self.limits, self.beam, self.step, self.version = limits, beam, step, version
        self.catalogue = catalogue

    @property
    def catalogue(self) -> Catalogue:
        return self._catalogue

    @catalogue.setter
    def catalogue(self, catalogue: Catalogue) -> None:
        """Decide among these task types and workers from now on; it may hold ones never seen."""
        encoder, alike = self.reader.encoder, Likeness(self.reader.encoder, catalogue.task_types)
        nothing = make_library(encoder, [""], self.memory.votes(encoder, [""]), alike([""]))
        self._around: Surroundings = surround(encoder, catalogue, self.limits, self.known, self.memory, nothing)
        self._alike = alike
        self._catalogue = catalogue

    def plan(self, instruction: str) -> Plan:
        """The plan for one instruction; PlanError when there is nothing to plan from."""
        with one_thread(only=True):
            return plan_by_beam(self.policy, self._read([instruction]), instruction, beam=self.beam)

    def plans(self, instructions: Sequence[str]) -> list[Plan]:
        """Plans for many, by the most probable choice at each step: quicker, and a little less often right."""
        return plan_greedily(self.policy, self._read(instructions), instructions)

    def decider(
        self, *, catalogue: Catalogue | None = None, limits: Limits | None = None, explore: bool = False
    ) -> Decider:
        """For executions, with its own task types, workers and limits or with these.

        Plans by beam and corrects by the most probable choice; to explore, it draws as in training.
        """
        if limits is not None:
            self.limits = replace(limits, max_nodes=min(limits.max_nodes, self.policy.nodes))
        if limits is not None or catalogue is not None:
            self.catalogue = catalogue or self.catalogue
        return Decider(
            version=self.version,
            catalogue=self.catalogue,
            limits=self.limits,
            choosers=partial(self._chooser, explore=explore),
        )

    def _chooser(self, rules: Rules, instruction: str, luck: Luck, *, explore: bool) -> Chooser:
        policy, around = self.policy, replace(self._around, library=self._library([instruction]))
        reading: list[Reading] = []
        following: list[Action] = []

        def choose(draft: Obs) -> tuple[Action, float]:
            policy.within(around)
            with one_thread(only=True):
                if not explore and rules.is_empty(draft):
                    plan = plan_by_beam(policy, draft, instruction, beam=self.beam)
                    following.extend(rules.actions(plan))
                if following:
                    return following.pop(0), 1.0
                if not reading:
                    reading.append(policy.read(draft["instruction"]))
                thread = policy.follow(draft, reading[0])
                action, log_prob, _ = policy.decide(draft, thread, greedy=not explore, generator=luck)
            return action, float(log_prob.exp()) if explore else 1.0

        return choose

    def _read(self, instructions: Sequence[str]) -> Obs:
        for text in instructions:
            if not text.strip():
                raise PlanError("the instruction is empty: say what is to be done")
        return ask(self.policy, self._around, self._library(instructions))

    def _library(self, instructions: Sequence[str]) -> Library:
        texts = [text.strip()[:LONGEST] for text in instructions]
        votes = self.memory.votes(self.reader.encoder, texts)
        return make_library(self.reader.encoder, texts, votes, self._alike(texts), self.reader.tokenise)
