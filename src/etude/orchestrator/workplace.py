"""Executions wired: a policy by its name or run, workers by their file or simulated, instructions to carry out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from etude.contracts.errors import ConfigError, RunError
from etude.contracts.ports import Decider
from etude.learning.run_folder import find_policy
from etude.learning.settings import read_own
from etude.orchestrator.crew import Crew
from etude.orchestrator.flow import PlanDecider
from etude.orchestrator.instructions import make_up, read_instructions
from etude.orchestrator.language_model import LanguageModelPlanner, configured_model, is_language_model
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.orchestrator.workers_file import WorkersFile, read_workers
from etude.problems.workflow import SPEC
from etude.problems.workflow.artefact import load_planner
from etude.problems.workflow.decide import Choosers, WorkflowDecider, at_random, by_rules, exploring
from etude.problems.workflow.experts import baselines
from etude.problems.workflow.office.office import Office, knowing
from etude.problems.workflow.office.world import Tables, WorkflowConfig
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.settings import WorkflowSettings, with_values

NAMED: dict[str, Choosers] = {"rules": by_rules(), "retry": by_rules(retries_only=True), "random": at_random}
"""Policies that need no training: the rule-based expert, the same that only retries, and a random one."""


@dataclass(frozen=True, kw_only=True)
class Workplace:
    """Workers, real or simulated."""

    crew: Crew
    limits: Limits | None  # None: the policy's own
    file: WorkersFile | None = None
    office: Office | None = None  # where the workers are simulated
    config: WorkflowConfig | None = None

    @property
    def is_simulated(self) -> bool:
        return self.office is not None


def make_workplace(workers: Path | None, *, settings: WorkflowSettings | None = None, seed: int = 0) -> Workplace:
    """The workers of a file; without one, or where it says so, those of the simulated office."""
    file = read_workers(workers) if workers is not None else None
    if file is not None and file.crew is not None:
        return Workplace(crew=file.crew, limits=file.limits, file=file)
    chosen = settings or with_values(WorkflowSettings(), SPEC.presets["office"])
    if file is not None and file.simulated is not None:
        seeds: dict[str, Any] = dict(file.simulated)
        chosen = replace(chosen, office=replace(chosen.office, **seeds))
    config = chosen.training.phase2_rl.world(chosen.office, chosen.limits)
    place = Office(Tables(config, None, "cpu"))
    return Workplace(crew=SimulatedCrew(place, seed=seed), limits=None, file=file, office=place, config=config)


def settings_of(policy: str) -> WorkflowSettings | None:
    """Of a run, which says in which office it learned; None for a policy by name."""
    if policy in NAMED or is_language_model(policy):
        return None
    _check_run(policy)
    artefact = find_policy(Path(policy))
    return read_own(WorkflowSettings, artefact.manifest.settings, source=artefact.path)


class TaskSettings(Protocol):
    """What `task.decide` is configured with."""

    @property
    def workers(self) -> str | None:
        """The workers file to plan for; None is the simulated office."""

    @property
    def explore(self) -> float:
        """Share of decisions made at random; a run takes any able worker so often."""


def workflow_decider(policy: str | None, config: TaskSettings) -> Decider:
    """A policy by its name or its run, the rules by default, for the workers that the settings name."""
    place = make_workplace(Path(config.workers) if config.workers else None)
    return make_decider(policy or "rules", place, explore=config.explore)


def make_decider(policy: str, place: Workplace, *, explore: float = 0.0, sample_plans: bool = False) -> PlanDecider:
    """A policy by its name or its run. To explore, any able worker is taken so often; with `sample_plans` a run also
    samples its plans as in training."""
    limits = place.limits or (place.config.limits if place.config else None)
    if is_language_model(policy):
        if explore:
            raise ConfigError(f"{policy} cannot explore: the probabilities of its plans are not known; leave that out")
        return _asking(policy, place, limits or Limits())
    if policy in NAMED:
        choosers = exploring(NAMED[policy], explore) if explore else NAMED[policy]
        version = policy if not explore else f"{policy}+{explore:g}"
        return WorkflowDecider(
            version=version, catalogue=place.crew.catalogue, limits=limits or Limits(), choosers=choosers
        )
    _check_run(policy)
    planner = load_planner(Path(policy))
    return planner.decider(catalogue=place.crew.catalogue, limits=limits, explore=explore, sample_plans=sample_plans)


def _asking(policy: str, place: Workplace, limits: Limits) -> LanguageModelPlanner:
    """A language model with the options of the workers file."""
    options = place.file.llm if place.file is not None else {}
    return configured_model(policy, options).decider(catalogue=place.crew.catalogue, limits=limits)


def _check_run(policy: str) -> None:
    if not Path(policy).exists():
        names = ", ".join((*NAMED, "llm:URL#MODEL"))
        raise RunError(f"{policy} is no run folder and no policy by name ({names}): train one, or take one of these")


def baseline_deciders(place: Workplace) -> dict[str, WorkflowDecider]:
    """In the simulated office: all that a policy is compared with, the oracle included."""
    office, config = place.office, place.config
    if office is None or config is None:
        raise ConfigError("baselines know the simulated office alone: the best plan of real workers is not known")
    return {
        name: WorkflowDecider(
            version=name, catalogue=office.catalogue, limits=config.limits, choosers=knowing(actor, office)
        )
        for name, actor in baselines(config, scenarios=office.scenarios).items()
    }


def instructions_for(place: Workplace, count: int, *, file: Path | None = None, seed: int = 0) -> list[str]:
    """What is to be carried out: a file's, repeated if it has fewer; the office's; or made up from the catalogue."""
    if file is not None:
        found: Sequence[str] = read_instructions(file)
        return [found[i % len(found)] for i in range(count)]
    if place.office is not None:
        found = place.office.scenarios.instructions
        return [found[(seed + i) % len(found)] for i in range(count)]
    made = make_up(place.crew.catalogue, count, seed=seed)
    return [made[i % len(made)] for i in range(count)]


def fresh_instructions(place: Workplace, count: int) -> list[str]:
    """Of the simulated office: those that no training learns from or chooses by."""
    assert place.office is not None
    assert place.config is not None
    held_out = place.office.scenarios.instructions[-max(1, place.config.held_out) :]
    return [held_out[i % len(held_out)] for i in range(count)]
