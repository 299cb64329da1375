"""Asks a policy for decisions that may go wrong: a request in; a decision, a refusal or an error out, with everything
that a decision may not be."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import DataError
from etude.contracts.option import exceeds, limits, option_name, read_options, why_not
from etude.contracts.plain import plain
from etude.contracts.ports import Decider
from etude.release.gates.gate import shown

TOLERANCE = 1e-6
"""Rounding error of probabilities."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a policy made of a request: one of the first three."""

    decision: Decision | None = None
    refusal: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def fingerprint(self) -> str:
        """Equal for equal answers."""
        if self.decision is None:
            return f"{self.refusal or self.error}"
        d = self.decision
        parts = [plain(d.action), d.propensity, [plain(one.action) for one in d.logged]]
        return msgspec.json.encode(plain(parts)).decode()


def ask(
    decider: Decider,
    request: DecisionRequest,
    *,
    timeout_s: float | None = None,
    refusals: tuple[type[Exception], ...] = (DataError,),
) -> Answer:
    """The answer. With a timeout, a thread of its own asks: one that hangs is left behind, as an error."""
    if timeout_s is None:
        return _ask(decider, request, refusals)
    found: list[Answer] = []
    thread = threading.Thread(target=lambda: found.append(_ask(decider, request, refusals)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else Answer(error=f"no answer within {timeout_s:g} s", seconds=timeout_s)


def _ask(decider: Decider, request: DecisionRequest, refusals: tuple[type[Exception], ...]) -> Answer:
    began = time.perf_counter()
    try:
        decision = decider.decide(request)
    except refusals as error:
        return Answer(refusal=shown(error) or type(error).__name__, seconds=time.perf_counter() - began)
    except Exception as error:  # whatever a policy of any package raises
        return Answer(error=f"{type(error).__name__}: {shown(error)}", seconds=time.perf_counter() - began)
    return Answer(decision=decision, seconds=time.perf_counter() - began)


def violations(request: DecisionRequest, decision: Decision, decider: Decider) -> list[str]:
    """What is wrong with a decision, a clause each: nothing, if it is one that may be carried out and learned from."""
    try:
        return [*_propensity(decision), *_log(decision, decider), *_option(request, decision)]
    except Exception as error:  # the decision is not even what its type says
        return [f"the decision cannot be read ({type(error).__name__}: {shown(error, 120)})"]


def _propensity(decision: Decision) -> list[str]:
    p = decision.propensity
    if p is None or not 0 < p <= 1 + TOLERANCE:
        return [f"its propensity is {p!r}, expected a probability above 0"]
    parts = [one.propensity for one in decision.logged]
    joint = math.prod(part for part in parts if part is not None)
    if None in parts or not math.isclose(joint, p, rel_tol=TOLERANCE):
        return [f"its propensity is {p:.6g}, but its log entries say {joint:.6g}"]
    return []


def _log(decision: Decision, decider: Decider) -> list[str]:
    if not decision.logged:
        return ["it has no log entry"]
    found = [f"its log entry names policy {one.policy!r}" for one in decision.logged if one.policy != decider.version]
    try:
        msgspec.json.encode(decision.logged)
    except (TypeError, ValueError, UnicodeError) as error:
        found.append(f"its log entry is no JSON ({shown(error, 80)})")
    return found[:2]


def _option(request: DecisionRequest, decision: Decision) -> list[str]:
    """Of a choice: that the option was offered, is eligible and within the caps, and is as probable as it says."""
    chosen = option_name(decision.action)
    found = []
    if request.options is not None:
        try:
            options = {option.name: option for option in read_options(request.options)}
        except DataError as error:
            return [f"it answers options that are not valid ({shown(error, 120)})"]
        if chosen not in options:
            return [f"it chose {chosen!r:.60}, which was not offered"]
        reason = why_not(options[chosen], request.preferences)
        if reason is not None:
            found.append(f"it chose {chosen!r:.60}, although {reason}")
    elif request.preferences.allowed is not None and decision.expected and chosen not in request.preferences.allowed:
        found.append(f"it chose {chosen!r:.60}, which is not among allowed")
    if decision.expected:
        found += _expected(request, decision, chosen)
    return found


def _expected(request: DecisionRequest, decision: Decision, chosen: str) -> list[str]:
    one, found = decision.expected.get(chosen), []
    if one is None:
        return [f"it expects nothing of {chosen!r:.60}, which it chose"]
    if one.masked is not None:
        found.append(f"it chose {chosen!r:.60}, which it masks: {one.masked}")
    for kind, limit in limits(request.preferences).items():
        amount: float | None = getattr(one, kind)
        if amount is not None and exceeds(amount, limit):
            found.append(f"it chose {chosen!r:.60}, whose expected {kind} {amount:.4g} is above {limit:.4g}")
    if not math.isclose(one.probability, decision.propensity or 0.0, rel_tol=TOLERANCE):
        found.append(f"its propensity is {decision.propensity}, but its own probability {one.probability:.6g}")
    masked = [name for name, other in decision.expected.items() if other.masked is not None and other.probability > 0]
    if masked:
        found.append(f"it gives a probability to {masked[0]!r:.60}, which it masks")
    total = math.fsum(other.probability for other in decision.expected.values())
    if abs(total - 1) > TOLERANCE:
        found.append(f"its probabilities sum to {total:.6g}")
    return found


def counted(violations: int) -> str:
    return "1 violation" if violations == 1 else f"{violations:,} violations"


def with_text(request: DecisionRequest, text: str) -> DecisionRequest:
    """The request with this text in place of its own, wherever its context has it."""
    return msgspec.structs.replace(request, context=_with_text(request.context, text))


def _with_text(context: Any, text: str) -> Any:
    if not isinstance(context, Mapping):
        return text
    texts = [key for key, value in context.items() if isinstance(value, str)]
    named = [key for key in ("instruction", "text", "query", "prompt") if key in texts]
    longest = sorted(texts, key=lambda key: -len(context[key]))
    return {**context, (named or longest or ["text"])[0]: text}
