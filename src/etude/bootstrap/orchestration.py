"""Executions wired: a policy by its name or run, workers by their file or simulated, instructions to carry out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.bootstrap.planner import load_planner
from etude.bootstrap.runs import find_root, read_settings
from etude.contracts.errors import ConfigError, RunError
from etude.learning.runs import RunFolder
from etude.orchestrator.crew import Crew, crew_of
from etude.orchestrator.instructions import make_up, read_instructions
from etude.orchestrator.workers.simulated import SimulatedCrew
from etude.orchestrator.workers_file import WorkersFile, read_workers
from etude.problems.base import Action, Actor, Obs
from etude.problems.workflow.decide import Chooser, Choosers, Decider, Luck, by_lot, by_rules, exploring
from etude.problems.workflow.experts import baselines
from etude.problems.workflow.grammar import WORKERS, Rules
from etude.problems.workflow.office import Office
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.world import Tables, WorkflowConfig
from etude.settings.tree import Settings, resolve

NAMED: dict[str, Choosers] = {"rules": by_rules(), "retry": by_rules(retry_only=True), "random": by_lot}
"""Policies that need no training: the rule-based expert, the same that only retries, and a lot."""


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


def make_workplace(workers: Path | None, *, settings: Settings | None = None, seed: int = 0) -> Workplace:
    """The workers of a file; without one, or where it says so, those of the simulated office."""
    file = read_workers(workers) if workers is not None else None
    if file is not None and file.simulated is None:
        return Workplace(crew=crew_of(file), limits=file.limits, file=file)
    chosen = settings or resolve(preset="office").settings
    if file is not None and file.simulated is not None:
        seeds: dict[str, Any] = dict(file.simulated)
        office = replace(chosen.office, **seeds)
        chosen = chosen.model_copy(update={"office": office})
    config = chosen.training.phase2_rl.world(chosen.office, chosen.limits)
    place = Office(Tables(config, None, "cpu"))
    return Workplace(crew=SimulatedCrew(place, seed=seed), limits=None, file=file, office=place, config=config)


def settings_of(policy: str) -> Settings | None:
    """Of a run, which says in which office it learned; None for a policy by name."""
    return None if policy in NAMED else read_settings(RunFolder(find_root(Path(policy))), "workflow")


def make_decider(policy: str, place: Workplace, *, explore: float = 0.0) -> Decider:
    """A policy by its name or its run. To explore, a run draws as in training; others let a lot decide that often."""
    limits = place.limits or (place.config.limits if place.config else None)
    if policy in NAMED:
        choosers = exploring(NAMED[policy], explore) if explore else NAMED[policy]
        version = policy if not explore else f"{policy}+{explore:g}"
        return Decider(version=version, catalogue=place.crew.catalogue, limits=limits or Limits(), choosers=choosers)
    if not Path(policy).exists():
        names = ", ".join(NAMED)
        raise RunError(f"{policy} is no run folder and no policy by name ({names}): train one, or take one of these")
    planner = load_planner(Path(policy))
    return planner.decider(catalogue=place.crew.catalogue, limits=limits, explore=bool(explore))


def baseline_deciders(place: Workplace) -> dict[str, Decider]:
    """In the simulated office: all that a policy is measured beside, the oracle included."""
    office, config = place.office, place.config
    if office is None or config is None:
        raise ConfigError("baselines know the simulated office alone: of real workers nobody knows the best plan")
    found = baselines(config, scenarios=office.scenarios)
    return {
        name: Decider(version=name, catalogue=office.catalogue, limits=config.limits, choosers=_knowing(actor, office))
        for name, actor in found.items()
    }


def _knowing(actor: Actor, office: Office) -> Choosers:
    """An actor that knows instructions by their row among the scenarios, and of newcomers that are not there yet."""
    import torch

    known = office.rules

    def choosers(rules: Rules, instruction: str, luck: Luck) -> Chooser:
        row = torch.tensor([office.rows[instruction.strip()]])
        more = {"offered": known.types - rules.types}
        more |= dict.fromkeys(WORKERS, known.workers - rules.workers)

        def choose(draft: Obs) -> tuple[Action, float]:
            wider = {name: torch.nn.functional.pad(draft[name], (0, count)) for name, count in more.items()}
            action = actor(draft | wider | {"instruction": row}, luck)
            return action | {"type": action["type"].clamp(max=rules.types)}, 1.0

        return choose

    return choosers


def instructions_for(place: Workplace, count: int, *, file: Path | None = None, seed: int = 0) -> list[str]:
    """What is to be carried out: a file's, over again if need be; the office's; or made up from the catalogue."""
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
    aside = place.office.scenarios.instructions[-max(1, place.config.held_out) :]
    return [aside[i % len(aside)] for i in range(count)]
