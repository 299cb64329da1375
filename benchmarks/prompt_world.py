"""Prompt mutation in the generated world: what policies earn, as shares of the known optimum.

    python benchmarks/prompt_world.py                  # five seeds of the default, then of PPO (15 min on one core)
    python benchmarks/prompt_world.py --seeds 1 --methods outcomes

Policies are compared on three groups of prompts: new prompts made of the templates that were learned from, prompts of
templates and phrases that were held out (three of ten), and held-out prompts of kinds that no policy saw. The optimum
is exact: all mutated states of a prompt are known, and so are the rewards.

The simple ones: no change, random choice, each mutation by itself, every mutation, a rule list by kind, and two that
learn from the same outcomes as the default: a logistic regression per mutation (does it pay?) on the features of the
text and the means and maxima of those of its sentences, and the outcome model of choices, which is linear in these, the
embedding, and products with the kind.

`mistakes` has, of the default, per mutation: how often it is taken where it does not pay and missed where it does, of
prompts as they are, and the share of the optimum if this mutation were always judged right; last if all were.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import save, summary
from torch.nn import functional as F

from etude.bootstrap.runs import make_request, start_run
from etude.learning.evaluate import evaluate, greedy
from etude.learning.measure import read_network
from etude.learning.outcome_model import Observed, OutcomeModel, fit_outcomes
from etude.problems.base import Action, Actor, Obs
from etude.problems.prompt import SPEC
from etude.problems.prompt.evaluate import share_of
from etude.problems.prompt.generated.gains import KnownGains
from etude.problems.prompt.generated.prompts import make_prompts
from etude.problems.prompt.kinds import KINDS
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.outcomes import TEMPERATURE
from etude.problems.prompt.problem import PromptProblem, make_problem
from etude.problems.prompt.sentence_features import NAMES as SENTENCE_NAMES
from etude.problems.prompt.settings import PromptSettings
from etude.problems.prompt.states import STOPPING, States, make_states
from etude.problems.prompt.world import ACTION

SEED = 4_000_003
"""Of the prompts that policies are compared on."""
METHODS: Mapping[str, tuple[str, str | None]] = {
    "outcomes": ("outcomes", None),
    "ppo": ("practise", None),
    "ppo, document": ("practise", "document"),
}
"""Name → method and preset."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The prompts to compare on, as one encoder reads them."""

    problem: PromptProblem
    states: Mapping[str, States]

    def shares(self, actor: Actor) -> dict[str, Any]:
        """By group: the share of the optimum, with its interval over prompts, and the mean return."""
        found = {}
        for name, states in self.states.items():
            own = replace(self.problem, states=states)
            score = evaluate(own, actor, episodes=len(states.start), seed=SEED)
            world = own.world(len(states.start), device="cpu")
            world.reset(SEED)
            best = states.optimum[world.row].double().numpy()
            found[name] = {
                **share_of(np.array(score.returns), best),
                "return": score.mean,
                "return_low": score.low,
                "return_high": score.high,
                "optimum": float(best.mean()),
            }
        return found


def groups_for(problem: PromptProblem, each: int) -> Groups:
    made = {
        "known templates": make_prompts(each, SEED),
        "held-out templates": make_prompts(each, SEED, split="held out"),
        "unseen kinds": make_prompts(each, SEED, split="held out", seen=False),
    }
    states = {
        name: make_states([one.text for one in prompts], KnownGains(prompts), problem.reader)
        for name, prompts in made.items()
    }
    return Groups(problem=problem, states=states)


def train(method: str, preset: str | None, seed: int, chosen: Sequence[str]) -> tuple[Any, Any, dict[str, float]]:
    """The network, the learner that made it, and how long that took."""
    folder = Path(tempfile.mkdtemp())
    began, cpu = time.perf_counter(), time.process_time()
    request = make_request(
        SPEC.name,
        out=folder / "run",
        inputs={"method": method, "seed": seed},
        preset=preset,
        assignments=["run.threads=1", "run.device=cpu", *chosen],
        isolated=True,
    )
    run = start_run(request)
    prepared = time.perf_counter() - began
    for _ in run.updates():
        continue
    took = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu, "prepared": prepared}
    _, network = read_network(run.artefact(), SPEC)
    shutil.rmtree(folder)
    return network, run.learner, took


