"""How good a policy is: on generated prompts of held-out templates, of kinds that it saw and of others; on your own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from etude.contracts.errors import ConfigError
from etude.evidence.intervals import estimate_difference, estimate_mean
from etude.learning.comparison import ORACLE, POLICY, contenders
from etude.learning.evaluate import Score, evaluate, sampled
from etude.learning.measure import Comparison, read_network, to_measurement
from etude.learning.requests import EvaluateRequest, Measurement
from etude.learning.run_folder import find_policy
from etude.problems.base import Actor
from etude.problems.prompt import SPEC
from etude.problems.prompt.baselines import NO_CHANGE
from etude.problems.prompt.behaviour import RecordingActor
from etude.problems.prompt.data import read_prompts
from etude.problems.prompt.generated.gains import KnownGains
from etude.problems.prompt.generated.prompts import GeneratedPrompt, make_prompts
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.problem import PromptProblem
from etude.problems.prompt.rewards import RuleRewards
from etude.problems.prompt.states import STOPPING, States, make_states

SEEN, UNSEEN = "seen kinds", "unseen kinds"


@dataclass(frozen=True, kw_only=True)
class Group:
    """Prompts that policies are compared on."""

    name: str
    states: States
    prompts: Sequence[GeneratedPrompt] = ()


def held_out_groups(problem: PromptProblem, each: int, seed: int) -> list[Group]:
    """Prompts of templates and phrases that no policy learned from, of kinds that one learned from, and of others."""
    found = []
    for name, seen in ((SEEN, True), (UNSEEN, False)):
        prompts = make_prompts(each, seed, split="held out", seen=seen)
        states = make_states([one.text for one in prompts], KnownGains(prompts), problem.reader)
        found.append(Group(name=name, states=states, prompts=prompts))
    return found


def compare(request: EvaluateRequest) -> Comparison:
    problem, network = _read(request)
    request.status("making the held-out prompts")
    groups = held_out_groups(problem, max(2, request.episodes // 2), request.seed)
    scores, notes = _scores(request, problem, network, groups)
    return Comparison(scores=scores, notes={"behaviour": notes}, sentences=tuple(_by_group(scores, groups)))


def on_data(request: EvaluateRequest) -> Measurement:
    """On a user's own prompts, by the reward of rules."""
    problem, network = _read(request)
    prompts = read_prompts(request.inputs["data"])
    request.status(f"mutating {len(prompts):,} prompts")
    rewards = RuleRewards(mutation_cost=problem.config.mutation_cost)
    groups = [Group(name="own prompts", states=make_states(prompts, rewards, problem.reader))]
    scores, _ = _scores(request, problem, network, groups)
    found = to_measurement(request, scores, SPEC.metrics, step=find_policy(request.run).manifest.step)
    return replace(
        found, sentences=(*found.sentences, "Rewards are those of rules: they say nothing of a model's answers.")
    )


def _read(request: EvaluateRequest) -> tuple[PromptProblem, Any]:
    artefact = find_policy(request.run)
    problem, network = read_network(artefact, SPEC)
    if not isinstance(problem, PromptProblem):
        raise ConfigError(f"{request.run} is a policy of {problem.name!r}: expected one of {SPEC.name!r}")
    return problem, network


def _scores(
    request: EvaluateRequest, problem: PromptProblem, network: Any, groups: Sequence[Group]
) -> tuple[dict[str, Score], dict[str, Any]]:
    """Of every policy, the groups together; and what the policy did."""
    actors: dict[str, Actor] = contenders(problem, network, seed=0)
    if request.sampled:
        actors[POLICY] = sampled(network)
    if not request.baselines:
        actors = {POLICY: actors[POLICY]}
    scores, notes = {}, dict[str, Any]()
    for name, actor in actors.items():
        parts = []
        for group in groups:
            own, many = replace(problem, states=group.states), len(group.states.start)
            recorder = RecordingActor(actor, group.prompts) if name == POLICY and group.prompts else None
            parts.append(evaluate(own, recorder or actor, episodes=many, seed=request.seed))
            if recorder is not None:
                notes[group.name] = recorder.notes(group.states, request.seed)
        scores[name] = joined(parts)
    if request.baselines:
        scores[ORACLE] = _optimum(groups, problem, request.seed)
    return scores, notes


