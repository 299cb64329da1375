"""The policies of `task.decide`: loaded in the background, asked with a deadline; and those that need no training."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any

from etude.contracts.arguments import text_of
from etude.contracts.decision import Decision, DecisionRequest, LoggedDecision, NoOptionError
from etude.contracts.errors import DataError, EtudeError, NoDecision, NoDecisionError
from etude.contracts.option import option_name, read_options, why_not
from etude.contracts.plain import plain
from etude.contracts.policy import SAMPLED
from etude.contracts.ports import Decider
from etude.experience.deadline import Deadline
from etude.experience.per_process import PerProcess

log = logging.getLogger("etude")

UNIFORM, DEFAULT = "uniform", "default"
RETRY_S = 10.0
"""Seconds after which a policy that could not be loaded is loaded again."""
LOOK_S = 2.0
"""Seconds after which a choice that began without a policy looks whether it has one by now."""


class Uniform:
    """Samples every eligible option with the same probability: the first policy of a new choice.

    Policies can learn from its decisions.
    """

    version, quick = UNIFORM, True

    def __init__(self, problem: str) -> None:
        self.problem = problem

    def decide(self, request: DecisionRequest) -> Decision:
        among = _eligible(self.problem, request)
        return _decision(self, request, random.Random(request.seed).choice(among), among, 1 / len(among))


class Default:
    """Gives the default option: a safe start. Policies can learn from it only as far as it explores."""

    quick = True

    def __init__(self, problem: str, *, explore: float = 0.0) -> None:
        """`explore` is the share of decisions that are sampled among all eligible options."""
        self.problem, self.explore = problem, explore
        self.version = f"{DEFAULT}{SAMPLED}" if explore else DEFAULT

    def decide(self, request: DecisionRequest) -> Decision:
        among, rng = _eligible(self.problem, request), random.Random(request.seed)
        wanted = [option for option in among if option_name(option) == request.default]
        usual = (wanted or among)[0]
        action = rng.choice(among) if rng.random() < self.explore else usual
        propensity = self.explore / len(among) + (1 - self.explore) * (option_name(action) == option_name(usual))
        return _decision(self, request, action, among, propensity)


class Start:
    """While the settings name no policy: gives the default option that a request names, else samples as `uniform`."""

    version, quick = UNIFORM, True

    def __init__(self, problem: str, *, explore: float = 0.0) -> None:
        self.problem = problem
        self._sampled, self._usual = Uniform(problem), Default(problem, explore=explore)

    def decide(self, request: DecisionRequest) -> Decision:
        return (self._sampled if request.default is None else self._usual).decide(request)


def _eligible(problem: str, request: DecisionRequest) -> Sequence[Any]:
    if not request.options:
        raise DataError(f"options of {problem!r} are empty: give options=[…] with at least one of them")
    read = read_options(request.options)
    found = [
        given for given, one in zip(request.options, read, strict=True) if why_not(one, request.preferences) is None
    ]
    if not found:
        raise DataError(f"the preferences rule out all options of {problem!r}: offer another, or ask for less")
    return found


def _decision(
    policy: Uniform | Default, request: DecisionRequest, action: Any, among: Sequence[Any], propensity: float
) -> Decision:
    logged = LoggedDecision(
        problem=policy.problem,
        context=plain(request.context),
        eligible=plain(list(among)),
        action=option_name(action),
        propensity=propensity,
        policy=policy.version,
    )
    return Decision(action=action, propensity=propensity, policy=policy.version, logged=(logged,))


@dataclass(frozen=True)
class ToLoad:
    """A policy that has to be loaded first."""

    name: str
    """Its name in the settings, for messages."""
    load: Callable[[], Decider]


@dataclass(frozen=True)
class NoAnswer:
    """Why a policy did not decide."""

    reason: NoDecision
    why: str
    error: Exception | None = None


@dataclass
class _Policy:
    """A policy that is loaded, or will be."""

    name: str  # empty if the settings do not say
    decider: Decider | None = None
    error: Exception | None = None
    retry_at: float = 0.0
    look_at: float = float("inf")
    """When to look whether there is a policy by now."""
    asked_at: float = float("inf")
    """When it was first asked for while it was loaded."""
    quick: bool = False
    """Whether it answers at once, so that it needs no thread."""
    ended: threading.Event = field(default_factory=threading.Event)

    def why(self, error: Exception) -> str:
        text = (
            text_of(error)
            if isinstance(error, EtudeError | TimeoutError)
            else f"{type(error).__name__}: {text_of(error)}"
        )
        return f"{self.name}: {text}" if self.name else text

    def no_answer(self, error: Exception) -> NoAnswer:
        if isinstance(error, TimeoutError):
            return NoAnswer("slow", self.why(error))
        if isinstance(error, NoDecisionError):
            return NoAnswer(error.reason, self.why(error), error)
        return NoAnswer("no option" if isinstance(error, NoOptionError) else "broken", self.why(error), error)

    def load(self, load: Callable[[], Decider]) -> None:
        try:
            self.decider = load()
        except Exception as error:  # whatever a policy of any package raises
            self.retry_at, self.error = monotonic() + RETRY_S, error
        finally:
            self.ended.set()


class Deciders:
    """The policy of each problem. One that has to be loaded is loaded by a thread of its own."""

    def __init__(self, make: Callable[[str], Decider | ToLoad], *, first_s: float = 0.0) -> None:
        """The first answer of all may take `first_s` longer, for example for a connection."""
        self._make, self._deadline, self._first_s = make, Deadline(), first_s
        self._known = PerProcess(lambda: (Lock(), dict[str, _Policy]()))

    def prepare(self, problem: str) -> None:
        """Begin to load the policy of a problem, and return."""
        self._policy(problem)

    def wait(self, problem: str) -> Decider:
        """The policy of a problem, when it is loaded; raises what its loading raised."""
        policy = self._policy(problem, again=True)
        policy.ended.wait()
        if policy.decider is None:
            assert policy.error is not None
            raise policy.error
        return policy.decider

    def loaded(self, problem: str, *, timeout_s: float) -> NoAnswer | None:
        """Wait until the policy of a problem is loaded; why not, if it is not.

        The timeout begins with the first call, so that later calls do not wait again.
        """
        policy = self._policy(problem)
        if not policy.ended.is_set():
            policy.asked_at = min(policy.asked_at, monotonic())
            policy.ended.wait(max(0.0, policy.asked_at + timeout_s - monotonic()))
        return self.state(problem)

    def state(self, problem: str) -> NoAnswer | None:
        """Why the policy of a problem would not decide now; None if it would. It waits for nothing."""
        policy = self._policy(problem)
        if not policy.ended.is_set():
            return NoAnswer("loading", f"{policy.name} is being loaded")
        return None if policy.error is None else NoAnswer("missing", policy.why(policy.error))

    def decide(self, problem: str, request: DecisionRequest, *, timeout_s: float) -> Decision | NoAnswer:
        """Ask the loaded policy of a problem; why it does not answer, if it does not. It raises nothing."""
        policy = self._policy(problem)
        if policy.decider is None:
            return self.loaded(problem, timeout_s=0) or NoAnswer("loading", f"{policy.name} is being loaded")
        try:
            if policy.quick:
                return policy.decider.decide(request)
            if timeout_s < 0:
                return NoAnswer("loading", f"{policy.name} was loaded too late to be asked")
            more_s, self._first_s = self._first_s, 0.0
            return self._deadline.call(partial(policy.decider.decide, request), timeout_s + more_s)
        except Exception as error:  # whatever a policy of any package raises
            return policy.no_answer(error)

    def loading(self) -> list[str]:
        """The problems whose policies are being loaded."""
        _, known = self._known()
        return sorted(problem for problem, policy in known.copy().items() if not policy.ended.is_set())

    def ready(self, problem: str) -> Decider | None:
        """The policy of a problem if it is loaded; else its loading begins."""
        return self._policy(problem).decider

    def no_answer(self, problem: str, error: Exception) -> NoAnswer:
        """Why the policy of a problem did not answer, by the error that it raised."""
        return self._policy(problem).no_answer(error)

    def _policy(self, problem: str, *, again: bool = False) -> _Policy:
        """Its loading begins with the first call, and after a failure some seconds later, or at once if `again`."""
        turn, known = self._known()
        policy = known.get(problem)
        if policy is not None and policy.error is None and monotonic() < policy.look_at:
            return policy
        with turn:
            policy = known.get(problem)
            if policy is None or (policy.error is not None and (again or monotonic() >= policy.retry_at)):
                known[problem] = policy = self._begin(problem)
            elif monotonic() >= policy.look_at:
                self._look(problem, policy)
        return policy

    def _look(self, problem: str, started: _Policy) -> None:
        """A choice that began without a policy goes on without one until the one that it has by now is loaded."""
        started.look_at = monotonic() + LOOK_S
        try:
            made = self._make(problem)
        except Exception as error:  # such as settings that cannot be read
            log.warning("%s: whether there is a policy by now cannot be seen: %s", problem, text_of(error))
            return
        if isinstance(made, ToLoad):
            started.look_at = float("inf")
            work = partial(self._replace, problem, started, made)
            threading.Thread(target=work, name=f"etude-load-{problem}", daemon=True).start()

    def _replace(self, problem: str, started: _Policy, made: ToLoad) -> None:
        policy = _Policy(made.name)
        policy.load(made.load)
        if policy.error is not None:
            log.warning("%s is not loaded yet: %s", made.name, policy.why(policy.error))
            started.look_at = policy.retry_at
            return
        _, known = self._known()
        known[problem] = policy

    def _begin(self, problem: str) -> _Policy:
        try:
            made = self._make(problem)
        except Exception as error:  # such as settings that cannot be read
            return _ended(_Policy("", error=error, retry_at=monotonic() + RETRY_S))
        if not isinstance(made, ToLoad):
            look_at = monotonic() + LOOK_S if isinstance(made, Start) else float("inf")
            quick = isinstance(made, Uniform | Default | Start)
            return _ended(_Policy(made.version, decider=made, quick=quick, look_at=look_at))
        policy = _Policy(made.name)
        threading.Thread(target=policy.load, args=(made.load,), name=f"etude-load-{problem}", daemon=True).start()
        return policy


def _ended(policy: _Policy) -> _Policy:
    policy.ended.set()
    return policy
