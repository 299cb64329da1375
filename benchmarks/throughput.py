"""Steps per second: the world alone, collect + learn compared with Stable-Baselines3, and the cost curves.

    python benchmarks/throughput.py                    # CPU, with the curves (≈ 4 min)
    python benchmarks/throughput.py --peers            # one thread, compared with the peer (≈ 2 min)
    python benchmarks/throughput.py --device cuda      # one GPU, everything on it, 4 epochs

Networks are the source document's (256-256-128, twice). The floor is the arithmetic alone: 2 × 124 k weights, forward
once to act and three times that (less the first layer's input gradient) in each epoch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peer import PEERS, PeerConfig, make_peer
from results import save

from etude.learning.collect import Collector
from etude.learning.ppo import PPO, PPOConfig
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import COLUMNS, AllocationConfig

DOCUMENT_NETWORK = {"hidden": (256, 256, 128), "activation": "relu"}


def seconds(work: Callable[[], object], *, device: str, least_s: float, warm_up: int = 1) -> float:
    """Mean time of one call, over at least `least_s` seconds."""
    for _ in range(warm_up):
        work()
    calls, began = 0, _now(device)
    while calls == 0 or _now(device) - began < least_s:
        work()
        calls += 1
    return (_now(device) - began) / calls


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def world_rate(envs: int, *, agents: int = 4, device: str = "cpu", least_s: float = 2.0) -> float:
    """Steps/s of the world alone, under fresh random actions."""
    config = AllocationConfig(agents=agents)
    world = AllocationProblem(config=config).world(envs, device=device, phases=8)
    world.reset(0)

    def step() -> None:
        columns = torch.rand(3, envs, agents, device=device).unbind(0)
        world.step(dict(zip(COLUMNS, columns, strict=True)))

    with torch.inference_mode():
        return envs / seconds(step, device=device, least_s=least_s, warm_up=20)


def learn_rate(
    *,
    envs: int,
    steps: int,
    minibatch: int,
    epochs: int,
    precision: str,
    device: str,
    agents: int = 4,
    least_s: float = 8.0,
) -> dict[str, Any]:
    """Steps/s of collecting and learning, and of each alone."""
    torch.manual_seed(0)
    network = NetworkConfig(precision=precision, **DOCUMENT_NETWORK)  # type: ignore[arg-type]
    problem = AllocationProblem(config=AllocationConfig(agents=agents), network=network)
    policy = problem.policy().to(device).train(False)
    collector = Collector(problem.world(envs, device=device, phases=8), steps=steps, seed=0)
    config = PPOConfig(envs=envs, steps=steps, minibatch=minibatch, epochs=epochs, compile=device == "cuda")
    ppo = PPO(policy, config, device=device)
    warm_up = 2 if device == "cuda" else 1
    collect_s = seconds(lambda: collector.collect(policy), device=device, least_s=least_s / 4, warm_up=warm_up)
    batch = collector.collect(policy)
    learn_s = seconds(lambda: ppo.update(batch, progress=0.1), device=device, least_s=least_s, warm_up=warm_up)
    samples = envs * steps
    return {
        "envs": envs,
        "steps": steps,
        "minibatch": minibatch,
        "precision": precision,
        "steps_per_s": samples / (collect_s + learn_s),
        "collect_per_s": samples / collect_s,
        "learn_per_s": samples / learn_s,
    }


PEER_SHAPES = {
    "document": PEERS["document"],
    "same shapes": PeerConfig(
        envs=256, steps=64, minibatch=2048, epochs=10, lr=3e-4, hidden=(256, 256, 128), activation=torch.nn.ReLU
    ),
}
"""The peer at the document's settings, and with our heads, environments and minibatches on our tensor world."""


def compare() -> dict[str, Any]:
    """Steps per CPU second of one thread, ours and the peer's, the document's networks and 10 epochs for all."""
    torch.set_num_threads(1)
    rates: dict[str, float] = {}
    for name, config in PEER_SHAPES.items():
        model, batch = make_peer(config, seed=0), config.envs * config.steps
        model.learn(batch)
        began = time.process_time()
        model.learn(2 * batch, reset_num_timesteps=False)
        rates[f"stable-baselines3, {name}"] = 2 * batch / (time.process_time() - began)
    for precision in ("float32", "bfloat16"):
        rates[f"etude, {precision}"] = cpu_rate(precision)
    for name, rate in rates.items():
        print(f"{name:32} {rate:,.0f} steps per CPU second", flush=True)
    ratios = {
        ours: {peer: rates[f"etude, {ours}"] / rates[f"stable-baselines3, {peer}"] for peer in PEER_SHAPES}
        for ours in ("float32", "bfloat16")
    }
    return {"epochs": 10, "steps_per_cpu_s": rates, "ratios": ratios}


