"""Phase 2: a planner continues from an earlier run and learns from outcomes in a simulated world."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from etude.contracts.errors import ConfigError, RunError
from etude.files.durable import write_json
from etude.learning.artefact import Artefact
from etude.learning.practise import practise
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder, find_policy, find_root
from etude.learning.settings import read_own
from etude.problems.spec import IMITATE, PRACTISE
from etude.problems.workflow import SPEC, data_files
from etude.problems.workflow.artefact import load, make_reader, planner_parts, read_catalogue_of, read_pretrained
from etude.problems.workflow.decisions import catalogue_id
from etude.problems.workflow.examples import read_examples
from etude.problems.workflow.network import PlanPolicy
from etude.problems.workflow.office.phrases import CATALOGUE as OFFICE_CATALOGUE
from etude.problems.workflow.office.problem import PretrainedPlanner, WorkflowProblem, without_new_entries
from etude.problems.workflow.office.scenarios import Scenarios, playable
from etude.problems.workflow.office.world import MAX_GOLD
from etude.problems.workflow.phase1 import ExampleFile, read_sets
from etude.problems.workflow.settings import WorkflowSettings
from etude.problems.workflow.showcase import side_by_side, various, write_plans
from etude.problems.workflow.training_set import merge_sets

MAX_EXAMPLE_NODES = 1000
"""Nodes of an example that is read; those too long for a world are left out, and reported."""
SCENARIOS = "scenarios.json"
"""Instructions and plans of a user that the world was made of, in a training file's format."""


def practise_workflow(request: LearnRequest) -> Run:
    """It practises in a world of the plans in `data`, else of the earlier run's own, else in the simulated office."""
    settings, checkpoint = request.settings, request.checkpoint
    if checkpoint is None:
        raise ConfigError("phase 2 continues from a planner: name its run as the checkpoint")
    parent = find_policy(checkpoint)
    pretrained, earlier = read_pretrained(parent)
    data = data_files(request.inputs)
    given, hashes = _read_scenarios(data, earlier, settings.run.seed) if data else _kept_scenarios(checkpoint, parent)
    own = settings.own(WorkflowSettings)
    unknown = unknown_in_office(pretrained.known.task_types)
    if given is not None:
        _check_shift(own.office.shift, given)
    elif unknown:
        raise ConfigError(
            f"{checkpoint} plans with task types that the simulated office does not have, such as {min(unknown)!r}: "
            "give data, the plans that it is to practise on"
        )
    own = _continued(own, earlier, checkpoint, again=given if data else None)
    phase = own.training.phase2_rl
    run_config = phase.run(settings.run)
    kept = settings.model_copy(update={name: getattr(own, name) for name in SPEC.sections} | {"run": run_config})
    problem, folder = _practice(own, pretrained, given), RunFolder(request.out)
    new_tools = own.office.shift == "new_tool"
    catalogue = problem.scenarios.catalogue if new_tools else without_new_entries(problem.scenarios)
    run = practise(
        About(
            problem=SPEC.name,
            method=request.method,
            title=f"{SPEC.name} phase 2",
            unit="steps",
            budget=f"{phase.num_episodes:,} workflows",
            score="return",
            settings=kept.sections(*SPEC.sections, "run", "health"),
            policy_sections=SPEC.sections,
            encoder=problem.reader.encoder.name,
            catalogue=catalogue_id(catalogue),
            data=tuple(hashes),
            parent=parent.version,
            extra={"phase": 2},
            remarks=(f"continuing from {checkpoint}", *_practised_on(problem, given, parent, hashes, checkpoint)),
        ),
        problem,
        replace(settings.practice(), ppo=phase.ppo(), run=run_config, curriculum=()),
        folder,
        validation=replace(problem, part="choose"),
        parts=planner_parts(catalogue, pretrained.known, pretrained.memory.state_dict(), corrects=True, sees_live=True),
    )
    folder.keep_start(parent)
    if given is not None:
        write_json(folder.path / SCENARIOS, given.records())
    return run


def _practised_on(
    problem: WorkflowProblem, given: Scenarios | None, parent: Artefact, hashes: Sequence[str], checkpoint: Path
) -> Iterator[str]:
    """Of a user's plans: how many are practised on, which are left out and why, and whether the planner knows them."""
    if given is None:
        return
    left_out, held_out = given.left_out, problem.config.held_out
    of = f" of {len(given) + sum(left_out.values()):,}" if left_out else ""
    parts = f"{len(problem.rows):,} to learn from, {held_out:,} to choose by, {held_out:,} to measure on"
    yield f"practising on {len(given):,}{of} examples: {parts}"
    if left_out:
        yield "left out: " + ", ".join(f"{count:,} with {reason}" for reason, count in left_out.items())
    if parent.manifest.method == IMITATE and set(parent.manifest.data) & set(hashes):
        yield (
            f"{checkpoint} learned from the same file, so it knows the held-out examples too: practise on others if "
            "there are any, and measure with `etude evaluate` on data of its own"
        )


