"""Releases a candidate step by step: stored state in, entries of the slot's ledger out.

`reconcile` looks at what is stored, does what is due, and may be killed anywhere and called again by anyone. The units
of a release enter its own ledger, so its evidence is a fold over that ledger; what was decided enters the slot's
ledger, whose newest entry all serving processes follow. The automatic actor may always abort; it promotes only on
proof.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from etude.contracts.errors import ConflictError, ReleaseError
from etude.contracts.release import (
    Action,
    ClosedUnit,
    EarlyUnit,
    Entry,
    Exposure,
    Mode,
    ReleaseEntry,
    ReleaseSpec,
    Serving,
)
from etude.contracts.store import ExperienceStore
from etude.evidence.eprocess import Action as Finds
from etude.evidence.eprocess import EarlyError, Evidence, EvidenceConfig, Finding, Unit
from etude.release.assignment import INVALID, new_lines
from etude.release.ledger import Ledger
from etude.release.outcomes import OpenUnit, close, close_early, collect_units, due
from etude.release.registry import Registry
from etude.release.shadow import ShadowJournal, ShadowSummary
from etude.release.watch import Watched, watched

CONTROLLER = "controller"
SLOW_SHARE = 0.05
"""Share of the candidate's tasks that may be slower than the latency objective."""
RECENT = 100
"""Units of each arm in which an outage is looked for."""
CRASH_LOOP = 5
"""Failures of the candidate in a row that end its release at once."""
BATCH = 2000
"""Units per entry of a release's ledger."""


@dataclass
class Release:
    """A release, as its ledger tells it."""

    ledger: Ledger[ReleaseEntry]
    spec: ReleaseSpec
    evidence: Evidence
    through: int = 1
    """Number of the last entry that is in the evidence."""
    closed: set[str] = field(default_factory=set)
    seen_early: set[str] = field(default_factory=set)
    """Units whose early window closed."""
    open: dict[str, OpenUnit] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    """Bytes read of each journal."""
    broken: dict[bool, deque[bool]] = field(
        default_factory=lambda: {arm: deque(maxlen=RECENT) for arm in (True, False)}
    )
    """Whether each recent unit broke or never arrived, by whether it is the candidate's."""

    def fold(self, through: int | None = None) -> None:
        """Bring the evidence up to the newest entry of the ledger, or up to an earlier one."""
        for entry in self.ledger.entries(after=self.through):
            if through is not None and entry.number > through:
                break
            for unit in entered(entry):
                self.evidence.add(unit)
            self.seen_early |= {early.unit for early in entry.early}
            for closed in entry.units:
                self.broken[closed.candidate].append(closed.error)
                self.closed.add(closed.unit)
                self.open.pop(closed.unit, None)
            self.through = entry.number

    @property
    def is_blind(self) -> bool:
        """Whether most units of both arms broke or never arrived: they are equal then, which says nothing of either."""
        return all(sum(arm) > len(arm) / 2 for arm in self.broken.values())


def entered(entry: ReleaseEntry) -> list[Unit | EarlyError]:
    """What an entry adds to the evidence, in order."""
    early = [EarlyError(candidate=unit.candidate, share=unit.share, error=unit.error) for unit in entry.early]
    return [*early, *map(_to_unit, entry.units)]


def _to_unit(unit: ClosedUnit) -> Unit:
    return Unit(
        candidate=unit.candidate,
        share=unit.share,
        score=unit.score,
        error=unit.error,
        group=unit.group,
        guardrails=unit.guardrails,
        slow=unit.slow,
    )


def open_release(ledger: Ledger[ReleaseEntry], through: int | None = None) -> Release:
    """A release with its evidence, up to an entry of its ledger."""
    entries = ledger.entries()
    if not entries or entries[0].spec is None:
        raise ReleaseError("the release has no beginning: its ledger is empty or was not written by Etude")
    spec = entries[0].spec
    release = Release(ledger=ledger, spec=spec, evidence=new_evidence(spec))
    release.fold(through)
    return release


def new_evidence(spec: ReleaseSpec) -> Evidence:
    """The evidence of a release before its first unit."""
    return Evidence(
        msgspec.convert(spec.evidence, EvidenceConfig),
        early_errors=spec.early_window_s is not None,
        slow_share=None if spec.latency_objective_ms is None else SLOW_SHARE,
    )


