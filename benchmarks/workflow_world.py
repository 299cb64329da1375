"""The workflow world: decisions per second, and the return of each baseline, with intervals.

    python benchmarks/workflow_world.py                    # CPU: rates against environments and threads, baselines
    python benchmarks/workflow_world.py --device cuda      # one GPU: rates alone

A decision is one step of one environment: a node added, a stop or a correction. Actions are random legal ones; *alone*
replays drawn ones, *with masks* draws them through the rules on the way.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from results import save, sentence
from throughput import seconds
from torch import Generator, Tensor

from etude.evidence.intervals import interval
from etude.learning.evaluate import EVALUATION_SEED
from etude.problems.base import Actor
from etude.problems.workflow.experts import baselines, random_choice
from etude.problems.workflow.office.world import WorkflowConfig, WorkflowWorld

EPISODES = 4096
SHIFTS = ("none", "degraded", "new_tool", "phrasings")
STEPS = 24  # of one replay
METRICS = ("success", "return", "cost_usd", "latency_ms", "nodes", "corrections", "subtasks")


@torch.inference_mode()
def rates(envs: int, *, device: str, least_s: float = 1.0) -> dict[str, float]:
    """Decisions/s of the world alone, and with the masks that choosing needs."""
    world = WorkflowWorld(WorkflowConfig(), n=envs, device=device)
    choose, generator = random_choice(world.rules), Generator(device).manual_seed(0)
    obs = world.reset(0)
    for _ in range(STEPS):  # until environments are in all parts of an episode
        obs = world.step(choose(obs, generator)).obs
    start, drawn = world.state_dict(), []
    for _ in range(STEPS):
        drawn.append(choose(obs, generator))
        obs = world.step(drawn[-1]).obs

    def alone() -> None:
        world.load_state_dict(start)
        for action in drawn:
            world.step(action)

    def masked() -> None:
        seen = world.observe()
        for _ in range(STEPS):
            seen = world.step(choose(seen, generator)).obs

    return {
        "envs": envs,
        "alone": envs * STEPS / seconds(alone, device=device, least_s=least_s),
        "with_masks": envs * STEPS / seconds(masked, device=device, least_s=least_s),
    }


@torch.inference_mode()
def play(config: WorkflowConfig, actor: Actor) -> dict[str, np.ndarray]:
    """Metrics of each environment's first episode, on the episodes that all baselines get."""
    world, generator = WorkflowWorld(config, n=EPISODES), Generator().manual_seed(EVALUATION_SEED)
    obs, waiting = world.reset(EVALUATION_SEED), torch.ones(EPISODES, dtype=torch.bool)
    found: dict[str, Tensor] = {}
    while waiting.any():
        step = world.step(actor(obs, generator))
        obs, first = step.obs, waiting & step.terminated
        for name, value in step.metrics.items():
            found.setdefault(name, torch.zeros_like(value))[first] = value[first]
        waiting &= ~first
    return {name: found[name].double().numpy() for name in METRICS}


def table(shift: str) -> dict[str, Any]:
    config = WorkflowConfig(shift=shift)  # type: ignore[arg-type]
    found = {name: play(config, actor) for name, actor in baselines(config).items()}
    rows: dict[str, Any] = {}
    print(f"shift {shift!r}, {EPISODES:,} episodes, the same for all")
    for name, values in found.items():
        regret = found["oracle"]["return"] - values["return"]
        rows[name] = {
            metric: {"mean": float(x.mean()), "ci95": interval(x)} for metric, x in {**values, "regret": regret}.items()
        }
        print(
            f"  {name:12} success {sentence(100 * values['success'], '%'):26} return {sentence(values['return']):20} "
            f"cost {sentence(100 * values['cost_usd'], 'cents'):24} "
            f"latency {sentence(values['latency_ms'] / 1000, 's'):24} regret {sentence(regret)}",
            flush=True,
        )
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = arguments.parse_args().device
    data: dict[str, Any] = {"device": device, "rates": []}
    cuda = ((1, (4096, 65_536, 524_288)),)
    cpu = ((1, (1, 64, 1024, 4096, 16_384)), (2, (4096, 16_384)))  # small tensors gain nothing from a second thread
    for threads, sizes in cuda if device == "cuda" else cpu:
        torch.set_num_threads(threads)
        for envs in sizes:
            rate = rates(envs, device=device)
            data["rates"].append({"threads": threads, **rate})
            print(
                f"{envs:8,} environments, {threads} thread(s): {rate['alone']:12,.0f} decisions/s alone, "
                f"{rate['with_masks']:12,.0f} with masks",
                flush=True,
            )
    if device == "cpu":
        torch.set_num_threads(1)
        data["baselines"] = {shift: table(shift) for shift in SHIFTS}
    save("workflow_world" if device == "cpu" else "workflow_world_cuda", data)


if __name__ == "__main__":
    main()
