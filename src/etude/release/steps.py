"""The rules of a step: what serves and the states before it in, the states after it out, or ReleaseError.

They hold for every writer, and `etude audit verify` applies them to every entry again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from etude.contracts.errors import ReleaseError
from etude.contracts.release import Action, Entry, Mode, Serving, State, next_state

AUTOMATIC = frozenset({"controller", "coordinator"})
"""Actors that promote only on proof or on a person's approval, and approve nothing."""


def settled(version: str, action: Action, after: Serving) -> Serving:
    """What serves after a step: no rollback returns to a policy that was itself rolled back or retired."""
    gone = action in (Action.ROLLED_BACK, Action.RETIRED) and after.previous == version
    return msgspec.structs.replace(after, previous=None) if gone else after


def states_after(
    version: str, action: Action, *, states: Mapping[str, State], before: Serving, after: Serving
) -> dict[str, State]:
    """The state of the step's own version is by the table; of the others, by whether they still serve."""
    found = dict(states) | {version: next_state(version, states.get(version), action)}
    _check_pointer(version, action, before, after)
    for other, state in found.items():
        if other == after.incumbent:
            found[other] = State.SERVING
        elif after.exposure is not None and other == after.exposure.candidate:
            continue
        elif other == after.previous:
            found[other] = State.PREVIOUS
        elif state in (State.SERVING, State.PREVIOUS):
            found[other] = State.RETIRED
        elif state is State.EXPOSED:
            found[other] = State.PASSED  # its release ended with the step of another version
    _check_exposure(found, after)
    return found


def _check_pointer(version: str, action: Action, before: Serving, after: Serving) -> None:
    """Only a promotion and a rollback move the pointer, and each to one place."""
    expected = (before.incumbent, before.previous)
    if action is Action.PROMOTED:
        expected = (version, before.incumbent)
    elif action is Action.ROLLED_BACK and version == before.incumbent:
        expected = (before.previous, None)
    elif settled(version, action, before) != before:
        expected = (before.incumbent, None)
    if (after.incumbent, after.previous) != expected:
        raise ReleaseError(
            f"when {version} is {action}, {expected[0]} has to serve, with {expected[1]} to return to, not "
            f"{after.incumbent} with {after.previous}: only a promotion and a rollback change what serves"
        )


def _check_exposure(states: Mapping[str, State], after: Serving) -> None:
    exposure = after.exposure
    if exposure is None:
        return
    if exposure.mode is Mode.HOLDBACK:
        if exposure.candidate != after.incumbent or after.previous is None:
            raise ReleaseError(f"{exposure.candidate}: a holdback needs the policy that serves and the one before it")
    elif states.get(exposure.candidate) is not State.EXPOSED or after.incumbent is None:
        raise ReleaseError(
            f"{exposure.candidate} is {states.get(exposure.candidate, 'not registered')}, so it cannot be exposed: it "
            "has to pass its gates and its release has to start, next to a policy that serves"
        )


def check_actor(slot: str, step: Entry, past: Sequence[Entry], *, require_approval: bool) -> None:
    """ReleaseError for an automatic actor that approves, or promotes without proof; and for a missing approval.

    Without proof it promotes only directly, and names the person who approved that.
    """
    if step.actor in AUTOMATIC and step.action is Action.APPROVED:
        raise ReleaseError(f"{slot}: {step.actor} is an automatic actor: only a person approves")
    if step.action is not Action.PROMOTED:
        return
    person = approver(past, step.version)
    is_direct = person is not None and step.evidence.get("approved_by") == person
    if step.actor in AUTOMATIC and not step.evidence.get("proof") and not is_direct:
        raise ReleaseError(
            f"{slot}: {step.actor} promotes only on proof, and there is none for {step.version}; a person may approve "
            "it instead"
        )
    if require_approval and person is None:
        raise ReleaseError(
            f"{slot}: {step.version} is not approved, and release.require_approval is set: `etude models approve "
            f"{step.version}`"
        )


def approver(past: Sequence[Entry], version: str | None) -> str | None:
    """Who approved a version since it was registered, failed its gates or was rolled back."""
    for entry in reversed(past):
        if entry.version == version and entry.action is Action.APPROVED:
            return entry.actor
        if entry.version == version and entry.action in (Action.GATES_FAILED, Action.ROLLED_BACK, Action.REGISTERED):
            return None
    return None