def logistic(states: States) -> Actor:
    """A logistic regression per mutation on the kind and the features: does it pay? The surest that pays is taken."""
    features = _features(states.observe(torch.arange(len(states.done))))
    scale = torch.std_mean(features, 0)
    x = _scaled(features, scale)
    weight = torch.zeros(x.shape[1] + 1, len(MUTATIONS), requires_grad=True)
    pays, legal = (states.reward[:, :STOPPING] > 0).float(), states.legal[:, :STOPPING].float()
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        scores = x @ weight[:-1] + weight[-1]
        found = (F.binary_cross_entropy_with_logits(scores, pays, reduction="none") * legal).sum() / legal.sum()
        found = found + 1e-3 * weight[:-1].square().sum()
        found.backward()
        return found

    optimizer.step(loss)

    def act(obs: Obs, generator: torch.Generator) -> Action:
        scores = _scaled(_features(obs), scale) @ weight[:-1].detach() + weight[-1].detach()
        return _best(scores, obs)

    return act


def linear_outcomes(states: States, noise: float, seed: int) -> Actor:
    """The outcome model of choices, fitted to the same outcomes."""
    seen = states.observe(torch.arange(len(states.done)))
    scale = torch.std_mean(_features(seen), 0)
    x, legal = _crossed(seen, scale), states.legal[:, :STOPPING].numpy()
    row, option = np.nonzero(legal)
    reward = states.reward[:, :STOPPING].numpy()[row, option]
    observed = reward + np.random.default_rng(seed).normal(0, noise, len(reward))
    found = Observed(rows=len(x), row=row, option=option, value=observed[:, None], weight=np.ones(len(row)))
    prompt = states.prompt_of(torch.arange(len(x))).numpy()
    fitted: OutcomeModel = fit_outcomes(
        x, found, STOPPING, ("reward",), scales=(np.ones(x.shape[1]),), eligible=legal, groups=prompt, seed=seed
    ).model

    def act(obs: Obs, generator: torch.Generator) -> Action:
        return _best(torch.from_numpy(fitted.expect(_crossed(obs, scale))[0]).float(), obs)

    return act


def _best(scores: torch.Tensor, obs: Obs) -> Action:
    """The mutation of the highest score, or stop where none is above 0."""
    scores = torch.cat([scores, torch.zeros(len(scores), 1)], 1)
    return {ACTION: scores.masked_fill(~obs["legal"], -torch.inf).argmax(1)}


def _crossed(obs: Obs, scale: tuple[torch.Tensor, torch.Tensor]) -> np.ndarray[Any, Any]:
    features, kind = _scaled(_features(obs), scale), obs["features"][:, : len(KINDS)]
    own = features[:, len(KINDS) : obs["features"].shape[1]]
    products = (kind[:, :, None] * torch.cat([own, obs["done"]], 1)[:, None]).flatten(1)
    embedding = _mean(obs["sentences"][..., : -len(SENTENCE_NAMES)])  # the prompt's
    parts = [embedding / embedding.shape[1] ** 0.5, features, obs["done"], products]
    return torch.cat(parts, 1).double().numpy()


def _features(obs: Obs) -> torch.Tensor:
    """Of the prompt, and the mean and the largest of those of its sentences."""
    sentences = obs["sentences"][..., -len(SENTENCE_NAMES) :]
    return torch.cat([obs["features"], _mean(sentences), sentences.amax(1)], 1)


def _mean(sentences: torch.Tensor) -> torch.Tensor:
    return sentences.sum(1) / sentences.any(2).sum(1, keepdim=True).clamp(min=1)


