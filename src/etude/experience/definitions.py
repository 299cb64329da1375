"""The definition of a reward as data: components with a source, a weight and a baseline.

Sources, each the higher the better:

completion       1 for success; a failure earns half the share of its subtasks that were done. From 0 to 1.
efficiency       minus the mean logarithm of cost, latency and number of turns, as far as they are known.
                 Each is counted in a small unit and one is added, so that 0 gives 0. Compared per problem.
quality          mean of the outcome's scores; `quality.NAME` is one of them. From 0 to 1.
feedback         mean of the ratings: thumbs up 1, down 0, stars from 0 to 1. From 0 to 1, and often late.
execution        10·success − 0.1·US cents − 0.01·seconds + 0.1·subtasks done; weights and units are `terms`.
metadata.NAME    a number or flag in the trajectory's metadata.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from etude.contracts.decision import Amount, Name
from etude.contracts.errors import ConfigError, StoreError
from etude.contracts.reward import ExecutionReward, Version
from etude.contracts.store import ExperienceStore
from etude.contracts.suggestions import did_you_mean
from etude.contracts.trajectory import Trajectory
from etude.experience.baselines import MAX_MAGNITUDE, Method

DEFINITIONS = "reward_definition"
"""The kind of document in which definitions are stored."""

TERMS: Mapping[str, Mapping[str, float]] = {
    "execution": {
        "success": 10.0,
        "cost": 0.1,
        "cost_unit_usd": 0.01,
        "latency": 0.01,
        "latency_unit_ms": 1000.0,
        "subtask": 0.1,
    },
    "efficiency": {"cost": 1.0, "cost_unit_usd": 1e-4, "latency": 1.0, "latency_unit_ms": 100.0, "turns": 1.0},
}
"""Default weights and units of the sources that are sums."""


class ComponentDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of a reward."""

    name: Name
    source: Name
    weight: Amount
    """Weight relative to the other components; 0 holds it out."""
    normalise: Method = "none"
    """How its raw number is compared with the baseline; `none` leaves it unchanged."""
    window: Annotated[int, Meta(ge=10, le=1_000_000)] = 1000
    """Number of latest trajectories in the baseline."""
    floor: Amount = 0.0
    """Minimum spread of the baseline, in units of the raw number: differences far below it do not count."""
    per: tuple[Literal["problem", "agent", "group", "tenant"], ...] = ("problem",)
    """Only trajectories equal in these fields are compared. The policy is none of them: its gain would not show."""
    terms: dict[str, float] = {}
    """Weights and units of a source that is a sum, in place of the defaults."""

    def __post_init__(self) -> None:
        _check_component(self)
        usual = TERMS.get(self.source, {})
        msgspec.structs.force_setattr(self, "terms", {**usual, **self.terms})


class RewardDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """The components of a reward. A version never changes: other content needs another version."""

    version: Version
    name: Name
    description: str = ""
    components: Annotated[tuple[ComponentDefinition, ...], Meta(min_length=1)]
    bounds: tuple[float, float] | None = None
    """Lowest and highest reward that counts in a release, where a component has no bounds of its own."""

    def __post_init__(self) -> None:
        if self.bounds is not None and not -math.inf < self.bounds[0] < self.bounds[1] < math.inf:
            raise ConfigError(
                f"reward definition {self.version}: bounds are {list(self.bounds)}: expected two finite numbers, the "
                "lower one first"
            )
        names = Counter(component.name for component in self.components)
        if double := [name for name, count in names.items() if count > 1]:
            raise ConfigError(f"reward definition {self.version}: component {double[0]!r} occurs twice")
        weight = math.fsum(component.weight for component in self.components)
        if not 0 < weight < math.inf:
            raise ConfigError(
                f"reward definition {self.version}: the weights sum to {weight:g}: give a component a weight above 0"
            )

    @cached_property
    def hash(self) -> str:
        """Hash of the content, defaults included, without the description; a floor of 0 is as none."""
        content = msgspec.to_builtins(msgspec.structs.replace(self, description=""))
        for component in content["components"]:
            if not component["floor"]:
                del component["floor"]
        if content["bounds"] is None:
            del content["bounds"]
        return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:16]

    @property
    def range(self) -> tuple[float, float] | None:
        """Bounds of the reward: those declared, else 0 and 1 if every component with a weight has these bounds."""
        if self.bounds is not None:
            return self.bounds
        counted = [component for component in self.components if component.weight > 0]
        bounded = all(c.normalise != "none" or c.source.partition(".")[0] in _BOUNDED for c in counted)
        return (0.0, 1.0) if bounded else None

    @cached_property
    def shares(self) -> dict[str, float]:
        """Weight of each component if all are known; they sum to 1."""
        weight = math.fsum(component.weight for component in self.components)
        return {component.name: component.weight / weight for component in self.components}


