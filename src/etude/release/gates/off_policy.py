"""The off-policy gate: held-out logs in; whether the candidate is proven not to be worse than the incumbent out.

With weights w of the candidate and v of the incumbent to the behaviour policy, and rewards r in [0, 1],

    Z = w·r + v·(1 − r) ≥ 0          mean = 1 + V(candidate) − V(incumbent)

needs no bound on the weights. Where the incumbent is the behaviour policy, v = 1 and Z − 1 = (w − 1)·r, the gate of
`statistics.md`. What the incumbent does and the logs never show makes the mean smaller, never larger.

Z varies with v even where both policies do the same, and with r where requests differ. Where the behaviour
policy is known to give no option a smaller propensity than p, (w − v)·(r − b) ≥ −1/p does not, for any b in [0, 1] that
is known before the decision: E[w − v] = 0, so b leaves the mean as it is. The gate takes the mean of three e-values,
which is one too: of Z, with b = 0, and with b as the reward that the candidate, which has not seen these logs, expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from etude.evidence.ope import gate_evidence, lower_bound
from etude.evidence.overlap import ROUNDING, Verdict
from etude.release.gates.gate import GateContext, GateResult, UndecidedError
from etude.release.gates.held_out import does_not_apply, held_out_examples, judged, logged_by, not_needed

if TYPE_CHECKING:
    from etude.learning.off_policy import OffPolicyEvaluation

Array = NDArray[np.float64]
BEHAVIOUR, INCUMBENT = "the behaviour policy", "the incumbent"


@dataclass(frozen=True, kw_only=True)
class _Logs:
    """Weights and rewards of the same trajectories."""

    candidate: Array
    incumbent: Array  # ones where it is the behaviour policy
    reward: Array
    expected: Array  # from 0 to 1: the reward that the candidate expects
    other: str  # what the candidate is compared with
    evidence: dict[str, Any]


def off_policy(context: GateContext) -> GateResult:
    """Passes at E(−margin) ≥ 1/δ, fails where the opposite is as certain, and else cannot tell."""
    name, config = "off_policy", context.config
    if context.spec.read_logs is None and context.spec.problem is not None:
        return does_not_apply(name, f"{context.spec.name!r} is judged in its world, by the held-out evaluation.")
    passed = not_needed(context, name)
    if passed is not None:
        return passed
    found = _read(context)
    if isinstance(found, GateResult):
        return found
    w, v, r, margin = found.candidate, found.incumbent, found.reward, config.margin
    one = np.ones(len(r))
    safe = gate_evidence(w * r + v * (1 - r), one, margin=margin)
    harmful = gate_evidence(w * (1 - r) + v * r, one, margin=-margin)  # mean 1 − (V(candidate) − V(incumbent))
    largest = None if config.min_propensity is None else 1 / config.min_propensity
    if largest is not None and max(w.max(), v.max()) <= largest * (1 + ROUNDING):
        for baseline in (0.0, found.expected):
            share = (w - v) * (r - baseline) / largest  # ≥ −1
            safe += gate_evidence(1 + share, one, margin=margin / largest)
            harmful += gate_evidence(1 - share, one, margin=-margin / largest)
        safe, harmful = safe / 3, harmful / 3
    needed = 1 / config.delta
    evidence = {
        **found.evidence,
        "compared_with": found.other,
        "e_value": safe,
        "e_value_of_harm": harmful,
        "needed": needed,
        "margin": margin,
        "delta": config.delta,
        "value_lower_bound": lower_bound(w * r, delta=config.delta),
        "mean_difference": float(((w - v) * r).mean()),
    }
    said = f"than {found.other} by more than {margin:g} (E = {safe:.3g}, needed {needed:g}, {len(r):,} trajectories)"
    if safe >= needed:
        verdict, reason = Verdict.PASS, f"The policy is proven not to be worse {said}."
    elif harmful >= needed:
        verdict = Verdict.FAIL
        reason = (
            f"The policy is proven to be worse {said}; E of harm = {harmful:.3g}: train on more or newer decisions."
        )
    else:
        verdict = Verdict.CANNOT_TELL
        reason = f"It is not proven that the policy is not worse {said}: log more decisions, or explore more."
    return GateResult(name=name, verdict=verdict, value=safe, bound=needed, reason=reason, evidence=evidence)


def _read(context: GateContext) -> _Logs | GateResult:
    """The weights; UndecidedError on thin overlap. Where a problem has a verdict of its own, the result by that."""
    from etude.learning.judge import scaled
    from etude.learning.off_policy import OffPolicyEvaluation

    held, spec = held_out_examples(context), context.spec
    if spec.read_logs is None:
        raise UndecidedError(f"The problem {spec.name!r} does not read logged decisions: name `read_logs` in its spec.")
    examples = scaled(held.examples, held.reward_range)
    candidate = judged(context, context.candidate, examples)
    evidence: dict[str, Any] = {"held_out": held.note, "candidate": candidate.to_json()}
    if not isinstance(candidate, OffPolicyEvaluation):
        return _by_own_verdict(context, candidate, evidence)
    if candidate.overlap.reasons:
        raise UndecidedError(_cannot(candidate.overlap.reasons.values()), evidence)
    one = np.ones(len(candidate.reward))
    if context.incumbent is None or logged_by(context.dataset, context.incumbent.artefact.version):
        other = BEHAVIOUR if context.incumbent is None else INCUMBENT
        return _logs(candidate, one, other, evidence)
    incumbent = judged(context, context.incumbent, examples)
    if not isinstance(incumbent, OffPolicyEvaluation):
        return _logs(candidate, one, BEHAVIOUR, evidence)
    evidence["incumbent"] = incumbent.to_json()
    if incumbent.overlap.reasons:
        raise UndecidedError(f"Of the incumbent: {_cannot(incumbent.overlap.reasons.values())}", evidence)
    return _logs(candidate, incumbent.weight, INCUMBENT, evidence)


def _logs(candidate: OffPolicyEvaluation, incumbent: Array, other: str, evidence: dict[str, Any]) -> _Logs:
    expected = np.nan_to_num(candidate.value, nan=0.5).clip(0, 1)
    return _Logs(
        candidate=candidate.weight,
        incumbent=incumbent,
        reward=candidate.reward,
        expected=expected,
        other=other,
        evidence=evidence,
    )


def _cannot(reasons: Any) -> str:
    return "The logs cannot judge this policy: " + "; ".join(reasons) + "."


def _by_own_verdict(context: GateContext, found: Any, evidence: dict[str, Any]) -> GateResult:
    """By the interval of the problem's own doubly robust estimate, whose weights are not those of trajectories."""
    bound, utility = -context.config.margin, found.utility
    said = f"its utility compared with {BEHAVIOUR} is {utility.mean:+.3g} [{utility.low:+.3g}, {utility.high:+.3g}]"
    if getattr(found, "doubt", ""):
        raise UndecidedError(str(found.doubt), evidence)
    if utility.low >= bound:
        verdict, reason = Verdict.PASS, f"The policy is not worse by more than {-bound:g}: {said}."
    elif utility.high < bound:
        verdict, reason = Verdict.FAIL, f"The policy is worse by more than {-bound:g}: {said}; train on more decisions."
    else:
        verdict, reason = Verdict.CANNOT_TELL, f"The logs leave open whether the policy is worse: {said}; log more."
    return GateResult(
        name="off_policy", verdict=verdict, value=utility.low, bound=bound, reason=reason, evidence=evidence
    )
