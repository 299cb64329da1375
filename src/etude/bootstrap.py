"""Settings to objects, and a run folder back to a policy: the only place where objects are wired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from etude.contracts.errors import CheckpointError, RunError
from etude.learning.checkpoint import MANIFEST, checkpoints, read_checkpoint, under, write_checkpoint
from etude.learning.imitation import ImitationTraining
from etude.learning.runs import RunFolder
from etude.learning.train import TrainConfig, Training, resolve_device
from etude.problems.allocation.network import EntityPolicy, MLPPolicy
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.workflow.catalogue import read_catalogue
from etude.problems.workflow.encode import Known
from etude.problems.workflow.examples import read_examples
from etude.problems.workflow.lesson import Reader, make_course, make_lesson, split
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlannerConfig, PlanPolicy
from etude.problems.workflow.replay import read_outcomes
from etude.problems.workflow.routing import Router, fit_router
from etude.serving.planner import Planner
from etude.serving.runtime import LoadedPolicy
from etude.settings import Settings, restore
from etude.text.encoders import make_encoder

CONFIG, CATALOGUE = "config.json", "catalogue.json"


def make_problem(settings: Settings) -> AllocationProblem:
    return AllocationProblem(config=settings.allocation, network=settings.network)


def make_training(settings: Settings, out: Path) -> Training:
    """A run in `out`, new, or where an earlier one with the same settings stopped."""
    s = settings
    config = TrainConfig(ppo=s.ppo, run=s.run, health=s.health, curriculum=s.curriculum)
    return Training(make_problem(s), config, RunFolder(out), to_config(s))


def to_config(settings: Settings) -> dict[str, Any]:
    """What config.json keeps: enough to make the same problem and training again."""
    sections = {"allocation", "network", "ppo", "run", "health", "curriculum"}
    return {"problem": "allocation", **settings.model_dump(mode="json", include=sections)}


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy:
    """A policy read from a run, with what it was trained on."""

    folder: RunFolder
    settings: Settings
    problem: AllocationProblem
    network: MLPPolicy | EntityPolicy
    step: int


def read_policy(path: Path) -> TrainedPolicy:
    """`path` is a run (its best policy), its best/ or checkpoints/ (the newest in it), or one checkpoint."""
    root = find_root(path)
    folder = RunFolder(root)
    settings = read_settings(folder)
    problem = make_problem(settings)
    tensors, meta = _read_weights(path, folder, problem.name)
    network = problem.policy()
    try:
        network.load_state_dict(under("policy.", tensors))
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: its weights do not fit the network that {root / CONFIG} describes: was one of them copied from "
            "another run?"
        ) from error
    return TrainedPolicy(folder=folder, settings=settings, problem=problem, network=network.eval(), step=meta["step"])


def read_settings(folder: RunFolder, problem: str = "allocation") -> Settings:
    """Settings of a run; RunError where it is of another problem."""
    config = folder.config()
    if config.get("problem") != problem:
        raise RunError(f"{folder.path} is a run of problem {config.get('problem')!r}, expected {problem!r}")
    return restore(config, source=folder.path / CONFIG)


def find_root(path: Path) -> Path:
    """The run folder that `path` is, or lies in."""
    if not path.exists():
        raise RunError(f"{path} does not exist: `etude runs list` shows the runs")
    for folder in (path, *path.absolute().parents[:2]):
        if (folder / CONFIG).is_file():
            return folder
    raise RunError(f"{path} is not a run: {CONFIG} is missing; `etude runs list` shows the runs")


def problem_of(path: Path) -> str:
    """Which problem the run at `path` learned."""
    return str(RunFolder(find_root(path)).config().get("problem"))


def load_policy(path: Path, *, seed: int = 0) -> LoadedPolicy | Planner:
    if problem_of(path) == "workflow":
        return load_planner(path)
    trained = read_policy(path)
    return LoadedPolicy(trained.network, trained.problem, seed=seed, step=trained.step)


def _read_weights(path: Path, folder: RunFolder, problem: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if (path / CONFIG).is_file():
        return folder.best_policy(problem)
    if (path / MANIFEST).is_file() or path.name.startswith("step-"):
        return read_checkpoint(path, problem=problem)
    saved = checkpoints(path)
    if not saved:
        raise CheckpointError(
            f"{path} holds no checkpoint: give the run folder {folder.path}, or a step-… folder in it"
        )
    return read_checkpoint(saved[-1], problem=problem)


def make_imitation(settings: Settings, out: Path, data: Sequence[tuple[Path, Path | None]]) -> ImitationTraining:
    """Phase 1 of the workflow planner in `out`: files of examples, each with its catalogue or the one beside it."""
    import torch

    config, limits = settings.training.phase1_supervised, settings.limits
    sets, hashes = [], []
    for file, own in data:
        catalogue_file = own or file.with_name(CATALOGUE)
        catalogue = read_catalogue(catalogue_file)
        sets.append((catalogue, read_examples(file, catalogue, max_nodes=limits.max_nodes)))
        hashes.append(sha256(file.read_bytes() + catalogue_file.read_bytes()).hexdigest())
    course = make_course(sets)
    seed, reader = settings.run.seed, make_reader(settings.planner)
    learn, aside = split(course, share=config.validation_share, size=config.train_data_size, seed=seed)
    lesson = partial(
        make_lesson,
        course,
        reader=reader,
        limits=limits,
        augmentations=config.synthetic_augmentations,
        ridge=config.ridge,
        seed=seed,
    )
    torch.manual_seed(seed)
    training = ImitationTraining(
        make_plan_policy(settings, course.known, reader),
        lesson(learn, aside),
        lambda: lesson(sorted(learn + aside), aside[:1]),
        config,
        RunFolder(out),
        {
            "problem": "workflow",
            "phase": 1,
            "data": hashes,
            **settings.model_dump(mode="json", include={"limits", "planner", "training", "run"}),
        },
        seed=seed,
        trackers=settings.run.trackers,
        device=resolve_device(settings.run.device),
        threads=settings.run.threads,
    )
    (out / CATALOGUE).write_bytes(msgspec.json.format(msgspec.json.encode(course.catalogue), indent=1))
    return training


def make_reader(config: PlannerConfig) -> Reader:
    if config.encoder == "minilm":
        from etude.text.minilm import tokenise

        return Reader(encoder=make_encoder("minilm"), tokenise=tokenise)
    return Reader(encoder=make_encoder(config.encoder.removesuffix("-frozen")))


def make_plan_policy(settings: Settings, known: Known, reader: Reader) -> PlanPolicy:
    transformer = None
    if reader.tokenise is not None:
        from etude.text.minilm import MiniLM

        transformer = MiniLM.pretrained(dropout=settings.planner.dropout)
    return PlanPolicy(
        settings.planner,
        text_width=reader.encoder.width,
        known_types=len(known.task_types),
        known_workers=len(known.workers),
        nodes=settings.limits.max_nodes,
        reader=transformer,
    )


def load_planner(path: Path) -> Planner:
    """The best planner of a run, with the catalogue it was trained on."""
    root = find_root(path)
    folder = RunFolder(root)
    settings = read_settings(folder, "workflow")
    catalogue = read_catalogue(root / CATALOGUE)
    tensors, meta = _read_weights(path, folder, "workflow")
    if "memory.weights" not in tensors:
        what = "chooses workers, it does not plan" if "router" in meta else "is a state of training, not a planner"
        raise CheckpointError(f"{path} {what}: give the folder of a run of `etude train workflow --phase 1`")
    known = Known.of(catalogue)
    reader = make_reader(settings.planner)
    policy = make_plan_policy(settings, known, reader)
    policy.load_state_dict(under("policy.", tensors))
    return Planner(
        policy.eval(),
        reader=reader,
        known=known,
        memory=Memory.from_state(under("memory.", tensors), types=len(known.task_types)),
        catalogue=catalogue,
        limits=settings.limits,
        beam=settings.training.phase1_supervised.beam,
        step=meta["step"],
    )


def make_router(settings: Settings, out: Path, outcomes: Path, catalogue_file: Path | None) -> Router:
    """Phase 2 on recorded outcomes: who answers which query, fitted in `out`."""
    source = catalogue_file or outcomes.with_name(CATALOGUE)
    replay = read_outcomes(outcomes, read_catalogue(source))
    folder = RunFolder(out)
    folder.open(
        {
            "problem": "workflow",
            "phase": 2,
            "data": [sha256(outcomes.read_bytes() + source.read_bytes()).hexdigest()],
            **settings.model_dump(mode="json", include={"limits", "planner", "run"}),
        }
    )
    router, _ = fit_router(replay, make_reader(settings.planner).encoder)
    (out / CATALOGUE).write_bytes(source.read_bytes())
    tensors = {f"router.{name}": value for name, value in router.state_dict().items()}
    meta = {"problem": "workflow", "router": router.to_json()}
    write_checkpoint(folder.best, step=len(replay), tensors=tensors, meta=meta, keep=1)
    folder.finish({"stopped": "fitted", "queries": len(replay), "best_single": router.best_single})
    return router


def load_router(path: Path) -> Router:
    root = find_root(path)
    folder = RunFolder(root)
    settings = read_settings(folder, "workflow")
    tensors, meta = _read_weights(path, folder, "workflow")
    if "router" not in meta:
        raise CheckpointError(f"{path} was trained on expert workflows: --replay is for a run of --phase 2 --replay")
    return Router.from_state(under("router.", tensors), meta["router"], make_reader(settings.planner).encoder)