_BOUNDED = frozenset({"completion", "quality", "feedback"})
"""Sources from 0 to 1."""


def _check_component(component: ComponentDefinition) -> None:
    family, dot, name = component.source.partition(".")
    known = [*_SOURCES, *(f"{named}.NAME" for named in _NAMED)]
    if component.source not in _SOURCES and not (family in _NAMED and dot and name):
        hint = did_you_mean(component.source, known)
        raise ConfigError(
            f"component {component.name!r}: unknown source {component.source!r}: {hint}there are {', '.join(known)}"
        )
    if component.source == "feedback" and component.normalise != "none":
        raise ConfigError(
            f"component {component.name!r}: feedback cannot be normalised by {component.normalise!r}: it is from 0 to "
            "1 already, and comes too late for a baseline; leave `normalise` out"
        )
    if component.floor and component.normalise == "none":
        raise ConfigError(
            f"component {component.name!r}: floor is {component.floor:g}, but nothing is compared: set `normalise`, or "
            "leave `floor` out"
        )
    usual = TERMS.get(component.source, {})
    for term, value in component.terms.items():
        if term not in usual:
            hint = did_you_mean(term, usual)
            raise ConfigError(
                f"component {component.name!r}: unknown term {term!r} of {component.source}: {hint}"
                f"there are {', '.join(usual) or 'none'}"
            )
        if not math.isfinite(value) or ("unit" in term and value <= 0):
            raise ConfigError(f"component {component.name!r}: term {term} is {value}: expected a number; units above 0")


class Finding(NamedTuple):
    """The value that a source gives for a trajectory."""

    raw: float | None
    why: str
    measured: str = ""  # how it was measured; only numbers measured alike are compared


Terms = Mapping[str, float]


def _completion(trajectory: Trajectory, _rating: float | None, _terms: Terms) -> Finding:
    outcome = trajectory.outcome
    if outcome.success is None:
        return Finding(None, "whether it was done is unknown")
    if outcome.success:
        return Finding(1.0, "done")
    if not outcome.subtasks:
        return Finding(0.0, outcome.ended if outcome.ended != "done" else "failed")
    done = min(outcome.subtasks_done or 0, outcome.subtasks)
    return Finding(0.5 * done / outcome.subtasks, f"failed, {done} of {outcome.subtasks} subtasks done")


def _efficiency(trajectory: Trajectory, _rating: float | None, terms: Terms) -> Finding:
    cost, latency_ms = _cost(trajectory), trajectory.outcome.latency_ms
    efforts = {
        "cost": None if cost is None else cost / terms["cost_unit_usd"],
        "latency": None if latency_ms is None else latency_ms / terms["latency_unit_ms"],
        "turns": len(trajectory.turns) or None,
    }
    known = {name: effort for name, effort in efforts.items() if effort is not None and terms[name]}
    effort, weight = 0.0, 0.0
    for name, amount in known.items():
        effort, weight = effort + terms[name] * math.log1p(amount), weight + terms[name]
    if not weight:
        return Finding(None, "neither cost nor latency nor turns are known")
    of = "+".join(known)
    return Finding(-effort / weight, f"from {of}", of)


def _quality(trajectory: Trajectory, _rating: float | None, _terms: Terms) -> Finding:
    scores = trajectory.outcome.quality
    if not scores:
        return Finding(None, "the outcome has no quality scores")
    return Finding(math.fsum(scores.values()) / len(scores), f"mean of {', '.join(scores)}")


def _feedback(_trajectory: Trajectory, rating: float | None, _terms: Terms) -> Finding:
    return Finding(rating, "no ratings" if rating is None else "mean of the ratings")


def _execution(trajectory: Trajectory, _rating: float | None, terms: Terms) -> Finding:
    outcome, cost = trajectory.outcome, _cost(trajectory)
    if outcome.success is None:
        return Finding(None, "whether it was done is unknown")
    raw = ExecutionReward(**terms)(msgspec.structs.replace(outcome, cost_usd=cost))
    parts = {"cost": cost, "latency": outcome.latency_ms, "subtasks": outcome.subtasks_done}
    unknown = [part for part, value in parts.items() if value is None]
    ended = "done" if outcome.success else "failed"
    return Finding(raw, f"{ended}, counted as 0: {', '.join(unknown)}" if unknown else ended)


