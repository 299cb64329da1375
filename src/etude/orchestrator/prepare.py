"""Execution logs in, a training file out: of each instruction the plan that did best, as it stood in the end.

A correction that helped becomes part of the plan. Each line is kept or counted under the one reason it is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from etude.contracts.errors import CatalogueError, DataError, PlanError
from etude.files.durable import replace_file
from etude.orchestrator.log import CATALOGUE_FILE, Damaged, Line, log_catalogue, read_lines, same_ids
from etude.orchestrator.record import Execution, NodeRecord, PlannerOutputs
from etude.problems.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.examples import Example, Targets
from etude.problems.workflow.plan import topological_order

SHOWN = 3
"""Places reported for each reason."""


class Reason(StrEnum):
    """Why a line is not learned from."""

    TORN = "torn line"
    DAMAGED = "damaged line"
    CANCELLED = "cancelled"
    NO_INSTRUCTION = "no instruction"
    NOT_SUCCESSFUL = "not successful"  # nor was any other of the same instruction
    NO_TASK_TYPES = "no task types"  # the document's own lines name only the models
    NOTHING_DONE = "nothing done"
    TOO_MANY_NODES = "more than max_nodes"
    ANOTHER_CATALOGUE = "another catalogue"  # ids that the catalogue of the log does not have
    BETTER_EXISTS = "a better or equal one of the same instruction"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Examples by the first appearance of their instruction, and how many lines were dropped, and why."""

    examples: list[Example]
    catalogue: Catalogue
    read: int  # lines, damaged ones included
    dropped: Counter[str]  # by Reason
    places: dict[str, list[str]]  # by Reason: the first few, "file:line"


def prepare(logs: Path, *, max_nodes: int | None = None, progress: Callable[[int], None] | None = None) -> Prepared:
    """Of a folder of logs, or one; `progress` hears the bytes of each line. Memory holds one plan an instruction."""
    catalogue = log_catalogue(logs)
    choice = _Selection(catalogue=catalogue, max_nodes=max_nodes)
    for line in read_lines(logs):
        choice.add(line)
        if progress is not None:
            progress(line.size)
    return choice.prepared()


def write_prepared(prepared: Prepared, out: Path) -> None:
    """The training file and its catalogue; DataError where nothing is left or another catalogue is in that folder."""
    if not prepared.examples:
        raise DataError(
            f"nothing is left of {prepared.read:,} executions: {out} is not written; collect more with `etude collect`"
        )
    catalogue_file = out.parent / CATALOGUE_FILE
    if out.name == CATALOGUE_FILE:
        raise DataError(f"{out}: the catalogue is written under this name: choose another for the training file")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if not catalogue_file.exists():
            replace_file(catalogue_file, msgspec.json.format(msgspec.json.encode(prepared.catalogue), indent=1))
        _check_catalogue(catalogue_file, prepared.catalogue)
        replace_file(out, b"[\n" + b",\n".join(map(msgspec.json.encode, prepared.examples)) + b"\n]\n")
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


@dataclass(kw_only=True)
class _Tried:
    """What is known of one instruction."""

    place: str = ""  # of the best
    reward: float = 0.0
    best: Example | None = None
    failed: int = 0
    failed_at: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class _Selection:
    catalogue: Catalogue
    max_nodes: int | None
    read: int = 0
    tried: dict[str, _Tried] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, line: Line) -> None:
        self.read += 1
        place = f"{line.file}:{line.number}"
        if isinstance(line.content, Damaged):
            reason = Reason.TORN if line.content.torn else Reason.DAMAGED
            self._drop(reason, f"{place} ({line.content.reason})")
            return
        execution = line.content
        if execution.ended == "cancelled":
            self._drop(Reason.CANCELLED, place)
        elif not execution.instruction.strip():
            self._drop(Reason.NO_INSTRUCTION, place)
        elif not execution.success:
            tried = self.tried.setdefault(execution.instruction.strip(), _Tried())
            tried.failed += 1
            tried.failed_at = [*tried.failed_at, place][:SHOWN]
        else:
            self._weigh(execution, place)

    def prepared(self) -> Prepared:
        for tried in self.tried.values():
            reason = Reason.NOT_SUCCESSFUL if tried.best is None else Reason.BETTER_EXISTS
            self._drop(reason, *tried.failed_at, count=tried.failed)
        return Prepared(
            examples=[tried.best for tried in self.tried.values() if tried.best is not None],
            catalogue=self.catalogue,
            read=self.read,
            dropped=self.dropped,
            places=self.places,
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
        tried = self.tried.setdefault(made.instruction, _Tried())
        if tried.best is not None and tried.reward >= execution.reward:
            self._drop(Reason.BETTER_EXISTS, place)
            return
        if tried.best is not None:
            self._drop(Reason.BETTER_EXISTS, tried.place)
        tried.best, tried.reward, tried.place = made, execution.reward, place

    def _drop(self, reason: Reason, *places: str, count: int = 1) -> None:
        if count:
            self.dropped[reason.value] += count
            known = self.places.setdefault(reason.value, [])
            known.extend(places[: SHOWN - len(known)])


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