def _optimum(groups: Sequence[Group], problem: PromptProblem, seed: int) -> Score:
    """What one earns who knows every gain, prompt by prompt, in the order in which the policies get them."""
    parts = []
    for group in groups:
        world = replace(problem, states=group.states).world(len(group.states.start), device="cpu")
        world.reset(seed)
        best, mutations = group.states.optimum[world.row], _mutations_of_optimum(group.states, world.row)
        found = estimate_mean(best.double().numpy())
        parts.append(
            Score(
                episodes=len(best),
                mean=found.mean,
                std=float(best.std()),
                low=found.low,
                high=found.high,
                metrics={"optimal": 1.0, "mutations": mutations},
                returns=best.tolist(),
                stream=f"seed {seed} on cpu",
            )
        )
    return joined(parts)


def _mutations_of_optimum(states: States, rows: torch.Tensor) -> float:
    """The mean number of mutations of the best sequences from these states."""
    count = torch.zeros(len(rows))
    for _ in MUTATIONS:
        following = states.next[rows]
        later = torch.where(following < 0, 0.0, states.optimum[following.clamp(min=0)])
        worth = (states.reward[rows] + later).masked_fill(~states.legal[rows], -torch.inf)
        worth[:, STOPPING] += 1e-6  # of equals the shorter one
        best = worth.argmax(1)
        count += best != STOPPING
        rows = torch.where(best == STOPPING, rows, following.gather(1, best[:, None])[:, 0].clamp(min=0))
    return float(count.mean())


def joined(parts: Sequence[Score]) -> Score:
    """One score of several groups of episodes."""
    returns = [value for part in parts for value in part.returns]
    found, weight = estimate_mean(np.array(returns)), [part.episodes / len(returns) for part in parts]
    names = [name for name in parts[0].metrics if all(name in part.metrics for part in parts)]
    return Score(
        episodes=len(returns),
        mean=found.mean,
        std=float(np.std(returns, ddof=1)) if len(returns) > 1 else 0.0,
        low=found.low,
        high=found.high,
        metrics={name: sum(w * part.metrics[name] for w, part in zip(weight, parts, strict=True)) for name in names},
        returns=returns,
        stream=" and ".join(dict.fromkeys(part.stream for part in parts)),
    )


def _by_group(scores: Mapping[str, Score], groups: Sequence[Group]) -> list[str]:
    """The policy on each group, as a share of the optimum and compared with leaving prompts as they are."""
    found, begin = [], 0
    for group in groups:
        rows = slice(begin, begin + len(group.states.start))
        begin = rows.stop
        own = np.array(scores[POLICY].returns[rows])
        if ORACLE not in scores or NO_CHANGE not in scores:
            continue
        share = share_of(own, np.array(scores[ORACLE].returns[rows]))
        gain = estimate_difference(own, np.array(scores[NO_CHANGE].returns[rows]), paired=True)
        found.append(
            f"On held-out prompts of {group.name} it earns {share['share']:.1%} of the optimum (95 % interval "
            f"{share['low']:.1%} to {share['high']:.1%}), and {gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}] per "
            "prompt compared with no change."
        )
    return found


def share_of(own: np.ndarray[Any, Any], best: np.ndarray[Any, Any]) -> dict[str, float]:
    """The ratio of two means over the same prompts, with its 95 % interval by the bootstrap over prompts."""
    rows = np.random.default_rng(0).integers(0, len(own), (2000, len(own)))
    ratios = own[rows].mean(1) / np.maximum(best[rows].mean(1), 1e-9)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return {"share": float(own.mean() / max(best.mean(), 1e-9)), "low": float(low), "high": float(high)}
