"""Phase 2 of the workflow planner: an earlier run to a training in a simulated world, and what came of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from etude.bootstrap.imitation import read_sets
from etude.bootstrap.planner import load_planner, make_reader, read_beginning, write_catalogue
from etude.bootstrap.runs import CATALOGUE, find_root
from etude.contracts.errors import ConfigError
from etude.learning.checkpoint import checkpoints, read_checkpoint, write_checkpoint, write_json
from etude.learning.runs import RunFolder
from etude.learning.showcase import side_by_side, various, write_plans
from etude.learning.train import TrainConfig, Training
from etude.problems.workflow.catalogue import read_catalogue
from etude.problems.workflow.examples import read_examples
from etude.problems.workflow.lesson import make_course
from etude.problems.workflow.network import PlanPolicy
from etude.problems.workflow.phrases import CATALOGUE as CATALOGUE_OF_THE_OFFICE
from etude.problems.workflow.problem import Beginning, WorkflowProblem, without_newcomers
from etude.problems.workflow.scenarios import Scenarios, playable
from etude.problems.workflow.world import MAX_GOLD
from etude.settings.tree import Settings

LONGEST = 1000
"""Nodes of an example that is read; those too long for a world are left out, and told."""


def make_outcomes(
    settings: Settings, out: Path, checkpoint: Path, data: Sequence[tuple[Path, Path | None]] = ()
) -> Training:
    """Phase 2 from the planner of an earlier run, new or where it stopped.

    It practises in a world of the plans in `data`, else in the earlier run's own, else in the simulated office.
    """
    (beginning, earlier), before = read_beginning(checkpoint), RunFolder(find_root(checkpoint))
    seed = settings.run.seed
    given, hashes = _read_scenarios(data, earlier, seed) if data else _kept_scenarios(before, earlier)
    if given is None:
        _check_at_home(beginning, checkpoint)
    else:
        _check_shift(settings.office.shift, given)
    s = _gone_on(settings, earlier, checkpoint, anew=given if data else None)
    problem, phase, folder = _practice(s, beginning, given), s.training.phase2_rl, RunFolder(out)
    weights = b"".join(value.cpu().numpy().tobytes() for _, value in sorted(beginning.weights.items()))
    training = Training(
        problem,
        TrainConfig(ppo=phase.ppo(), run=s.run, health=s.health),
        folder,
        {
            "problem": "workflow",
            "phase": 2,
            "data": [sha256(weights).hexdigest(), *hashes],
            **s.model_dump(mode="json", include={"limits", "planner", "training", "run", "office", "health"}),
        },
        exam=replace(problem, part="choose"),
    )
    if not checkpoints(folder.start):
        keep_beginning(folder, beginning, phase=before.config()["phase"])
    new = s.office.shift == "new_tool"
    write_catalogue(out, problem.scenarios.catalogue if new else without_newcomers(problem.scenarios))
    if given is not None:
        write_json(folder.scenarios, given.records())
    return training


def keep_beginning(folder: RunFolder, beginning: Beginning, *, phase: int) -> None:
    """What a run begins with that another, of that phase, had learned."""
    tensors = {f"policy.{name}": value for name, value in beginning.weights.items()}
    tensors |= {f"memory.{name}": value for name, value in beginning.memory.state_dict().items()}
    meta = {"problem": "workflow", "phase": phase}
    meta |= {"task_types": beginning.known.task_types, "workers": beginning.known.workers}
    write_checkpoint(folder.start, step=0, tensors=tensors, meta=meta, keep=1)


def _gone_on(settings: Settings, earlier: Settings, checkpoint: Path, *, anew: Scenarios | None) -> Settings:
    """Settings of phase 2, which takes over its network, limits and instructions: what is set otherwise is refused.

    Of scenarios that come `anew`, a tenth is kept aside to choose by and a tenth to measure on, unless it is set.
    """
    kept: dict[str, Any] = {}
    of_office = ("shift", "skill_seed", "expert_noise", *(["held_out"] if anew else []))
    for name, free in (("planner", ()), ("limits", ()), ("office", of_office)):
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
    if anew and settings.office.held_out == Settings().office.held_out:
        kept["office"] = replace(kept["office"], held_out=max(1, round(len(anew) / 10)))
    return settings.model_copy(update={**kept, "run": settings.training.phase2_rl.run(settings.run)})


def _read_scenarios(
    data: Sequence[tuple[Path, Path | None]], earlier: Settings, seed: int
) -> tuple[Scenarios, list[str]]:
    """Examples shuffled, as the last of them are kept aside, and the hashes of their files."""
    sets, hashes = read_sets(data, max_nodes=LONGEST)
    course = make_course(sets)
    examples = random.Random(seed).sample(course.examples, len(course.examples))
    return playable(examples, course.catalogue, max_nodes=min(MAX_GOLD, earlier.limits.max_nodes)), hashes


def _kept_scenarios(folder: RunFolder, settings: Settings) -> tuple[Scenarios | None, list[str]]:
    """What a run practised on, if on plans of a user: its config.json then has their hashes after the weights'."""
    config = folder.config()
    if config["phase"] != 2 or len(config["data"]) < 2:
        return None, []
    catalogue, most = read_catalogue(folder.path / CATALOGUE), settings.limits.max_nodes
    examples = read_examples(folder.scenarios, catalogue, max_nodes=most)
    return playable(examples, catalogue, max_nodes=most), [sha256(folder.scenarios.read_bytes()).hexdigest()]


