"""A trained planner behind text: an instruction in, a checked plan out, under one catalogue and its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Generator, Tensor

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import PlanError
from etude.contracts.policy import SAMPLED
from etude.learning.compute import one_thread
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.assignment import Assignment
from etude.problems.workflow.corrections import correct_by_fault, correction, explore_correction
from etude.problems.workflow.decide import Chooser, WorkflowDecider
from etude.problems.workflow.decisions import PROBLEM
from etude.problems.workflow.decode import (
    empty_drafts,
    plan_by_beam,
    plan_greedily,
    structure_log_probs,
    take,
)
from etude.problems.workflow.doubt import Beam, Calibration, Proposal, propose, search
from etude.problems.workflow.encode import (
    KnownNames,
    PolicyContext,
    TextReader,
    encode_instructions,
    make_policy_context,
    to_drafts,
)
from etude.problems.workflow.examples import Example, Targets
from etude.problems.workflow.faults import ErrorCategory
from etude.problems.workflow.grammar import Correction, Rules
from etude.problems.workflow.hint import Costs, Hint, Subtask, costs_of, hint_of, same_as
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import DraftState, PlanPolicy, Reading
from etude.problems.workflow.plan import Limits, Plan
from etude.problems.workflow.plan_verdict import reordered
from etude.problems.workflow.similarity import SimilarityEncoder
from etude.problems.workflow.worker_model import Floats, WorkerModel

PLAN_FAULTS = frozenset({ErrorCategory.MISSING_INPUT, ErrorCategory.NOT_APPLICABLE})
"""Failures that no other worker would avoid."""
REPLAN_COSTS = Costs(missing=6.0, extra=2.0, link=6.0)
"""Of differences from a plan that failed: most of it was right, and something is missing as often as not."""
MAX_INSTRUCTION_CHARS = 20_000
"""What is read of an instruction; networks read its first hundred tokens, the memory all of these characters."""


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans as it learned to. Whatever the instruction, the plan is one of the catalogue, within the limits.

    It is a `contracts.ports.Decider`, and nothing changes it: `under` gives another with the same weights.
    """

    policy: PlanPolicy
    _: KW_ONLY
    reader: TextReader
    known: KnownNames
    memory: Memory
    catalogue: Catalogue
    """The task types and workers to decide among; it may have ones that the network was not trained with."""
    limits: Limits
    beam: int = 5
    workers: WorkerModel | None = None
    """What is expected of workers by logged attempts: chooses them, and corrections; None leaves it to the network."""
    corrects: bool = False
    """Whether its network has learned to correct failures; if not, they are corrected by the kind of fault."""
    step: int = 0
    version: str = ""
    calibration: Calibration | None = None
    """What makes its probabilities frequencies; None where nothing was held out to fit it on."""
    problem: str = field(default=PROBLEM, init=False)
    _similarity: SimilarityEncoder = field(init=False, repr=False)
    _context: PolicyContext = field(init=False, repr=False)

    def __post_init__(self) -> None:
        encoder, similarity = self.reader.encoder, SimilarityEncoder(self.reader.encoder, self.catalogue.task_types)
        nothing = encode_instructions(encoder, [""], self.memory.votes(encoder, [""]), similarity([""]))
        context = make_policy_context(encoder, self.catalogue, self.limits, self.known, self.memory, nothing)
        object.__setattr__(self, "_similarity", similarity)
        object.__setattr__(self, "_context", context)

    def under(self, catalogue: Catalogue | None = None, limits: Limits | None = None) -> Planner:
        """The same weights with other task types, workers or limits, as far as the network has nodes for them."""
        limits = limits or self.limits
        limits = replace(limits, max_nodes=min(limits.max_nodes, self.policy.nodes))
        return replace(self, catalogue=catalogue or self.catalogue, limits=limits)

    def plan(self, instruction: str) -> Plan:
        """The plan for one instruction; PlanError when there is nothing to plan from."""
        policy = self._reading([instruction])
        draft = empty_drafts(policy.context)
        with one_thread(only=True):
            return self._assigned(policy.rules, draft, plan_by_beam(policy, draft, instruction, beam=self.beam))

    def propose(self, instruction: str, *, count: int = 3) -> Proposal:
        """The same plan, with its probability, what the planner doubts, and the next best plans, `count` at most."""
        policy = self._reading([instruction])
        draft = empty_drafts(policy.context)
        with one_thread(only=True):
            (found,) = search(policy, draft, [instruction], beam=self.beam)
            return self._proposal(policy.rules, draft, found, count=count)

    def _proposal(self, rules: Rules, draft: Obs, found: Beam, *, count: int = 3) -> Proposal:
        assign = None if self.workers is None else partial(self._assigned, rules, draft)
        return propose(found, self.calibration, count=count, assign=assign)

    def plans(self, instructions: Sequence[str]) -> list[Plan]:
        """Plans for many, by the most probable choice at each step: quicker, and a little less often right."""
        policy = self._reading(instructions)
        drafts = empty_drafts(policy.context)
        found = plan_greedily(policy, drafts, instructions)
        rows = range(len(found)) if self.workers is not None else ()
        return [self._assigned(policy.rules, take(drafts, torch.tensor([i])), found[i]) for i in rows] or found

    def structure_probabilities(self, plans: Sequence[Plan]) -> list[float]:
        """With what probability it samples the subtasks and links of each plan, in whichever order; 0 if it does not
        know all of its task types."""
        place = {entry.name: i for i, entry in enumerate(self.catalogue.task_types)}
        known = [(i, plan) for i, plan in enumerate(plans) if all(node.task_type in place for node in plan.nodes)]
        orders = [(i, other) for i, plan in known for other in reordered(plan)]
        if not orders:
            return [0.0] * len(plans)
        texts = list(dict.fromkeys(plan.instruction for plan in plans))
        row, policy = {text: i for i, text in enumerate(texts)}, self._reading(texts)
        drafts = to_drafts(
            policy.rules,
            [_to_example(plan, place) for _, plan in orders],
            [row[plan.instruction] for _, plan in orders],
        )
        found = [0.0] * len(plans)
        for (i, _), log_prob in zip(orders, structure_log_probs(policy, drafts).tolist(), strict=True):
            found[i] += math.exp(log_prob)
        return found

    def _assigned(self, rules: Rules, draft: Obs, plan: Plan) -> Plan:
        """The plan with the workers that are expected to do best."""
        if self.workers is None:
            return plan
        d, actions = draft, rules.actions(plan)[int(draft["length"]) :]
        for action in Assignment(model=self.workers, rules=rules).plan(draft, actions):
            d, _ = rules.grow(d, action)
        return rules.plans(d, [plan.instruction])[0]

    def decide(self, request: DecisionRequest) -> Decision:
        return self._decider.decide(request)

    @cached_property
    def _decider(self) -> WorkflowDecider:
        return self.decider()

    def decider(
        self,
        *,
        catalogue: Catalogue | None = None,
        limits: Limits | None = None,
        explore: float = 0.0,
        sample_plans: bool = False,
    ) -> WorkflowDecider:
        """For executions, with its own task types, workers and limits or with these.

        It plans by beam and corrects by the most probable choice. To explore, it takes any able worker in the share
        `explore` of cases; with `sample_plans` it also samples subtasks and links as in training, which teaches which
        plans are right, and makes many that are not.
        """
        planner = self if catalogue is None and limits is None else self.under(catalogue, limits)
        rules = Rules(planner.catalogue, planner.limits)
        return WorkflowDecider(
            version=f"{self.version}{SAMPLED}" if explore else self.version,
            catalogue=planner.catalogue,
            limits=planner.limits,
            choosers=partial(planner._chooser, explore=explore, sample_plans=sample_plans),
            together=None if sample_plans else partial(planner._choosers, explore=explore),
            proposes=not explore,
            assign=None if self.workers is None else partial(self._assigned, rules),
        )

    def _chooser(self, rules: Rules, instruction: str, *, explore: float = 0.0, sample_plans: bool = False) -> Chooser:
        policy = self._reading([instruction])
        with one_thread(only=True):
            reading = policy.read(torch.zeros(1, dtype=torch.long))
        return _PlannerChooser(self, policy, reading, instruction, explore, sample_plans)

    def _choosers(
        self,
        rules: Rules,
        instructions: Sequence[str],
        drafts: Sequence[Obs],
        *,
        explore: float,
    ) -> list[Chooser]:
        """As `_chooser` for each, with the beam of its draft; searching them together takes a fraction of the time."""
        policy, rows = self._reading(instructions), torch.arange(len(instructions))
        stacked = {name: torch.cat([draft[name] for draft in drafts]) for name in drafts[0]} | {"instruction": rows}
        with one_thread(only=True):
            reading = policy.read(rows)
            found = search(policy, stacked, instructions, beam=self.beam, reading=reading)
        encoded = policy.context.encoded
        return [
            _PlannerChooser(
                self,
                policy.view(replace(policy.context, encoded=encoded.take(row))),
                reading.take(row),
                text,
                explore,
                sample_plans=False,
                searched=(draft, beam),
            )
            for row, text, draft, beam in zip(rows.split(1), instructions, drafts, found, strict=True)
        ]

    def _reading(self, instructions: Sequence[str]) -> PlanPolicy:
        """The network in the context of these instructions."""
        if not all(text.strip() for text in instructions):
            raise PlanError("the instruction is empty: say what is to be done")
        texts = [text.strip()[:MAX_INSTRUCTION_CHARS] for text in instructions]
        return self.policy.view(self.context(texts))

    def context(self, texts: Sequence[str]) -> PolicyContext:
        """What the network decides with about these instructions."""
        votes = self.memory.votes(self.reader.encoder, texts)
        encoded = encode_instructions(self.reader.encoder, texts, votes, self._similarity(texts), self.reader.tokenise)
        return replace(self._context, encoded=encoded)


