"""A planner learns from logged executions which worker to give a subtask and how to correct a failure.

Its subtasks and their dependencies stay as they are: executions that no one judged as a whole do not show what a plan
should contain. The run ends with a verdict against the planner it started from, and keeps that one unless the new one
is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from etude.contracts.errors import ConfigError
from etude.contracts.ports import LoggedDataset
from etude.learning.from_logs import KEPT_OLD, Keep, check_dataset
from etude.learning.one_fit import OneFit
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Evaluated, PolicyParts, Run, Update
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.workflow import SPEC
from etude.problems.workflow.artefact import load, parts_of
from etude.problems.workflow.attempts import Attempt, read_attempts
from etude.problems.workflow.contradictions import describe_contradictions
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.verdict import Verdict, cross_fit, judge
from etude.problems.workflow.worker_model import WorkerModel, WorkerModelConfig, fit_workers, judged_by_whole

SELF_DECLARED = (
    "Most workflows have no verdict on the whole: success is self-declared, so the subtasks of plans stay as they are. "
    "For better evidence, set `verify:` in workers.yaml, or use `etude label`."
)


def read_keep(inputs: Mapping[str, Any]) -> Keep:
    given = inputs.get("keep") or Keep.BETTER
    if given not in set(Keep):
        raise ConfigError(f"keep is {given!r}: expected one of {', '.join(Keep)}")
    return Keep(given)


def learn_workers(request: LearnRequest, *, remark: str = "") -> Run:
    """A run that continues a planner with what a dataset of executions shows of its workers."""
    dataset, settings = request.dataset, request.settings
    if dataset is None or request.checkpoint is None:
        raise ConfigError("learning from logs needs a dataset and the planner to continue from, its checkpoint")
    check_dataset(dataset, SPEC.name, "train")
    parent, folder = find_policy(request.checkpoint), RunFolder(request.out)
    config = settings.own(WorkflowSettings).worker_model
    about = About(
        problem=SPEC.name,
        method=request.method,
        title=f"{SPEC.name} workers from logs",
        unit="fits",
        budget="1",
        score="gain",
        settings={**parent.manifest.settings, **settings.sections("run", "worker_model")},
        policy_sections=tuple({**parent.manifest.settings, "worker_model": None}),
        encoder=parent.manifest.encoder,
        catalogue=parent.manifest.catalogue,
        data=(dataset.content,),
        parent=parent.version,
        extra={"algorithm": "workers", "dataset": dict(dataset.facts)},
        remarks=(remark,) if remark else (),
    )
    run = Run(
        WorkerLearner(about, load(parent), dataset, config, seed=settings.run.seed, keep=read_keep(request.inputs)),
        folder,
    )
    folder.keep_start(parent)
    return run


class WorkerLearner(OneFit):
    """Fits what to expect of workers in closed form: one update."""

    def __init__(
        self,
        about: About,
        planner: Planner,
        dataset: LoggedDataset,
        config: WorkerModelConfig,
        *,
        seed: int,
        keep: Keep,
    ) -> None:
        self.about, self.planner, self.dataset, self.config = about, planner, dataset, config
        self.seed, self.keep = seed, keep
        super().__init__()
        self._fitted: tuple[WorkerModel, Verdict, Sequence[Attempt]] | None = None

    def advance(self, report: Callable[[float], None]) -> dict[str, float]:
        verdict = self.fitted[1]
        self.step = 1
        found = {"gain": verdict.utility.mean, "success": verdict.success.mean, "cost_usd": verdict.cost_usd.mean}
        return {name: value for name, value in found.items() if value == value}

    @property
    def fitted(self) -> tuple[WorkerModel, Verdict, Sequence[Attempt]]:
        if self._fitted is None:
            splits = [split for split in ("train", "validation") if self.dataset.splits.get(split)]
            examples = (e for split in splits for part in self.dataset.examples(split) for e in part)
            catalogue = self.planner.catalogue
            trajectories = [example.trajectory for example in examples]
            attempts = list(read_attempts(trajectories))
            model = fit_workers(attempts, catalogue, config=self.config, seed=self.seed)
            known = [a for a in attempts if a.task_type in model.task_types and a.worker in model.workers]
            old = own_workers(self.planner, known)
            verdict = judge(known, cross_fit(known, catalogue, old, model, self.seed))
            if doubt := describe_contradictions(trajectories):
                verdict = replace(verdict, answer="not distinguishable", doubt=doubt)
            self._fitted = model, verdict, known
        return self._fitted

    def evaluate(self, *, force: bool = False) -> Evaluated | None:
        gain = self.fitted[1].utility
        return Evaluated(score=gain.mean if gain.mean == gain.mean else None, keep=True)

    @property
    def is_kept(self) -> bool:
        """Whether the new choice of workers becomes the run's policy."""
        return self.keep is Keep.ALWAYS or self.fitted[1].answer == "better"

    def policy(self) -> PolicyParts:
        planner = self.planner
        return parts_of(planner, self.fitted[0] if self.is_kept else planner.workers)

    def summary(self) -> dict[str, Any]:
        _, verdict, attempts = self.fitted
        return {"attempts": len(attempts), "verdict": verdict.to_json(), "kept": "new" if self.is_kept else "old"}

    def introduction(self) -> str:
        return "learning from logged attempts what to expect of each worker"

    def line(self, update: Update) -> str:
        attempts = self.fitted[2]
        counts = f"{len(attempts):,} attempts in {len({a.trajectory for a in attempts}):,} workflows"
        return "\n".join([counts, *self.verdict_lines()])

    def verdict_lines(self, kept_old: str = KEPT_OLD) -> list[str]:
        """The verdict in sentences; `kept_old` follows where the new workers are not kept."""
        _, verdict, attempts = self.fitted
        declared = [] if judged_by_whole(attempts) or self.about.remarks else [SELF_DECLARED]
        return [*declared, *verdict.sentences(), *([] if self.is_kept else [kept_old])]


def own_workers(planner: Planner, attempts: Sequence[Attempt]) -> list[str]:
    """Which worker the planner itself gives each subtask: in its plan for the request, else as it mostly does."""
    requests = sorted({a.request for a in attempts if a.request.strip()})
    chosen: dict[tuple[str, str], str] = {}
    mostly: dict[str, Counter[str]] = {}
    for request, plan in zip(requests, planner.plans(requests), strict=True):
        for node in plan.nodes:
            if node.worker is not None:
                chosen.setdefault((request, node.task_type), node.worker)
                mostly.setdefault(node.task_type, Counter())[node.worker] += 1
    usual = {task_type: workers.most_common(1)[0][0] for task_type, workers in mostly.items()}
    return [chosen.get((a.request, a.task_type), usual.get(a.task_type, a.worker)) for a in attempts]
