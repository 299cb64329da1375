"""Time and steps to an evaluated return of 1300 on `document`: Etude and Stable-Baselines3, one core per training.

    python benchmarks/time_to_target.py                          # every contender, one after the other (≈ 30 min)
    python benchmarks/time_to_target.py --jobs 8                 # eight trainings at a time, on eight cores (≈ 6 min)
    python benchmarks/time_to_target.py --only etude_quick --seeds 2

Every contender is evaluated greedily and by sampling, on the same episodes. Seconds are those of training alone, with
what `etude train` writes to its run folder; evaluations do not count. The peer steps the faster of two environments.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peer import PEERS, PeerConfig, faster_env, make_peer, peer_actor
from results import ratio, save, summary

from etude.bootstrap.runs import make_request, start_run
from etude.learning.evaluate import evaluate, greedy, sampled
from etude.learning.practise import Practice
from etude.problems.allocation import SPEC
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.base import Actor

TARGET = 1300.0
EPISODES = 64
FINAL_EPISODES, FINAL_SEED = 200, 77
COLOURS = {"etude": "#0b7285", "etude_quick": "#1971c2", "tuned": "#c2255c", "same_settings": "#e8590c"}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A learner with its settings, and the budget of one training."""

    label: str
    max_steps: int
    peer: PeerConfig | None = None
    """Stable-Baselines3 with these settings; none is Etude."""
    preset: str | None = None


def same_settings() -> PeerConfig:
    """The peer with our preset `quick`: the same batches, networks, heads, discount, clip and entropy."""
    p = SPEC.presets["quick"]["ppo"]
    more = {
        "ent_coef": p["entropy_coef"],
        "gamma": p["gamma"],
        "gae_lambda": p["gae_lambda"],
        "clip_range": p["clip_coef"],
    }
    return PeerConfig(envs=256, steps=p["steps"], minibatch=p["minibatch"], epochs=4, lr=p["lr"], more=more)