def _is_first(draft: Obs) -> bool:
    """Whether nothing of the workflow was planned before."""
    return not bool(draft["length"].any() or draft["replans"].any())


def _to_example(plan: Plan, place: Mapping[str, int]) -> Example:
    """A plan as an example without workers; `place` has the ids of task types."""
    targets = Targets(
        task_types=tuple(place[node.task_type] for node in plan.nodes),
        dependencies=tuple(node.dependencies for node in plan.nodes),
    )
    return Example(instruction=plan.instruction, targets=targets)


@dataclass(frozen=True, eq=False)
class _PlannerChooser:
    """Chooses about one instruction: the first plan by beam, everything else by the most probable choice.

    Where there is a worker model, it chooses the workers, and corrections as far as it can tell; the others are by the
    kind of fault, unless the network has learned to correct.
    """

    planner: Planner
    policy: PlanPolicy
    reading: Reading
    instruction: str
    explore: float
    sample_plans: bool
    searched: tuple[Obs, Beam] | None = None
    """A draft whose beam is known."""

    def propose(self, draft: Obs) -> Proposal | None:
        """The first plan; None where something is planned already, or where choices are sampled."""
        if self.explore or not _is_first(draft):
            return None
        with one_thread(only=True):
            return self.planner._proposal(self.policy.rules, draft, self._beam(draft))

    def _beam(self, draft: Obs) -> Beam:
        if self.searched is not None and all(torch.equal(draft[name], x) for name, x in self.searched[0].items()):
            return self.searched[1]
        return search(self.policy, draft, [self.instruction], beam=self.planner.beam, reading=self.reading)[0]

    def __call__(self, draft: Obs, rng: Generator) -> Sequence[tuple[Action, float]]:
        sampling, assignment = rng if self.explore else None, self._assignment
        if int(draft["failed"]) >= 0:
            usual = None if self.planner.corrects else self._usual(draft)
            corrected = None if assignment is None else assignment.correct(draft, usual, sampling)
            if corrected is not None:
                return [corrected]
            if usual is not None:
                if sampling is None:
                    return [(usual, 1.0)]
                return [explore_correction(self.policy.rules, draft, usual, self.explore, sampling)]
        if not self._samples_plans and _is_first(draft):
            with one_thread(only=True):
                rules, plan = self.policy.rules, self._beam(draft).chosen.plan
                actions = rules.actions(self.planner._assigned(rules, draft, plan))
            return [(a, 1.0) for a in actions] if sampling is None else self._with_workers(draft, actions, sampling)
        with one_thread(only=True):
            state = self.policy.encode_drafts(draft, self.reading)
            action, log_prob, _ = self.policy.decide(draft, state, greedy=not self._samples_plans, generator=rng)
            chances = None if assignment is None else assignment.chances(draft, action, explore=sampling is not None)
            if sampling is not None and self._samples_plans:
                return [self._sampled(draft, state, action, float(log_prob), chances, sampling)]
        if sampling is not None:
            return self._with_workers(draft, [action], sampling)
        if chances is not None:
            action = action | {"worker": torch.tensor([int(chances.argmax())])}
        return [(action, 1.0)]

    def _with_workers(self, draft: Obs, actions: Sequence[Action], rng: Generator) -> list[tuple[Action, float]]:
        """The actions with sampled workers, as far as the limits allow what is left of the plan: what follows is then
        chosen again."""
        rules, found, d = self.policy.rules, list[tuple[Action, float]](), draft
        for action in actions:
            if not bool(rules.task_types(d, action["correction"])[0, int(action["type"])]):
                break
            chosen, probability = action, 1.0
            if int(action["type"]) < rules.types and rules.workers:
                chances = self._worker_chances(d, action)
                worker = torch.multinomial(chances, 1, generator=rng)
                chosen, probability = action | {"worker": worker}, float(chances[int(worker)])
            found.append((chosen, probability))
            d, _ = rules.grow(d, chosen)
        return found

    def _worker_chances(self, draft: Obs, action: Action) -> Tensor:
        """(W,) any able worker in the share `explore` of cases; else as the worker model samples, or the given one."""
        able = self.policy.rules.workers_for(draft, action["correction"], action["type"], action["links"])[0].double()
        learned = None if self._assignment is None else self._assignment.chances(draft, action, explore=True)
        usual = torch.zeros_like(able) if learned is None else torch.from_numpy(learned)
        if learned is None:
            usual[int(action["worker"])] = able[int(action["worker"])]
        share = self.explore if float(usual.sum()) > 0 else 1.0
        return (1 - share) * usual + share * able / able.sum()

    @property
    def _samples_plans(self) -> bool:
        return self.explore > 0 and self.sample_plans

    def _usual(self, draft: Obs) -> Action:
        """The correction by the kind of fault; what is wrong with the plan is planned again, while that is allowed."""
        rules = self.policy.rules
        if (
            not self._samples_plans
            and int(draft["error"]) in PLAN_FAULTS
            and rules.corrections(draft)[0, Correction.REPLAN]
        ):
            return correction(rules, Correction.REPLAN, 0)
        return correct_by_fault(rules, draft)

    def revise(self, draft: Obs, given: Sequence[Subtask], share: float) -> Plan | None:
        """By beam, as near the given plan as it is trusted; None where plans are sampled, or where its own knowledge
        has not been found to make such plans better."""
        cost = (
            None
            if self._samples_plans or self.planner.calibration is None
            else self.planner.calibration.hint_cost(share)
        )
        if cost is None:
            return None
        plan = self._near(draft, hint_of(self.policy.rules, given, costs_of(cost)))
        return None if same_as(self.policy.rules, plan, given) else plan

    def replan(self, draft: Obs, before: Sequence[Subtask]) -> Plan | None:
        """By beam, near the plan that failed; None where plans are sampled."""
        if self._samples_plans or self.planner.corrects:
            return None
        return self._near(draft, hint_of(self.policy.rules, before, REPLAN_COSTS))

    def _near(self, draft: Obs, hint: Hint) -> Plan:
        policy, planner = self.policy, self.planner
        with one_thread(only=True):
            plan = plan_by_beam(policy, draft, self.instruction, beam=planner.beam, reading=self.reading, hint=hint)
            return planner._assigned(policy.rules, draft, plan)

    def _sampled(
        self, draft: Obs, state: DraftState, action: Action, log_prob: float, chances: Floats | None, rng: Generator
    ) -> tuple[Action, float]:
        """A sampled action and its probability, with the worker by `chances` if there are some, and in the share
        `explore` of cases any able worker."""
        policy, rules = self.policy, self.policy.rules
        if int(action["type"]) >= rules.types or not rules.workers:
            return action, math.exp(log_prob)
        able = rules.workers_for(draft, action["correction"], action["type"], action["links"])[0].double()
        own = float(policy.worker_log_prob(draft, state, action))
        worker = int(action["worker"])
        if float(torch.rand((), generator=rng, dtype=torch.float64)) < self.explore:
            worker = int(torch.multinomial(able, 1, generator=rng))
        elif chances is not None:
            worker = int(torch.multinomial(torch.from_numpy(chances), 1, generator=rng))
        chosen = action | {"worker": torch.tensor([worker])}
        usual = float(policy.worker_log_prob(draft, state, chosen).exp()) if chances is None else chances[worker]
        chance = (1 - self.explore) * usual + self.explore / float(able.sum())
        return chosen, math.exp(log_prob - own) * chance

    @cached_property
    def _assignment(self) -> Assignment | None:
        model = self.planner.workers
        return None if model is None else Assignment(model=model, rules=self.policy.rules)
