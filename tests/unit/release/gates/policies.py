"""Policies, good and deliberately bad ones, logs in memory, and a context for gates to judge them with."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from etude.contracts.decision import Decision, DecisionRequest, Expected, LoggedDecision, NoOptionError
from etude.contracts.errors import DataError
from etude.contracts.option import option_name, read_options, why_not
from etude.contracts.plain import plain
from etude.contracts.ports import Decider
from etude.contracts.trajectory import Trajectory
from etude.experience.datasets import Example
from etude.learning.artefact import Artefact, write_artefact
from etude.learning.gate import Contender, GateConfig, GateContext
from etude.learning.logged import Logged
from etude.problems.base import Evaluation
from etude.problems.spec import ProblemSpec
from etude.release.gates.red_team import read_instructions

OPTIONS = (
    {"name": "small", "cost_usd": 0.001, "latency_ms": 50.0, "description": "quick and cheap"},
    {"name": "middle", "cost_usd": 0.01, "latency_ms": 200.0, "description": "good at most things"},
    {"name": "large", "cost_usd": 0.1, "latency_ms": 900.0, "description": "good at everything"},
)
REQUESTS = tuple(
    DecisionRequest(context={"text": f"write {n} lines about {thing}"}, options=OPTIONS, seed=n)
    for n, thing in enumerate(("rain", "maths", "a poem", "taxes") * 80)
)


class Good:
    """Samples among what is eligible, the shorter names more often, and says with which probability."""

    problem = "choice:model"

    def __init__(self, version: str) -> None:
        self.version = version

    def decide(self, request: DecisionRequest) -> Decision:
        if request.context is not None and not isinstance(request.context, str | int | float | Mapping):
            raise DataError(f"the context is {type(request.context).__name__}")
        cap = request.preferences.max_cost_usd
        if cap is not None and not cap >= 0:
            raise DataError(f"max_cost_usd is {cap}: expected at least 0")
        options = read_options(request.options)
        free = [option for option in options if why_not(option, request.preferences) is None]
        if not free:
            raise NoOptionError("no option may be chosen", {})
        chances = self.chances([option.name for option in free], request)
        at = self.draw(chances, request)
        return self.decision(request, free[at].name, dict(zip([o.name for o in free], chances, strict=True)), options)

    def chances(self, names: Sequence[str], request: DecisionRequest) -> Sequence[float]:
        weights = [1 / (1 + len(name)) for name in names]
        return [weight / math.fsum(weights) for weight in weights]

    def draw(self, chances: Sequence[float], request: DecisionRequest) -> int:
        return random.Random(request.seed).choices(range(len(chances)), chances)[0]

    def decision(
        self, request: DecisionRequest, chosen: str, chances: Mapping[str, float], options: Sequence[Any]
    ) -> Decision:
        p = self.says(chances.get(chosen, 1.0))
        logged = LoggedDecision(
            problem=self.problem,
            context=plain(request.context),
            eligible=list(chances),
            action=chosen,
            propensity=p,
            policy=self.version,
        )
        expected = {
            option.name: Expected(
                score=1 / len(option.name),
                score_se=0.1,
                cost_usd=option.numbers.get("cost_usd"),
                probability=chances.get(option.name, 0.0),
                masked=why_not(option, request.preferences),
            )
            for option in options
        }
        return Decision(
            action=chosen, propensity=p, policy=self.version, logged=(logged,), expected=self.tells(expected)
        )

    def says(self, p: float) -> Any:
        return p

    def tells(self, expected: dict[str, Expected]) -> dict[str, Expected]:
        return expected


class PicksMasked(Good):
    """Takes the first option whatever the mask says."""

    def decide(self, request: DecisionRequest) -> Decision:
        options = read_options(request.options)
        return self.decision(request, options[0].name, {options[0].name: 1.0}, options)


class ExceedsCap(Good):
    """Minds masks, but not the limit of the cost."""

    def decide(self, request: DecisionRequest) -> Decision:
        options = read_options(request.options)
        priciest = max(options, key=lambda option: option.numbers.get("cost_usd", 0.0))
        if why_not(priciest, request.preferences) is None or request.preferences.max_cost_usd is None:
            return super().decide(request)
        return self.decision(request, priciest.name, {priciest.name: 1.0}, options)


class Crashes(Good):
    """Cannot read a lone surrogate."""

    def decide(self, request: DecisionRequest) -> Decision:
        str(request.context).encode()
        text = request.context.get("text") if isinstance(request.context, dict) else request.context
        if isinstance(text, str):
            text.encode()
        return super().decide(request)


class IgnoresSeed(Good):
    """Another answer each time."""

    count = itertools.count()

    def draw(self, chances: Sequence[float], request: DecisionRequest) -> int:
        return random.Random(next(self.count)).choices(range(len(chances)), chances)[0]


class PerInstance(Good):
    """Another answer after each loading."""

    count = itertools.count()

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.own = next(self.count)

    def draw(self, chances: Sequence[float], request: DecisionRequest) -> int:
        return random.Random(request.seed + self.own).choices(range(len(chances)), chances)[0]


class SharesState(Good):
    """Keeps the request that it works on where other threads write it too."""

    def draw(self, chances: Sequence[float], request: DecisionRequest) -> int:
        self.seed = request.seed
        time.sleep(0.002)
        return random.Random(self.seed).choices(range(len(chances)), chances)[0]


class WrongPropensity(Good):
    """Samples evenly and says otherwise, consistently."""

    def draw(self, chances: Sequence[float], request: DecisionRequest) -> int:
        return random.Random(request.seed).randrange(len(chances))

    def chances(self, names: Sequence[str], request: DecisionRequest) -> Sequence[float]:
        return [1.0] if len(names) == 1 else [0.9, *[0.1 / (len(names) - 1)] * (len(names) - 1)]


class NoPropensity(Good):
    def says(self, p: float) -> Any:
        return None


class AboveOne(Good):
    def says(self, p: float) -> Any:
        return 1.5 * max(p, 0.8)


class OtherThanItsOwn(Good):
    """Logs another probability than it samples with."""

    def says(self, p: float) -> Any:
        return p / 2


class OffersItself(Good):
    """Takes an option that no one offered."""

    def decide(self, request: DecisionRequest) -> Decision:
        options = read_options(request.options)
        return self.decision(request, "house special", {"house special": 1.0}, options)

    def tells(self, expected: dict[str, Expected]) -> dict[str, Expected]:
        return {}


class RefusesAll(Good):
    def decide(self, request: DecisionRequest) -> Decision:
        raise DataError("not today")


class Hangs(Good):
    """Waits for text that is long."""

    def decide(self, request: DecisionRequest) -> Decision:
        if len(str(request.context)) > 10_000:
            time.sleep(30)
        return super().decide(request)


class OtherName(Good):
    """Logs under another version."""

    def decision(
        self, request: DecisionRequest, chosen: str, chances: Mapping[str, float], options: Sequence[Any]
    ) -> Decision:
        own, self.version = self.version, "another"
        try:
            return super().decision(request, chosen, chances, options)
        finally:
            self.version = own


class Slow(Good):
    def decide(self, request: DecisionRequest) -> Decision:
        time.sleep(0.003)
        return super().decide(request)


class Leaks(Good):
    """Keeps all it was asked."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.kept: list[Any] = []

    def decide(self, request: DecisionRequest) -> Decision:
        self.kept.append(bytearray(4_000))
        return super().decide(request)


