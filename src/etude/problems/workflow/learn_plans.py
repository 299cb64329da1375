"""A planner learns plans from examples and workers from logs, and is judged against the one it continues from.

Phase 1 on the examples, then the same without a part of the requests, once for each part: its plans for that part are
compared with the earlier planner's by the logged outcomes. Workers are learned as in `learn_workers`. New plans and new
workers each become part of the run's policy only if they are better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from zlib import crc32

import msgspec
from torch import Tensor

from etude.contracts.errors import ConfigError
from etude.contracts.policy import SAMPLED
from etude.contracts.ports import LoggedDataset
from etude.contracts.trajectory import Trajectory
from etude.learning.from_logs import Keep, check_dataset
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Evaluated, PolicyParts, Run, StopReason, Update
from etude.learning.run_folder import RunFolder, find_policy
from etude.learning.settings import read_own
from etude.problems.workflow import SPEC, data_files
from etude.problems.workflow.artefact import load, make_reader, parts_of, planner_parts
from etude.problems.workflow.attempts import VERIFIED
from etude.problems.workflow.decisions import catalogue_id
from etude.problems.workflow.imitation import ImitationLearner
from etude.problems.workflow.learn_workers import WorkerLearner, read_keep
from etude.problems.workflow.phase1 import Imitation, read_sets
from etude.problems.workflow.plan import Plan, name_plan
from etude.problems.workflow.plan_verdict import PlanVerdict, Tried, judge_plans
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.showcase import write_before_and_after
from etude.problems.workflow.training_set import MIN_EXAMPLES, merge_sets

FOLDS = 5
MANY = 2000
"""Workflows of a part that suffice for a verdict by themselves."""
KEPT_PART = "The old {} stay; `--keep always` takes the new ones all the same."
LEARNED_FROM = ("train", "validation")
"""Splits of a dataset; the test split stays for `etude evaluate`."""


def learn_plans(request: LearnRequest) -> Run:
    """A run that continues a planner with examples, such as those of `etude prepare`, and a dataset of executions."""
    dataset, settings = request.dataset, request.settings
    if dataset is None or request.checkpoint is None:
        raise ConfigError("learning from logs needs a dataset and the planner to continue from, its checkpoint")
    check_dataset(dataset, SPEC.name, "train")
    parent, folder = find_policy(request.checkpoint), RunFolder(request.out)
    earlier = read_own(WorkflowSettings, parent.manifest.settings, source=parent.path)
    own = replace(settings.own(WorkflowSettings), planner=earlier.planner, limits=earlier.limits)
    sets, hashes = read_sets(data_files(request.inputs), max_nodes=own.limits.max_nodes)
    merged, old = merge_sets(sets), load(parent)
    tested = {example.trajectory.task.strip() for part in dataset.examples("test") for example in part}
    merged = merged.without([i for i, example in enumerate(merged.examples) if example.instruction in tested])
    sections = {name: getattr(own, name) for name in SPEC.sections}
    about = About(
        problem=SPEC.name,
        method=request.method,
        title=f"{SPEC.name} plans and workers from logs",
        unit="epochs",
        budget="",
        score="validation score",
        settings=settings.model_copy(update=sections).sections(*SPEC.sections, "run"),
        policy_sections=SPEC.sections,
        encoder=parent.manifest.encoder,
        catalogue=catalogue_id(merged.catalogue),
        data=(dataset.content, *hashes),
        parent=parent.version,
        extra={"algorithm": "plans", "dataset": dict(dataset.facts)},
    )
    keep, reader = read_keep(request.inputs), make_reader(own.planner)
    imitation = Imitation(about=about, merged=merged, reader=reader, own=own, folder=folder, run=settings.run)
    workers = WorkerLearner(about, old, dataset, own.worker_model, seed=settings.run.seed, keep=keep)
    tried = logged_plans(dataset, old)
    learner = PlanLearner(
        old=old, workers=workers, folds=folds_of(imitation, tried), as_planner=imitation.planner, **imitation.parts()
    )
    run = Run(learner, folder, trackers=settings.run.trackers, keep_checkpoints=2)
    folder.keep_start(parent)
    return run


def logged_plans(dataset: LoggedDataset, behaviour: Planner) -> list[Tried]:
    """Workflows with a verdict on the whole whose plans this planner sampled."""
    examples = (
        e for split in LEARNED_FROM if dataset.splits.get(split) for part in dataset.examples(split) for e in part
    )
    found = (_logged_plan(example.trajectory, behaviour) for example in examples)
    return [one for one in found if one is not None]


def _logged_plan(trajectory: Trajectory, behaviour: Planner) -> Tried | None:
    known, outcome = trajectory.metadata or {}, trajectory.outcome
    nodes, ids = known.get("plan"), known.get("catalogue", "")
    sampled = {d.policy for d in trajectory.decisions[:1]} == {f"{behaviour.version}{SAMPLED}"}
    if not nodes or not sampled or outcome.success_by not in VERIFIED or ids != catalogue_id(behaviour.catalogue):
        return None
    types, needs = [node["task_type"] for node in nodes], [node["dependencies"] for node in nodes]
    plan = name_plan(behaviour.catalogue, trajectory.task.strip(), types, None, needs)
    return Tried(plan=plan, success=bool(outcome.success))


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Logged workflows whose requests are held out, and a learner that has not seen those."""

    tried: Sequence[Tried]
    train: Callable[[], ImitationLearner]


