"""The policy that serves a slot: follows promotions and rollbacks at the next decision, and assigns units to arms."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from time import monotonic, perf_counter, time_ns
from typing import Any, Protocol, cast
from urllib.parse import quote

from etude.contracts.decision import Decision, DecisionRequest, NoOptionError
from etude.contracts.errors import DataError, ReleaseError
from etude.contracts.plain import plain
from etude.contracts.ports import BatchDecider, Decider
from etude.contracts.release import Exposure, Mode, Serving
from etude.release.assignment import INVALID, Assigned, Assignments
from etude.release.shadow import ShadowAnswer, ShadowJournal

log = logging.getLogger("etude")

LOADED = 4
"""Versions that stay loaded, so that a rollback waits for no file."""
RETRY_S = 10.0
"""Seconds after which a candidate that could not be loaded is loaded again."""
WAITING = 256
"""Shadow answers that may wait; further ones are left out."""


class Follows(Protocol):
    """The serving state of a slot, as of now."""

    def serving(self) -> Serving: ...


class ServedPolicy:
    """A Decider, and everything else that the incumbent's own policy has, such as `choose` or `plan`.

    All decisions of a trajectory, or of a conversation where the release says so, are made by the policy of its arm.
    Without a trajectory the incumbent decides. A candidate is loaded by a thread of its own, and no unit is assigned
    before it is loaded; a policy that a rollback returns to is loaded at once. Where the candidate raises an error,
    the incumbent decides, and the unit counts as a failure of the candidate.
    """

    def __init__(
        self,
        slot: str,
        *,
        follows: Follows,
        load: Callable[[str], Decider],
        journal: Path,
        first: Decider | None = None,
        swap_when_loaded: bool = False,
        clock_ns: Callable[[], int] = time_ns,
    ) -> None:
        """`load` gives the policy of a version; `journal` is the folder where assignments of all slots are written;
        `first` decides until a first policy is promoted. With `swap_when_loaded`, every later policy is loaded by a
        thread of its own, and until then the last one decides: no request waits for a file."""
        self.slot, self.problem = slot, slot
        self._follows, self._load, self._first = follows, load, first
        self._swap_when_loaded, self._last = swap_when_loaded, ""
        folder = journal / quote(slot, safe="")
        self._assignments = Assignments(folder, clock_ns=clock_ns)
        self._shadow = _Shadow(ShadowJournal(folder))
        self._policies: dict[str, Decider] = {}
        self._loading: dict[str, float] = {}  # version → when to try again
        self._turn = threading.Lock()
        serving = self._follows.serving()
        if serving.incumbent is not None:  # the first decision should not wait for a file
            self._last = serving.incumbent
            self._loaded(serving.incumbent)
        self._incumbent(serving)

    @property
    def version(self) -> str:
        """Version of the incumbent, and of how it is used."""
        return self._incumbent(self._follows.serving()).version

    def decide(self, request: DecisionRequest) -> Decision:
        serving = self._follows.serving()
        exposure = serving.exposure
        if exposure is None or request.trajectory is None:
            return self._incumbent(serving).decide(request)
        if exposure.share == 0:
            (answer,) = self._many_with_shadow(serving, exposure, [request])
            if isinstance(answer, Exception):
                raise answer
            return answer
        return self._asked(
            serving, exposure, request.trajectory, request.conversation, lambda policy: policy.decide(request)
        )

    @property
    def quick(self) -> bool:
        """Whether the policies that may decide now are loaded, and answer without a deadline."""
        return all(getattr(policy, "quick", False) for policy in self._deciding())

    @property
    def batches(self) -> bool:
        """Whether the policies that may decide now answer requests that arrive together in one computation."""
        return all(hasattr(policy, "decide_many") for policy in self._deciding())

    def _deciding(self) -> list[Decider | None]:
        """The policies that may decide now; None for one that would have to be loaded first."""
        serving = self._follows.serving()
        exposure = serving.exposure
        found = [self._first if serving.incumbent is None else self._policies.get(serving.incumbent) or self._before()]
        if exposure is not None and exposure.share > 0 and exposure.candidate in self._policies:
            found.append(self._policies.get(exposure.candidate))
            if exposure.mode is Mode.HOLDBACK and serving.previous is not None and not self._swap_when_loaded:
                found.append(self._policies.get(serving.previous))
        return found

    def _before(self) -> Decider | None:
        """The policy that decides while the next one is loaded; None if requests wait for that."""
        if not self._swap_when_loaded:
            return None
        return self._policies.get(self._last) if self._last else self._first

    def decide_many(self, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
        """Those of the same arm are asked together."""
        serving = self._follows.serving()
        exposure = serving.exposure
        if exposure is None:
            return decide_many(self._incumbent(serving), requests)
        if exposure.share == 0:
            return self._many_with_shadow(serving, exposure, requests)
        arms = self._arms(serving, exposure)
        if arms is None:
            return decide_many(self._incumbent(serving), requests)
        candidate, other = arms
        assigned = [self._assigned(exposure, request) for request in requests]
        answers: list[Decision | Exception] = [*requests]  # type: ignore[list-item]  # each is replaced
        for is_candidates, policy in ((True, candidate), (False, other)):
            places = [i for i, one in enumerate(assigned) if (one is not None and one.candidate) == is_candidates]
            found = decide_many(policy, [requests[place] for place in places]) if places else []
            for place, answer in zip(places, found, strict=True):
                unit = assigned[place]
                answers[place] = (
                    self._checked(exposure, unit, requests[place], answer, other)
                    if unit is not None and is_candidates
                    else answer
                )
        return answers

    def _assigned(self, exposure: Exposure, request: DecisionRequest) -> Assigned | None:
        if request.trajectory is None:
            return None
        return self._assign(exposure, request.trajectory, request.conversation)

    def _checked(
        self,
        exposure: Exposure,
        assigned: Assigned,
        request: DecisionRequest,
        answer: Decision | Exception,
        other: Decider,
    ) -> Decision | Exception:
        """The candidate's answer; the other arm's where it failed or answers nonsense."""
        if isinstance(answer, DataError | NoOptionError):
            return answer  # the request is at fault
        why = f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else invalid(answer)
        if not why:
            return answer
        self._failed(exposure, assigned, why)
        return _caught(other.decide, request)

    def prepare(self) -> None:
        """Load every policy that serves now, the candidate's too, and return when they are loaded."""
        serving = self._follows.serving()
        self._incumbent(serving)
        if serving.exposure is not None:
            self._loaded(serving.exposure.candidate)

    def policy(self, trajectory: str | None = None, *, conversation: str | None = None) -> Any:
        """The policy that decides for a trajectory, or the incumbent, as its problem loads it."""
        serving = self._follows.serving()
        exposure = serving.exposure
        if exposure is None or exposure.share == 0 or trajectory is None:
            return self._incumbent(serving)
        arms = self._arms(serving, exposure)
        if arms is None:
            return self._incumbent(serving)
        return arms[0 if self._assign(exposure, trajectory, conversation).candidate else 1]

    def choose(
        self, context: Any = None, *, trajectory: str | None = None, conversation: str | None = None, **wanted: Any
    ) -> Decision:
        """As `choose` of the policy itself, by the policy of the trajectory's arm."""
        serving = self._follows.serving()
        exposure = serving.exposure
        if exposure is None or exposure.share == 0 or trajectory is None:
            chosen: Decision = cast(Any, self._incumbent(serving)).choose(context, **wanted)
            return chosen
        return self._asked(
            serving, exposure, trajectory, conversation, lambda policy: cast(Any, policy).choose(context, **wanted)
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.policy(), name)
        return self._decider if name == "decider" else found

    def _decider(self, **how: Any) -> ServedPolicy:
        """The same slot, with the deciders that its policies make, such as a planner for a catalogue."""
        view = copy(self)
        view._policies, view._loading, view._turn = {}, {}, threading.Lock()
        view._load = lambda version: cast(Any, self._loaded(version)).decider(**how)
        return view

    def _asked(
        self,
        serving: Serving,
        exposure: Exposure,
        trajectory: str,
        conversation: str | None,
        ask: Callable[[Decider], Decision],
    ) -> Decision:
        """The decision of the unit's arm; the other arm's where the candidate fails or answers nonsense."""
        arms = self._arms(serving, exposure)
        if arms is None:
            return ask(self._incumbent(serving))
        candidate, other = arms
        assigned = self._assign(exposure, trajectory, conversation)
        if not assigned.candidate:
            return ask(other)
        try:
            decision = ask(candidate)
            if not (why := invalid(decision)):
                return decision
        except (DataError, NoOptionError):
            raise  # the request is at fault
        except Exception as error:  # whatever a policy of any package raises
            why = f"{type(error).__name__}: {error}"
        self._failed(exposure, assigned, why)
        return ask(other)

    def _failed(self, exposure: Exposure, assigned: Assigned, why: str) -> None:
        log.error("%s: candidate %s failed, the incumbent decides: %s", self.slot, exposure.candidate, why)
        self._assignments.failed(exposure, assigned, why)

    def _arms(self, serving: Serving, exposure: Exposure) -> tuple[Decider, Decider] | None:
        """The candidate, and the policy of the units that are not its; None while one of them is being loaded."""
        candidate, previous = self._candidate(exposure.candidate), serving.previous
        if exposure.mode is not Mode.HOLDBACK or previous is None:
            other: Decider | None = self._incumbent(serving)
        else:
            other = self._candidate(previous) if self._swap_when_loaded else self._loaded(previous)
        return None if candidate is None or other is None else (candidate, other)

    def _assign(self, exposure: Exposure, trajectory: str, conversation: str | None) -> Assigned:
        unit = conversation if exposure.unit == "conversation" and conversation is not None else trajectory
        return self._assignments.assign(exposure, unit, trajectory)

    def _incumbent(self, serving: Serving) -> Decider:
        if serving.incumbent is None:
            if self._first is not None:
                return self._first
            raise ReleaseError(
                f"no policy serves {self.slot!r}: register one and promote it (`etude models list` shows what there is)"
            )
        before = self._before()
        if before is not None and self._candidate(serving.incumbent) is None:
            return before
        found = self._loaded(serving.incumbent)
        self._last = serving.incumbent
        return found

    def _loaded(self, version: str) -> Decider:
        found = self._policies.get(version)
        if found is None:
            with self._turn:
                found = self._policies.get(version) or self._keep(version, self._load(version))
        return found

    def _keep(self, version: str, policy: Decider) -> Decider:
        serving, known = self._follows.serving(), list(self._policies)
        needed = {*known[-LOADED + 1 :], serving.incumbent, serving.previous, self._last}
        kept = {other: self._policies[other] for other in known if other in needed}
        self._policies = kept | {version: policy}  # replaced, not changed: other threads read it without a lock
        return policy

    def _candidate(self, version: str) -> Decider | None:
        """The candidate if it is loaded; else its loading begins."""
        found = self._policies.get(version)
        if found is None:
            with self._turn:
                if monotonic() < self._loading.get(version, 0.0):
                    return None
                self._loading[version] = float("inf")
            threading.Thread(target=self._load_candidate, args=(version,), name="etude-candidate", daemon=True).start()
        return found

    def _load_candidate(self, version: str) -> None:
        try:
            policy = self._load(version)
        except Exception as error:  # whatever the loader of a problem raises
            log.error("%s: candidate %s cannot be loaded, so it gets no traffic here: %s", self.slot, version, error)
            self._loading[version] = monotonic() + RETRY_S
            return
        with self._turn:
            self._keep(version, policy)
            self._loading.pop(version, None)

    def _many_with_shadow(
        self, serving: Serving, exposure: Exposure, requests: Sequence[DecisionRequest]
    ) -> list[Decision | Exception]:
        """The incumbent's decisions; the candidate answers the requests of trajectories in a thread of its own."""
        answers = decide_many(self._incumbent(serving), requests)
        candidate = self._candidate(exposure.candidate) if exposure.mode is not Mode.HOLDBACK else None
        for request, answer in zip(requests, answers, strict=True):
            if candidate is not None and request.trajectory is not None and isinstance(answer, Decision):
                self._shadow.ask(exposure.release, candidate, request, answer)
        return answers