class Fills(Good):
    """Keeps a lot, once."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.kept = np.ones(12_000_000)


class Obeys(Good):
    """Takes the option whose name the text has, masked or not."""

    def decide(self, request: DecisionRequest) -> Decision:
        options, text = read_options(request.options), str(request.context)
        named = [option.name for option in options if f" {option.name}." in text]
        if not named:
            return super().decide(request)
        return self.decision(request, named[0], {named[0]: 1.0}, options)


class TakesLarge(Good):
    """The most capable option for whoever is rude."""

    def chances(self, names: Sequence[str], request: DecisionRequest) -> Sequence[float]:
        if "hurtful" in str(request.context) and "large" in names:
            return [float(name == "large") for name in names]
        return super().chances(names, request)


class Echoes(Good):
    """Repeats the text in its answer, as a planner might in a parameter."""

    def decide(self, request: DecisionRequest) -> Decision:
        found = super().decide(request)
        return Decision(
            action={"name": option_name(found.action), "text": str(request.context)},
            propensity=found.propensity,
            policy=found.policy,
            logged=found.logged,
            expected=found.expected,
        )


BAD: dict[str, type[Good]] = {
    "not eligible|is not among allowed|is not available|above max_cost": PicksMasked,
    "above max_cost_usd": ExceedsCap,
    "UnicodeEncodeError": Crashes,
    "the same seed gave another answer": IgnoresSeed,
    "same seed gave another answer": PerInstance,
    "threads": SharesState,
    "but its propensity is": WrongPropensity,
    "propensity is None": NoPropensity,
    "expected a probability": AboveOne,
    "its own probability": OtherThanItsOwn,
    "was not offered": OffersItself,
    "refused a valid request": RefusesAll,
    "log entry names policy": OtherName,
}
"""By what the safety suite says of them."""

# Logs


@dataclass(frozen=True, kw_only=True)
class Logs:
    """A `LoggedDataset` in memory."""

    rows: Mapping[str, Sequence[Example]]
    problem: str = "choice:model"
    content: str = "c" * 64
    facts: Mapping[str, str] = field(default_factory=lambda: {"id": "d", "url": "memory", "reward": "1"})
    policies: Mapping[str, int] = field(default_factory=lambda: {"uniform": 1})

    @property
    def splits(self) -> Mapping[str, int]:
        return {name: len(rows) for name, rows in self.rows.items()}

    def examples(self, split: str) -> Iterator[Sequence[Example]]:
        rows = self.rows.get(split, ())
        yield from (rows[i : i + 500] for i in range(0, len(rows), 500))


NORTH, SOUTH = "north", "south"


def make_examples(
    count: int,
    *,
    seed: int = 0,
    chance: Callable[[str], float] = lambda group: 0.5,
    success: Callable[[str, str], float] = lambda group, action: 0.8 if action == "a" else 0.4,
    groups: Sequence[str | None] = (None,),
    first: int = 0,
) -> list[Example]:
    """One decision between a and b each; `chance` is the probability of a, `success` that of reward 1."""
    rng, found = random.Random(seed), []
    for i in range(first, first + count):
        group = groups[i % len(groups)]
        p = chance(group or "")
        action = "a" if rng.random() < p else "b"
        decision = LoggedDecision(
            problem="choice:model",
            context={"group": group or ""},
            eligible=["a", "b"],
            action=action,
            propensity=p if action == "a" else 1 - p,
            policy="uniform",
        )
        trajectory = Trajectory(
            id=f"t{i}",
            time=datetime(2026, 11, 1, tzinfo=UTC),
            task=f"task {i}",
            problem="choice:model",
            group=group,
            decisions=(decision,),
        )
        reward = float(rng.random() < success(group or "", action))
        found.append(Example(trajectory=trajectory, reward=reward, confidence=1.0, weight=1.0, context=f"{i}"))
    return found


class Network(torch.nn.Module):
    def evaluate(self, obs: Mapping[str, torch.Tensor], action: Mapping[str, torch.Tensor]) -> Evaluation:
        chance = torch.where(action["option"] == 1, obs["a"], 1 - obs["a"])
        return Evaluation(log_prob=chance.clamp(min=1e-12).log(), entropy=chance * 0, value=obs["expected"])


class Reader:
    """Reads logs for a policy whose manifest says how probable `a` is, and which reward it expects, by group."""

    def __init__(self, chances: Mapping[str, float], expected: Mapping[str, float]) -> None:
        self.policy, self.chances, self.expected = Network(), chances, expected

    def shards(self, examples: Callable[[], Iterator[Sequence[Any]]]) -> Callable[[], Iterator[Logged]]:
        def parts() -> Iterator[Logged]:
            for part in examples():
                made = [example.trajectory.decisions[0] for example in part]
                a = [self.chances.get(d.context["group"], self.chances.get("", 0.5)) for d in made]
                yield Logged(
                    obs={
                        "a": torch.tensor(a, dtype=torch.float64),
                        "expected": torch.tensor([self.expected.get(d.context["group"], 0.0) for d in made]).double(),
                    },
                    action={"option": torch.tensor([int(d.action == "a") for d in made])},
                    log_propensity=torch.tensor([d.propensity for d in made], dtype=torch.float64).log(),
                    trajectory=torch.arange(len(part)),
                    reward=torch.tensor([e.reward for e in part], dtype=torch.float64),
                    context=torch.arange(len(part)),
                    eligible=torch.full((len(part),), math.log(2)),
                )

        return parts


def read_logs(artefact: Artefact, inputs: Mapping[str, Any], device: torch.device) -> Reader:
    return Reader(artefact.manifest.details["chances"], artefact.manifest.details["expected"])


SPEC = ProblemSpec(
    name="choice",
    summary="",
    settings="",
    sections=(),
    learners={},
    load="",
    read_logs="tests.unit.release.gates.policies:read_logs",
)


def make_artefact(
    folder: Path,
    *,
    chances: Mapping[str, float] | None = None,
    data: Sequence[str] = (),
    method: str = "from-logs",
    expected: Mapping[str, float] | None = None,
) -> Artefact:
    """A folder with a manifest; `chances` of `a` by group are what its logs are judged with, and the reward that it
    expects."""
    about = {"problem": "choice", "method": method, "step": 1, "code": "test", "data": tuple(data)}
    details = {"chances": dict(chances or {"": 0.5}), "expected": dict(expected or {}), "folder": folder.name}
    return write_artefact(folder, tensors={}, files={}, about={**about, "details": details})


def make_contender(artefact: Artefact, kind: Callable[[str], Decider] = Good) -> Contender:
    return Contender(artefact=artefact, load=lambda: kind(artefact.version))


def make_context(artefact: Artefact, kind: Callable[[str], Decider] = Good, **more: Any) -> GateContext:
    version, instructions = read_instructions()
    given = {"slot": "choice:model", "spec": SPEC, "requests": REQUESTS, "config": GateConfig(fuzz_cases=180)}
    given |= {"instructions": instructions, "instructions_version": version}
    return GateContext(candidate=make_contender(artefact, kind), **{**given, **more})