@dataclass(kw_only=True)
class Controller:
    """The one place that moves releases on."""

    registry: Registry
    store: ExperienceStore
    journal: Path
    """Folder of the assignments of all slots."""
    clock: Callable[[], datetime]
    _open: dict[str, Release] = field(default_factory=dict)
    _watched: dict[str, Watched] = field(default_factory=dict)

    def start(self, spec: ReleaseSpec, *, by: str, reason: str = "") -> Entry:
        """Begin a release: its candidate passed all gates, and no other one runs in its slot."""
        head = self._head(spec.slot)
        if head.serving.exposure is not None:
            other = head.serving.exposure
            raise ReleaseError(
                f"{spec.slot}: {other.candidate} is in {other.mode} already: wait for its end, or "
                f"`etude canary abort {spec.slot}`"
            )
        if head.serving.incumbent != spec.incumbent:
            raise ConflictError(f"{spec.slot}: {head.serving.incumbent} serves now, not {spec.incumbent}: start again")
        ledger = self.registry.ledger(f"releases/{spec.id}", ReleaseEntry)
        now = self.clock()
        ledger.append(
            lambda last: (
                ReleaseEntry(number=1, time=now, spec=spec)
                if last is None
                else _refuse(f"a release {spec.id!r} exists")
            )
        )
        return self.registry.record(
            spec.slot,
            Action.STARTED,
            spec.candidate,
            actor=by,
            reason=reason,
            evidence={
                "release": spec.id,
                "through": 1,
                "stages": list(spec.stages),
                "stage_minutes": spec.stage_minutes,
            },
            change=lambda serving: msgspec.structs.replace(serving, exposure=first_exposure(spec)),
            expected=head.number,
        )

    def reconcile(self, slot: str) -> list[Entry]:
        """Everything that is due in a slot, as the entries that it led to; none where another controller was first."""
        done: list[Entry] = []
        while True:
            head = self.registry.head(slot)
            exposure = None if head is None else head.serving.exposure
            if head is None:
                return done
            if exposure is None:
                return done + self._watch(slot, head)
            try:
                release = self.release(exposure.release)
                self._close_units(release)
                entry = next((e for step in _STEPS if (e := step(self, release, exposure, head)) is not None), None)
            except ConflictError:
                return done
            if entry is None:
                return done
            done.append(entry)

    def _watch(self, slot: str, head: Entry) -> list[Entry]:
        """An alarm for people, once, where rewards fall after the release of the policy that serves."""
        version, history = head.serving.incumbent, self.registry.history(slot)
        own = self._watched.get(slot)
        if own is None or own.version != version:
            ids = [e.evidence["release"] for e in history if e.version == version and "release" in e.evidence]
            own = watched(history, version, self.release(ids[-1]).spec) if version is not None and ids else None
            if own is None:
                return []
            self._watched[slot] = own
        own.catch_up(self.store, self.clock())
        if not own.watch.alarmed:
            return []
        del self._watched[slot]
        if watched(history, own.version, own.spec) is None:  # the alarm is recorded
            return []
        watch = own.watch
        why = f"the mean score fell below {watch.mu_0:.3f} after the release: {watch.total / watch.count:.3f} over "
        why += f"{watch.count:,} units since then ({watch.crossing})"
        facts = {"watch": {**asdict(watch.config), "units": watch.count}, "decided_by": [watch.crossing._asdict()]}
        alarm = partial(self.registry.record, slot, Action.ALARMED, own.version, actor=CONTROLLER, reason=why)
        try:
            return [alarm(evidence=facts, expected=head.number)]
        except ConflictError:  # another controller was first
            return []

    def release(self, id: str) -> Release:
        """A release up to its newest entry."""
        found = self._open.get(id)
        if found is None:
            found = self._open[id] = open_release(self.registry.ledger(f"releases/{id}", ReleaseEntry))
        found.fold()
        return found

    def shadow(self, spec: ReleaseSpec) -> ShadowSummary:
        """What the candidate answered while no one saw it."""
        return ShadowJournal(self.journal / quote(spec.slot, safe="")).summary(spec.id)

    def _close_units(self, release: Release) -> None:
        """Units whose window has closed enter the release's ledger, in the order of their assignment, once each."""
        folder = self.journal / quote(release.spec.slot, safe="") / quote(release.spec.id, safe="")
        added = (line for line in new_lines(folder, release.seen) if line.unit not in release.closed)
        collect_units(added, release.open)
        spec, now = release.spec, self.clock()
        if spec.early_window_s is not None:
            new = [unit for unit in release.open.values() if unit.first.unit not in release.seen_early]
            for part in batched(due(new, spec.early_window_s, now)):
                self._append(release, early=[close_early(unit, spec.early_window_s, self.store) for unit in part])
        for part in batched(due(release.open.values(), spec.window_s, now)):
            self._append(release, units=[close(unit, spec, self.store) for unit in part])

    def _append(self, release: Release, *, early: Sequence[EarlyUnit] = (), units: Sequence[ClosedUnit] = ()) -> None:
        now, expected = self.clock(), release.through

        def make(last: ReleaseEntry | None) -> ReleaseEntry:
            if last is None or last.number != expected:
                raise ConflictError(f"another controller closed units of {release.spec.id!r} first")
            return ReleaseEntry(number=expected + 1, time=now, early=tuple(early), units=tuple(units))

        release.ledger.append(make)
        release.fold()

    def _end_shadow(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        """A canary's first stage follows when the candidate has answered often enough, without an error."""
        if exposure.mode is not Mode.SHADOW or exposure.status != "running":
            return None
        spec = release.spec
        summary = self.shadow(spec)
        facts = {"release": spec.id, "through": release.through, "shadow": asdict(summary)}
        if summary.failed:
            why = f"the candidate raised an error in shadow: {summary.first_error}"
            return self._record(head, Action.ROLLED_BACK, spec, why, facts, without_exposure)
        if spec.mode is not Mode.CANARY or summary.answers < spec.shadow_answers:
            return None
        why = f"{summary.answers:,} answers in shadow without an error"
        return self._record(head, Action.ADVANCED, spec, why, facts, lambda serving: at_stage(serving, spec, 0))

    def _trip(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        """At once, without statistics: an answer that is no decision, or failures one after the other."""
        if exposure.mode is Mode.SHADOW:
            return None
        own = sorted((u for u in release.open.values() if u.first.candidate), key=lambda unit: unit.first.at_ns)
        invalid = [unit for unit in own if unit.failed.startswith(INVALID)]
        last = own[-CRASH_LOOP:]
        if invalid:
            why = f"the candidate's answer is no decision: {invalid[0].failed}"
        elif len(last) == CRASH_LOOP and all(unit.failed for unit in last):
            why = f"the candidate failed {CRASH_LOOP} times in a row: {last[-1].failed}"
        else:
            return None
        facts = self._facts(release, self._finding(release, exposure))
        facts["failed"] = [unit.first.unit for unit in (invalid or last)][:CRASH_LOOP]
        change = back_to_previous if exposure.mode is Mode.HOLDBACK else without_exposure
        return self._record(head, Action.ROLLED_BACK, release.spec, why, facts, change)

    def _roll_back(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        """On evidence of harm, at any time, in any mode."""
        if exposure.mode is Mode.SHADOW:
            return None
        finding = self._finding(release, exposure)
        if finding.action is not Finds.ROLL_BACK:
            return None
        change = back_to_previous if exposure.mode is Mode.HOLDBACK else without_exposure
        facts = self._facts(release, finding)
        return self._record(head, Action.ROLLED_BACK, release.spec, finding.reason, facts, change)

    def _stop_if_mismatched(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        """Units that do not arrive in the shares they were assigned in prove nothing: a person has to look."""
        if exposure.mode is Mode.SHADOW or exposure.status != "running":
            return None
        finding = self._finding(release, exposure)
        if finding.action is not Finds.CANNOT_TELL:
            return None
        facts = self._facts(release, finding)
        stopped = msgspec.structs.replace(exposure, status="held", share=0.0)
        return self._record(
            head,
            Action.HELD,
            release.spec,
            finding.reason,
            facts,
            lambda serving: msgspec.structs.replace(serving, exposure=stopped),
        )

    def _pass_stage(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        """The next stage, or the promotion, on proof and not before the stage's minimum duration."""
        spec = release.spec
        if exposure.mode is not Mode.CANARY or exposure.status != "running":
            return None
        finding = self._finding(release, exposure)
        if finding.action is not Finds.PASS_STAGE or release.is_blind:
            return None
        if self.clock() - self._stage_began(head, spec) < timedelta(minutes=spec.stage_minutes):
            return None
        facts, after = self._facts(release, finding), exposure.stage + 1
        if after < len(spec.stages):
            return self._record(
                head, Action.ADVANCED, spec, finding.reason, facts, lambda serving: at_stage(serving, spec, after)
            )
        if not self.registry.may_promote(spec.slot, spec.candidate):
            return None  # it waits for an approval, which `status` shows
        facts["proof"] = finding.reason
        return self._record(head, Action.PROMOTED, spec, finding.reason, facts, lambda serving: promoted(serving, spec))

    def _hold(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        """An undecided canary is held, or rolled back if so configured; it is never promoted."""
        spec = release.spec
        if exposure.mode is not Mode.CANARY or exposure.status != "running":
            return None
        finding, began = self._finding(release, exposure), self._began(spec)
        late = spec.deadline_minutes is not None and self.clock() - began > timedelta(minutes=spec.deadline_minutes)
        if finding.action is not Finds.HORIZON and not late:
            return None
        facts = self._facts(release, finding)
        why = finding.reason if finding.action is Finds.HORIZON else "undecided at its deadline"
        if spec.when_undecided == "roll_back":
            return self._record(head, Action.ROLLED_BACK, spec, why, facts, without_exposure)
        held = msgspec.structs.replace(exposure, status="held")
        return self._record(
            head, Action.HELD, spec, why, facts, lambda serving: msgspec.structs.replace(serving, exposure=held)
        )

    def _end_holdback(self, release: Release, exposure: Exposure, head: Entry) -> Entry | None:
        spec = release.spec
        if exposure.mode is not Mode.HOLDBACK:
            return None
        if self.clock() - self._stage_began(head, spec) < timedelta(days=spec.holdback_days):
            return None
        facts = self._facts(release, self._finding(release, exposure))
        why = f"no harm in {spec.holdback_days:g} days with {spec.holdback_share:.0%} on the previous policy"
        return self._record(head, Action.STOPPED, spec, why, facts, without_exposure)

    def pause(self, slot: str, *, by: str) -> Entry:
        """Assign no further units; those that are assigned still enter the evidence."""
        return self._command(slot, Action.PAUSED, by, lambda exposure: {"status": "paused", "share": 0.0})

    def resume(self, slot: str, *, by: str) -> Entry:
        def running(exposure: Exposure) -> dict[str, Any]:
            spec = self.release(exposure.release).spec
            share = 0.0 if exposure.mode is Mode.SHADOW else share_of(spec, exposure)
            return {"status": "running", "share": share}

        return self._command(slot, Action.RESUMED, by, running)

    def abort(self, slot: str, *, by: str, reason: str = "") -> Entry:
        """End a release: its candidate is rolled back; a shadow or an experiment ends without a change."""
        head, exposure = self._exposed(slot)
        release = self.release(exposure.release)
        harmless = exposure.mode in (Mode.SHADOW, Mode.EXPERIMENT)
        change = back_to_previous if exposure.mode is Mode.HOLDBACK else without_exposure
        finding = self._finding(release, exposure)
        return self._record(
            head,
            Action.STOPPED if harmless else Action.ROLLED_BACK,
            release.spec,
            reason or f"by {by}",
            self._facts(release, finding),
            change,
            by=by,
        )

    def _command(self, slot: str, action: Action, by: str, changes: Callable[[Exposure], dict[str, Any]]) -> Entry:
        head, exposure = self._exposed(slot)
        changed = msgspec.structs.replace(exposure, **changes(exposure))
        return self.registry.record(
            slot,
            action,
            exposure.candidate,
            actor=by,
            evidence={"release": exposure.release},
            change=lambda serving: msgspec.structs.replace(serving, exposure=changed),
            expected=head.number,
        )

    def _exposed(self, slot: str) -> tuple[Entry, Exposure]:
        head = self._head(slot)
        if head.serving.exposure is None:
            raise ReleaseError(f"{slot}: nothing is being released: `etude canary start VERSION` begins a release")
        return head, head.serving.exposure

    def _head(self, slot: str) -> Entry:
        head = self.registry.head(slot)
        if head is None:
            raise ReleaseError(f"{slot}: no version is registered: `etude models register RUN --slot {slot}`")
        return head

    def _finding(self, release: Release, exposure: Exposure) -> Finding:
        stages = release.spec.stages
        return release.evidence.verdict(exposure.stage, last=exposure.stage == len(stages) - 1)

    def _facts(self, release: Release, finding: Finding) -> dict[str, Any]:
        return {
            "release": release.spec.id,
            "through": release.through,
            "units": release.evidence.count,
            "candidates": release.evidence.candidates,
            "mean_candidate": release.evidence.mean_candidate if release.evidence.candidates else None,
            "log_e_values": release.evidence.e_values(),
            "decided_by": [crossing._asdict() for crossing in finding.decided_by],
        }

    def _record(
        self,
        head: Entry,
        action: Action,
        spec: ReleaseSpec,
        reason: str,
        facts: dict[str, Any],
        change: Callable[[Serving], Serving],
        *,
        by: str = CONTROLLER,
    ) -> Entry:
        return self.registry.record(
            spec.slot,
            action,
            spec.candidate,
            actor=by,
            reason=reason,
            evidence=facts,
            change=change,
            expected=head.number,
        )

    def _began(self, spec: ReleaseSpec) -> datetime:
        return next(e.time for e in self._steps_of(spec) if e.action is Action.STARTED)

    def _stage_began(self, head: Entry, spec: ReleaseSpec) -> datetime:
        """When the current share began."""
        moves = (Action.STARTED, Action.ADVANCED, Action.RESUMED, Action.PROMOTED)
        return next((e.time for e in reversed(self._steps_of(spec)) if e.action in moves), head.time)

    def _steps_of(self, spec: ReleaseSpec) -> Sequence[Entry]:
        return [entry for entry in self.registry.history(spec.slot) if entry.evidence.get("release") == spec.id]


_STEPS: tuple[Callable[[Controller, Release, Exposure, Entry], Entry | None], ...] = (
    Controller._end_shadow,
    Controller._trip,
    Controller._roll_back,
    Controller._stop_if_mismatched,
    Controller._pass_stage,
    Controller._hold,
    Controller._end_holdback,
)
"""What may be due, in order: harm comes before promotion."""


def batched(units: Sequence[OpenUnit]) -> Iterator[Sequence[OpenUnit]]:
    for i in range(0, len(units), BATCH):
        yield units[i : i + BATCH]


def first_exposure(spec: ReleaseSpec) -> Exposure:
    shadow = spec.mode is Mode.SHADOW or spec.shadow_answers > 0
    return Exposure(
        release=spec.id,
        candidate=spec.candidate,
        mode=Mode.SHADOW if shadow else spec.mode,
        share=0.0 if shadow else spec.stages[0],
        unit=spec.unit,
    )


def at_stage(serving: Serving, spec: ReleaseSpec, stage: int) -> Serving:
    exposure = Exposure(
        release=spec.id,
        candidate=spec.candidate,
        mode=spec.mode,
        share=spec.stages[stage],
        stage=stage,
        unit=spec.unit,
    )
    return msgspec.structs.replace(serving, exposure=exposure)


def promoted(serving: Serving, spec: ReleaseSpec) -> Serving:
    """The candidate serves; the previous policy keeps a small share for some days, where configured."""
    holdback = None
    if spec.holdback_share > 0 and spec.holdback_days > 0:
        holdback = Exposure(
            release=spec.id,
            candidate=spec.candidate,
            mode=Mode.HOLDBACK,
            share=1 - spec.holdback_share,
            stage=len(spec.stages) - 1,
            unit=spec.unit,
        )
    return Serving(incumbent=spec.candidate, previous=serving.incumbent, exposure=holdback)


def without_exposure(serving: Serving) -> Serving:
    return msgspec.structs.replace(serving, exposure=None)


def back_to_previous(serving: Serving) -> Serving:
    return Serving(incumbent=serving.previous)


def share_of(spec: ReleaseSpec, exposure: Exposure) -> float:
    return 1 - spec.holdback_share if exposure.mode is Mode.HOLDBACK else spec.stages[exposure.stage]


def _refuse(message: str) -> ReleaseEntry:
    raise ReleaseError(message)
