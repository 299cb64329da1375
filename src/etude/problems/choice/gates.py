"""Gates of choices: what a policy is asked before it is released, and that its limits hold by its own expectations."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from etude.contracts.decision import Decision, DecisionRequest, NoOptionError, Preferences
from etude.contracts.option import Option, exceeds, limits, option_name, read_options, why_not
from etude.contracts.ports import Decider
from etude.contracts.trajectory import Trajectory
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateContext, GateResult
from etude.problems.choice.policy import load

MAX_REQUESTS = 60
"""Requests whose limits are tried."""
SHOWN = 12
WORDS = ("compare", "short", "report", "number", "why", "list", "please", "detail", "explain", "today", "write", "sum")


def gate_requests(
    artefact: Artefact, trajectories: Iterable[Trajectory], number: int, seed: int
) -> list[DecisionRequest]:
    """The logged choices as requests; without any, contexts made of the categories, numbers and words it has learned,
    with the options it knows."""
    found = list[DecisionRequest]()
    for trajectory in trajectories:
        for decision in trajectory.decisions:
            if len(found) < number and decision.problem == trajectory.problem and decision.eligible:
                options = tuple(decision.eligible)
                found.append(DecisionRequest(context=decision.context, options=options, seed=seed + len(found)))
    if found:
        return found
    policy, rng = load(artefact), random.Random(seed)
    offered, reader = tuple(_described(option) for option in policy.options), policy.model.reader
    vocabulary = [*WORDS, *(word for option in policy.options for word in option.text.split())]
    for i in range(number):
        text = " ".join(rng.choice(vocabulary) for _ in range(rng.randint(2, 30)))
        context: dict[str, Any] = {"text": text} if reader.has_text else {}
        context |= {key: rng.choice(values) for key, values in reader.categories.items()}
        context |= {key: rng.gauss(mean, spread) for key, (mean, spread, _) in reader.numbers.items()}
        found.append(DecisionRequest(context=context, options=offered, seed=seed + i))
    return found


def _described(option: Option) -> dict[str, Any]:
    words = {key: list(values) for key, values in option.words.items()}
    return {"name": option.name, "description": option.description, **option.numbers, **words}


def limits_hold(context: GateContext) -> GateResult:
    """No ineligible option is chosen, and caps on cost and latency hold by what the policy itself expects."""
    decider, found, asked = context.candidate.load(), list[str](), 0
    for request in context.requests[:MAX_REQUESTS]:
        for preferences in _tried(decider, request):
            asked += 1
            found += _broken(decider, msgspec.structs.replace(request, preferences=preferences))
    wrong = f"{len(found)} broken in {asked:,} decisions; the first: {found[0]}. Correct the policy." if found else ""
    return GateResult(
        name="choice_limits",
        verdict=Verdict.FAIL if found else Verdict.PASS if asked else Verdict.CANNOT_TELL,
        value=float(len(found)),
        bound=0.0,
        reason=wrong or f"Masks and caps held in {asked:,} decisions under limits around what options cost and take.",
        evidence={"requests": min(len(context.requests), MAX_REQUESTS), "asked": asked, "broken": found[:SHOWN]},
    )


def _tried(decider: Decider, request: DecisionRequest) -> Sequence[Preferences]:
    """Limits around the least, the middle and the largest expected cost and latency, and masks of single options."""
    expected = decider.decide(msgspec.structs.replace(request, preferences=Preferences())).expected
    found = [Preferences()]
    for kind in ("cost_usd", "latency_ms"):
        known = [getattr(one, kind) for one in expected.values()]
        amounts = sorted(amount for amount in known if amount is not None and amount >= 0)
        around = [amounts[0], amounts[len(amounts) // 2], amounts[-1]] if amounts else []
        found += [Preferences(**{f"max_{kind}": amount * factor}) for amount in around for factor in (0.9, 1.0)]
    names = [option_name(option) for option in request.options or ()]
    for i, name in enumerate(names[:8]):
        found.append(Preferences(allowed=tuple(other for other in names if other != name)))
        found.append(Preferences(allowed=(name,), quality_weight=float(i % 2)))
    return found


def _broken(decider: Decider, request: DecisionRequest) -> list[str]:
    wanted = request.preferences
    try:
        decision = decider.decide(request)
    except NoOptionError as error:
        free = [name for name, one in error.expected.items() if one.masked is None]
        return [f"it says that no option may be chosen, but {free[0]!r} may"] if free else []
    except Exception as error:  # whatever a policy of any package raises
        return [f"it raised {type(error).__name__}: {error!s:.120}"]
    return _exceeded(request, decision, wanted)


def _exceeded(request: DecisionRequest, decision: Decision, wanted: Preferences) -> list[str]:
    chosen, found = option_name(decision.action), []
    one = decision.expected.get(chosen)
    offered = {option.name: option for option in read_options(request.options)} if request.options else {}
    reason = why_not(offered[chosen], wanted) if chosen in offered else None
    if request.options and chosen not in offered:
        found.append(f"{chosen!r:.60} was not offered")
    if reason is not None:
        found.append(f"{chosen!r:.60} is not eligible: {reason}")
    for kind, limit in limits(wanted).items():
        amount: float | None = None if one is None else getattr(one, kind)
        if amount is not None and exceeds(amount, limit):
            found.append(f"{chosen!r:.60} is expected to have {kind} {amount:.4g}, above {limit:.4g}")
    found += [
        f"{name!r:.60} is masked and has the probability {other.probability:.3g}"
        for name, other in decision.expected.items()
        if other.masked is not None and other.probability > 0
    ]
    return found
