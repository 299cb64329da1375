"""The drift gate: requests that trained the candidate and those of now in, how far their features have moved out.

Features are what any request has: lengths of texts, numbers, categories; and what the candidate itself predicts for it.
Options that appear and disappear are no drift of the requests, and a policy reads their descriptions: the candidate is
asked about the options that are offered on both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from etude.contracts.decision import DecisionRequest
from etude.contracts.option import option_name
from etude.contracts.ports import Decider
from etude.evidence.drift import Drift, DriftThresholds, Level, check_drift
from etude.evidence.overlap import Verdict
from etude.release.gates.asking import ask
from etude.release.gates.gate import GateContext, GateResult, PolicyFailedError, UndecidedError, load
from etude.release.gates.held_out import does_not_apply, not_needed

Array = NDArray[np.float64]
Features = dict[str, dict[int, Any]]
"""By name, and by the number of the request, a number or a word, for requests that have it."""
SCORE, CHOSEN = "predicted score", "chosen option"
"""Features of the candidate's answer."""
MAX_CATEGORIES = 9
"""Values of a category that are compared one by one."""
MAX_ASKED = 300
"""Requests per side that the candidate itself is asked about."""
MAX_WORD = 40
"""Characters of a text that may be a category."""


def drift(context: GateContext) -> GateResult:
    """Fails where a feature, or the predicted score, has moved so far that the policy decides about another world."""
    name, config = "drift", context.config
    if not context.reference:
        return _without_reference(context, name)
    few = min(len(context.reference), len(context.requests))
    if few < config.min_drift:
        raise UndecidedError(
            f"There are {len(context.reference)} requests of the training data and {len(context.requests)} of now: "
            f"drift is judged on at least {config.min_drift} of each; log more."
        )
    decider = load(context.candidate)
    common = _offered(context.reference) & _offered(context.requests)
    before, now = (
        read_features([_among(request, common) for request in requests], decider)
        for requests in (context.reference, context.requests)
    )
    thresholds = DriftThresholds(warn_psi=config.psi_warn, fail_psi=config.psi_fail, min_count=config.min_drift)
    found = compare_features(before, now, len(context.reference), len(context.requests), thresholds)
    worst = found[0]
    evidence = {
        "psi": {one.name: one.psi for one in found},
        "jensen_shannon": {one.name: one.js for one in found},
        "warn": config.psi_warn,
        "fail": config.psi_fail,
        "reference": len(context.reference),
        "now": len(context.requests),
        "warnings": [one.name for one in found if one.level is Level.WARN],
    }
    said = f"the feature {worst.name!r} has moved most since training, with a stability index of {worst.psi:.3f}"
    if worst.psi >= config.psi_fail:
        verdict = Verdict.FAIL
        reason = f"Drift: {said}, from {config.psi_fail:g}: train on newer decisions."
    else:
        warning = f", from {config.psi_warn:g}: watch it" if worst.psi >= config.psi_warn else ""
        verdict, reason = Verdict.PASS, f"No drift that matters: {said}{warning}."
    return GateResult(
        name=name, verdict=verdict, value=worst.psi, bound=config.psi_fail, reason=reason, evidence=evidence
    )


def _without_reference(context: GateContext, name: str) -> GateResult:
    passed = not_needed(context, name)
    if passed is not None:
        return passed
    if context.spec.problem is not None and context.spec.read_logs is None:
        return does_not_apply(name, f"{context.spec.name!r} learns in a world, which does not drift.")
    if context.dataset is not None and context.candidate.artefact.manifest.method != "from-logs":
        return does_not_apply(name, "the policy did not learn from logged requests.")
    raise UndecidedError("The requests that the policy learned from cannot be found: give its dataset.")


def _offered(requests: Sequence[DecisionRequest]) -> frozenset[str]:
    """Names of all options."""
    return frozenset(option_name(option) for request in requests for option in request.options or ())


def _among(request: DecisionRequest, names: frozenset[str]) -> DecisionRequest:
    """The request with these options alone, where options are offered."""
    if request.options is None:
        return request
    kept = tuple(option for option in request.options if option_name(option) in names)
    return msgspec.structs.replace(request, options=kept)


def compare_features(
    before: Features, now: Features, reference: int, current: int, thresholds: DriftThresholds
) -> list[Drift]:
    """How far each feature has moved between so many requests and so many others, the farthest first."""
    pairs = {name: _numbers(name, before, now, reference, current) for name in sorted({*before, *now})}
    old, new = ({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))
    return check_drift(old, new, thresholds)


def read_features(requests: Sequence[DecisionRequest], decider: Decider | None = None) -> Features:
    """What requests have, and for the first of them what the candidate makes of them, if there is one."""
    found: Features = {}
    for number, request in enumerate(requests):
        asked = _of_answer(request, decider) if decider is not None and number < MAX_ASKED else {}
        for key, value in {**_of_context(request.context), **asked}.items():
            found.setdefault(key, {})[number] = value
    return found


def _of_context(context: Any) -> dict[str, Any]:
    entries = context if isinstance(context, Mapping) else {"context": context}
    found: dict[str, Any] = {}
    for key, value in entries.items():
        if isinstance(value, bool) or (isinstance(value, str) and len(value) <= MAX_WORD and " " not in value):
            found[str(key)] = str(value)
        elif isinstance(value, int | float):
            found[str(key)] = float(value)
        elif isinstance(value, str):
            found[f"{key}: characters"] = float(len(value))
            found[f"{key}: words"] = float(len(value.split()))
    return found


def _of_answer(request: DecisionRequest, decider: Decider) -> dict[str, Any]:
    """What the candidate predicts for the option it takes, and which it is."""
    if request.options is not None and not request.options:  # none that is offered on both sides
        return {}
    answer = ask(decider, request)
    if answer.error:
        raise PolicyFailedError(f"The policy raised {answer.error}.")
    if answer.decision is None:
        return {}
    chosen = option_name(answer.decision.action)
    expected = answer.decision.expected.get(chosen)
    found: dict[str, Any] = {} if not chosen else {CHOSEN: chosen}
    return found if expected is None else {**found, SCORE: float(expected.score)}


def _numbers(name: str, before: Features, now: Features, reference: int, current: int) -> tuple[Array, Array]:
    """One number per request: NaN where it has none, the place of a word among the most common of the training data."""
    old, new = before.get(name, {}), now.get(name, {})
    common = [word for word, _ in Counter(map(str, old.values())).most_common(MAX_CATEGORIES)]
    is_number = all(isinstance(value, float) for value in (*old.values(), *new.values()))
    place = {word: float(i) for i, word in enumerate(common)}

    def numbers(values: Mapping[int, Any], count: int) -> Array:
        found = np.full(min(count, MAX_ASKED) if name in (SCORE, CHOSEN) else count, np.nan)
        for number, value in values.items():
            found[number] = value if is_number else place.get(str(value), -1.0)
        return found

    return numbers(old, reference), numbers(new, current)
