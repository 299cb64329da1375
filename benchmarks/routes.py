"""Queries to workers on recorded outcomes: the router compared with simpler choices, each query tested once.

    python benchmarks/routes.py ../shared/data/routes/llmrouter                       # fast, about a minute
    python benchmarks/routes.py ../shared/data/routes/llmrouter --encoder minilm      # minutes more, the first time

The folder holds `catalogue.json` and `train.jsonl`. Everything that is chosen, the best single worker, where text is
used, the weight of cost, is chosen on the other folds. Differences are paired by query; intervals are 95 %.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import save
from rich.progress import track
from torch import Tensor

from etude.contracts.ports import TextEncoder
from etude.evidence.intervals import interval
from etude.problems.catalogue import read_catalogue
from etude.problems.routing.kernels import Texts, read_texts
from etude.problems.routing.replay import (
    UNKNOWN,
    WEIGHTS,
    Curve,
    Replay,
    choose,
    curve,
    read_outcomes,
    references,
    type_means,
)
from etude.problems.routing.router import fit_router, neighbours
from etude.text.encoders import make_encoder

ROUTER = "router"
PARTS = ("score", "cost", "thrifty_score", "thrifty_cost")


@dataclass(kw_only=True)
class Track:
    """One method over all folds: outcomes by query, at no weight of cost and at the one chosen on training."""

    score: np.ndarray[Any, Any]
    cost: np.ndarray[Any, Any]
    thrifty_score: np.ndarray[Any, Any]
    thrifty_cost: np.ndarray[Any, Any]
    curves: list[Curve] = field(default_factory=list)
    areas: list[float] = field(default_factory=list)


def run(replay: Replay, encoder: str, folds: int, repeats: int) -> dict[str, Track]:
    """Outcomes by query are means over repeats, which differ in how queries fall into folds."""
    reader = make_encoder(encoder)
    texts = read_texts(reader, replay.texts)
    rounds = [split(replay, texts, reader, folds, seed) for seed in range(repeats)]
    return {
        name: Track(
            **dict[str, Any]({part: np.mean([getattr(r[name], part) for r in rounds], 0) for part in PARTS}),
            curves=[curve for r in rounds for curve in r[name].curves],
            areas=[area for r in rounds for area in r[name].areas],
        )
        for name in rounds[0]
    }


def split(replay: Replay, texts: Texts, reader: TextEncoder, folds: int, seed: int) -> dict[str, Track]:
    order = torch.randperm(len(replay), generator=torch.Generator().manual_seed(seed))
    tracks: dict[str, Track] = {}
    for rows in track(order.tensor_split(folds), description=f"repeat {seed}"):
        rest = torch.ones(len(replay), dtype=torch.bool).index_fill(0, rows, False).nonzero()[:, 0]
        past, asked = replay.take(rest), replay.take(rows)
        seen, new = texts.take(rest.numpy()), texts.take(rows.numpy())
        router, left_out = fit_router(past, reader, seen)
        predicted, hidden = (router.predict_read(new, t) for t in (asked.types, torch.full_like(asked.types, UNKNOWN)))
        spent = router.predict_read(seen, past.types).cost_usd  # what the past queries were expected to cost
        single = past.best_single()
        for name, picks in references(asked, best_single=single, seed=seed).items():
            _note(tracks, name, len(replay), rows, asked, picks, picks)
        known = {
            "per_type": type_means(past, asked),
            "knn": neighbours(past, seen, new),
            f"{ROUTER}, no type": (left_out, hidden.score),
            ROUTER: (left_out, predicted.score),
        }
        wanted = float(past.score[:, single].mean())
        low, high = (float(x.mean()) for x in (asked.cost_usd.amin(1), asked.cost_usd[:, single]))
        for name, (before, now) in known.items():
            weight = curve(before, spent, past, unit_usd=router.unit_usd).weight_for(wanted)
            cost = hidden.cost_usd if now is hidden.score else predicted.cost_usd
            greedy, thrifty = (choose(now, cost, asked.able, weight=w, unit_usd=router.unit_usd) for w in (0.0, weight))
            _note(tracks, name, len(replay), rows, asked, greedy, thrifty)
            tracks[name].curves.append(curve(now, cost, asked, unit_usd=router.unit_usd))
            tracks[name].areas.append(tracks[name].curves[-1].area(low, high))
    return tracks


def _note(
    tracks: dict[str, Track], name: str, n: int, rows: Tensor, asked: Replay, greedy: Tensor, thrifty: Tensor
) -> None:
    empty: dict[str, Any] = {part: np.zeros(n) for part in PARTS}
    kept = tracks.setdefault(name, Track(**empty))
    each = torch.arange(len(rows))
    kept.score[rows], kept.cost[rows] = asked.score[each, greedy], asked.cost_usd[each, greedy]
    kept.thrifty_score[rows], kept.thrifty_cost[rows] = asked.score[each, thrifty], asked.cost_usd[each, thrifty]


def to_json(kept: Track, single: Track) -> dict[str, Any]:
    gain, thrifty = kept.score - single.score, kept.thrifty_score - single.score
    return {
        "score": kept.score.mean(),
        "gain": gain.mean(),
        "gain_ci95": interval(gain),
        "cost_fraction": kept.cost.sum() / single.cost.sum(),
        "at_best_single": {
            "gain": thrifty.mean(),
            "gain_ci95": interval(thrifty),
            "cost_fraction": kept.thrifty_cost.sum() / single.cost.sum(),
        }
        if kept.curves
        else None,
        "aiq": float(np.mean(kept.areas)) if kept.areas else None,
        "curve": [list(point) for point in zip(*_mean_curve(kept, single), strict=True)] if kept.curves else None,
    }


def _mean_curve(kept: Track, single: Track) -> tuple[list[float], list[float]]:
    """Share of the best single worker's cost, and score, at each weight."""
    costs, scores = (torch.stack([getattr(c, part) for c in kept.curves]).mean(0) for part in ("cost_usd", "score"))
    return (costs / single.cost.mean()).tolist(), scores.tolist()


