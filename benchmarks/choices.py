"""Choices among options on recorded outcomes, compared with Vowpal Wabbit, nearest neighbours and ridge regression.

    python benchmarks/choices.py offline ../shared/data/routes/llmrouter      # about 20 minutes with the peers
    python benchmarks/choices.py online ../shared/data/routes/llmrouter       # from a cold start; also --no-types
    python benchmarks/choices.py withheld ../shared/data/routes/llmrouter     # an option found by its description
    python benchmarks/choices.py continued ../shared/data/routes/llmrouter    # yesterday's policy and today's data
    python benchmarks/choices.py scale                                        # a million logged decisions
    python benchmarks/choices.py latency ../shared/data/routes/llmrouter      # one decision, 9 to 1,000 options

The folder holds `catalogue.json` and `train.jsonl`. Every query is tested once per repeat, by what the other folds
teach; everything that is chosen is chosen on those. Differences are paired by query; intervals are 95 %.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from choice_peers import (
    EXPLORERS,
    Explorer,
    Floats,
    Ints,
    Logged,
    Outcomes,
    Predicted,
    best_single,
    knn,
    log_uniformly,
    ridge,
    vowpal,
    vowpal_from_file,
    vowpal_online,
)
from results import save
from rich.progress import track

from etude.contracts.option import Option, read_options
from etude.evidence.intervals import interval
from etude.learning.explore import probabilities
from etude.problems.choice.fit import Trained, continue_choice, fit_choice
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.rows import ReplayFile, Row
from etude.problems.choice.settings import ChoiceConfig
from etude.text.encoders import make_encoder

ETUDE, VOWPAL, BEST_SINGLE = "etude", "vowpal", "best single"
ENCODER = make_encoder("fast")


def contexts(data: Outcomes, *, types: bool) -> list[dict[str, Any]]:
    if types and data.types:
        return [{"text": text, "task_type": kind} for text, kind in zip(data.texts, data.types, strict=True)]
    return [{"text": text} for text in data.texts]


def to_rows(data: Outcomes, logged: Logged | None, *, types: bool) -> list[Row]:
    names = [option["name"] for option in data.options]
    rows = []
    for i, context in enumerate(contexts(data, types=types)):
        tried = range(len(names)) if logged is None else [int(logged.action[i])]
        outcomes = {names[j]: {"score": float(data.score[i, j]), "cost_usd": float(data.cost[i, j])} for j in tried}
        propensity = None if logged is None else float(logged.propensity[i])
        rows.append(Row(context=context, outcomes=outcomes, propensity=propensity, group=data.texts[i]))
    return rows


def fit(rows: list[Row], options: Sequence[Option] | None = None, *, seed: int = 0) -> Trained:
    return fit_choice(lambda: iter([rows]), ENCODER, ChoiceConfig(), options=options, seed=seed)


def columns(data: Outcomes, model: ChoiceModel) -> Ints:
    """Column of the data for each option of the model."""
    names = [option["name"] for option in data.options]
    return np.array([names.index(name) for name in model.table.names])


def etude(train: Outcomes, test: Outcomes, *, logged: Logged | None = None, types: bool) -> Predicted:
    trained = fit(to_rows(train, logged, types=types), read_options(train.options))
    model = trained.model
    expected = model.expect(contexts(test, types=types))
    place = columns(test, model)
    score = np.full(test.score.shape, -np.inf)
    score[:, place] = expected.score
    weight = model.frontier.weight_for(float(model.outcomes.parts[0].mean.max()))
    thrifty = place[expected.utility(weight, model.unit_usd).argmax(1)]
    part = model.outcomes.parts[0]
    return Predicted(
        score=score, setting=f"ridge {part.ridge:g}, text {model.outcomes.scale.min():.2g}", thrifty=thrifty
    )


def by_type(train: Outcomes, test: Outcomes, *, logged: Logged | None = None, types: bool) -> Predicted:
    """The mean score of each option in the task type, shrunk to its overall mean by one observation."""
    known = np.ones(train.score.shape) if logged is None else logged.action[:, None] == np.arange(train.score.shape[1])
    overall = (train.score * known).sum(0) / known.sum(0)
    kinds = train.types if types and train.types else [""] * len(train)
    asked = test.types if types and test.types else [""] * len(test)
    found = {}
    for kind in set(kinds):
        own = np.array(kinds) == kind
        found[kind] = ((train.score * known)[own].sum(0) + overall) / (known[own].sum(0) + 1)
    return Predicted(score=np.stack([found.get(kind, overall) for kind in asked]), setting="")


PEERS: dict[str, Callable[..., Predicted]] = {VOWPAL: vowpal, "knn": knn, "ridge": ridge, "mean of the type": by_type}


@dataclass
class Track:
    """One way to choose over all folds, by query, as means over repeats."""

    score: Floats
    cost: Floats
    thrifty_score: Floats
    thrifty_cost: Floats
    settings: Counter[str] = field(default_factory=Counter)


def by_folds(
    data: Outcomes, folds: int, repeats: int, ways: dict[str, Callable[..., Predicted]], *, types: bool, logged: bool
) -> dict[str, Track]:
    tracks: dict[str, Track] = {}
    n, options = data.score.shape
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        log = log_uniformly(n, options, rng)
        for rows in track(np.array_split(rng.permutation(n), folds), description=f"repeat {seed}"):
            rest = np.setdiff1d(np.arange(n), rows)
            train, test = data.take(rest), data.take(rows)
            kept = log.take(rest) if logged else None
            single = np.full(len(rows), best_single(train, kept))
            found = {BEST_SINGLE: (single, single, "")}
            for name, way in ways.items():
                predicted = way(train, test, logged=kept, types=types)
                greedy = predicted.score.argmax(1)
                found[name] = greedy, greedy if predicted.thrifty is None else predicted.thrifty, predicted.setting
            for name, (greedy, thrifty, setting) in found.items():
                kept_track = tracks.setdefault(name, Track(np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)))
                for part, pick in zip(PARTS, (greedy, greedy, thrifty, thrifty), strict=True):
                    table = data.cost if part.endswith("cost") else data.score
                    getattr(kept_track, part)[rows] += table[rows, pick] / repeats
                kept_track.settings[setting] += 1
    return tracks


PARTS = ("score", "cost", "thrifty_score", "thrifty_cost")


def to_json(tracks: dict[str, Track]) -> dict[str, Any]:
    single, ours = tracks[BEST_SINGLE], tracks[ETUDE]
    return {
        name: {
            "score": float(kept.score.mean()),
            "gain": float((kept.score - single.score).mean()),
            "gain_ci95": interval(kept.score - single.score),
            "ours_above": float((ours.score - kept.score).mean()),
            "ours_above_ci95": interval(ours.score - kept.score),
            "cost_fraction": float(kept.cost.sum() / single.cost.sum()),
            "at_best_single": {
                "gain": float((kept.thrifty_score - single.score).mean()),
                "gain_ci95": interval(kept.thrifty_score - single.score),
                "cost_fraction": float(kept.thrifty_cost.sum() / single.cost.sum()),
            },
            "settings": dict(kept.settings.most_common()),
        }
        for name, kept in tracks.items()
    }


def show(title: str, values: dict[str, Any]) -> None:
    print(f"\n{title}\n{'':16}  score  to the best single option     ours above it", flush=True)
    for name, row in sorted(values.items(), key=lambda item: item[1]["score"]):
        gain, above = (
            f"{row[key]:+.4f} [{row[f'{key}_ci95'][0]:+.4f}, {row[f'{key}_ci95'][1]:+.4f}]"
            for key in ("gain", "ours_above")
        )
        print(f"{name:16} {row['score']:6.4f}  {gain}  {above}", flush=True)


def offline(arguments: argparse.Namespace) -> None:
    data = read(arguments.folder)
    ways = {ETUDE: etude} | (PEERS if arguments.peers else {"mean of the type": by_type})
    values: dict[str, Any] = {}
    for types, logged in product((True, False), (False, True)):
        title = f"{'one logged outcome' if logged else 'all outcomes'}, {'with' if types else 'without'} task types"
        values[title] = to_json(by_folds(data, arguments.folds, arguments.repeats, ways, types=types, logged=logged))
        show(title, values[title])
        there = values[title][ETUDE]["at_best_single"]
        print(
            f"etude at the best single option's score: {there['gain']:+.4f} at {there['cost_fraction']:.1%} of its cost"
        )
    setting = {"folds": arguments.folds, "repeats": arguments.repeats, "queries": len(data)}
    save("choices_offline", setting | {"situations": values})


# Online


GROWTH = 1.15
"""By what factor the log grows until the policy is fitted again."""


def etude_online(stream: Outcomes, order: Ints, *, explore: str, types: bool, seed: int = 0, first: int = 20) -> Floats:
    """(n,) scores of the decisions, in order. The policy is fitted again each time its log has grown by 15 %."""
    rng, K = np.random.default_rng(seed), stream.score.shape[1]
    asked, names = contexts(stream, types=types), [option["name"] for option in stream.options]
    described, config = read_options(stream.options), ChoiceConfig()
    log, scores, model, due = list[Row](), np.zeros(len(order)), None, first
    at = 0
    while at < len(order):
        until = min(due, len(order))
        block = order[at:until]
        probability = np.full((len(block), K), 1 / K)
        if model is not None:
            expected = model.expect([asked[i] for i in block], model.table.offer(stream.options, ENCODER))
            trust = np.where(expected.count > 0, config.posterior_scale, 1.0)  # as ChoicePolicy does
            chances = zip(expected.score, trust * expected.error, strict=True)
            probability = np.stack([probabilities(u, e, explore=explore, price=config.price) for u, e in chances])
        for row, chance in zip(block, probability, strict=True):
            action = int(rng.choice(K, p=chance))
            scores[at] = stream.score[row, action]
            outcome = {names[action]: {"score": float(scores[at])}}
            log.append(Row(context=asked[row], outcomes=outcome, propensity=float(chance[action]), group=str(row)))
            at += 1
        due = int(due * GROWTH)
        if at < len(order):
            model = fit(log, described, seed=seed).model
    return scores


def online(arguments: argparse.Namespace) -> None:
    data, types = read(arguments.folder), arguments.types
    n, ways = len(data), dict[str, Callable[[Ints, int], Floats]]()
    tuning, *streams = (np.random.default_rng(seed).permutation(n) for seed in range(arguments.orders + 1))
    for name, explorers in EXPLORERS.items():
        trials = {e: vowpal_online(data, tuning, explorer=e, types=types).mean() for e in explorers}
        best = max(trials, key=lambda e: trials[e])
        ways[f"{VOWPAL} {name}"] = partial(_vowpal, data, best, types)
    for explore in arguments.explore:
        ways[f"{ETUDE} {explore}"] = partial(_etude, data, explore, types)
    found = {
        name: np.array([way(order, s).mean() for s, order in enumerate(track(streams, description=name), 1)])
        for name, way in ways.items()
    }
    peer = max((name for name in found if name.startswith(VOWPAL)), key=lambda name: found[name].mean())
    values = {
        name: {
            "score": float(scores.mean()),
            "by_order": scores.tolist(),
            "above_best_peer": float((scores - found[peer]).mean()),
            "above_best_peer_ci95": interval(scores - found[peer]),
        }
        for name, scores in found.items()
    }
    for name, row in values.items():
        print(name, {key: row[key] for key in ("score", "above_best_peer", "above_best_peer_ci95")}, flush=True)
    single = {"best_peer": peer, "best_single": float(data.score.mean(0).max())}
    setting = {"orders": arguments.orders, "queries": n, "types": types} | single
    save(f"choices_online_{'types' if types else 'text'}", setting | {"ways": values})


def _vowpal(data: Outcomes, explorer: Explorer, types: bool, order: Ints, seed: int) -> Floats:
    return vowpal_online(data, order, explorer=explorer, types=types, seed=seed)


def _etude(data: Outcomes, explore: str, types: bool, order: Ints, seed: int) -> Floats:
    return etude_online(data, order, explore=explore, types=types, seed=seed)


# An option that is not in the training data


def withheld(arguments: argparse.Namespace) -> None:
    """Each option in turn is left out of training, then offered with its description."""
    data = read(arguments.folder)
    rng = np.random.default_rng(0)
    test, train = np.split(rng.permutation(len(data)), [len(data) // 5])
    described, values = read_options(data.options), dict[str, Any]()
    asked = contexts(data.take(test), types=True)
    for j, option in enumerate(track(described, description="withheld")):
        others = [i for i in range(len(described)) if i != j]
        past = data.take(train)
        kept = Outcomes(
            texts=past.texts, types=past.types, options=[past.options[i] for i in others],
            score=past.score[:, others], cost=past.cost[:, others], counts=past.counts, vectors=past.vectors,
        )  # fmt: skip
        model = fit(to_rows(kept, None, types=True), [described[i] for i in others]).model
        expected = model.expect(asked, model.table.offer(data.options, ENCODER))
        rows, score = np.arange(len(test)), data.score[test]
        careful = expected.careful(expected.score, 1.0).argmax(1)
        bold = expected.score.argmax(1)
        never = np.where(np.arange(len(described)) == j, -np.inf, expected.score).argmax(1)
        values[option.name] = {
            "expected": float(expected.score[:, j].mean()),
            "actual": float(score[:, j].mean()),
            "chosen": float((careful == j).mean()),
            "to_never_offered": float((score[rows, careful] - score[rows, never]).mean()),
            "to_never_offered_ci95": interval(score[rows, careful] - score[rows, never]),
            "chosen_without_care": float((bold == j).mean()),
            "to_never_offered_without_care": float((score[rows, bold] - score[rows, never]).mean()),
        }
        print(option.name, values[option.name], flush=True)
    save("choices_withheld", {"queries": len(test), "options": values})


# Yesterday's policy and today's data


def continued(arguments: argparse.Namespace) -> None:
    data, values = read(arguments.folder), dict[str, Any]()
    described = read_options(data.options)
    for types, logged in product((True, False), (False, True)):
        gaps = []
        for seed in range(arguments.repeats):
            rng = np.random.default_rng(seed)
            n = len(data)
            log = log_uniformly(n, data.score.shape[1], rng) if logged else None
            test, first, second = np.array_split(rng.permutation(n), [n // 5, 3 * n // 5])
            rows = to_rows(data, log, types=types)
            earlier, later = ([rows[i] for i in part] for part in (first, second))
            begun = fit(earlier, described).model
            both = fit(earlier + later, described).model
            added = continue_choice(begun, partial(iter, [later]), ChoiceConfig(), options=described).model
            asked = [rows[i].context for i in test]
            picks = [columns(data, m)[m.expect(asked).score.argmax(1)] for m in (begun, added, both)]
            gaps.append([data.score[test, pick].mean() for pick in picks])
        yesterday, now, both_days = np.array(gaps).T
        title = f"{'one logged outcome' if logged else 'all outcomes'}, {'with' if types else 'without'} task types"
        values[title] = {
            "yesterday": float(yesterday.mean()),
            "continued": float(now.mean()),
            "trained_on_both": float(both_days.mean()),
            "difference": float((now - both_days).mean()),
            "difference_ci95": interval(now - both_days),
        }
        print(title, values[title], flush=True)
    save("choices_continued", {"repeats": arguments.repeats, "situations": values})


# A million logged decisions


KINDS, WORDS, CHARACTERS, OPTIONS = 12, 20_000, 500, 20
PEER_ROWS = 100_000
"""Rows that the peer reads: its time is linear in them."""


def made_up(n: int, seed: int = 0) -> Iterator[str]:
    """Lines of a replay file: texts of made-up words in kinds, 20 options, one logged outcome each."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(WORDS)]
    kinds = [rng.sample(words, 300) for _ in range(KINDS)]
    names = [f"option-{i:02d}" for i in range(OPTIONS)]
    quality = [[rng.betavariate(2, 2) for _ in names] for _ in kinds]
    for _ in range(n):
        kind, action = rng.randrange(KINDS), rng.randrange(OPTIONS)
        text = " ".join(rng.choice(kinds[kind] if rng.random() < 0.4 else words) for _ in range(75))[:CHARACTERS]
        outcome = {"score": float(rng.random() < quality[kind][action]), "cost_usd": 0.001 * (action + 1)}
        yield json.dumps({"context": text, "outcomes": {names[action]: outcome}, "propensity": 1 / OPTIONS}) + "\n"