def _scaled(features: torch.Tensor, scale: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return ((features - scale[1]) / scale[0].clamp(min=1e-6)).clamp(-5, 5)


@torch.no_grad()
def mistakes(network: Any, groups: Groups) -> dict[str, dict[str, dict[str, float]]]:
    """By group and mutation."""
    found = dict[str, dict[str, dict[str, float]]]()
    for group, states in groups.states.items():
        scores = torch.cat([network.scores(states.observe(r)) for r in torch.arange(len(states.done)).split(512)])
        expected = (scores - scores[:, STOPPING:]) * TEMPERATURE
        known, optimum = states.reward.clone(), float(states.optimum[states.start].mean())
        found[group] = {"all": {"known": float(_earned(states, known).mean()) / optimum}}
        for i, mutation in enumerate(MUTATIONS):
            known = expected.clone()
            known[:, i] = states.reward[:, i]
            legal, pays = states.legal[states.start, i], states.reward[states.start, i] > 0
            taken = expected[states.start, i] > 0
            found[group][mutation] = {
                "unneeded": float(taken[legal & ~pays].float().mean()),
                "missed": float((~taken)[legal & pays].float().mean()),
                "known": float(_earned(states, known).mean()) / optimum,
            }
    return found


def _earned(states: States, expected: torch.Tensor) -> torch.Tensor:
    """(P,) by the mutation that is expected to earn most, until none earns anything; `expected` is (S, actions)."""
    choice = expected.masked_fill(~states.legal, -torch.inf).argmax(1)
    row, earned, going = states.start, torch.zeros(len(states.start)), torch.ones(len(states.start), dtype=torch.bool)
    while bool(going.any()):
        earned += torch.where(going, states.reward[row, choice[row]], 0.0)
        after = states.next[row, choice[row]]
        going = going & (after >= 0)
        row = torch.where(going, after, row)
    return earned


def together(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of several seeds, by group: the share with its interval over seeds, and over prompts of the mean policy."""
    return {
        group: {
            "share": summary([one[group]["share"] for one in found]),
            "return": summary([one[group]["return"] for one in found]),
            "optimum": found[0][group]["optimum"],
            "per_seed": [one[group] for one in found],
        }
        for group in found[0]
    }


def show(name: str, found: Mapping[str, Any]) -> None:
    cells = []
    for group, one in found.items():
        share = one["share"] if isinstance(one["share"], dict) else {"mean": one["share"], **one}
        cells.append(f"{group} {share['mean']:7.1%} [{share['low']:.1%}, {share['high']:.1%}]")
    print(f"{name:28} {'   '.join(cells)}", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--each", type=int, default=200, help="prompts of each group")
    arguments.add_argument("--jobs", type=int, default=2, help="seeds at a time, one thread each")
    arguments.add_argument("--methods", nargs="*", default=["outcomes", "ppo"], choices=list(METHODS))
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments.add_argument("--out", default="prompt_world")
    given = arguments.parse_args()
    torch.set_num_threads(1)

    problem = make_problem(PromptSettings())
    groups = groups_for(problem, given.each)
    simple = {name: groups.shares(actor) for name, actor in problem.baselines().items()}
    for name, shares in simple.items():
        show(name, shares)
    common = {"prompts": given.each, "simple": simple}
    learned, took, wrong = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for name in given.methods:
            work = partial(of_seed, name=name, groups=groups, each=given.each, chosen=given.set)
            found = []
            for one in pool.imap(work, range(given.seeds)):
                found.append(one)
                learned |= {kind: together([own[kind] for own, _, _ in found]) for kind in one[0]}
                took[name] = {key: summary([own[key] for _, own, _ in found]) for key in one[1]}
                if name == "outcomes":
                    wrong = _averaged([own for _, _, own in found])
                save(given.out, common | {"learned": learned, "took": took, "mistakes": wrong})
            for kind in found[0][0]:
                show(kind, learned[kind])
            print(f"{'':28} {took[name]['cpu_seconds']['mean']:.0f} s of CPU to train", flush=True)


def _averaged(found: Sequence[Any]) -> Any:
    """Means over seeds of numbers that are nested in the same way."""
    if isinstance(found[0], dict):
        return {key: _averaged([one[key] for one in found]) for key in found[0]}
    return float(np.mean(found))


def of_seed(
    seed: int, *, name: str, groups: Groups, each: int, chosen: Sequence[str]
) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    """The shares of a method, and with the default those of the simple learners; how long it trained; mistakes."""
    torch.set_num_threads(1)
    method, preset = METHODS[name]
    network, learner, took = train(method, preset, seed, chosen)
    if preset == "document":
        settings = make_request(SPEC.name, inputs={"method": method}, preset=preset, isolated=True).settings
        groups = groups_for(make_problem(settings.own(PromptSettings)), each)
    found, wrong = {name: groups.shares(greedy(network))}, dict[str, Any]()
    if name == "outcomes":
        states = learner.train
        found["logistic regression"] = groups.shares(logistic(states))
        found["linear outcome model"] = groups.shares(linear_outcomes(states, groups.problem.config.noise, seed))
        wrong = mistakes(network, groups)
    return found, took, wrong


if __name__ == "__main__":
    main()
