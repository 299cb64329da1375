"""The fairness gate: held-out logs by group in, whether the candidate does worse for one of them out.

The value of the candidate for a group is an average of weight times reward, and weights have no bound: so the ends of
the interval are bets, as in the off-policy gate. With E[w] = 1, V = E[w·r] = 1 − E[w·(1 − r)], which gives both ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from etude.contracts.ports import Example
from etude.evidence.ope import lower_bound, snips
from etude.evidence.overlap import Verdict
from etude.release.gates.gate import GateContext, GateResult, UndecidedError
from etude.release.gates.held_out import HeldOut, does_not_apply, held_out_examples, not_needed

MAX_GROUPS = 50


def fairness(context: GateContext) -> GateResult:
    """Fails where the interval of a group's difference to the rest is below the gap; cannot tell for a small group."""
    name, config = "fairness", context.config
    passed = not_needed(context, name)
    if passed is not None:
        return passed
    if context.dataset is None and context.spec.problem is not None and context.spec.read_logs is None:
        return does_not_apply(name, f"{context.spec.name!r} learns in a world, which has no groups of users.")
    held = held_out_examples(context)
    count = Counter(e.trajectory.group for part in held.examples() for e in part if e.trajectory.group is not None)
    if not count:
        return does_not_apply(name, "no trajectory names the group of its user, so there are none to compare.")
    if len(count) == 1:
        return does_not_apply(name, f"all users are of the group {next(iter(count))!r}.")
    largest = [group for group, _ in count.most_common(MAX_GROUPS)]
    found = {group: _difference(context, held, group, config.delta / len(largest)) for group in largest}
    worst = min(found, key=lambda group: found[group]["high"])
    failed = [group for group in found if found[group]["high"] < config.fairness_gap]
    small = [group for group in count if count[group] < config.min_group]
    thin = [group for group in found if found[group]["ess"] < config.thresholds.min_ess]
    evidence: dict[str, Any] = {
        "groups": found,
        "sizes": dict(count),
        "gap": config.fairness_gap,
        "held_out": held.note,
    }
    if failed:
        verdict = Verdict.FAIL
        reason = (
            f"The policy does worse for the group {worst!r}: its reward is {found[worst]['difference']:+.3f} compared "
            f"with the rest, and at most {found[worst]['high']:+.3f}, below {config.fairness_gap:g}: train with more "
            "decisions of this group."
        )
    elif small:
        raise UndecidedError(
            f"The group {small[0]!r} has {count[small[0]]} trajectories, fewer than {config.min_group}: log more.",
            evidence,
        )
    elif thin:
        raise UndecidedError(
            f"The effective sample size of the group {thin[0]!r} is {found[thin[0]]['ess']:.0f}, below "
            f"{config.thresholds.min_ess:g}: log more, or explore more.",
            evidence,
        )
    else:
        verdict = Verdict.PASS
        reason = f"No group of {len(found)} does worse than the rest by more than {-config.fairness_gap:g}."
    return GateResult(
        name=name,
        verdict=verdict,
        value=found[worst]["high"],
        bound=config.fairness_gap,
        reason=reason,
        evidence=evidence,
    )


def _difference(context: GateContext, held: HeldOut, group: str, delta: float) -> dict[str, float]:
    """The candidate's reward for a group less that for the rest, with the ends of its interval."""
    own, rest = (_weights(context, held, group, inside=inside) for inside in (True, False))
    means = [snips(w, r).mean if w.any() else 0.0 for w, r in (own, rest)]
    (low, high), (rest_low, rest_high) = (_ends(w, r, delta / 4) for w, r in (own, rest))
    w = own[0]
    return {
        "trajectories": len(w),
        "ess": float(w.sum() ** 2 / np.square(w).sum()) if w.any() else 0.0,
        "difference": means[0] - means[1],
        "low": low - rest_high,
        "high": high - rest_low,
    }


def _weights(context: GateContext, held: HeldOut, group: str, *, inside: bool) -> tuple[np.ndarray, np.ndarray]:
    """Importance weights and rewards of the trajectories of a group, or of all others."""
    from etude.learning.judge import judge_weights, scaled

    def examples() -> Iterator[Sequence[Example]]:
        for part in held.examples():
            kept = [e for e in part if (e.trajectory.group == group) == inside]
            if kept:
                yield kept

    candidate = context.candidate
    return judge_weights(
        candidate.artefact, context.spec, scaled(examples, held.reward_range), explores=candidate.explores
    )


def _ends(w: np.ndarray, r: np.ndarray, delta: float) -> tuple[float, float]:
    return lower_bound(w * r, delta=delta), 1 - lower_bound(w * (1 - r), delta=delta)