def folds_of(imitation: Imitation, tried: Sequence[Tried]) -> list[Fold]:
    """Workflows by their requests; one fold where there are so many that it suffices."""
    examples = imitation.merged.examples
    found = []
    for number in range(FOLDS):
        own = [one for one in tried if _fold(one.plan.instruction) == number]
        held_out = [i for i, example in enumerate(examples) if _fold(example.instruction) == number]
        if own and len(examples) - len(held_out) >= MIN_EXAMPLES:
            part = replace(imitation, merged=imitation.merged.without(held_out), folder=None)
            found.append(Fold(tried=own, train=part.learner))
        if len(own) >= MANY:
            break
    return found


def _fold(request: str) -> int:
    return crc32(request.strip().encode("utf-8", "surrogatepass")) % FOLDS


class PlanLearner(ImitationLearner):
    """Epochs as in phase 1, a step for each fold, and the workers in the last step."""

    def __init__(
        self,
        *,
        old: Planner,
        workers: WorkerLearner,
        folds: Sequence[Fold],
        as_planner: Callable[[ImitationLearner], Planner],
        **parts: Any,
    ) -> None:
        super().__init__(**parts)
        self.old, self.workers, self.folds, self.as_planner = old, workers, folds, as_planner
        self.plans: list[Plan] = []  # for the workflows of the folds so far, by planners that have not seen them
        self.judged = 0  # steps after the epochs

    @property
    def has_learned(self) -> bool:
        """Whether what is left is the verdict."""
        return super().reason_to_stop() is not None

    @property
    def used(self) -> float:
        learned = 1.0 if self.has_learned else super().used
        return (learned + self.judged) / (2 + len(self.folds))

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        if not self.has_learned:
            return super().advance(report)
        if self.judged < len(self.folds):
            fold = self.folds[self.judged]
            learner = _trained(fold.train(), report)
            self.plans += _plans_for(self.as_planner(learner), fold.tried)
        self.judged, self.step = self.judged + 1, self.step + 1
        return {"judged": float(self.judged)}

    @property
    def is_judged(self) -> bool:
        return self.judged > len(self.folds)

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        if not self.judged:
            return super().evaluate(force=force)
        if self.is_judged and self.folder is not None:
            texts = list(dict.fromkeys(one.plan.instruction for one in self._tried))
            if texts:
                write_before_and_after(self.folder, self.old.plans(texts), self.as_planner(self).plans(texts))
        return Evaluated(score=None, keep=self.is_judged or force)

    def reason_to_stop(self) -> StopReason | None:
        return super().reason_to_stop() if self.is_judged else None

    @property
    def _tried(self) -> list[Tried]:
        return [one for fold in self.folds for one in fold.tried]

    @cached_property
    def verdict(self) -> PlanVerdict:
        """On plans; once every fold is done."""
        old, tried = self.old, self._tried
        return judge_plans(tried, _plans_for(old, tried), self.plans, old.structure_probabilities)

    @property
    def keeps_plans(self) -> bool:
        """Whether the new plans become those of the run's policy."""
        trusted = not self.workers.fitted[1].doubt
        return self.workers.keep is Keep.ALWAYS or (trusted and self.verdict.answer == "better")

    def policy(self) -> PolicyParts:
        if not self.is_judged:
            return super().policy()
        old, parts = self.old, super().policy()
        workers = self.workers.fitted[0] if self.workers.is_kept else old.workers
        if not self.keeps_plans:
            return parts_of(old, workers)
        more = planner_parts(self.workers.planner.catalogue, old.known, None, workers)
        return replace(parts, tensors={**parts.tensors, **more.tensors}, details={**more.details, **parts.details})

    def values(self) -> dict[str, Any]:
        return super().values() | {"plans": msgspec.to_builtins(self.plans), "judged": self.judged}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        super().restore(tensors, values)
        self.plans, self.judged = msgspec.convert(values["plans"], list[Plan]), values["judged"]

    def summary(self) -> dict[str, Any]:
        kept = {"plans": self.keeps_plans, "workers": self.workers.is_kept}
        verdict = {"plans": self.verdict.to_json(), "workers": self.workers.fitted[1].to_json()}
        named = {part: "new" if is_new else "old" for part, is_new in kept.items()}
        return super().summary() | {"verdict": verdict, "kept": named}

    def line(self, update: Update) -> str:
        if "judged" not in update.metrics:
            return super().line(update)
        if not self.is_judged:
            return f"plans for held-out requests: part {self.judged} of {len(self.folds)}"
        lines = ["judged by the logged outcomes", *self.verdict.sentences()]
        lines += [] if self.keeps_plans else [KEPT_PART.format("plans")]
        return "\n".join([*lines, *self.workers.verdict_lines(KEPT_PART.format("workers"))])


def _trained(learner: ImitationLearner, report: Callable[[float], None]) -> ImitationLearner:
    while learner.reason_to_stop() is None:
        report(learner.used)
        learner.advance(lambda share: None)
        evaluated = learner.evaluate()
        if evaluated is not None and evaluated.score is not None:
            learner.scores.append(evaluated.score)
    return learner


def _plans_for(planner: Planner, tried: Sequence[Tried]) -> list[Plan]:
    """The planner's plan for the request of each workflow."""
    texts = list(dict.fromkeys(one.plan.instruction for one in tried))
    made = dict(zip(texts, planner.plans(texts), strict=True)) if texts else {}
    return [made[one.plan.instruction] for one in tried]
