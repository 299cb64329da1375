"""The approval gate: whether a person approved this version, where the settings ask for that."""

from __future__ import annotations

from etude.evidence.overlap import Verdict
from etude.release.gates.gate import GateContext, GateResult


def approval(context: GateContext) -> GateResult:
    """Without an approval it cannot tell, rather than fail: the version waits, and can be approved later."""
    version, needed = context.candidate.artefact.version, context.config.require_approval
    if not needed:
        verdict, reason = Verdict.PASS, "The settings ask for no approval."
    elif context.approved:
        verdict, reason = Verdict.PASS, f"A person approved version {version}."
    else:
        verdict = Verdict.CANNOT_TELL
        reason = f"No person has approved version {version}: read this report, then `etude models approve {version}`."
    return GateResult(
        name="approval",
        verdict=verdict,
        value=float(context.approved),
        bound=float(needed),
        reason=reason,
        evidence={"required": needed, "approved": context.approved},
    )
