"""Held-out evidence: which logged trajectories may judge a candidate, and its evaluation on them or in its world."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etude.contracts.errors import EtudeError
from etude.contracts.ports import Example, LoggedDataset
from etude.evidence.intervals import Estimate, Z, estimate_difference
from etude.evidence.overlap import Verdict
from etude.release.gates.gate import Contender, GateContext, GateResult, UndecidedError

FROM_LOGS = "from-logs"
"""Method of policies that learned from a dataset."""
WORSE, BETTER = "worse", "better"


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Trajectories that the candidate did not learn from."""

    examples: Callable[[], Iterator[Sequence[Example]]]
    reward_range: tuple[float, float]
    note: str
    """How it is known that they are held out."""


def held_out_examples(context: GateContext) -> HeldOut:
    """The dataset's test split, without what trained the candidate; UndecidedError if that is not possible to say."""
    dataset, manifest = context.dataset, context.candidate.artefact.manifest
    if dataset is None:
        raise UndecidedError(
            "There are no logged decisions to judge the policy on: `etude dataset create` makes a dataset of them."
        )
    if dataset.problem.partition(":")[0] != context.spec.name:
        raise UndecidedError(
            f"The dataset is about {dataset.problem!r}: give one of the problem {context.spec.name!r}, which the "
            "policy decides."
        )
    if context.reward_range is None:
        raise UndecidedError(
            f"The reward of the dataset ({dict(dataset.facts).get('reward')}) has no declared bounds: add `bounds` to "
            "its definition, and create the dataset again."
        )
    if not dataset.splits.get("test"):
        raise UndecidedError("The dataset has no test split: create one with a share for it.")
    trained, note = frozenset[str](), "the policy did not learn from logged decisions"
    if dataset.content in manifest.data:
        note = "the policy learned from the train split of this dataset, and the test split judges it"
    elif context.trained_on is not None:
        trained = _ids(context.trained_on, "train") | _ids(context.trained_on, "validation")
        note = "the policy learned from another dataset, and trajectories that both have are left out"
    elif manifest.method == FROM_LOGS:
        raise UndecidedError(
            "The policy learned from a dataset that is not this one and cannot be found, so it may have learned from "
            f"these trajectories: give the dataset with the content {', '.join(one[:16] for one in manifest.data)}."
        )

    def examples() -> Iterator[Sequence[Example]]:
        for part in dataset.examples("test"):
            kept = [example for example in part if example.trajectory.id not in trained] if trained else part
            if kept:
                yield kept

    if trained and next(examples(), None) is None:
        raise UndecidedError("The policy learned from all trajectories of the test split: log new ones.")
    return HeldOut(examples=examples, reward_range=context.reward_range, note=note)


def _ids(dataset: LoggedDataset, split: str) -> frozenset[str]:
    return frozenset(example.trajectory.id for part in dataset.examples(split) for example in part)


def not_needed(context: GateContext, name: str) -> GateResult | None:
    """A pass, where the first policy of a slot may go without logged decisions."""
    if context.dataset is not None or context.incumbent is not None or context.config.first_needs_evidence:
        return None
    return does_not_apply(name, "the settings let the first policy of a slot go without logged decisions.")


def does_not_apply(name: str, why: str) -> GateResult:
    return GateResult(
        name=name, verdict=Verdict.PASS, reason=f"Does not apply: {why}", evidence={"applies": False, "why": why}
    )


def held_out(context: GateContext) -> GateResult:
    """The value of the candidate on held-out logs, or in its world: fails where it is worse by more than the margin."""
    if context.dataset is not None and context.spec.read_logs is not None:
        return _on_logs(context)
    if context.spec.problem is not None or context.spec.compare is not None:
        try:
            return _in_world(context)
        except EtudeError as error:
            found = not_needed(context, "held_out")
            if found is None:
                raise UndecidedError(f"The policy cannot be measured in a world ({error}): give a dataset.") from error
            return found
    return not_needed(context, "held_out") or _without()


def _without() -> GateResult:
    raise UndecidedError("There is neither a dataset nor a world to evaluate the policy in: give a dataset.")


def _on_logs(context: GateContext) -> GateResult:
    from etude.learning.judge import scaled
    from etude.learning.off_policy import OffPolicyEvaluation

    held, config = held_out_examples(context), context.config
    examples = scaled(held.examples, held.reward_range)
    found = judged(context, context.candidate, examples)
    evidence: dict[str, Any] = {"held_out": held.note, "candidate": found.to_json()}
    if not isinstance(found, OffPolicyEvaluation):
        return _verdict(found.utility, -config.margin, "the behaviour policy", evidence)
    if found.overlap.reasons:
        raise UndecidedError(_sentence(next(iter(found.overlap.reasons.values()))), evidence)
    if context.incumbent is None or _is_behaviour(context):
        return _verdict(found.difference, -config.margin, "the behaviour policy", evidence)
    other = judged(context, context.incumbent, examples)
    if not isinstance(other, OffPolicyEvaluation):
        return _verdict(found.difference, -config.margin, "the behaviour policy", evidence)
    a, b = (next(iter(one.estimates.values())) for one in (found, other))
    error = math.hypot(a.error, b.error)  # both are of the same logs, so that the truth is below it
    mean = a.mean - b.mean
    difference = Estimate(count=a.count, mean=mean, error=error, low=mean - Z * error, high=mean + Z * error)
    return _verdict(difference, -config.margin, "the incumbent", {**evidence, "incumbent": other.to_json()})


def judged(context: GateContext, contender: Contender, examples: Any) -> Any:
    """What the logs say about a policy as it serves."""
    from etude.learning.judge import judge_logs

    thresholds = context.config.thresholds
    return judge_logs(contender.artefact, context.spec, examples, thresholds, explores=contender.explores)


def _is_behaviour(context: GateContext) -> bool:
    return context.incumbent is not None and logged_by(context.dataset, context.incumbent.artefact.version)


def logged_by(dataset: LoggedDataset | None, version: str) -> bool:
    """Whether this policy, greedy or exploring, made all decisions of a dataset."""
    return dataset is not None and {one.partition("+")[0] for one in dataset.policies} == {version}


def _in_world(context: GateContext) -> GateResult:
    from etude.learning.judge import measure_in_world

    found = measure_in_world(
        context.candidate.artefact,
        None if context.incumbent is None else context.incumbent.artefact,
        context.spec,
        episodes=context.config.held_out_episodes,
        seed=2_000_003 + context.seed,
    )
    difference = estimate_difference(found.policy, found.other, paired=True)
    size = max(abs(sum(found.other) / len(found.other)), 1e-9)  # the margin is a share of what is earned without it
    evidence = {"episodes": len(found.policy), "compared_with": found.name, "difference": difference.to_json()}
    return _verdict(difference, -context.config.margin * size, found.name, evidence)


def _verdict(difference: Estimate, bound: float, other: str, evidence: dict[str, Any]) -> GateResult:
    """Fails where the whole interval is below the bound."""
    low, high = difference.low, difference.high
    found = f"the value compared with {other} is {difference.mean:+.4g}, 95 % interval {low:+.4g} to {high:+.4g}"
    if not math.isfinite(difference.mean):
        raise UndecidedError("There is nothing to compare on: give a dataset with more trajectories.", evidence)
    fails = high < bound
    advice = f", all of it below {bound:+.3g}: train on more or newer decisions." if fails else "."
    return GateResult(
        name="held_out",
        verdict=Verdict.FAIL if fails else Verdict.PASS,
        value=difference.mean,
        bound=bound,
        reason=f"{found[0].upper()}{found[1:]}{advice}",
        evidence=evidence,
    )


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."