def cpu_s() -> float:
    """Of this process and those it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def scale(arguments: argparse.Namespace) -> None:
    values, peer = [], dict[str, float]()
    for rows in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "outcomes.jsonl"
            with path.open("w") as file:
                file.writelines(made_up(rows))
            if rows == PEER_ROWS:
                peer = {"rows": rows, "wall_s": vowpal_from_file(path, OPTIONS)}
                print("vowpal, one pass", peer, flush=True)
            began, used = time.perf_counter(), cpu_s()
            trained = fit_choice(ReplayFile(path, None), ENCODER, ChoiceConfig())
            wall, cpu = time.perf_counter() - began, cpu_s() - used
        main, child = (
            resource.getrusage(who).ru_maxrss / 2**10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        values.append(
            {
                "rows": rows,
                "wall_s": wall,
                "cpu_s": cpu,
                "peak_mib": main,
                "peak_child_mib": child,
                "ridge": trained.model.outcomes.parts[0].ridge,
            }
        )
        print(values[-1], flush=True)
    save("choices_scale", {"options": OPTIONS, "characters": CHARACTERS, "runs": values, "vowpal": peer})


# One decision


def latency(arguments: argparse.Namespace) -> None:
    data, values = read(arguments.folder), dict[str, Any]()
    policy = ChoicePolicy(
        model=fit(to_rows(data, None, types=False), read_options(data.options)).model,
        config=ChoiceConfig(),
        artefact_version="benchmark",
    )
    for label, options, explore in (
        ("9 known", None, "none"),
        ("20 options, 11 of them new", many(data, 20), "none"),
        ("20 options, exploring", many(data, 20), "priced"),
        ("1,000 options", many(data, 1000), "none"),
    ):
        times = []
        chosen = policy if explore == "none" else policy.sampled()
        for text in data.texts[: arguments.calls]:
            began = time.perf_counter()
            chosen.choose(text, options=options)
            times.append(1e3 * (time.perf_counter() - began))
        del times[: len(times) // 10]
        values[label] = {"p50_ms": float(np.percentile(times, 50)), "p99_ms": float(np.percentile(times, 99))}
        print(label, values[label], flush=True)
    save("choices_latency", {"calls": arguments.calls, "cases": values})


def many(data: Outcomes, count: int) -> list[dict[str, Any]]:
    """That many options: those of the data, then variations of them under other names."""
    known = data.options
    return [known[i] if i < len(known) else {**known[i % len(known)], "name": f"other-{i}"} for i in range(count)]


def read(folder: Path) -> Outcomes:
    return Outcomes.read(folder / "train.jsonl", folder / "catalogue.json")


def main(given: Sequence[str] | None = None) -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = arguments.add_subparsers(required=True)
    for run in (offline, online, withheld, continued, scale, latency):
        part = parts.add_parser(run.__name__)
        part.set_defaults(run=run)
        if run is scale:
            part.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
        else:
            part.add_argument("folder", type=Path)
        if run is offline:
            part.add_argument("--folds", type=int, default=5)
            part.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
        if run in (offline, continued):
            part.add_argument("--repeats", type=int, default=1 if run is offline else 5)
        if run is online:
            part.add_argument("--orders", type=int, default=10)
            part.add_argument("--explore", nargs="+", default=["thompson"])
            part.add_argument("--types", action=argparse.BooleanOptionalAction, default=True)
        if run is latency:
            part.add_argument("--calls", type=int, default=1000)
    options = arguments.parse_args(given)
    options.run(options)


if __name__ == "__main__":
    main()
