"""Past choices as rows: replay files and logged decisions in, contexts with the outcomes of options out.

A replay file has one context per line, `{"context": …, "outcomes": {option: {"score", "cost_usd", "latency_ms"}}}`,
with the outcomes of all options or only of those that were tried. A row that cannot be used is counted by reason, with
its first line, and the others are learned from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import DataError
from etude.contracts.option import Option, option_name, read_options
from etude.contracts.ports import Example
from etude.contracts.suggestions import did_you_mean, nearest
from etude.contracts.trajectory import Trajectory
from etude.problems.choice.contexts import TEXT, is_finite, read_context

SCORE, SUCCESS, QUALITY, COST, LATENCY = KINDS = ("score", "success", "quality", "cost_usd", "latency_ms")
"""Kinds of outcome. The score is what is maximised; the others are known besides."""
CHUNK = 4096
"""Rows that are read at a time."""
MAX_AMOUNT = 1e12
"""Maximum magnitude of an outcome: a few of that size would decide everything."""
MAX_NUMBER = 1e100
"""Maximum magnitude of a number of a context: squares of larger ones are beyond any float."""
DESCRIBED_IN = ("options.json", "catalogue.json")
"""Names of files that describe the options of a replay file next to them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One past choice."""

    context: Mapping[str, Any]
    outcomes: Mapping[str, Mapping[str, float]]  # by option, by kind
    propensity: float | None = None  # of the one outcome that is known; None where the choice of what to try was free
    options: tuple[Option, ...] | None = None  # that were offered, where the row says so
    group: str = ""  # equal for rows of the same context
    source: str = ""  # where it is recorded: its line, or its trajectory


Rows = Callable[[], Iterator[list[Row]]]
"""Starts a pass over all rows, in the order of time, in parts."""


@dataclass
class Unused:
    """Rows that cannot be used, by reason."""

    reasons: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    used: int = 0

    def add(self, reason: str, where: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.first.setdefault(reason, where)

    def sentences(self) -> list[str]:
        return [
            f"{many:,} {'row is' if many == 1 else 'rows are'} not used: {self.first[reason]}"
            for reason, many in self.reasons.items()
        ]

    def check(self, source: object) -> None:
        if not self.used:
            why = "; ".join(self.first.values()) or "it is empty"
            raise DataError(f"{source}: no row can be learned from: {why}")


class _RowError(DataError):
    """Why a row cannot be used; `reason` is the same for all rows with that problem."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


# Replay files


def find_options(replay: Path, given: Path | None) -> tuple[Option, ...] | None:
    """The options that a file describes: `given`, or the one next to the replay file; None if there is none."""
    for path in [given] if given is not None else [replay.with_name(name) for name in DESCRIBED_IN]:
        if given is not None or path.is_file():
            return read_options_file(path)
    return None


def read_options_file(path: Path) -> tuple[Option, ...]:
    """A JSON list of options, or an object with such a list as `options` or `workers`."""
    return read_options(read_offered(path), where=f"{path}: options")