def show(data: dict[str, Any]) -> None:
    print(f"{'':18}  score  to best_single               cost   at best_single's score       cost    AIQ")
    for name, row in sorted(data.items(), key=lambda item: item[1]["score"]):
        cells = f"{name:18} {row['score']:6.4f}  {_gain(row)} {row['cost_fraction']:6.1%}"
        there = row["at_best_single"]
        print(cells + (f"   {_gain(there)} {there['cost_fraction']:6.1%}  {row['aiq']:.4f}" if there else ""))


def _gain(row: dict[str, Any]) -> str:
    low, high = row["gain_ci95"]
    return f"{row['gain']:+.4f} [{low:+.4f}, {high:+.4f}]"


def plot(data: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, row in data.items():
        if row["curve"]:
            points = sorted(row["curve"])
            axes.plot(*zip(*points, strict=True), marker=".", label=f"{name} (AIQ {row['aiq']:.3f})")
    for name in ("best_single", "cheapest", "random"):
        axes.plot(data[name]["cost_fraction"], data[name]["score"], "k^")
        axes.annotate(
            name, (data[name]["cost_fraction"], data[name]["score"]), xytext=(6, -12), textcoords="offset points"
        )
    axes.axhline(data["best_single"]["score"], color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="cost, as a share of the best single worker's", ylabel="mean score", xlim=(0, 1.2))
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")


def main(given: Sequence[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--encoder", default="fast")
    arguments.add_argument("--folds", type=int, default=11)
    arguments.add_argument("--repeats", type=int, default=1)
    arguments.add_argument("--plot", type=Path, default=Path("docs/figures/routes.svg"))
    options = arguments.parse_args(given)
    torch.set_num_threads(1)
    replay = read_outcomes(options.folder / "train.jsonl", read_catalogue(options.folder / "catalogue.json"))
    tracks = run(replay, options.encoder, options.folds, options.repeats)
    data = {name: to_json(kept, tracks["best_single"]) for name, kept in tracks.items()}
    show(data)
    difference = tracks[ROUTER].score - tracks["per_type"].score
    text = {"gain": difference.mean(), "gain_ci95": interval(difference)}
    print(f"what text adds, {ROUTER} to per_type: {_gain(text)}")
    plot(data, options.plot)
    setting = {"encoder": options.encoder, "folds": options.folds, "repeats": options.repeats, "queries": len(replay)}
    save(f"routes_{options.encoder}", setting | {"text_adds": text, "weights": WEIGHTS.tolist(), "methods": data})


if __name__ == "__main__":
    main()
