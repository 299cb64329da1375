"""A trained planner behind text: an instruction in, a checked plan out, under the catalogue of the moment."""

from __future__ import annotations

from collections.abc import Sequence

from etude.contracts.errors import PlanError
from etude.problems.base import Obs
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.decode import ask, plan_by_beam, plan_greedily
from etude.problems.workflow.encode import Known, Surroundings, make_library, surround
from etude.problems.workflow.lesson import Reader
from etude.problems.workflow.likeness import Likeness
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlanPolicy
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
    ) -> None:
        self.policy, self.reader, self.known, self.memory = policy, reader, known, memory
        self.limits, self.beam, self.step = limits, beam, step
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

    def _read(self, instructions: Sequence[str]) -> Obs:
        for text in instructions:
            if not text.strip():
                raise PlanError("the instruction is empty: say what is to be done")
        texts = [text.strip()[:LONGEST] for text in instructions]
        votes = self.memory.votes(self.reader.encoder, texts)
        library = make_library(self.reader.encoder, texts, votes, self._alike(texts), self.reader.tokenise)
        return ask(self.policy, self._around, library)
