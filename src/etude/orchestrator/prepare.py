"""Execution logs in, a training file out: of each instruction the plan that did best, as it stood in the end.

A correction that helped becomes part of the plan, and each subtask is given to the worker that all logged attempts
speak for. Each line is kept or counted under the one reason it is not. Which subtasks a plan has is learned from
experts, verifiers, judges, people and language models, never from a self-declared success: that shows only which worker
does which subtask well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from etude.contracts.errors import CatalogueError, DataError, PlanError
from etude.files.durable import replace_file
from etude.orchestrator.expert_plans import ExpertPlans, key_of
from etude.orchestrator.labels import Labels, read_labels
from etude.orchestrator.log import CATALOGUE_FILE, Damaged, Line, log_catalogue, read_lines, same_ids
from etude.orchestrator.preferred_workers import PreferredWorkers, attempts_of
from etude.orchestrator.record import LANGUAGE_MODEL, Execution, NodeRecord, PlannerOutputs
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.attempts import Attempt
from etude.problems.workflow.examples import Example, Targets, to_record
from etude.problems.workflow.plan import topological_order

SHOWN = 3
"""Places reported for each reason."""
MIN_VERDICTS = 30
"""Verdicts from which on it is suspicious that none of them is a no."""


class Reason(StrEnum):
    """Why a line is not learned from."""

    TORN = "torn line"
    DAMAGED = "damaged line"
    CANCELLED = "cancelled"
    NO_INSTRUCTION = "no instruction"
    NOT_SUCCESSFUL = "not successful"  # nor was any other of the same instruction
    SELF_DECLARED = "self-declared success"  # no expert, verifier, judge, person or language model vouches for it
    LEAVES_OUT = "leaves out what was asked"  # task types that the expert has for this or a similar instruction
    NO_TASK_TYPES = "no task types"  # the document's own lines name only the models
    NOTHING_DONE = "nothing done"
    TOO_MANY_NODES = "more than max_nodes"
    ANOTHER_CATALOGUE = "another catalogue"  # ids that the catalogue of the log does not have
    BETTER_EXISTS = "a better or equal one of the same instruction"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A plan that is not learned as the log or the expert has it."""

    instruction: str
    before: Targets  # as logged; where an execution replaces an expert's plan, the expert's
    after: Targets | None  # None: nothing is learned for this instruction
    reason: str


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Examples by the first appearance of their instruction, and how many lines were dropped, and why."""

    examples: list[Example]
    catalogue: Catalogue
    read: int  # lines, damaged ones included
    dropped: Counter[str]  # by Reason
    places: dict[str, list[str]]  # by Reason: the first few, "file:line"
    experts: list[Example] = field(default_factory=list)  # mixed in: those whose instruction has no example
    changes: list[Change] = field(default_factory=list)
    labelled: int = 0  # lines with a person's label
    self_declared: int = 0  # examples with an expert's subtasks and the workers of a self-declared success
    workers: Counter[str] = field(default_factory=Counter)  # `task type: old → new`, by the number of subtasks
    warnings: list[str] = field(default_factory=list)


def prepare(
    logs: Path,
    *,
    max_nodes: int | None = None,
    experts: ExpertPlans | None = None,
    trust_self_declared: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Prepared:
    """Of a folder of logs, or one; `progress` hears the bytes of each line.

    Memory holds one plan per instruction and set of subtasks, and a few numbers per attempt. LogError where all labels
    belong to other logs.
    """
    catalogue = log_catalogue(logs)
    choice = _Selection(
        catalogue=catalogue,
        max_nodes=max_nodes,
        experts=experts or ExpertPlans((), catalogue),
        labels=read_labels(logs),
        trusted={"verifier", "judge", "person", *({"self", None} if trust_self_declared else ())},
    )
    for line in read_lines(logs):
        choice.add(line)
        if progress is not None:
            progress(line.size)
    return choice.prepared(whole=logs.is_dir())


def write_prepared(prepared: Prepared, out: Path, *, ids: bool = False) -> None:
    """The training file, with names or ids, and its catalogue.

    DataError where no execution is left or another catalogue is in that folder.
    """
    if not prepared.examples and not (prepared.experts and prepared.workers):
        remedy = "collect more with `etude collect`"
        if prepared.dropped[Reason.SELF_DECLARED.value]:
            remedy = "label some with `etude label`, add a verifier of the whole workflow, or give experts"
        raise DataError(f"nothing is left of {prepared.read:,} executions: {out} is not written; {remedy}")
    catalogue_file = out.parent / CATALOGUE_FILE
    if out.name == CATALOGUE_FILE:
        raise DataError(f"{out}: the catalogue is written under this name: choose another for the training file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if not catalogue_file.exists():
            replace_file(catalogue_file, msgspec.json.format(msgspec.json.encode(prepared.catalogue), indent=1))
        _check_catalogue(catalogue_file, prepared.catalogue)
        examples = [*prepared.examples, *prepared.experts]
        records = examples if ids else [to_record(example, prepared.catalogue) for example in examples]
        replace_file(out, b"[\n" + b",\n".join(map(msgspec.json.encode, records)) + b"\n]\n")
    except OSError as error:
        raise DataError(f"{out}: is not written ({error.strerror or error}): choose another place for it") from error


def _check_catalogue(catalogue_file: Path, catalogue: Catalogue) -> None:
    remedy = "write the training file to another folder, or move this one away"
    try:
        same = same_ids(read_catalogue(catalogue_file), catalogue)
    except CatalogueError as error:
        raise DataError(f"{error}; {remedy}") from error
    if not same:
        raise DataError(f"{catalogue_file}: has other task types or workers than the log's catalogue: {remedy}")


Subtasks = tuple[int, ...]
"""Task types of a plan, sorted."""


@dataclass(frozen=True, kw_only=True)
class _Success:
    example: Example
    reward: float
    place: str
    is_self_declared: bool


@dataclass(kw_only=True)
class _Tried:
    """What is known of one instruction."""

    best: _Success | None = None  # of those that are vouched for
    vouched: dict[Subtasks, Targets] = field(default_factory=dict)
    self_declared: dict[Subtasks, _Success] = field(default_factory=dict)
    failed: int = 0
    failed_at: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class _Verdicts:
    """What the verifiers of whole workflows said."""

    count: int = 0
    yes: int = 0
    yes_although: int = 0  # a subtask was not done

    def add(self, execution: Execution) -> None:
        self.count += 1
        self.yes += execution.success
        undone = any(node.status not in ("done", "dropped") for node in execution.nodes)
        self.yes_although += execution.success and undone

    def warnings(self) -> list[str]:
        """Where they never said no: then their yes explains nothing."""
        if self.count < MIN_VERDICTS or self.yes < self.count:
            return []
        although = f", also to {self.yes_although:,} in which a subtask was not done" if self.yes_although else ""
        return [
            f"the verifier said yes to all {self.count:,} executions{although}: one that never says no explains "
            "nothing; try it on a wrong output, or label some executions with `etude label`"
        ]


@dataclass(kw_only=True)
class _Selection:
    catalogue: Catalogue
    max_nodes: int | None
    experts: ExpertPlans
    labels: Labels
    trusted: set[str | None]  # whose word on success also vouches for the subtasks
    read: int = 0
    labelled: int = 0
    tried: dict[str, _Tried] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)
    changes: dict[tuple[str, str], Change] = field(default_factory=dict)  # by instruction and reason: the first
    verdicts: _Verdicts = field(default_factory=_Verdicts)
    attempts: list[Attempt] = field(default_factory=list)

    def add(self, line: Line) -> None:
        self.read += 1
        place = f"{line.file}:{line.number}"
        if isinstance(line.content, Damaged):
            reason = Reason.TORN if line.content.torn else Reason.DAMAGED
            self._drop(reason, f"{place} ({line.content.reason})")
            return
        execution = self.labels.apply(line.content)
        self.labelled += execution is not line.content
        if line.content.success_by in ("verifier", "judge"):
            self.verdicts.add(line.content)
        if execution.ended == "cancelled":
            self._drop(Reason.CANCELLED, place)
            return
        self.attempts += attempts_of(execution, self.catalogue)
        if not execution.instruction.strip():
            self._drop(Reason.NO_INSTRUCTION, place)
        elif not execution.success:
            tried = self.tried.setdefault(execution.instruction.strip(), _Tried())
            tried.failed += 1
            tried.failed_at = [*tried.failed_at, place][:SHOWN]
        else:
            self._weigh(execution, place)

    def prepared(self, *, whole: bool) -> Prepared:
        """`whole` is False where only a part of what the labels are about was read."""
        for instruction, tried in self.tried.items():
            self._settle(instruction, tried)
            reason = Reason.NOT_SUCCESSFUL if tried.best is None else Reason.BETTER_EXISTS
            self._drop(reason, *tried.failed_at, count=tried.failed)
        kept = [tried.best for tried in self.tried.values() if tried.best is not None]
        preferred = PreferredWorkers(self.attempts, self.catalogue)
        examples = [preferred.give(success.example) for success in kept]
        learned = {key_of(example.instruction): example for example in examples}
        problem = self.labels.check() if whole else ""
        return Prepared(
            examples=examples,
            catalogue=self.catalogue,
            read=self.read,
            dropped=self.dropped,
            places=self.places,
            experts=[preferred.give(e) for e in self.experts.examples if key_of(e.instruction) not in learned],
            changes=list(self._changes(learned)),
            labelled=self.labelled,
            self_declared=sum(success.is_self_declared for success in kept),
            workers=preferred.changes,
            warnings=[*([problem] if problem else []), *self.verdicts.warnings()],
        )

    def _weigh(self, execution: Execution, place: str) -> None:
        """A success: the best so far of its instruction, or not."""
        try:
            made = _example(execution, self.catalogue, self.max_nodes)
        except PlanError as error:
            self._drop(Reason.DAMAGED, f"{place} ({error})")
            return
        if isinstance(made, Reason):
            self._drop(made, place)
            return
        subtasks = tuple(sorted(made.targets.task_types))
        if execution.success_by != "person" and (left_out := self.experts.left_out(made.instruction, subtasks)):
            self._drop(Reason.LEAVES_OUT, f"{place} ({', '.join(left_out)})")
            self._change(made, Reason.LEAVES_OUT)
            return
        tried = self.tried.setdefault(made.instruction, _Tried())
        is_self_declared = execution.success_by not in self.trusted and not planned_by_model(execution)
        found = _Success(example=made, reward=execution.reward, place=place, is_self_declared=is_self_declared)
        if is_self_declared:
            tried.self_declared[subtasks] = self._better(tried.self_declared.get(subtasks), found)
            return
        tried.best = self._better(tried.best, found)
        if tried.best is found or subtasks not in tried.vouched:
            tried.vouched[subtasks] = made.targets

    def _better(self, known: _Success | None, found: _Success) -> _Success:
        if known is None:
            return found
        better, worse = (found, known) if found.reward > known.reward else (known, found)
        self._drop(Reason.BETTER_EXISTS, worse.place)
        return better

    def _settle(self, instruction: str, tried: _Tried) -> None:
        """Use self-declared successes for their workers, where their subtasks are vouched for."""
        expert = self.experts.same(instruction)
        vouched = {} if expert is None else {tuple(sorted(expert.targets.task_types)): expert.targets}
        vouched |= tried.vouched
        for subtasks, found in tried.self_declared.items():
            if subtasks not in vouched:
                self._drop(Reason.SELF_DECLARED, found.place)
                self._change(found.example, Reason.SELF_DECLARED)
            else:
                targets = _with_workers(vouched[subtasks], found.example.targets)
                example = msgspec.structs.replace(found.example, targets=targets)
                tried.best = self._better(tried.best, replace(found, example=example))

    def _change(self, made: Example, reason: Reason) -> None:
        change = Change(instruction=made.instruction, before=made.targets, after=None, reason=reason.value)
        self.changes.setdefault((made.instruction, reason.value), change)

    def _changes(self, learned: dict[str, Example]) -> Iterator[Change]:
        """Logged plans that are not learned, and experts' plans that executions replace."""
        for change in self.changes.values():
            after = learned.get(key_of(change.instruction)) or self.experts.same(change.instruction)
            yield replace(change, after=None if after is None else after.targets)
        for expert in self.experts.examples:
            after = learned.get(key_of(expert.instruction))
            if after is not None and after.targets != expert.targets:
                text, reason = expert.instruction, "did better than the expert's"
                yield Change(instruction=text, before=expert.targets, after=after.targets, reason=reason)

    def _drop(self, reason: Reason, *places: str, count: int = 1) -> None:
        if count:
            self.dropped[reason.value] += count
            known = self.places.setdefault(reason.value, [])
            known.extend(places[: SHOWN - len(known)])


