"""How allocation policies learn, and how a trained one is loaded."""

from __future__ import annotations

from etude.learning.artefact import Artefact, load_weights
from etude.learning.practise import practise
from etude.learning.requests import LearnRequest
from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder
from etude.learning.settings import read_own
from etude.problems.allocation import SPEC
from etude.problems.allocation.loaded import LoadedPolicy
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.settings import AllocationSettings


def make_problem(own: AllocationSettings) -> AllocationProblem:
    return AllocationProblem(config=own.allocation, network=own.network)


def practise_allocation(request: LearnRequest) -> Run:
    settings = request.settings
    problem = make_problem(settings.own(AllocationSettings))
    size = problem.config
    about = About(
        problem=SPEC.name,
        method=request.method,
        title=f"{SPEC.name} {size.variant} {size.agents}×{size.slots}",
        unit="steps",
        budget=f"{settings.run.max_steps:,}",
        score="return",
        settings=settings.sections(*SPEC.sections, "ppo", "run", "health", "curriculum"),
        policy_sections=SPEC.sections,
    )
    return practise(about, problem, settings.practice(), RunFolder(request.out))


def load(artefact: Artefact, *, seed: int = 0) -> LoadedPolicy:
    problem = make_problem(read_own(AllocationSettings, artefact.manifest.settings, source=artefact.path))
    network = problem.policy()
    load_weights(network, artefact)
    return LoadedPolicy(network.eval(), problem, seed=seed, step=artefact.manifest.step, version=artefact.version)
