"""Settings to objects, and a run folder back to a policy: the only place where objects are wired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from etude.contracts.errors import CheckpointError, ConfigError, RunError
from etude.learning.checkpoint import MANIFEST, checkpoints, read_checkpoint, under, write_checkpoint
from etude.learning.imitation import ImitationTraining
from etude.learning.runs import RunFolder
from etude.learning.showcase import side_by_side, various, write_plans
from etude.learning.train import TrainConfig, Training, resolve_device
from etude.problems.allocation.network import EntityPolicy, MLPPolicy
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.workflow.catalogue import Catalogue, read_catalogue
from etude.problems.workflow.encode import Known
from etude.problems.workflow.examples import Example, read_examples, to_examples
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.lesson import Reader, make_course, make_lesson, split
from etude.problems.workflow.memory import Memory
from etude.problems.workflow.network import PlannerConfig, PlanPolicy
from etude.problems.workflow.phrases import CATALOGUE as CATALOGUE_OF_THE_OFFICE
from etude.problems.workflow.problem import Beginning, WorkflowProblem, without_newcomers
from etude.problems.workflow.replay import read_outcomes
from etude.problems.workflow.routing import Router, fit_router
from etude.problems.workflow.world import Tables
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


def learned_in_office(path: Path) -> bool:
    """Whether the run at `path` is one of phase 2 in the simulated office."""
    return bool(checkpoints(RunFolder(find_root(path)).start))


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
    """Phase 1 of the workflow planner in `out`: files of examples, each with its catalogue or the one beside it.

    Without any, the experts of the simulated office are imitated.
    """
    import torch

    config, limits = settings.training.phase1_supervised, settings.limits
    sets, hashes = [], []
    for file, own in data:
        catalogue_file = own or file.with_name(CATALOGUE)
        catalogue = read_catalogue(catalogue_file)
        sets.append((catalogue, read_examples(file, catalogue, max_nodes=limits.max_nodes)))
        hashes.append(sha256(file.read_bytes() + catalogue_file.read_bytes()).hexdigest())
    course = make_course(sets or [_office_experts(settings)])
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
            **settings.model_dump(mode="json", include={"limits", "planner", "training", "run", "office"}),
        },
        seed=seed,
        trackers=settings.run.trackers,
        device=resolve_device(settings.run.device),
        threads=settings.run.threads,
    )
    _write_catalogue(out, course.catalogue)
    return training


def _office_experts(settings: Settings) -> tuple[Catalogue, list[Example]]:
    """Experts' plans for the office's instructions; for those kept aside nobody's."""
    office, limits = settings.office, settings.limits
    scenarios = Tables(settings.training.phase2_rl.world(office, limits), None, "cpu").scenarios
    records = expert_examples(scenarios, source="gold", noise=office.expert_noise, seed=settings.run.seed)
    catalogue, learned = without_newcomers(scenarios), records[: office.scenarios]
    return catalogue, to_examples(learned, catalogue, max_nodes=limits.max_nodes, source="the office's experts")


def _write_catalogue(out: Path, catalogue: Catalogue) -> None:
    (out / CATALOGUE).write_bytes(msgspec.json.format(msgspec.json.encode(catalogue), indent=1))


def make_reader(config: PlannerConfig) -> Reader:
    if config.encoder == "minilm":
        from etude.text.minilm import MiniLM, tokenise

        return Reader(encoder=make_encoder("minilm"), tokenise=tokenise, network=MiniLM.pretrained)
    return Reader(encoder=make_encoder(config.encoder.removesuffix("-frozen")))


def make_plan_policy(settings: Settings, known: Known, reader: Reader) -> PlanPolicy:
    return PlanPolicy(
        settings.planner,
        text_width=reader.encoder.width,
        known_types=len(known.task_types),
        known_workers=len(known.workers),
        nodes=settings.limits.max_nodes,
        reader=reader.network and reader.network(settings.planner.dropout),
    )


def read_beginning(path: Path) -> tuple[Beginning, Settings]:
    """What a planner's run has learned, for another to go on from, and its settings."""
    folder = RunFolder(find_root(path))
    settings = read_settings(folder, "workflow")
    tensors, meta = _read_weights(path, folder, "workflow")
    if "router" in meta:
        raise CheckpointError(f"{path} chooses workers, it does not plan: give a run of `etude train workflow`")
    known = Known.of(read_catalogue(folder.path / CATALOGUE))
    began = checkpoints(folder.start)
    if began:  # a run of phase 2 remembers what phase 1 did
        first, told = read_checkpoint(began[-1], problem="workflow")
        known = Known(task_types=tuple(told["task_types"]), workers=tuple(told["workers"]))
        tensors |= {name: value for name, value in first.items() if name.startswith("memory.")}
    if "memory.weights" not in tensors:
        raise CheckpointError(f"{path} is a state of training, not a planner: give the folder of its run")
    memory = Memory.from_state(under("memory.", tensors), types=len(known.task_types))
    weights = under("policy.", tensors)
    return Beginning(known=known, weights=weights, memory=memory, step=meta["step"]), settings