def _with_workers(plan: Targets, done: Targets) -> Targets:
    """A plan with the workers that did the same subtasks."""
    if done.model_selections is None:
        return plan
    doers = defaultdict[int, list[int]](list)
    for task_type, worker in zip(done.task_types, done.model_selections, strict=True):
        doers[task_type].append(worker)
    workers = tuple(doers[task_type].pop(0) for task_type in plan.task_types)
    return msgspec.structs.replace(plan, model_selections=workers)


def planned_by_model(execution: Execution) -> bool:
    """Whether a language model planned it, and so vouches for its subtasks."""
    return bool(execution.decisions) and execution.decisions[0].policy.startswith(LANGUAGE_MODEL)


def _example(execution: Execution, catalogue: Catalogue, max_nodes: int | None) -> Example | Reason:
    """PlanError where what it says of its nodes is no plan."""
    nodes = list(_nodes(execution))
    if not nodes:
        plan = None if execution.nodes else execution.planner_outputs
        return Reason.NOTHING_DONE if plan is None or plan.task_types else Reason.NO_TASK_TYPES
    if max_nodes is not None and len(nodes) > max_nodes:
        return Reason.TOO_MANY_NODES
    if not all(_known(node, catalogue) for node in nodes):
        return Reason.ANOTHER_CATALOGUE
    rewards = {"success": 1.0, "cost": 0.0 - execution.cost, "latency": 0.0 - execution.latency_ms / 1000}
    return Example(instruction=execution.instruction.strip(), targets=_targets(nodes), rewards=rewards)