def _continued(
    own: WorkflowSettings, earlier: WorkflowSettings, checkpoint: Path, *, again: Scenarios | None
) -> WorkflowSettings:
    """Phase 2 takes over its planner's network, limits and instructions: what is set otherwise is refused.

    Of scenarios that are read again, a tenth is held out to choose by and a tenth to measure on, unless it is set.
    """
    kept: dict[str, Any] = {}
    usual = WorkflowSettings()
    of_office = ("shift", "skill_seed", "expert_noise", *(["held_out"] if again else []))
    for name, free in (("planner", ()), ("limits", ()), ("office", of_office)):
        now, then, default = (vars(getattr(tree, name)) for tree in (own, earlier, usual))
        wrong = [key for key in now if now[key] not in (then[key], default[key]) and key not in free]
        if wrong:
            raise ConfigError(
                f"{name}.{wrong[0]} is {now[wrong[0]]!r}, but {checkpoint} was trained with {then[wrong[0]]!r}: "
                "phase 2 takes that over; leave it out, or train phase 1 again"
            )
        chosen = {key: now[key] for key in free if now[key] != default[key]} | ({"shift": now["shift"]} if free else {})
        kept[name] = replace(getattr(earlier, name), **chosen)
    if again and own.office.held_out == usual.office.held_out:
        kept["office"] = replace(kept["office"], held_out=max(1, round(len(again) / 10)))
    return replace(own, **kept)


def _read_scenarios(data: Sequence[ExampleFile], earlier: WorkflowSettings, seed: int) -> tuple[Scenarios, list[str]]:
    """Examples shuffled, as the last of them are held out, and the hashes of their files."""
    sets, hashes = read_sets(data, max_nodes=MAX_EXAMPLE_NODES)
    merged = merge_sets(sets)
    examples = random.Random(seed).sample(merged.examples, len(merged.examples))
    return playable(examples, merged.catalogue, max_nodes=min(MAX_GOLD, earlier.limits.max_nodes)), hashes


def _kept_scenarios(path: Path, policy: Artefact) -> tuple[Scenarios | None, list[str]]:
    """What a run practised on, where those were plans of a user; an artefact that lies in no run has none."""
    try:
        file, manifest = find_root(path) / SCENARIOS, policy.manifest
    except RunError:
        return None, []
    if not file.exists() and not (manifest.method == PRACTISE and manifest.data):
        return None, []
    most = read_own(WorkflowSettings, manifest.settings, source=policy.path).limits.max_nodes
    catalogue = read_catalogue_of(policy)
    examples = read_examples(file, catalogue, max_nodes=most)
    return playable(examples, catalogue, max_nodes=most), [sha256(file.read_bytes()).hexdigest()]


def unknown_in_office(task_types: Iterable[str]) -> set[str]:
    """Task types that the simulated office does not have."""
    return set(task_types) - {t.name for t in OFFICE_CATALOGUE.task_types}


def _check_shift(shift: str, given: Scenarios) -> None:
    if shift in ("new_tool", "phrasings"):
        raise ConfigError(
            f"office.shift is {shift!r}, which is made of the simulated office's own words: with plans of your own "
            "expected 'none' or 'degraded'; new tools and other wording come with other data"
        )
    if shift == "degraded" and not given.catalogue.workers:
        raise ConfigError("office.shift is 'degraded', but the catalogue has no workers: leave it out, or add some")


def _practice(own: WorkflowSettings, pretrained: PretrainedPlanner, given: Scenarios | None) -> WorkflowProblem:
    return WorkflowProblem(
        reader=make_reader(own.planner),
        config=own.training.phase2_rl.world(own.office, own.limits),
        planner=own.planner,
        pretrained=pretrained,
        given=given,
    )


def read_office(path: Path) -> tuple[WorkflowProblem, dict[str, PlanPolicy]]:
    """What a run of phase 2 is measured on, its policy, and the one it continued from."""
    folder, artefact = RunFolder(find_root(path)), find_policy(path)
    (after, own), (before, _) = read_pretrained(artefact), read_pretrained(Artefact(folder.start))
    problem = replace(_practice(own, after, _kept_scenarios(folder.path, artefact)[0]), part="measure")
    policies = {name: problem.policy().eval() for name in ("policy", name_of_start(folder))}
    policies[name_of_start(folder)].load_state_dict(before.weights)
    return problem, policies


def name_of_start(folder: RunFolder) -> str:
    """What to call the planner that a run of phase 2 continued from."""
    return "phase 1" if Artefact(folder.start).manifest.method == IMITATE else "before"


def show_plans(out: Path) -> None:
    """Keep plans of a run of phase 2 for held-out instructions, with those before it and the best ones."""
    folder = RunFolder(out)
    problem, _ = read_office(out)
    wanted = [problem.scenarios.plan(row) for row in problem.rows]
    wanted = [wanted[i] for i in various(wanted)]
    texts = [plan.instruction for plan in wanted]
    before, after = (load(artefact).plans(texts) for artefact in (Artefact(folder.start), folder.policy()))
    first = name_of_start(folder)
    last = "phase 2" if first == "phase 1" else "after"
    write_plans(folder, side_by_side({first: before, last: after, "best plan": wanted}))
