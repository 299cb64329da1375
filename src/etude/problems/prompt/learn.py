"""The two ways to learn in a world: from the outcomes of mutations, or by PPO from what the policy does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from etude.learning.practise import practise
from etude.learning.requests import LearnRequest
from etude.learning.run import About, PolicyParts, Run
from etude.learning.run_folder import RunFolder
from etude.problems.prompt import SPEC
from etude.problems.prompt.outcomes import OutcomeLearner
from etude.problems.prompt.problem import make_problem
from etude.problems.prompt.reader import SEEN
from etude.problems.prompt.settings import PromptSettings
from etude.problems.prompt.training import Training, make_training

PATHS = 1
"""Random sequences per prompt whose outcomes are learned from."""


def learn_outcomes(request: LearnRequest) -> Run:
    settings, own = request.settings, request.settings.own(PromptSettings)
    problem = make_problem(own)
    learned_from = make_training(request.inputs, own.prompt, problem.reader, paths=PATHS, seed=settings.run.seed)
    about = _about(request, learned_from, unit="passes", budget=str(own.prompt_outcomes.epochs), score="gain")
    torch.manual_seed(settings.run.seed)
    learner = OutcomeLearner(
        about,
        replace(problem, states=learned_from.train).policy(),
        learned_from.train,
        learned_from.validation,
        own.prompt_outcomes,
        noise=_noise(request),
        seed=settings.run.seed,
        parts=parts(scores_are_rewards=True),
    )
    return Run(learner, RunFolder(request.out), trackers=settings.run.trackers)


def practise_prompts(request: LearnRequest) -> Run:
    settings, own = request.settings, request.settings.own(PromptSettings)
    problem = make_problem(own)
    learned_from = make_training(request.inputs, own.prompt, problem.reader, paths=None, seed=settings.run.seed)
    about = _about(request, learned_from, unit="steps", budget=f"{settings.run.max_steps:,}", score="return")
    return practise(
        about,
        replace(problem, states=learned_from.train, noise=_noise(request)),
        settings.practice(),
        RunFolder(request.out),
        validation=replace(problem, states=learned_from.validation),
        parts=parts(),
    )


def parts(*, scores_are_rewards: bool = False) -> PolicyParts:
    """What an artefact holds besides weights: the names of what the network reads, since their order matters, and what
    its scores are."""
    return PolicyParts(tensors={}, details={"known": list(SEEN), "scores_are_rewards": scores_are_rewards})


def _noise(request: LearnRequest) -> float:
    """Rules are the same every time; gains in the generated world are not."""
    return 0.0 if request.inputs.get("data") else request.settings.own(PromptSettings).prompt.noise


def _about(request: LearnRequest, learned_from: Training, **how: Any) -> About:
    settings = request.settings
    of = "own prompts" if request.inputs.get("data") else "generated prompts"
    return About(
        problem=SPEC.name,
        method=request.method,
        title=f"{SPEC.name}, {len(learned_from.train.start):,} {of}",
        settings=settings.sections(*SPEC.sections, "ppo", "run", "health"),
        policy_sections=SPEC.sections,
        encoder=settings.own(PromptSettings).prompt.encoder,
        data=learned_from.data,
        **how,
    )