def load_planner(path: Path) -> Planner:
    """The best planner of a run, with the catalogue it was trained on."""
    beginning, settings = read_beginning(path)
    reader = make_reader(settings.planner)
    policy = make_plan_policy(settings, beginning.known, reader)
    try:
        policy.load_state_dict(beginning.weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path}: its weights do not fit this version's network: train it anew ({error!s:.200})"
        ) from error
    return Planner(
        policy.eval(),
        reader=reader,
        known=beginning.known,
        memory=beginning.memory,
        catalogue=read_catalogue(find_root(path) / CATALOGUE),
        limits=settings.limits,
        beam=settings.training.phase1_supervised.beam,
        step=beginning.step,
    )


def make_outcomes(settings: Settings, out: Path, checkpoint: Path) -> Training:
    """Phase 2 in the simulated office, from the planner of an earlier run, new or where it stopped."""
    beginning, earlier = read_beginning(checkpoint)
    strangers = set(beginning.known.task_types) - {t.name for t in CATALOGUE_OF_THE_OFFICE.task_types}
    if strangers:
        raise ConfigError(
            f"{checkpoint} plans with task types that the simulated office does not have, such as "
            f"{min(strangers)!r}: go on from a run of phase 1 without --data, or from recorded outcomes with --replay"
        )
    s = _gone_on(settings, earlier, checkpoint)
    problem, phase, folder = _office(s, beginning), s.training.phase2_rl, RunFolder(out)
    weights = b"".join(value.cpu().numpy().tobytes() for _, value in sorted(beginning.weights.items()))
    training = Training(
        problem,
        TrainConfig(ppo=phase.ppo(), run=s.run, health=s.health),
        folder,
        {
            "problem": "workflow",
            "phase": 2,
            "data": [sha256(weights).hexdigest()],
            **s.model_dump(mode="json", include={"limits", "planner", "training", "run", "office", "health"}),
        },
        exam=replace(problem, part="choose"),
    )
    if not checkpoints(folder.start):
        tensors = {f"policy.{name}": value for name, value in beginning.weights.items()}
        tensors |= {f"memory.{name}": value for name, value in beginning.memory.state_dict().items()}
        meta = {"problem": "workflow", "phase": RunFolder(find_root(checkpoint)).config()["phase"]}
        meta |= {"task_types": beginning.known.task_types, "workers": beginning.known.workers}
        write_checkpoint(folder.start, step=0, tensors=tensors, meta=meta, keep=1)
    new = s.office.shift == "new_tool"
    _write_catalogue(out, problem.scenarios.catalogue if new else without_newcomers(problem.scenarios))
    return training


def _gone_on(settings: Settings, earlier: Settings, checkpoint: Path) -> Settings:
    """Settings of phase 2, which takes over its network, limits and instructions: what is set otherwise is refused."""
    kept: dict[str, Any] = {}
    for name, free in (("planner", ()), ("limits", ()), ("office", ("shift", "skill_seed", "expert_noise"))):
        now, then = (section.model_dump()[name] for section in (settings, earlier))
        usual = Settings().model_dump()[name]
        wrong = [key for key in now if now[key] not in (then[key], usual[key]) and key not in free]
        if wrong:
            raise ConfigError(
                f"{name}.{wrong[0]} is {now[wrong[0]]!r}, but {checkpoint} was trained with {then[wrong[0]]!r}: "
                "phase 2 takes that over; leave it out, or train phase 1 anew"
            )
        own = {key: now[key] for key in free if now[key] != usual[key]} | ({"shift": now["shift"]} if free else {})
        kept[name] = replace(getattr(earlier, name), **own)
    return settings.model_copy(update={**kept, "run": settings.training.phase2_rl.run(settings.run)})


def _office(settings: Settings, beginning: Beginning) -> WorkflowProblem:
    return WorkflowProblem(
        reader=make_reader(settings.planner),
        config=settings.training.phase2_rl.world(settings.office, settings.limits),
        planner=settings.planner,
        beginning=beginning,
    )


def read_office(path: Path) -> tuple[WorkflowProblem, dict[str, PlanPolicy]]:
    """What a run of phase 2 is measured on, its policy, and the one it began with."""
    after, settings = read_beginning(path)
    before, _ = read_beginning(RunFolder(find_root(path)).start)
    problem = replace(_office(settings, after), part="measure")
    policies = {name: problem.policy().eval() for name in ("policy", began_with(path))}
    policies[began_with(path)].load_state_dict(before.weights)
    return problem, policies


def began_with(path: Path) -> str:
    """What to call the planner that a run of phase 2 began with."""
    _, meta = read_checkpoint(checkpoints(RunFolder(find_root(path)).start)[-1], problem="workflow")
    return "phase 1" if meta["phase"] == 1 else "before"


def show_plans(out: Path) -> None:
    """Keep plans of a run of phase 2 for instructions kept aside, beside those before it and the best ones."""
    folder = RunFolder(out)
    beginning, settings = read_beginning(out)
    problem = replace(_office(settings, beginning), part="measure")
    wanted = [problem.scenarios.plan(row) for row in problem.rows]
    wanted = [wanted[i] for i in various(wanted)]
    texts = [plan.instruction for plan in wanted]
    before, after = (load_planner(path).plans(texts) for path in (folder.start, out))
    after_it = "phase 2" if began_with(out) == "phase 1" else "after"
    write_plans(folder, side_by_side({began_with(out): before, after_it: after, "best plan": wanted}))


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