def _cost(trajectory: Trajectory) -> float | None:
    """Cost of the whole task, else the sum over its turns if each has a cost."""
    if trajectory.outcome.cost_usd is not None or not trajectory.turns:
        return trajectory.outcome.cost_usd
    costs = [turn.cost_usd for turn in trajectory.turns if turn.cost_usd is not None]
    return sum(costs) if len(costs) == len(trajectory.turns) else None


def _quality_named(name: str, trajectory: Trajectory) -> Finding:
    score = (trajectory.outcome.quality or {}).get(name)
    return Finding(score, f"the outcome has no score {name!r}" if score is None else f"the score {name!r}")


def _metadata_named(name: str, trajectory: Trajectory) -> Finding:
    value = (trajectory.metadata or {}).get(name)
    if not isinstance(value, int | float):
        return Finding(None, f"the metadata has no number {name!r}")
    # An integer may be too large for a float.
    return Finding(float(value) if abs(value) <= MAX_MAGNITUDE else math.inf, f"{name!r} in the metadata")


Source = Callable[[Trajectory, float | None, Terms], Finding]
_SOURCES: Mapping[str, Source] = {
    "completion": _completion,
    "efficiency": _efficiency,
    "quality": _quality,
    "feedback": _feedback,
    "execution": _execution,
}
_NAMED: Mapping[str, Callable[[str, Trajectory], Finding]] = {"quality": _quality_named, "metadata": _metadata_named}


def source_of(name: str) -> Source:
    if name in _SOURCES:
        return _SOURCES[name]
    family, _, rest = name.partition(".")
    named = _NAMED[family]
    return lambda trajectory, _rating, _terms: named(rest, trajectory)


BUILT_IN: Mapping[int, RewardDefinition] = {
    definition.version: definition
    for definition in msgspec.yaml.decode(
        files("etude.experience").joinpath("built_in_rewards.yaml").read_bytes(), type=list[RewardDefinition]
    )
}


def read_definition(tree: Any, *, origin: str) -> RewardDefinition:
    """A definition from the content of a YAML or JSON file; ConfigError says what is wrong with it."""
    try:
        return msgspec.convert(tree, RewardDefinition)
    except msgspec.ValidationError as error:
        fields = (*RewardDefinition.__struct_fields__, *ComponentDefinition.__struct_fields__)
        unknown = re.search("unknown field `(.+?)`", str(error))
        hint = f": {did_you_mean(unknown[1], fields)}" if unknown else ""
        raise ConfigError(f"{origin}: not a reward definition: {error}{hint.rstrip()}") from error
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error


def definitions(store: ExperienceStore) -> dict[int, RewardDefinition]:
    """Definitions by version. A stored one wins over a built-in one of a later Etude, since its rewards used it."""
    found = dict(BUILT_IN)
    for key, body in store.documents(DEFINITIONS).items():
        try:
            definition = msgspec.json.decode(body, type=RewardDefinition)
        except (msgspec.DecodeError, ConfigError) as error:
            raise StoreError(
                f"the stored reward definition {key!r} cannot be read ({error}): a newer Etude may have written it; "
                "upgrade this one"
            ) from error
        found[definition.version] = definition
    return dict(sorted(found.items()))


def find_definition(store: ExperienceStore, version: int) -> RewardDefinition:
    found = definitions(store)
    if version not in found:
        raise ConfigError(
            f"there is no reward definition of version {version}: there are {', '.join(map(str, found))}; "
            "`etude reward add FILE` adds one"
        )
    return found[version]


def add_definition(store: ExperienceStore, definition: RewardDefinition) -> None:
    """Store a definition; a repeated call is harmless. ConfigError if its version has another content."""
    known = definitions(store)
    kept = known.get(definition.version)
    if kept is not None and kept.hash != definition.hash:
        raise ConfigError(
            f"reward definition {definition.version} is {kept.name!r} ({kept.hash}), and this one ({definition.hash}) "
            f"says something else: a version never changes; give it the version {max(known) + 1}"
        )
    key = f"{definition.version:09d}"
    if key not in store.documents(DEFINITIONS):
        store.put(DEFINITIONS, key, msgspec.json.encode(definition))