def read_offered(path: Path) -> Any:
    """The options of such a file as they are written there."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}): expected a file of options") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}: expected a JSON list of options, each with a name") from error
    return found.get("options", found.get("workers")) if isinstance(found, dict) else found


class ReplayFile:
    """A replay file, read as often as asked for."""

    def __init__(self, path: Path, options: tuple[Option, ...] | None) -> None:
        self.path, self.options = path, options
        self.known = None if options is None else {option.name for option in options}
        self.unused = Unused()

    def __call__(self) -> Iterator[list[Row]]:
        self.unused, part = Unused(), list[Row]()
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.strip():
                        continue
                    try:
                        part.append(self._row(line, f"line {number}"))
                    except _RowError as problem:
                        self.unused.add(problem.reason, str(problem))
                        continue
                    self.unused.used += 1
                    if len(part) == CHUNK:
                        yield part
                        part = []
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read ({error.strerror}): expected a file of outcomes") from error
        self.unused.check(self.path)
        if part:
            yield part

    def _row(self, line: bytes, source: str) -> Row:
        where = f"{self.path}, {source}"
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _RowError("no JSON", f"{where}: {error}: expected one JSON object per line") from error
        if not isinstance(found, dict):
            raise _RowError("no object", f"{where} is {found!r:.60}: expected a JSON object with context and outcomes")
        context = _context(lambda: _replay_context(found, where), where)
        if not context or context.get(TEXT, "x") == "":
            raise _RowError(
                "no context", f"{where}: there is no context: expected `context`, or `instruction` with a text"
            )
        outcomes = found.get("outcomes")
        if not isinstance(outcomes, dict) or not outcomes:
            raise _RowError("no outcomes", f"{where}: outcomes is {outcomes!r:.60}: expected {{option: {{score: …}}}}")
        offered = None
        if found.get("options") is not None:
            offered = _checked(lambda: read_options(found["options"], where=f"{where}: options"), "options")
        names = {option.name for option in offered} if offered is not None else self.known
        read = dict[str, dict[str, float]]()
        for key, outcome in outcomes.items():
            name = option_name(key)
            if not name:
                raise _RowError("option without a name", f"{where}: outcomes has {key!r}: expected an option's name")
            if name in read:
                raise _RowError(
                    "two outcomes of one option",
                    f"{where}: outcomes has {name!r} twice, with other spaces around it: leave one of them out",
                )
            if names is not None and name not in names:
                raise _RowError(
                    "option that was not offered",
                    f"{where}: outcomes has {name!r}, which was not offered: {did_you_mean(name, sorted(names))}add "
                    "it to the options, or leave its outcome out",
                )
            read[name] = _outcome(outcome, f"{where}: outcomes.{name}")
        propensity = found.get("propensity")
        if propensity is not None:
            _check_propensity(propensity, where)
            if len(read) != 1:
                raise _RowError(
                    "propensity of several outcomes",
                    f"{where}: propensity is {propensity!r} and there are {len(read)} outcomes: expected one, the "
                    "outcome of the option that was sampled",
                )
        return Row(
            context=context,
            outcomes=read,
            propensity=propensity,
            options=offered,
            group=_group(context),
            source=source,
        )


def _checked(read: Callable[[], Any], reason: str) -> Any:
    try:
        return read()
    except DataError as error:
        raise _RowError(reason, str(error)) from error


def _context(read: Callable[[], dict[str, Any]], where: str) -> dict[str, Any]:
    context: dict[str, Any] = _checked(read, "context")
    for key, value in context.items():
        if isinstance(value, float) and abs(value) > MAX_NUMBER:
            raise _RowError(
                "number of a context that is too large",
                f"{where}: context.{key} is {value!r}: expected at most {MAX_NUMBER:g}; use a larger unit, or "
                "leave it out",
            )
    return context


def _replay_context(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`context`, or `instruction` with `task_type`."""
    if "context" in found:
        return read_context(found["context"], where=f"{where}: context")
    return read_context({TEXT: found.get("instruction"), "task_type": found.get("task_type")}, where=where)


def _outcome(given: Any, where: str) -> dict[str, float]:
    if isinstance(given, bool | int | float):
        given = {SCORE: given}
    if not isinstance(given, dict):
        raise _RowError("no outcome", f"{where} is {given!r:.60}: expected {{score, cost_usd, latency_ms}}")
    found = {}
    for kind, value in given.items():
        if value is None:
            continue
        if kind not in KINDS:
            raise _RowError("unknown kind of outcome", f"{where}.{kind} is no kind of outcome{nearest(kind, KINDS)}")
        if not isinstance(value, bool | int | float) or not is_finite(value):
            raise _RowError("outcome that is no number", f"{where}.{kind} is {value!r:.60}: expected a finite number")
        found[kind] = _amount(kind, value, where)
    if SCORE not in found:
        if SUCCESS not in found and QUALITY not in found:
            raise _RowError("no score", f"{where} has no score: expected score, success or quality")
        found[SCORE] = found.get(SUCCESS, found.get(QUALITY, 0.0))
    return found


