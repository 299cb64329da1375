"""Learning from the logs of a mediocre policy: how much of its gap to the oracle PPO, RLOO and DPO each recover.

    python benchmarks/from_logs.py                                                 # five seeds, one after the other
    python benchmarks/from_logs.py --seeds 0 --only rloo --device cuda --out DIR   # one of 15; gathers what there is

Nine at a time take four minutes on one GPU, once phase 1 of each seed is there.

The behaviour policy is a planner of the simulated office after phase 1, which imitates experts and has seen no outcome:
it prefers the workers that experts prefer and corrects at random. Its scores of workers are divided by five, so that it
explores, and it samples every choice, with exact propensities. It executes 5,000 instructions four times each; a log
holds the decisions, their propensities and the total reward, without any shaping. Nine tenths of the instructions are
for training, in four parts; one tenth is held out. Each algorithm starts from the behaviour policy. It is measured, by
its most probable choices, on other instructions. The gap is the oracle's mean return there less the behaviour policy's,
which is taken twice: sampled, as it logged, and by its most probable choices, which are better without any learning.
With the propensities shuffled, the check of overlap must refuse. Settings, the behaviour policy's among them, were
chosen on seed 0; the other seeds were run once.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from results import save
from torch import Generator, Tensor

import etude
from etude.contracts.errors import DataError
from etude.evidence.intervals import interval
from etude.learning.dpo import DPO, DPOConfig
from etude.learning.evaluate import evaluate, greedy, sampled
from etude.learning.logged import Logged
from etude.learning.logged_ppo import LoggedPPO, LoggedPPOConfig
from etude.learning.overlap import OverlapConfig, check_overlap
from etude.learning.passes import Passes
from etude.learning.rloo import RLOO, RLOOConfig
from etude.learning.run_folder import find_policy
from etude.problems.base import Action, Obs
from etude.problems.workflow.artefact import make_reader, read_pretrained
from etude.problems.workflow.grammar import Rules
from etude.problems.workflow.network import PlanPolicy
from etude.problems.workflow.office.problem import WorkflowProblem

CONTEXTS, EXECUTIONS, PARTS = 5000, 4, 4
FLATTER = 5.0  # what the logging policy's scores of workers are divided by
EPISODES, SEED = 4096, 2_000_003
LEARNERS = {"ppo": LoggedPPO, "rloo": RLOO, "dpo": DPO}
CONFIGS = {"ppo": LoggedPPOConfig(), "rloo": RLOOConfig(), "dpo": DPOConfig()}


def office(seed: int, folder: Path) -> WorkflowProblem:
    """The problem as a planner finds it that has imitated experts, and whose training is made if it is not there."""
    if not (folder / "best").exists():
        own = {"office.skill_seed": seed, "office.scenario_seed": seed, "run.threads": 1}
        phase = {"training.phase1_supervised.final_epochs": 0}
        etude.train("workflow", out=folder, preset="office", seed=seed, epochs=10, settings=own | phase)
    pretrained, s = read_pretrained(find_policy(folder))
    world = replace(s.training.phase2_rl, potential=0.0).world(s.office, s.limits)
    return WorkflowProblem(reader=make_reader(s.planner), config=world, planner=s.planner, pretrained=pretrained)


@torch.no_grad()
def logging_policy(problem: WorkflowProblem, device: str) -> PlanPolicy:
    """Scores of workers are linear in these two layers, so this is a temperature."""
    policy = problem.policy()
    for layer in (policy.worker_query, policy.worker_live):
        for weight in layer.parameters():
            weight.div_(FLATTER)
    return policy.to(device).eval()


@torch.no_grad()
def record(problem: WorkflowProblem, policy: PlanPolicy, *, seed: int, device: str) -> Logged:
    """Executions of as many instructions at a time as there are contexts, one execution of each after the other."""
    world = problem.world(CONTEXTS, device=device)
    rng = Generator(device).manual_seed(seed + 500_009)
    asked = torch.randperm(len(problem.rows), generator=Generator().manual_seed(seed))[:CONTEXTS].sort().values
    instruction, reward = asked.to(device) + problem.rows.start, torch.zeros((CONTEXTS, EXECUTIONS), device=device)
    steps: list[dict[str, Tensor]] = []
    for k in range(EXECUTIONS):
        world.reset(1000 * seed + k)
        world.state = world.state | {"instruction": instruction}
        waiting = torch.ones(CONTEXTS, dtype=torch.bool, device=device)
        while waiting.any():
            obs, here = world.observe(), waiting.nonzero()[:, 0]
            decision = policy.act(obs, generator=rng)
            kept = {f"obs.{name}": x for name, x in obs.items()}
            kept |= {f"action.{name}": x for name, x in decision.action.items()}
            kept |= {"log_propensity": decision.log_prob, "eligible": ways(policy.rules, obs, decision.action)}
            steps.append({name: x[here] for name, x in kept.items()} | {"trajectory": here * EXECUTIONS + k})
            step = world.step(decision.action)
            over = waiting & step.terminated
            if step.final_obs is not None:
                reward[over, k] = step.metrics["return"][over].float()
            waiting &= ~over
    order = torch.cat([step["trajectory"] for step in steps]).argsort(stable=True)  # rows of one stay in time's order
    flat = {name: torch.cat([step[name] for step in steps])[order] for name in steps[0]}
    return Logged(
        obs={name.removeprefix("obs."): x for name, x in flat.items() if name.startswith("obs.")},
        action={name.removeprefix("action."): x for name, x in flat.items() if name.startswith("action.")},
        log_propensity=flat["log_propensity"],
        trajectory=flat["trajectory"],
        reward=reward.flatten(),
        context=torch.arange(CONTEXTS, device=device).repeat_interleave(EXECUTIONS),
        eligible=flat["eligible"],
    )


def ways(rules: Rules, obs: Obs, action: Action) -> Tensor:
    """(n,) log of the number of eligible joint actions: 1 / the probability of a uniform choice, part by part."""
    correction, kind = action["correction"], action["type"]
    options = [
        rules.corrections(obs),
        rules.task_types(obs, correction),
        rules.workers_for(obs, correction, kind, action["links"]),
    ]
    return sum(x.sum(1).log() for x in options) + rules.dependencies(obs, kind).sum(1) * math.log(2)


def one(seed: int, root: Path, only: list[str], device: str) -> None:
    """Logs of this seed's policy, what the check of overlap says of them, and what each algorithm makes of them."""
    problem = office(seed, root / f"p1-{seed}")
    validation = replace(problem, part="measure")
    policy = logging_policy(problem, device)
    logged = record(problem, policy, seed=seed, device=device)
    contexts, teach = torch.arange(len(logged.reward), device=device).view(-1, EXECUTIONS), CONTEXTS * 9 // 10
    parts = [logged.only(some.flatten()) for some in contexts[:teach].split(teach // PARTS)]
    held_out = [logged.only(contexts[teach:].flatten())]
    about: dict[str, Any] = {"decisions": len(logged), "workflows": contexts.numel()}
    about["overlap"] = vars(check_overlap(policy, lambda: iter(parts), OverlapConfig(), seed=seed))
    about["shuffled"] = refusal(policy, parts[:1], seed)
    oracle = validation.baselines()["oracle"]
    actors = {"logging": sampled(policy), "its likeliest choices": greedy(policy), "oracle": oracle}
    for name, actor in actors.items():
        where = "cpu" if actor is oracle else device
        about[name] = evaluate(validation, actor, episodes=EPISODES, seed=SEED, device=where).to_json()
    for name in only:
        learned, began = logging_policy(problem, device), time.perf_counter()
        learner = LEARNERS[name](learned, CONFIGS[name], device=device, seed=seed)
        passes = []
        for metrics in (run := Passes(learner, lambda: iter(parts), lambda: iter(held_out))):
            passes.append(metrics)
            print(seed, name, {key: round(value, 3) for key, value in metrics.items()}, flush=True)
        seconds = time.perf_counter() - began
        score = evaluate(validation, greedy(learned), episodes=EPISODES, seed=SEED, device=device).to_json()
        found = {"policy": score, "passes": passes, "stopped": run.stopped, "seconds": seconds, **about}
        (root / f"{seed}-{name}.json").write_text(json.dumps(found))


def refusal(policy: PlanPolicy, parts: list[Logged], seed: int) -> str:
    """What the check of overlap says to propensities that were shuffled; empty if it lets them pass."""

    def shuffled() -> Iterator[Logged]:
        for part in parts:
            rng = Generator().manual_seed(seed)
            order = torch.randperm(len(part), generator=rng).to(part.trajectory.device)
            yield replace(part, log_propensity=part.log_propensity[order])

    try:
        check_overlap(policy, shuffled, OverlapConfig(), seed=seed)
    except DataError as error:
        return str(error)
    return ""


def gather(root: Path) -> dict[str, Any]:
    """The figures of all runs in the folder, with intervals over seeds."""
    found: dict[str, Any] = {"contexts": CONTEXTS, "executions": EXECUTIONS, "episodes": EPISODES}
    for name in LEARNERS:
        runs = {
            path.name.partition("-")[0]: json.loads(path.read_text()) for path in sorted(root.glob(f"*-{name}.json"))
        }
        if not runs:
            continue
        rows = {
            who: {key: [run[who][key] for run in runs.values()] for key in ("mean_return", "success", "cost_usd")}
            for who in ("logging", "its likeliest choices", "policy", "oracle")
        }
        recovered = gap_recovered(rows, "logging")
        found[name] = {
            "seeds": list(runs),
            "gap recovered": recovered.tolist(),
            "gap recovered, to its likeliest choices": gap_recovered(rows, "its likeliest choices").tolist(),
            **rows,
            "stopped": [run["stopped"] for run in runs.values()],
            "seconds": [run["seconds"] for run in runs.values()],
            "passes": [len(run["passes"]) for run in runs.values()],
            "overlap": [run["overlap"] for run in runs.values()],
            "shuffled": [run["shuffled"] for run in runs.values()],
        }
        low, high = interval(recovered)
        print(f"{name:5} {recovered.mean():.1%} of the gap [{low:.1%}, {high:.1%}], least {recovered.min():.1%}")
        greedily = gap_recovered(rows, "its likeliest choices")
        print(f"      {greedily.mean():.1%} of the gap to the behaviour policy's most probable choices")
        for who, values in rows.items():
            print(
                f"      {who:21} return {np.mean(values['mean_return']):.2f}, success {np.mean(values['success']):.1%}"
            )
        print(f"      shuffled propensities: {sum(map(bool, found[name]['shuffled']))} of {len(runs)} refused")
    return found


def gap_recovered(rows: dict[str, Any], start: str) -> np.ndarray:
    """The share of the gap between the behaviour policy, used in this way, and the oracle that is closed."""
    begin, policy, oracle = (np.array(rows[who]["mean_return"]) for who in (start, "policy", "oracle"))
    share: np.ndarray = (policy - begin) / (oracle - begin)
    return share


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--only", nargs="*", choices=list(LEARNERS), default=list(LEARNERS))
    arguments.add_argument("--out", type=Path, default=None, help="where runs are kept")
    arguments.add_argument("--device", default="cpu")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    root = given.out or Path(mkdtemp())
    for seed in given.seeds:
        one(seed, root, given.only, given.device)
    save("from_logs", gather(root))


if __name__ == "__main__":
    main()