CONTENDERS = {
    "document": Contender(
        label="Stable-Baselines3, the document's settings", max_steps=500_000, peer=PEERS["document"]
    ),
    "tuned": Contender(label="Stable-Baselines3, tuned", max_steps=200_000, peer=PEERS["tuned"]),
    "tuned_no_entropy": Contender(
        label="Stable-Baselines3, tuned, entropy coefficient 0",
        max_steps=200_000,
        peer=replace(PEERS["tuned"], more={"ent_coef": 0.0}),
    ),
    "etude": Contender(label="Etude, default settings", max_steps=400_000),
    "same_settings": Contender(
        label="Stable-Baselines3, our `quick` settings", max_steps=100_000, peer=same_settings()
    ),
    "etude_quick": Contender(label="Etude, `--preset quick`", max_steps=100_000, preset="quick"),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A moment of a training: steps and seconds so far, and both evaluated returns."""

    step: int
    seconds: float
    greedy: float
    sampled: float


def training(name: str, seed: int) -> tuple[list[Point], dict[str, float]]:
    """The learning curve, and the final return over fresh episodes."""
    torch.set_num_threads(1)
    contender, problem, curve = CONTENDERS[name], AllocationProblem(), list[Point]()
    with tempfile.TemporaryDirectory() as folder:
        rounds = ours(contender, seed, Path(folder) / "run") if contender.peer is None else peer(contender, seed)
        for step, seconds, actors in rounds:
            done = step >= contender.max_steps
            if not done and curve and step - curve[-1].step < (16_384 if settled(curve) else 0):
                continue
            scores = {kind: evaluate(problem, actor, episodes=EPISODES).mean for kind, actor in actors.items()}
            curve.append(Point(step=step, seconds=seconds, **scores))
            if done or (name == "document" and scores["greedy"] >= TARGET):
                break
    final = {
        kind: evaluate(problem, actor, episodes=FINAL_EPISODES, seed=FINAL_SEED).mean for kind, actor in actors.items()
    }
    print(f"{name}, seed {seed}: {hit(curve, 'greedy')} greedy, {hit(curve, 'sampled')} sampled, {final}", flush=True)
    return curve, final


def ours(contender: Contender, seed: int, folder: Path) -> Iterator[tuple[int, float, dict[str, Actor]]]:
    """Steps, seconds and policies after every update."""
    chosen = [f"run.seed={seed}", f"run.max_steps={contender.max_steps}", "run.device=cpu", "run.threads=1"]
    chosen.append("run.eval_every=1000000000")  # evaluated here, on the same episodes as the peer
    run = start_run(make_request(SPEC.name, out=folder, preset=contender.preset, assignments=chosen, isolated=True))
    assert isinstance(run.learner, Practice)
    policy, seconds, updates = run.learner.net, 0.0, run.updates()
    actors = {"greedy": greedy(policy), "sampled": sampled(policy)}
    while True:
        began = time.perf_counter()
        update = next(updates, None)
        if update is None:
            return
        seconds += time.perf_counter() - began
        yield update.step, seconds, actors


def peer(contender: Contender, seed: int) -> Iterator[tuple[int, float, dict[str, Actor]]]:
    config = contender.peer
    assert config is not None
    model, seconds = make_peer(config, seed, faster_env(config)), 0.0
    actors = {"greedy": peer_actor(model, greedy=True), "sampled": peer_actor(model, greedy=False)}
    while True:
        began = time.perf_counter()
        model.learn(config.envs * config.steps, reset_num_timesteps=False)
        seconds += time.perf_counter() - began
        yield model.num_timesteps, seconds, actors


def settled(curve: list[Point]) -> bool:
    return hit(curve, "greedy") is not None and hit(curve, "sampled") is not None


def hit(curve: list[Point], kind: str) -> Point | None:
    """Where the return first reaches the target."""
    return next((point for point in curve if getattr(point, kind) >= TARGET), None)


def report(runs: dict[str, list[tuple[list[Point], dict[str, float]]]]) -> dict[str, Any]:
    """Times, steps and final returns of every contender, and how many times longer each peer takes than ours."""
    data: dict[str, Any] = {"target": TARGET, "episodes": EPISODES, "contenders": {}}
    for name, trainings in runs.items():
        row: dict[str, Any] = {"label": CONTENDERS[name].label, "seeds": len(trainings)}
        row["max_steps"] = CONTENDERS[name].max_steps
        for kind in ("greedy", "sampled"):
            hits = [point for curve, _ in trainings if (point := hit(curve, kind))]
            row[kind] = {
                "reached": len(hits),
                "seconds": summary([point.seconds for point in hits]),
                "steps": summary([float(point.step) for point in hits]),
                "final": summary([final[kind] for _, final in trainings]),
            }
        rates = [curve[-1].step / curve[-1].seconds for curve, _ in trainings]
        row |= {"steps_per_s": summary(rates), "curves": [[vars(p) for p in curve] for curve, _ in trainings]}
        data["contenders"][name] = row
    data["ratios"] = {
        f"{other} to {mine}": {
            kind: ratio(theirs["values"], own["values"])
            for kind in ("greedy", "sampled")
            if (theirs := data["contenders"][other][kind]["seconds"]) and (own := row[kind]["seconds"])
        }
        for mine in ("etude", "etude_quick")
        if (row := data["contenders"].get(mine))
        for other in runs
        if not other.startswith("etude")
    }
    return data


def show(data: dict[str, Any]) -> None:
    for row in data["contenders"].values():
        print(row["label"])
        for kind in ("greedy", "sampled"):
            part, times = row[kind], row[kind]["seconds"]
            span = f"{times['mean']:.2f} s [{times['low']:.2f}, {times['high']:.2f}]" if times else "never"
            print(f"  {kind:8} {part['reached']} of {row['seeds']}: {span}; final {part['final']['mean']:.0f}")
    for pair, kinds in data["ratios"].items():
        text = ", ".join(f"{k} {r['ratio']:.1f}× [{r['low']:.1f}, {r['high']:.1f}]" for k, r in kinds.items())
        print(f"{pair}: {text}")


def plot(data: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, kind in zip(axes, ("greedy", "sampled"), strict=True):
        for name, colour in COLOURS.items():
            row = data["contenders"].get(name, {"curves": []})
            for i, curve in enumerate(row["curves"]):
                label = None if i else row["label"].replace("`", "")
                axis.plot([p["seconds"] for p in curve], [p[kind] for p in curve], color=colour, label=label, lw=1.2)
        axis.axhline(TARGET, color="grey", ls=":", lw=1)
        axis.set(xscale="log", xlabel="seconds of training on one core (log)", title=f"{kind} policy")
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("evaluated return")
    axes[0].legend(fontsize=8)
    figure.suptitle("Learning allocation `document`")
    figure.savefig(path, bbox_inches="tight")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument(
        "--document-seeds", type=int, default=2, help="seeds of the document's settings: minutes each"
    )
    arguments.add_argument("--jobs", type=int, default=1, help="trainings at a time, one core each")
    arguments.add_argument("--only", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    arguments.add_argument("--plot", type=Path, default=None, help="file for the learning curves")
    given = arguments.parse_args()
    seeds = {name: given.document_seeds if name == "document" else given.seeds for name in given.only}
    jobs = [(name, seed) for name in given.only for seed in range(seeds[name])]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        found = pool.starmap(training, jobs, chunksize=1)
    runs: dict[str, list[Any]] = {name: [] for name in given.only}
    for (name, _), one in zip(jobs, found, strict=True):
        runs[name].append(one)
    data = report(runs) | {"jobs": given.jobs}
    show(data)
    if given.plot:
        plot(data, given.plot)
    save("time_to_target", data)


if __name__ == "__main__":
    main()
