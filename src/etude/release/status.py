"""How a slot stands: what serves it, and the evidence about its candidate, read without changing anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from msgspec import Struct

from etude.contracts.errors import ReleaseError
from etude.contracts.release import Entry, Exposure, Serving
from etude.contracts.trajectory import Time
from etude.release.canary import Controller
from etude.release.fairness import release_fairness


class LastStep(Struct, frozen=True, kw_only=True):
    """The newest step of a slot."""

    action: str
    time: Time
    actor: str
    reason: str


class CandidateEvidence(Struct, frozen=True, kw_only=True):
    """What the closed units of a release say about its candidate."""

    units: int
    candidates: int
    """Units on the candidate."""
    open: int
    """Units whose window has not closed."""
    mean_incumbent: float | None
    mean_candidate: float | None
    effect: dict[str, Any] | None
    """Difference of the means with its confidence interval."""
    log_e_values: dict[str, float]
    verdict: str
    reason: str
    crossings: list[dict[str, Any]]
    """Each piece of evidence with the threshold it has to reach, as natural logarithms."""
    shadow: dict[str, Any]
    """Answers in shadow, and how many were as the incumbent's."""
    fairness: dict[str, Any]
    """Differences between groups, on the candidate and on the incumbent."""


class SlotStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What serves a slot, and how its release stands."""

    slot: str
    serving: Serving
    happened: list[str]
    """What was due and done just now."""
    last: LastStep
    evidence: CandidateEvidence | None = None
    """Of the candidate that is exposed now; absent without one."""


def slot_status(controller: Controller, slot: str, done: Sequence[Entry] = ()) -> SlotStatus:
    """ReleaseError for a slot without a version. `done` is what the controller has just done."""
    head = controller.registry.head(slot)
    if head is None:
        raise ReleaseError(f"{slot}: no version is registered: `etude models register RUN --slot {slot}`")
    exposure = head.serving.exposure
    return SlotStatus(
        slot=slot,
        serving=head.serving,
        happened=[f"{entry.action}: {entry.reason}" for entry in done],
        last=LastStep(action=head.action, time=head.time, actor=head.actor, reason=head.reason),
        evidence=None if exposure is None else _evidence(controller, slot, exposure),
    )


def _evidence(controller: Controller, slot: str, exposure: Exposure) -> CandidateEvidence:
    kept = controller.release(exposure.release)
    evidence = kept.evidence
    finding = evidence.verdict(exposure.stage, last=exposure.stage == len(kept.spec.stages) - 1)
    waits = finding.action == "pass stage" and not controller.registry.may_promote(slot, exposure.candidate)
    return CandidateEvidence(
        units=evidence.count,
        candidates=evidence.candidates,
        open=len(kept.open),
        mean_incumbent=_finite(evidence.mean_control),
        mean_candidate=_finite(evidence.mean_candidate),
        effect=evidence.interval().to_json() if evidence.count else None,
        log_e_values=evidence.e_values(),
        verdict=str(finding.action),
        reason=finding.reason + ("; it waits for an approval" if waits else ""),
        crossings=[crossing._asdict() for crossing in finding.decided_by],
        shadow=asdict(controller.shadow(kept.spec)),
        fairness={arm: found.to_json() for arm, found in release_fairness(kept.ledger.entries()).items()},
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