def _check_at_home(beginning: Beginning, checkpoint: Path) -> None:
    strangers = set(beginning.known.task_types) - {t.name for t in CATALOGUE_OF_THE_OFFICE.task_types}
    if strangers:
        raise ConfigError(
            f"{checkpoint} plans with task types that the simulated office does not have, such as "
            f"{min(strangers)!r}: give the plans that it is to practise on with --data, or recorded outcomes with "
            "--replay"
        )


def _check_shift(shift: str, given: Scenarios) -> None:
    if shift in ("new_tool", "phrasings"):
        raise ConfigError(
            f"office.shift is {shift!r}, which is made of the simulated office's own words: with plans of your own "
            "expected 'none' or 'degraded'; new tools and other wording come with another file, --data"
        )
    if shift == "degraded" and not given.catalogue.workers:
        raise ConfigError("office.shift is 'degraded', but the catalogue has no workers: leave it out, or add some")


def _practice(settings: Settings, beginning: Beginning, given: Scenarios | None) -> WorkflowProblem:
    return WorkflowProblem(
        reader=make_reader(settings.planner),
        config=settings.training.phase2_rl.world(settings.office, settings.limits),
        planner=settings.planner,
        beginning=beginning,
        given=given,
    )


def learned_in_office(path: Path) -> bool:
    """Whether the run at `path` is one of phase 2 in a simulated world."""
    return bool(checkpoints(RunFolder(find_root(path)).start))


def read_office(path: Path) -> tuple[WorkflowProblem, dict[str, PlanPolicy]]:
    """What a run of phase 2 is measured on, its policy, and the one it began with."""
    folder = RunFolder(find_root(path))
    (after, settings), (before, _) = read_beginning(path), read_beginning(folder.start)
    problem = replace(_practice(settings, after, _kept_scenarios(folder, settings)[0]), part="measure")
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
    problem = replace(_practice(settings, beginning, _kept_scenarios(folder, settings)[0]), part="measure")
    wanted = [problem.scenarios.plan(row) for row in problem.rows]
    wanted = [wanted[i] for i in various(wanted)]
    texts = [plan.instruction for plan in wanted]
    before, after = (load_planner(path).plans(texts) for path in (folder.start, out))
    after_it = "phase 2" if began_with(out) == "phase 1" else "after"
    write_plans(folder, side_by_side({began_with(out): before, after_it: after, "best plan": wanted}))