def _amount(kind: str, value: float, where: str) -> float:
    if kind in (COST, LATENCY) and value < 0:
        raise _RowError("negative cost or latency", f"{where}.{kind} is {value!r}: expected 0 or more")
    if abs(value) > MAX_AMOUNT:
        raise _RowError(
            "outcome that is too large",
            f"{where}.{kind} is {value!r}: expected at most {MAX_AMOUNT:g}; use a larger unit, or leave the row out",
        )
    return float(value)


def _check_propensity(propensity: Any, where: str) -> None:
    if isinstance(propensity, bool) or not isinstance(propensity, int | float) or not 0 < propensity <= 1:
        raise _RowError(
            "propensity",
            f"{where}: propensity is {propensity!r}: expected the probability with which the option was chosen, above "
            "0 and up to 1",
        )


def _group(context: Mapping[str, Any]) -> str:
    return repr(sorted(context.items()))


# Logged decisions


class LoggedRows:
    """The decisions of one choice in a dataset's split, each with the outcome of its trajectory."""

    def __init__(
        self, examples: Callable[[], Iterator[Sequence[Example]]], problem: str, *, score: str = "reward"
    ) -> None:
        self.examples, self.problem, self.score = examples, problem, score
        self.unused = Unused()

    def __call__(self) -> Iterator[list[Row]]:
        self.unused = Unused()
        for examples in self.examples():
            part = []
            for example in examples:
                for decision in example.trajectory.decisions:
                    if decision.problem != self.problem:
                        continue
                    try:
                        part.append(self._row(example, decision))
                    except _RowError as problem:
                        self.unused.add(problem.reason, str(problem))
                        continue
                    self.unused.used += 1
            if part:
                yield part
        self.unused.check(f"decisions of {self.problem!r}")

    def _row(self, example: Example, decision: LoggedDecision) -> Row:
        where = f"trajectory {example.trajectory.id}"
        context = _context(lambda: read_context(decision.context, where=f"{where}: context"), where)
        offered = _checked(lambda: read_options(decision.eligible, where=f"{where}: eligible"), "options")
        chosen = option_name(decision.action)
        if chosen not in {option.name for option in offered}:
            raise _RowError("option that was not offered", f"{where}: {chosen!r} was chosen and not offered")
        if decision.propensity is None:
            raise _RowError(
                "no propensity",
                f"{where}: the probability of the decision was not logged: what was not tried cannot be inferred; log "
                "decisions of a policy that samples",
            )
        return Row(
            context=context,
            outcomes={chosen: self._outcomes(example, where)},
            propensity=decision.propensity,
            options=offered,
            group=example.context,
            source=where,
        )

    def _outcomes(self, example: Example, where: str) -> dict[str, float]:
        trajectory = example.trajectory
        known = _known(trajectory, example.rating)
        score = example.reward if self.score == "reward" else known.get(self.score)
        if score is None or not math.isfinite(score):
            raise _RowError("no outcome", f"{where}: its {self.score} is not known (yet)")
        outcomes = {SCORE: score, **known}
        return {kind: _amount(kind, value, f"{where}: outcome") for kind, value in outcomes.items()}


def _known(trajectory: Trajectory, rating: float | None) -> dict[str, float]:
    """By kind; quality is the mean of the scores that were reported and of the mean rating."""
    outcome = trajectory.outcome
    quality = [*(outcome.quality or {}).values(), *([] if rating is None else [rating])]
    known = {
        SUCCESS: None if outcome.success is None else float(outcome.success),
        QUALITY: sum(quality) / len(quality) if quality else None,
        COST: outcome.cost_usd,
        LATENCY: outcome.latency_ms,
    }
    return {kind: float(value) for kind, value in known.items() if value is not None}
