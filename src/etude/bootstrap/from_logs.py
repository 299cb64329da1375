"""Workflow planners that learn from datasets of logged trajectories: a dataset and an earlier run to a training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from etude.bootstrap.experience import config_here, existing_store, now, open_place
from etude.bootstrap.outcomes import keep_beginning
from etude.bootstrap.planner import make_plan_policy, make_reader, read_beginning, version_of, write_catalogue
from etude.bootstrap.runs import CATALOGUE, find_root
from etude.contracts.errors import DatasetError, EtudeError
from etude.experience.datasets import Dataset, Manifest
from etude.experience.forgetting import PolicyRecord, remember_policy
from etude.learning.checkpoint import checkpoints
from etude.learning.from_logs import LEARNERS, LogsTraining
from etude.learning.runs import RunFolder, find_runs
from etude.learning.train import resolve_device
from etude.learning.workflow_logs import WorkflowShards
from etude.problems.workflow.catalogue import read_catalogue
from etude.settings.tree import Settings

PHASE = 3
"""What config.json says of a run that learned from logs."""


def make_from_logs(
    settings: Settings,
    out: Path,
    dataset: str,
    algorithm: str,
    *,
    checkpoint: Path | None = None,
    catalogue: Path | None = None,
    config: Path | None = None,
) -> LogsTraining:
    """A planner that goes on learning from a dataset, new or where it stopped.

    Without a `checkpoint` it is the run beside `out` that logged most of the dataset. What was forgotten since the
    dataset was made is left out, as far as the store of the settings file `config` knows it.
    """
    frozen = Dataset(open_place(dataset, config_here(config)))
    _check(frozen.manifest, dataset)
    start = checkpoint or find_start(frozen.manifest, out.parent)
    (beginning, earlier), device = read_beginning(start), resolve_device(settings.run.device)
    known = read_catalogue(catalogue or find_root(start) / CATALOGUE)
    reader = make_reader(earlier.planner)
    undisturbed = earlier.model_copy(update={"planner": earlier.planner.undisturbed()})
    policy = make_plan_policy(undisturbed, beginning.known, reader)
    policy.load_state_dict(beginning.weights)
    policy.to(device)
    chosen, folder = getattr(settings.from_logs, algorithm), RunFolder(out)
    learner = LEARNERS[algorithm](policy, chosen, device=device, seed=settings.run.seed)

    def shards(split: str, draw: Callable[[], int]) -> WorkflowShards:
        return WorkflowShards(
            examples=lambda: frozen.shards(split, without=forgotten(config)),
            policy=policy,
            catalogue=known,
            limits=earlier.limits,
            reader=reader,
            known=beginning.known,
            memory=beginning.memory,
            seed=settings.run.seed,
            draw=draw,
        )

    training = LogsTraining(
        learner,
        shards("train", lambda: learner.epoch),
        shards("validation", lambda: 0),  # estimates are compared from pass to pass
        folder,
        {
            "problem": "workflow",
            "phase": PHASE,
            "algorithm": algorithm,
            "data": [version_of(start, beginning), frozen.manifest.content],
            "dataset": {"id": frozen.manifest.id, "url": frozen.manifest.url, "reward": frozen.manifest.version},
            **earlier.model_dump(mode="json", include={"limits", "planner", "training", "office"}),
            **settings.model_dump(mode="json", include={"run": True, "from_logs": {algorithm, "overlap"}}),
        },
        problem="workflow",
        overlap=settings.from_logs.overlap,
        trackers=settings.run.trackers,
        threads=settings.run.threads,
    )
    if not checkpoints(folder.start):
        keep_beginning(folder, beginning, phase=RunFolder(find_root(start)).config()["phase"])
    write_catalogue(out, known)
    return training


def _check(manifest: Manifest, place: str) -> None:
    if manifest.problem != "workflow":
        raise DatasetError(f"{place}: is about {manifest.problem!r}: expected a dataset of the problem workflow")
    for split in ("train", "validation"):
        if not manifest.counts.splits.get(split):
            raise DatasetError(
                f"{place}: has no trajectories in its {split} split: create it with more of them, or other --shares"
            )


def find_start(manifest: Manifest, runs: Path) -> Path:
    """Of the runs below a folder, the one whose policy logged most of a dataset."""
    logged = sorted(manifest.counts.policies.items(), key=lambda item: -item[1])
    found = {}
    for run in find_runs(runs) if runs.is_dir() else ():
        try:
            found[version_of(run.path, read_beginning(run.path)[0])] = run.path
        except EtudeError:  # of another problem, or not trained far enough
            continue
    for version, _ in logged:
        if version in found:
            return found[version]
    raise DatasetError(
        f"no run below {runs} is one that logged this dataset ({', '.join(version for version, _ in logged[:3])}): "
        "give the planner to go on from, --checkpoint; where rules or people decided, train one to begin with by "
        "`etude prepare` and `etude train workflow --phase 1`"
    )


def forgotten(config: Path | None) -> Callable[[Sequence[str]], set[str]]:
    """Which trajectories were erased, as the store of these settings has it; none where there is no store."""

    def ask(ids: Sequence[str]) -> set[str]:
        with existing_store(config) as store:
            return set() if store is None else store.forgotten(ids)

    return ask


def remember(out: Path, config: Path | None) -> None:
    """That the policy of a run learned from its dataset, so that it is named when a user is forgotten."""
    settings = RunFolder(out).config()
    with existing_store(config) as store:
        if store is not None:
            version = version_of(out, read_beginning(out)[0])
            dataset = settings["dataset"]["id"]
            remember_policy(
                store, PolicyRecord(version=version, problem="workflow", dataset=dataset, run=str(out), time=now())
            )