def decide_many(policy: Decider, requests: Sequence[DecisionRequest]) -> list[Decision | Exception]:
    """The answers of any policy, or the errors that it raises."""
    if hasattr(policy, "decide_many"):
        answers = cast(BatchDecider, policy).decide_many(requests)
        if len(answers) == len(requests):
            return answers
        log.error("%s answered %d of %d requests: each is asked by itself", policy, len(answers), len(requests))
    return [_caught(policy.decide, request) for request in requests]


def _caught(decide: Callable[[DecisionRequest], Decision], request: DecisionRequest) -> Decision | Exception:
    try:
        return decide(request)
    except Exception as error:  # whatever a policy of any package raises
        return error


def invalid(decision: Any) -> str:
    """Why a decision may not be carried out: it is none, or nothing can be learned from it; empty if it may."""
    if not isinstance(decision, Decision) or not decision.logged:
        return f"{INVALID}{decision!r:.100}, expected a Decision with its log entries"
    for probability in (decision.propensity, *(logged.propensity for logged in decision.logged)):
        if probability is not None and not 0 < probability <= 1 + 1e-6:
            return f"{INVALID}its propensity is {probability!r}, expected a probability above 0"
    for logged in decision.logged:
        if isinstance(logged.eligible, list | tuple) and isinstance(logged.action, str):
            names = [option.get("name") if isinstance(option, dict) else option for option in logged.eligible]
            if logged.action not in names:
                return f"{INVALID}it chose {logged.action!r:.60}, which is not eligible"
    return ""