def _nodes(execution: Execution) -> Iterator[NodeRecord]:
    """What was done, with dependencies and worker as they came to be; of the document's lines, what was planned."""
    if not execution.nodes:
        yield from _planned(execution.planner_outputs)
        return
    done = [i for i, node in enumerate(execution.nodes) if node.status == "done"]
    place = {old: new for new, old in enumerate(done)}
    for i in done:
        node = execution.nodes[i]
        doers = [attempt.worker for attempt in node.attempts if attempt.fault is None]
        yield NodeRecord(
            task_type=node.task_type,
            dependencies=tuple(place[j] for j in node.dependencies if j in place),
            worker=doers[-1] if doers else node.worker,
            status="done",
        )


def _planned(plan: PlannerOutputs | None) -> Iterator[NodeRecord]:
    if plan is None:
        return
    types, adjacency = plan.task_types, plan.workflow_graph.adjacency
    workers = plan.model_selections or (None,) * len(types)
    if types and {len(types)} != {len(workers), len(adjacency), *map(len, adjacency)}:
        raise PlanError(f"{len(types)} task types, but not as many models, or rows and columns of the adjacency")
    for j, (task_type, worker) in enumerate(zip(types, workers, strict=False)):
        earlier = tuple(i for i, row in enumerate(adjacency) if row[j])
        yield NodeRecord(task_type=task_type, dependencies=earlier, worker=worker, status="planned")


def _known(node: NodeRecord, catalogue: Catalogue) -> bool:
    if not 0 <= node.task_type < len(catalogue.task_types):
        return False
    if node.worker is None:
        return not catalogue.workers
    return 0 <= node.worker < len(catalogue.workers)


def _targets(nodes: list[NodeRecord]) -> Targets:
    """In topological order; PlanError where there is none."""
    order = topological_order([node.dependencies for node in nodes])
    place = {old: new for new, old in enumerate(order)}
    workers = [nodes[i].worker for i in order]
    return Targets(
        task_types=tuple(nodes[i].task_type for i in order),
        dependencies=tuple(tuple(sorted({place[j] for j in nodes[i].dependencies})) for i in order),
        model_selections=None if None in workers else tuple(worker for worker in workers if worker is not None),
    )
