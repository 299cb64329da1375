"""Checks the record of a slot: hashes and signatures, the rules of every step, and the e-values it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from etude.contracts.errors import ReleaseError, TamperedError
from etude.contracts.release import Entry, ReleaseEntry, Serving
from etude.release.canary import open_release
from etude.release.registry import Registry
from etude.release.steps import check_actor, settled, states_after


def audit_log(registry: Registry, slot: str | None = None) -> list[tuple[str, Entry]]:
    """Every step of every slot, or of one, oldest first, each with its slot."""
    slots = registry.slots() if slot is None else [slot]
    found = [(one, entry) for one in slots for entry in registry.history(one)]
    return sorted(found, key=lambda pair: (pair[1].time, pair[0], pair[1].number))


def find_step(registry: Registry, decision: str) -> Entry:
    """The step that SLOT#NUMBER names; ReleaseError if there is none."""
    slot, _, number = decision.rpartition("#")
    entries = registry.history(slot) if slot and number.isdecimal() else []
    if not entries or not 0 < int(number) <= len(entries):
        raise ReleaseError(f"decision {decision!r}: expected SLOT#NUMBER, as `etude audit log` shows it")
    return entries[int(number) - 1]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was checked, and the hash of the newest entry."""

    entries: int
    releases: int
    units: int
    replayed: int
    head: str


def verify(registry: Registry, slot: str, *, remembered: str | None = None) -> Checked:
    """Check everything about a slot; TamperedError for the first thing that is wrong.

    `remembered` is the hash of an entry that was the newest one: without it, a record that lost its end looks like an
    older one.
    """
    ledger = registry.slot_ledger(slot)
    count = ledger.verify()
    history = registry.history(slot)
    if remembered is not None and remembered not in ledger.hashes():
        raise TamperedError(
            f"{slot}: no entry has the hash {remembered}: the end of the record was cut off or replaced"
        )
    for number in range(count):
        _check_step(slot, history[:number], history[number])
    releases = {entry.evidence["release"] for entry in history if "release" in entry.evidence}
    for release in releases:
        registry.ledger(f"releases/{release}", ReleaseEntry).verify()
    replays = [replay(registry, entry) for entry in history if "log_e_values" in entry.evidence]
    for one in replays:
        if not one.is_equal:
            raise TamperedError(f"{slot}#{one.entry.number} does not recompute: its units or its record were changed")
    ends = {one.entry.evidence["release"]: one.units for one in replays}
    return Checked(
        entries=count,
        releases=len(releases),
        units=sum(ends.values()),
        replayed=len(replays),
        head=ledger.head_hash,
    )


def _check_step(slot: str, past: list[Entry], step: Entry) -> None:
    """Whether a step was allowed after those before it: a signed entry that was not is no step of Etude's."""
    before, states = (past[-1].serving, past[-1].states) if past else (Serving(), {})
    where = f"{slot}#{step.number}"
    if step.version is None:
        raise TamperedError(f"{where} is about no version: it was not written by Etude")
    try:
        if settled(step.version, step.action, step.serving) != step.serving:
            raise ReleaseError("a rollback returns to a version that was itself rolled back")
        found = states_after(step.version, step.action, states=states, before=before, after=step.serving)
        check_actor(slot, step, past, require_approval=False)
    except ReleaseError as error:
        raise TamperedError(f"{where} was not allowed: {error}") from error
    if found != step.states:
        raise TamperedError(f"{where} gives versions other states than its step does: it was not written by Etude")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What was logged and what the ledger gives, as natural logarithms of e-values by name."""

    entry: Entry
    units: int
    logged: dict[str, float]
    computed: dict[str, float]

    @property
    def is_equal(self) -> bool:
        return self.logged == self.computed and self.units == self.entry.evidence.get("units")


def replay(registry: Registry, entry: Entry) -> Replay:
    """The e-values of a step again, from its units; ReleaseError for one that rests on none, such as an approval."""
    facts = entry.evidence
    if "log_e_values" not in facts:
        raise ReleaseError(
            f"entry {entry.number} ({entry.action}) rests on no e-values: replay a step of a canary or an experiment"
        )
    ledger = registry.ledger(f"releases/{facts['release']}", ReleaseEntry)
    release = open_release(ledger, through=facts["through"])
    return Replay(
        entry=entry,
        units=release.evidence.count,
        logged=facts["log_e_values"],
        computed=release.evidence.e_values(),
    )
