"""The choice of `loop_cycles.py`: which model answers a query, on public outcomes of nine models for 5,608 queries."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
from choices import read

import etude
from etude.bootstrap import experience as wiring
from etude.bootstrap.experience import open_place
from etude.bootstrap.gates import contender
from etude.bootstrap.release import settings_here
from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.query import Where
from etude.experience.datasets import DatasetConfig, create
from etude.loop.coordinator import Coordinator
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.table import find_spec
from etude.release.registry import Registry

SLOT, NAME = "choice:model", "model"
OFFERED = 4
"""Models that are offered at a time, of nine."""
EPSILON = 0.2
"""Share of explored decisions: each option is taken with a probability of at least .05."""
HELD_OUT = 1500
"""Queries that no traffic has."""
FIRST = 3000
"""Uniform choices before the first policy, of which it learns from a sixth; the others judge it."""
RESERVE = 0.05
"""Share of the cost without a policy by which the budget is below it."""
PRICES, QUALITY, CHANGED = 0.15, 0.15, 2
"""Standard deviations per cycle of the logarithm of prices, and of the quality factor of some models; and how many."""


class ChoiceWorld:
    slot, per_day, batch, start = SLOT, 6000, 500, "no policy"

    def __init__(self, folder: Path, seed: int) -> None:
        data = read(folder)
        self.seed, self.data = seed, data
        order = np.random.default_rng(seed).permutation(len(data))
        self.held_out, self.traffic = order[:HELD_OUT], order[HELD_OUT:]
        self.names = [option["name"] for option in data.options]
        self.drift(-1)

    def budget(self) -> float:
        """Mean USD of a query of the traffic with options that are sampled evenly, as they are without a policy, less
        a reserve, since a budget holds for the mean of past queries."""
        return (1 - RESERVE) * float(self.cost[np.ix_(self.traffic, self.offered)].mean())

    def settings(self) -> dict[str, Any]:
        return {
            "experience": {
                "reward_version": 4,
                "explore": 0.1,
                "policies": {NAME: "served"},
                "decide_timeout_ms": 60000.0,
            },
            "choice": {
                "explore": "epsilon",
                "epsilon": EPSILON,
                "max_mean_cost_usd": self.budget(),
            },
            "release": {"gates": {"min_propensity": EPSILON / OFFERED}},
        }

    def drift(self, cycle: int) -> str:
        """The state after all drifts up to this cycle, which depends on the seed alone."""
        rng = np.random.default_rng([self.seed, 1])
        K = len(self.names)
        order = rng.permutation(K).tolist()
        self.offered, absent = order[:OFFERED], order[OFFERED:]
        self.price, self.quality = np.ones(K), np.full(K, 0.85)
        said = ""
        for _ in range(cycle + 1):
            self.price *= np.exp(rng.normal(0, PRICES, K))
            changed = rng.choice(self.offered, CHANGED, replace=False)
            self.quality[changed] = np.clip(self.quality[changed] + rng.normal(0, QUALITY, CHANGED), 0.5, 1.0)
            gone, new = self.offered.pop(int(rng.integers(OFFERED))), absent.pop(0)
            self.offered.append(new)
            self.quality[new] = 1.0  # it comes in a better version
            absent.append(gone)
            said = f"{self.names[gone]} disappears, {self.names[new]} appears; quality of " + ", ".join(
                f"{self.names[i]} {self.quality[i]:.2f}" for i in changed
            )
        self.success = np.clip(self.data.score * self.quality, 0, 1)  # (queries, models)
        self.cost = self.data.cost * self.price
        self.options = [self._option(i) for i in self.offered]
        self.logged: dict[int, list[float]] = {}
        for collector in wiring._collector.made.values():  # what serves starts again, with the settings of the cycle
            collector.bus.close()
        wiring._collector.made.clear()
        return said

    def _option(self, i: int) -> dict[str, Any]:
        option = dict(self.data.options[i])
        for key in ("usd_per_mtok_in", "usd_per_mtok_out"):
            option[key] = round(float(option[key] * self.price[i]), 4)
        return option

    def context(self, row: int) -> dict[str, Any]:
        assert self.data.types is not None
        return {"text": self.data.texts[row], "task_type": self.data.types[row]}

    def first(self, loop: Coordinator, clock: Any) -> str:
        folder, data = Path("first"), "datasets/first"
        self._add_reward()
        self.serve(FIRST, clock)
        loop.ingest()
        config = DatasetConfig(shares=(1 / 6, 0.0, 5 / 6))
        create(
            loop.store,
            open_place(data, settings_here().experience),
            problem=SLOT,
            where=Where(problem=SLOT),
            version=4,
            config=config,
            time=clock(),
        )
        command("train", "choice", "--dataset", data, "--out", str(folder), "--config", "etude.yaml", "--no-progress")
        return str(folder)

    def _add_reward(self) -> None:
        add_success_reward()

    def serve(self, number: int, clock: Any) -> list[dict[str, float]]:
        found, rng = [], random.Random(f"{self.seed} {clock()}")
        place = {self.names[i]: i for i in self.offered}
        for _ in range(number):
            row = int(rng.choice(self.traffic))
            with etude.task(self.data.texts[row]) as task:
                chosen = place[task.decide(NAME, self.context(row), options=self.options)["name"]]
                success, cost = rng.random() < self.success[row, chosen], float(self.cost[row, chosen])
                task.outcome(success=success, cost_usd=cost)
            clock.advance(86400 / self.per_day)
            self.logged.setdefault(chosen, []).append(float(success))
            found.append({"success": float(success), "cost_usd": cost})
        return found

    def measure(self, registry: Registry, version: str) -> dict[str, float]:
        return self._measure(self._decider(registry, version))

    def _decider(self, registry: Registry, version: str) -> ChoicePolicy:
        return cast(
            ChoicePolicy, contender(registry.artefact(version), find_spec("choice"), SLOT, settings_here()).load()
        )

    def _measure(self, decider: ChoicePolicy) -> dict[str, float]:
        """Exact: the mean over held-out queries of what each option gives, by the policy's probabilities."""
        offered = tuple(self.options)
        requests = [DecisionRequest(context=self.context(row), options=offered, explain=True) for row in self.held_out]
        made = cast(list[Decision], decider.decide_many(requests))
        p = np.array([[one.expected[option["name"]].probability for option in offered] for one in made])
        greedy = self.success[self.held_out, np.array(self.offered)[p.argmax(1)]].mean()
        return self._of(p) | {"greedy": float(greedy)}

    def baselines(self) -> dict[str, dict[str, float]]:
        means = {i: float(np.mean(seen)) for i, seen in self.logged.items() if len(seen) >= 30}
        logged = max(means, key=lambda i: means[i]) if means else self.offered[0]
        hindsight = max(self.offered, key=lambda i: self.success[self.held_out, i].mean())
        even = np.full((len(self.held_out), OFFERED), 1 / OFFERED)
        return {
            "no policy": self._of(even),
            "best mean in the logs": self._single(logged),
            "best single option": self._single(hindsight),
            "best by task type": self._best_by_type(),
        }

    def _best_by_type(self) -> dict[str, float]:
        """The rule with one option per task type that has most success within the budget, exploring as policies do: by
        what is true of the traffic's queries, with the cost weighed by one price for all."""
        assert self.data.types is not None
        types = np.array(self.data.types)
        success, cost = self.success[:, self.offered], self.cost[:, self.offered]
        found = []
        for price in (0.0, *np.logspace(0, 6, 61)):
            taken = {
                kind: int((success[rows].mean(0) - price * cost[rows].mean(0)).argmax())
                for kind in set(types[self.held_out])
                if len(rows := self.traffic[types[self.traffic] == kind])
            }
            chosen = [taken.get(kind, 0) for kind in types]
            p = (1 - EPSILON) * np.eye(OFFERED)[chosen] + EPSILON / OFFERED
            if (p * cost)[self.traffic].sum(1).mean() > self.budget():
                continue
            found.append(self._of(p[self.held_out]) | {"traffic": float((p * success)[self.traffic].sum(1).mean())})
        return max(found, key=lambda row: row["traffic"])

    def _of(self, p: np.ndarray) -> dict[str, float]:
        """Of probabilities (held out, offered)."""
        at = np.ix_(self.held_out, self.offered)
        success, cost = (p * self.success[at]).sum(1).mean(), (p * self.cost[at]).sum(1).mean()
        return {"success": float(success), "cost_usd": float(cost)}

    def _single(self, i: int) -> dict[str, float]:
        return {
            "success": float(self.success[self.held_out, i].mean()),
            "cost_usd": float(self.cost[self.held_out, i].mean()),
        }


def add_success_reward() -> None:
    """Reward definition 4: whether the task succeeded."""
    definition = {
        "version": 4,
        "name": "success",
        "description": "whether the task succeeded",
        "bounds": [0.0, 1.0],
        "components": [{"name": "completion", "source": "completion", "weight": 1.0}],
    }
    Path("reward.yaml").write_text(json.dumps(definition))
    command("reward", "add", "reward.yaml")


def command(*arguments: str) -> None:
    """An `etude` command in this folder."""
    done = subprocess.run([sys.executable, "-m", "etude.cli", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"etude {' '.join(arguments)}: {done.stdout}{done.stderr}")
