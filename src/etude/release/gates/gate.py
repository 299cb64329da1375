"""The types of gates, the report of all of them, and how one gate is run so that nothing a policy does stops it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import DataError, EtudeError
from etude.contracts.plain import plain
from etude.contracts.ports import Decider
from etude.evidence.overlap import Verdict
from etude.learning.gate import Contender, Gate, GateConfig, GateContext, GateResult, Instruction, Rule

__all__ = [
    "REPORT",
    "Contender",
    "Gate",
    "GateConfig",
    "GateContext",
    "GateReport",
    "GateResult",
    "Instruction",
    "PolicyFailedError",
    "Rule",
    "UndecidedError",
    "Verdict",
    "load",
    "requests_of",
    "run_gate",
]

FORMAT = 1
REPORT = "gates.json"
"""The newest report of a version, attached to it in the registry, or in its run's folder."""
MAX_TEXT = 300
"""Characters of an exception that a reason repeats."""


class PolicyFailedError(Exception):
    """The policy cannot be loaded or asked: its gate fails."""


class UndecidedError(Exception):
    """The evidence does not suffice: its gate cannot tell. The message says what is missing."""

    def __init__(self, message: str, evidence: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.evidence = dict(evidence or {})


@dataclass(frozen=True, kw_only=True)
class GateReport:
    """The verdicts of all gates on one version."""

    version: str
    slot: str
    results: tuple[GateResult, ...]
    incumbent: str | None = None
    """Version that it was compared with."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What it was judged on: dataset, seed, version of the red-team instructions."""

    @property
    def verdict(self) -> Verdict:
        """Fail if any gate fails, else cannot tell if any cannot tell; a report without gates cannot tell either."""
        found = {result.verdict for result in self.results} or {Verdict.CANNOT_TELL}
        return next(verdict for verdict in (Verdict.FAIL, Verdict.CANNOT_TELL, Verdict.PASS) if verdict in found)

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = plain(
            {
                "format": FORMAT,
                "version": self.version,
                "slot": self.slot,
                "incumbent": self.incumbent,
                "verdict": str(self.verdict),
                "seconds": round(self.seconds, 3),
                "about": dict(self.about),
                "results": [asdict(result) for result in self.results],
            }
        )
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | bytes | str) -> GateReport:
        """DataError if it is no report of gates."""
        try:
            read: Any = json.loads(data) if isinstance(data, bytes | str) else data
            if read["format"] != FORMAT:
                raise DataError(f"a report of gates has the format {read['format']!r}: expected {FORMAT}")
            results = [GateResult(**{**one, "verdict": Verdict(one["verdict"])}) for one in read["results"]]
            return cls(
                version=read["version"],
                slot=read["slot"],
                results=tuple(results),
                incumbent=read["incumbent"],
                about=read["about"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"this is no report of gates ({type(error).__name__}: {error}): run the gates again"
            ) from error

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Gate, verdict, value, bound and reason, for a table."""
        return [(r.name, str(r.verdict), _shown(r.value), _shown(r.bound), r.reason) for r in self.results]

    def reasons(self, verdict: Verdict) -> Sequence[str]:
        return [f"{result.name}: {result.reason}" for result in self.results if result.verdict is verdict]


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"


def run_gate(name: str, gate: Gate, context: GateContext) -> GateResult:
    """The result of a gate, under this name and with its duration, whatever the policy or the gate raises."""
    began = time.perf_counter()
    try:
        result = gate(context)
    except PolicyFailedError as error:
        result = GateResult(name=name, verdict=Verdict.FAIL, reason=f"{shown(error)} Correct the policy.")
    except UndecidedError as error:
        result = GateResult(
            name=name, verdict=Verdict.CANNOT_TELL, reason=shown(error, 2 * MAX_TEXT), evidence=error.evidence
        )
    except Exception as error:  # of the gate itself, or of data that it reads
        kind = "" if isinstance(error, EtudeError) else f"{type(error).__name__}: "
        result = GateResult(
            name=name,
            verdict=Verdict.CANNOT_TELL,
            reason=f"The gate itself did not work: {kind}{shown(error)}",
            evidence={"error": type(error).__name__},
        )
    return replace(result, name=name, evidence=plain(result.evidence), seconds=time.perf_counter() - began)


def load(contender: Contender) -> Decider:
    """A new decider; PolicyFailedError if it cannot be loaded, or is of another version than its artefact."""
    try:
        decider = contender.load()
        version = decider.version
    except Exception as error:  # whatever a policy of any package raises
        raise PolicyFailedError(f"The policy cannot be loaded: {type(error).__name__}: {shown(error)}.") from error
    if version.partition("+")[0] != contender.artefact.version:
        raise PolicyFailedError(
            f"The policy says that it is {version!r}, but its artefact is {contender.artefact.version!r}."
        )
    return decider


def requests_of(context: GateContext) -> Sequence[DecisionRequest]:
    """The requests to ask a policy with."""
    if not context.requests:
        raise UndecidedError("There is no request to ask the policy: give a dataset, or name `requests` in its spec.")
    return context.requests


def shown(error: object, length: int = MAX_TEXT) -> str:
    """The text of an error, shortened, in characters that any file can hold."""
    text = str(plain(str(error)))
    return text if len(text) <= length else f"{text[: length - 1]}…"