def cpu_rate(precision: str, updates: int = 2) -> float:
    torch.manual_seed(0)
    problem = AllocationProblem(network=NetworkConfig(precision=precision, **DOCUMENT_NETWORK))  # type: ignore[arg-type]
    policy = problem.policy().train(False)
    collector = Collector(problem.world(256, device="cpu", phases=8), steps=64, seed=0)
    ppo = PPO(policy, PPOConfig(envs=256, steps=64, minibatch=2048, epochs=10, lr=3e-4))
    ppo.update(collector.collect(policy), progress=0.0)
    began = time.process_time()
    for _ in range(updates):
        ppo.update(collector.collect(policy), progress=0.0)
    return updates * 256 * 64 / (time.process_time() - began)


def matmul_rate(device: str, precision: str) -> float:
    """FLOP/s of the networks' middle layer: what the machine can do at best."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    rows = 262_144 if device == "cuda" else 1024
    x, w = torch.randn(rows, 256, device=device, dtype=dtype), torch.randn(256, 256, device=device, dtype=dtype)
    return 2 * rows * 256 * 256 / seconds(lambda: x @ w, device=device, least_s=1.0, warm_up=20)


def flops_per_step(epochs: int) -> float:
    weights, first = 94 * 256 + 256 * 256 + 256 * 128 + 128 * 14, 94 * 256
    return 2 * 2 * (weights + epochs * (3 * weights - first))


def curves() -> dict[str, list[tuple[int, float]]]:
    """Steps/s of the world alone against the number of environments, and of agents."""
    envs = [4**k for k in range(9)]
    torch.set_num_threads(1)  # small tensors: a second thread costs more than it gains
    by_envs = [(n, world_rate(n, least_s=0.7)) for n in envs]
    by_agents = [(a, world_rate(1024, agents=a, least_s=0.7)) for a in (2, 4, 8, 16, 32, 64)]
    torch.set_num_threads(2)
    learning = [
        (
            n,
            learn_rate(
                envs=n,
                steps=max(1, 8192 // n),
                minibatch=2048,
                epochs=10,
                precision="float32",
                device="cpu",
                least_s=2.0,
            )["steps_per_s"],
        )
        for n in envs
    ]
    return {"world_by_envs": by_envs, "world_by_agents": by_agents, "learn_by_envs": learning}


def plot(data: dict[str, list[tuple[int, float]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    for name, label in (("world_by_envs", "world alone"), ("learn_by_envs", "collect + learn, 10 epochs")):
        axes[0].plot(*zip(*data[name], strict=True), marker="o", label=label)
    axes[0].set(xscale="log", yscale="log", xlabel="environments", ylabel="steps/s")
    axes[0].legend()
    axes[1].plot(*zip(*data["world_by_agents"], strict=True), marker="o", color="#0b7285")
    axes[1].set(yscale="log", xlabel="agents (1,024 environments)", ylabel="steps/s")
    axes[1].set_xscale("log", base=2)
    axes[1].xaxis.set_major_formatter("{x:.0f}")
    figure.suptitle("What a step costs: `document` on CPU")
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments.add_argument("--no-curves", action="store_true")
    arguments.add_argument("--peers", action="store_true", help="only the comparison with the peer")
    arguments.add_argument("--plot", type=Path, default=Path("docs/figures/throughput.svg"))
    given = arguments.parse_args()
    if given.peers:
        save("throughput_peers", compare())
        return
    cuda = given.device == "cuda"
    torch.set_float32_matmul_precision("high" if cuda else "highest")
    epochs = 4 if cuda else 10
    shapes = [(131_072, 16, 131_072), (524_288, 8, 262_144), (1_048_576, 8, 524_288)] if cuda else [(256, 64, 2048)]
    data: dict[str, Any] = {"device": given.device, "epochs": epochs}

    torch.set_num_threads(2)
    envs = 1_048_576 if cuda else 4096
    data["world_steps_per_s"] = {}
    for threads in (1,) if cuda else (1, 2):
        torch.set_num_threads(threads)
        data["world_steps_per_s"][threads] = alone = world_rate(envs, device=given.device)
        print(f"world alone, {envs:,} environments, {threads} thread(s): {alone / 1e6:.2f} M steps/s", flush=True)
    data["collect_and_learn"] = []
    for precision in ("float32", "bfloat16"):
        peak = matmul_rate(given.device, precision)
        floor = peak / flops_per_step(epochs)
        for n, steps, minibatch in shapes:
            rate = learn_rate(
                envs=n, steps=steps, minibatch=minibatch, epochs=epochs, precision=precision, device=given.device
            )
            data["collect_and_learn"].append(rate | {"floor_steps_per_s": floor, "matmul_flops": peak})
            print(
                f"{precision}, {n:,} environments × {steps}, minibatch {minibatch:,}: "
                f"{rate['steps_per_s']:,.0f} steps/s (collect {rate['collect_per_s']:,.0f}, "
                f"learn {rate['learn_per_s']:,.0f}; arithmetic alone {floor:,.0f} at {peak / 1e12:.2f} TFLOP/s)",
                flush=True,
            )
    if not cuda and not given.no_curves:
        data["curves"] = curves()
        plot(data["curves"], given.plot)
    save(f"throughput_{given.device}", data)


if __name__ == "__main__":
    main()