class _Shadow:
    """Asks candidates in one thread, and journals whether they answer as the incumbent does."""

    def __init__(self, journal: ShadowJournal) -> None:
        self._journal = journal
        self._asked: queue.Queue[tuple[str, Decider, DecisionRequest, Decision]] = queue.Queue(WAITING)
        self._thread: threading.Thread | None = None

    def ask(self, release: str, candidate: Decider, request: DecisionRequest, decision: Decision) -> None:
        """Returns at once; left out if too many wait."""
        if self._thread is None or not self._thread.is_alive():  # also in the child of a fork
            self._thread = threading.Thread(target=self._answer_all, name="etude-shadow", daemon=True)
            self._thread.start()
        try:
            self._asked.put_nowait((release, candidate, request, decision))
        except queue.Full:
            return

    def _answer_all(self) -> None:
        while True:
            release, candidate, request, decision = self._asked.get()
            began, why = perf_counter(), ""
            try:
                # An option is the agent's own value, of any type.
                same = plain(candidate.decide(request).action) == plain(decision.action)
            except Exception as error:  # whatever a policy of any package raises
                same, why = False, f"{type(error).__name__}: {error}"[:500]
            ms = (perf_counter() - began) * 1e3
            answer = ShadowAnswer(request.trajectory or "", same, ms, why)
            try:
                self._journal.append(release, answer)
            except OSError as error:
                log.warning("a shadow answer was not journalled: %s", error)
