"""Decisions about workflows: an instruction and its progress in; a plan or a correction out, with what is logged of it.

Whatever chooses, a network, rules or chance, chooses among what the `Rules` allow and says how probable its choice was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol, runtime_checkable

import msgspec
import torch
from torch import Generator, Tensor

from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision
from etude.contracts.errors import DataError, EtudeError, PlanError
from etude.problems.base import Action, Actor, Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.corrections import explore_correction
from etude.problems.workflow.decisions import PROBLEM, Choice, Eligible, State
from etude.problems.workflow.doubt import Proposal
from etude.problems.workflow.experts import (
    KeywordReader,
    RulePlanner,
    by_reputation,
    random_choice,
    retry_only,
    retry_then_switch,
)
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.hint import Subtask
from etude.problems.workflow.office.scenarios import from_examples
from etude.problems.workflow.plan import Limits, Node, Plan
from etude.problems.workflow.progress import Live, Progress, from_state, live_of, to_draft

MAX_CHOOSERS = 256
"""Instructions that are kept as read: a workflow is decided about several times, many workflows at once."""
TOGETHER = 64
"""Workflows that are planned at once."""


class Chooser(Protocol):
    """Chooses about one instruction, the first of its drafts. It holds nothing that a choice changes."""

    def __call__(self, draft: Obs, rng: Generator) -> Sequence[tuple[Action, float | None]]:
        """The next actions, one or several that follow each other, each with its probability if that is known."""


@runtime_checkable
class Proposer(Protocol):
    """A chooser that says how sure it is of the plan that a workflow begins with."""

    def propose(self, draft: Obs) -> Proposal | None:
        """The plan, with its probability; None where the draft is to be continued choice by choice."""


@runtime_checkable
class Replanner(Protocol):
    """A chooser that plans the rest of a workflow with what is known of the plan that failed."""

    def replan(self, draft: Obs, before: Sequence[Subtask]) -> Plan | None:
        """The plan, which begins with the nodes of the draft; `before` is the plan that failed, with these nodes first.
        None where the draft is to be continued choice by choice."""


@runtime_checkable
class Reviser(Protocol):
    """A chooser that corrects plans of another policy."""

    def revise(self, draft: Obs, given: Sequence[Subtask], share: float) -> Plan | None:
        """A plan near a given one, which is right in a `share` of cases; None if it has the same subtasks and links."""


Choosers = Callable[[Rules, str], Chooser]
"""Reads an instruction, for which it is then chosen. The same instruction gives an equal chooser."""
PlanTogether = Callable[[Rules, Sequence[str], Sequence[Obs]], Sequence[Chooser]]
"""Reads many instructions, and plans an empty draft about each."""


class WorkflowDecider:
    """A `contracts.ports.Decider` of workflows.

    A request's context is the instruction, or a mapping of `instruction` and of `live`, each worker's numbers now as
    `Live` has them (the catalogue's where it is left out). Its state is a `State`, null at the start. The answer to a
    state with a failed node is a correction; to any other, the subtasks to add, whose dependencies are places among
    those of the state and those before them.
    """

    problem = PROBLEM

    def __init__(
        self,
        *,
        version: str,
        catalogue: Catalogue,
        limits: Limits,
        choosers: Choosers,
        together: PlanTogether | None = None,
        proposes: bool = False,  # whether decisions on a first plan say how probable it is
        assign: Callable[[Obs, Plan], Plan] | None = None,  # gives plans of others better workers
    ) -> None:
        self.version, self.catalogue, self.limits, self.choosers = version, catalogue, limits, choosers
        self.proposes, self._assign, self._together = proposes, assign, together
        self.rules = Rules(catalogue, limits)
        self._read, self._turn = dict[str, Chooser](), Lock()

    @torch.inference_mode()
    def decide(
        self, request: DecisionRequest, *, plan: Plan | None = None, about: Mapping[str, Any] | None = None
    ) -> Decision:
        """The decision of the choosers, or a given `plan` as a decision without propensity: PlanError if it is illegal.

        A plan begins with the nodes of the request's state. `about` is logged in the context of the first decision.
        """
        instruction, live, state = self.read(request)
        progress = from_state(state)
        draft = to_draft(self.rules, progress, live, now_ms=request.at_ms)
        if not progress.steps:
            self.rules.check(draft)
        chooser = self._chooser(instruction) if plan is None else _following(self.rules, plan)
        rng = Generator().manual_seed(request.seed)
        known: dict[str, Any] = {"live": [list(worker) for worker in live], **(about or {})}
        if state != State():
            known["state"] = _as_json(state)
        proposal = None
        if progress.failed is None:
            proposal = chooser.propose(draft) if isinstance(chooser, Proposer) else None
            plan = None if proposal is None else proposal.plan
            if progress.replaced and isinstance(chooser, Replanner):
                plan = chooser.replan(draft, _before(progress))
            chooser = chooser if plan is None else _following(self.rules, plan, 1.0)
            logged = self._plan(draft, chooser, rng, request.at_ms, known)
            action: Any = subtasks(logged, self.catalogue)
        else:
            logged = [self._logged(draft, *chooser(draft, rng)[0], request.at_ms, known)]
            action = _by_name(logged[0].action, self.catalogue)
        chances = [decision.propensity for decision in logged]
        propensity = None if None in chances else math.prod(chance or 0.0 for chance in chances)
        return Decision(
            action=action, propensity=propensity, policy=self.version, logged=tuple(logged), proposal=proposal
        )

    @torch.inference_mode()
    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        """As `decide` for each, or its error. Workflows that begin are planned together, where the choosers can."""
        found: list[Decision | Exception] = []
        for start in range(0, len(requests), TOGETHER):
            part = requests[start : start + TOGETHER]
            first = [begun for request in part if (begun := self._begun(request)) is not None]
            if self._together is not None and len(first) > 1:
                instructions, drafts = zip(*first, strict=True)
                for text, chooser in zip(instructions, self._together(self.rules, instructions, drafts), strict=True):
                    self._keep(text, chooser)
            for request in part:
                try:
                    found.append(self.decide(request))
                except EtudeError as error:
                    found.append(error)
        return found

    def _begun(self, request: DecisionRequest) -> tuple[str, Obs] | None:
        """The instruction and the empty draft of a workflow that begins and can be planned."""
        try:
            instruction, live, state = self.read(request)
            draft = to_draft(self.rules, from_state(state), live, now_ms=request.at_ms)
            self.rules.check(draft)
        except EtudeError:  # `decide` raises it again
            return None
        return (instruction, draft) if state == State() else None

    def _chooser(self, instruction: str) -> Chooser:
        chooser = self._read.get(instruction)
        if chooser is None:
            chooser = self.choosers(self.rules, instruction)
            self._keep(instruction, chooser)
        return chooser

    def _keep(self, instruction: str, chooser: Chooser) -> None:
        """The oldest one is forgotten where there are too many."""
        with self._turn:
            while len(self._read) >= MAX_CHOOSERS:
                self._read.pop(next(iter(self._read)))
            self._read[instruction] = chooser

    @torch.inference_mode()
    def revise(self, request: DecisionRequest, given: Sequence[LoggedDecision], share: float) -> Decision | None:
        """The decision for a better plan near the given one, another policy's for the same request, which is right in a
        `share` of cases; None where the given one is to be carried out.

        It has no propensity: what the other policy would have planned otherwise is not known.
        """
        instruction, live, state = self.read(request)
        chooser = self._chooser(instruction)
        if not isinstance(chooser, Reviser):
            return None
        draft = to_draft(self.rules, from_state(state), live, now_ms=request.at_ms)
        chosen = [msgspec.convert(decision.action, Choice) for decision in given]
        plan = chooser.revise(
            draft,
            [
                Subtask(task_type=one.task_type, dependencies=one.dependencies or ())
                for one in chosen
                if one.task_type is not None
            ],
            share,
        )
        return None if plan is None else self.decide(request, plan=plan)

    @torch.inference_mode()
    def reassign(self, request: DecisionRequest, given: Sequence[LoggedDecision]) -> Sequence[LoggedDecision]:
        """The decisions on a plan of another policy for the same request, with the workers that are expected to do
        best."""
        if self._assign is None:
            return given
        instruction, live, state = self.read(request)
        draft = to_draft(self.rules, from_state(state), live, now_ms=request.at_ms)
        nodes = [
            Node(**node | {"dependencies": tuple(node["dependencies"])}) for node in subtasks(given, self.catalogue)
        ]
        plan = self._assign(draft, Plan(instruction=instruction, nodes=tuple(nodes)))
        assigned = self.decide(request, plan=plan).logged
        return [
            msgspec.structs.replace(decision, action=own.action, eligible=own.eligible)
            for decision, own in zip(given, assigned, strict=True)
        ]

    def read(self, request: DecisionRequest) -> tuple[str, Sequence[Live], State]:
        """The instruction, the workers' live numbers and the state of a request."""
        if request.options is not None:
            raise DataError("options are for a choice: which subtasks and workers a plan may have, the catalogue says")
        state = _converted(request.state, State) if request.state is not None else State()
        return *self._read_context(request.context), state

    def _read_context(self, context: Any) -> tuple[str, Sequence[Live]]:
        given = context if isinstance(context, Mapping) else {"instruction": context}
        instruction, live = given.get("instruction"), given.get("live")
        if not isinstance(instruction, str):
            raise DataError(f"the context of a workflow is {context!r:.80}: expected its instruction as text")
        if not instruction.strip():
            raise PlanError("the instruction is empty: say what is to be done")
        if live is None:
            return instruction, [live_of(worker) for worker in self.catalogue.workers]
        found = _converted(live, tuple[Live, ...])
        if len(found) != len(self.catalogue.workers):
            raise DataError(
                f"live has {len(found)} workers: expected the {len(self.catalogue.workers)} of the catalogue"
            )
        return instruction, found

    def _plan(
        self, draft: Obs, chooser: Chooser, rng: Generator, at_ms: float, known: dict[str, Any]
    ) -> list[LoggedDecision]:
        """Nodes are added until *stop*. What was known is logged with the first: the others follow from it."""
        logged: list[LoggedDecision] = []
        while True:
            for action, propensity in chooser(draft, rng):
                logged.append(self._logged(draft, action, propensity, at_ms, {} if logged else known))
                draft, stopped = self.rules.grow(draft, action)
                if stopped:
                    return logged

    def _logged(
        self, d: Obs, action: Action, propensity: float | None, at_ms: float, known: Mapping[str, Any]
    ) -> LoggedDecision:
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
        context = dict(known) if failed is None else {"failed": failed, **known}
        return LoggedDecision(
            problem=self.problem,
            at_ms=at_ms,
            context=context or None,
            eligible=_as_json(eligible),
            action=_as_json(choice),
            propensity=propensity,
            policy=self.version,
        )


def _converted(value: Any, kind: Any) -> Any:
    """As it is where it is of this kind already; DataError where it cannot be."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"the request's state or live numbers cannot be read ({error}): expected {kind}") from error


def _as_json(value: State | Eligible | Choice) -> Any:
    """As it is read back from a log."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _check(choice: Choice, eligible: Eligible) -> None:
    """PlanError for what the rules do not allow, whatever chose it."""
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


def subtasks(logged: Sequence[LoggedDecision], catalogue: Catalogue) -> list[dict[str, Any]]:
    """What planning decisions add, by name, in an order in which it can be done."""
    added = (decision.action for decision in logged if "task_type" in decision.action)
    return [{"worker": None, "dependencies": [], **_by_name(action, catalogue)} for action in added]


def _by_name(action: Mapping[str, Any], catalogue: Catalogue) -> dict[str, Any]:
    """A logged choice with the catalogue's names in place of its ids."""
    found = dict(action)
    if "task_type" in found:
        found["task_type"] = catalogue.task_types[found["task_type"]].name
    if "worker" in found:
        found["worker"] = catalogue.workers[found["worker"]].name if catalogue.workers else None
    return found


def _before(progress: Progress) -> list[Subtask]:
    """The plan that a replan gave up, with what was done first."""
    steps = [*progress.steps, *progress.replaced]
    place = {id(step): i for i, step in enumerate(steps)}
    needs = [[place[id(before)] for before in step.dependencies] for step in steps]
    return [
        Subtask(task_type=step.task_type, dependencies=needed, error=step.error, done=step.status == Status.DONE)
        for step, needed in zip(steps, needs, strict=True)
    ]


def named(correction: Correction) -> str:
    return correction.name.lower()


def by_rules(*, retries_only: bool = False) -> Choosers:
    """The rule-based expert: reads keywords and descriptions, prefers workers of high reputation, retries, switches."""

    def choosers(rules: Rules, instruction: str) -> Chooser:
        read = KeywordReader(rules.catalogue, without=set()).read(instruction)
        plans = from_examples([(instruction, *read)], rules.catalogue)
        correction = retry_only if retries_only else retry_then_switch
        return certain(RulePlanner(rules, plans, worker=by_reputation(rules), correction=correction))

    return choosers


def _following(rules: Rules, plan: Plan, propensity: float | None = None) -> Chooser:
    """Builds this plan from the nodes that a draft has."""
    return lambda draft, rng: [(action, propensity) for action in rules.actions(plan)[int(draft["length"]) :]]


def certain(actor: Actor) -> Chooser:
    """An actor that samples nothing."""
    return lambda draft, rng: [(actor(draft, rng), 1.0)]


def at_random(rules: Rules, instruction: str) -> Chooser:
    """Uniform over what is legal, part by part; every second dependency."""
    actor = random_choice(rules)

    def choose(draft: Obs, rng: Generator) -> Sequence[tuple[Action, float]]:
        action = actor(draft, rng)
        return [(action, random_propensity(rules, draft, action))]

    return choose


def random_propensity(rules: Rules, draft: Obs, action: Action) -> float:
    """The probability with which `at_random` chooses this."""
    correction, kind = action["correction"], action["type"]
    ways = [
        rules.corrections(draft).sum(),
        rules.task_types(draft, correction).sum(),
        2 ** rules.dependencies(draft, kind).sum(),
        rules.workers_for(draft, correction, kind, action["links"]).sum(),
    ]
    return 1.0 / float(torch.stack(ways).double().prod())


def exploring(choosers: Choosers, share: float) -> Choosers:
    """Choosers that sample nothing, except that in this share of decisions any able worker, or any retry or switch, is
    taken. Subtasks stay: a random one would only break the plan. Propensities are exact."""

    def explorers(rules: Rules, instruction: str) -> Chooser:
        usual = choosers(rules, instruction)

        def choose(draft: Obs, rng: Generator) -> Sequence[tuple[Action, float]]:
            wanted, _ = usual(draft, rng)[0]
            if int(draft["failed"]) >= 0:
                return [explore_correction(rules, draft, wanted, share, rng)]
            if int(wanted["type"]) >= rules.types:
                return [(wanted, 1.0)]
            able = rules.workers_for(draft, wanted["correction"], wanted["type"], wanted["links"])[0].double()
            explores = float(torch.rand((), generator=rng, dtype=torch.float64)) < share
            worker = torch.multinomial(able, 1, generator=rng) if explores else wanted["worker"]
            is_wanted = int(worker) == int(wanted["worker"])
            return [(wanted | {"worker": worker}, (1 - share) * is_wanted + share / float(able.sum()))]

        return choose

    return explorers


def _true(mask: Tensor) -> list[int]:
    found: list[int] = mask.nonzero()[:, 0].tolist()
    return found
