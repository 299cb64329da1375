"""A server of Etude behind the ports of this process: its decisions as a Decider, its doors for events as a target.

It uses `http.client` alone. Connections are kept alive; nothing connects before the first request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import monotonic
from typing import Any

import msgspec
from msgspec import Struct

from etude.contracts.bus import Message
from etude.contracts.decision import Decision, DecisionRequest, Expected, LoggedDecision, NoOptionError
from etude.contracts.errors import (
    BusError,
    ConfigError,
    DataError,
    EndpointError,
    NoDecision,
    NoDecisionError,
    RefusedError,
    RequestError,
)
from etude.contracts.option import CHOICE
from etude.contracts.plain import plain
from etude.contracts.services import authorisation, checked_url
from etude.contracts.subjects import subject_of
from etude.contracts.trajectory import Feedback, Trajectory

PROBLEM = "application/problem+json"
MAX_BYTES = 1 << 26
"""Maximum size of an answer in bytes."""
SEND_TIMEOUT_S = 10.0
PLAN_TIMEOUT_S = 25.0
"""Seconds that a decision without a default waits, the loading of the policy on the server included."""
FIRST_S = 1.0
"""Seconds that the first decision of a process may take longer, for the connection and a server that just started."""
SHARE = 0.8
"""Share of the time for a decision that the server has; the rest is for the way there and back."""
MAX_SENT, MAX_SENT_BYTES = 100, 1 << 20
"""Maximum number and bytes of the tasks that one request sends; a larger one is sent alone."""
FAILURES, FIRST_PAUSE_S, MAX_PAUSE_S = 3, 1.0, 30.0
"""Failures in a row after which a server is not asked for a while, which doubles while it stays away."""


class HttpServer:
    """A server at a URL. Any number of threads may use it; a forked child makes connections of its own."""

    def __init__(self, url: str, api_key: str, *, headers: Mapping[str, str] | None = None) -> None:
        """ConfigError if the URL or the key is not one."""
        parts = checked_url(url, of="a server", key_in="as ETUDE_API_KEY", error=ConfigError)
        assert parts.hostname is not None
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection  # certificates are verified
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self.url = parts._replace(path=self._path, query="", fragment="").geturl()
        self._headers = {"Content-Type": "application/json", "User-Agent": "etude", **(headers or {})}
        self._headers |= authorisation(api_key, error=ConfigError)
        self._idle: list[HTTPConnection] = []
        self._process, self._is_closed = os.getpid(), False

    def post(self, path: str, body: bytes, *, timeout_s: float, headers: Mapping[str, str] | None = None) -> bytes:
        """The answer. EndpointError or TimeoutError if there is none, RequestError if the server refuses."""
        while True:
            connection, is_new = self._take(timeout_s)
            try:
                connection.request("POST", self._path + path, body, {**self._headers, **(headers or {})})
                answer = connection.getresponse()
                data = answer.read(MAX_BYTES)
            except TimeoutError:
                connection.close()
                raise TimeoutError(f"{self.url} did not answer within {1000 * timeout_s:.0f} ms") from None
            except (OSError, HTTPException) as error:
                connection.close()
                if is_new:
                    raise EndpointError(f"{self.url} does not answer: {_cause(error)}") from error
                continue  # the server closed a connection that was not used for some seconds
            except BaseException:
                connection.close()
                raise
            if self._is_closed or answer.will_close or not answer.isclosed():
                connection.close()
            else:
                self._idle.append(connection)
            if answer.status >= 300:
                raise _refusal(answer, data)
            return data

    def close(self) -> None:
        """Close the connections; one in use is closed when its request has ended."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()

    def _take(self, timeout_s: float) -> tuple[HTTPConnection, bool]:
        """A connection for one request, and whether it is new."""
        if self._process != os.getpid():  # a forked child has copies of its parent's
            self._process, copies, self._idle = os.getpid(), self._idle, []
            for connection in copies:
                connection.close()
        try:
            connection = self._idle.pop()  # the last one used: few stay open
        except IndexError:
            return self._kind(self._host, self._port, timeout=timeout_s), True
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection, False


def _cause(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refusal(answer: HTTPResponse, data: bytes) -> EndpointError | RequestError:
    """What a refusal says; one that is not of Etude's own words is from something on the way."""
    if answer.headers.get_content_type() != PROBLEM:
        return EndpointError(f"status {answer.status} is not from Etude: does ETUDE_URL name `etude serve`?")
    try:
        detail = str(msgspec.json.decode(data)["detail"])
    except (msgspec.DecodeError, KeyError, TypeError):
        detail = "no detail"
    return RequestError(detail, status=answer.status)


@dataclass(kw_only=True)
class Breaker:
    """Keeps calls from a server that failed some times in a row. After a pause one call tries it again."""

    clock: Callable[[], float] = monotonic
    is_new: bool = True
    """Whether no call was answered yet."""
    _failed: int = 0
    _closed_until: float = 0.0

    def admits(self) -> bool:
        if self._failed < FAILURES:
            return True
        if self.clock() < self._closed_until:
            return False
        self._pause()  # others wait for the one that tries
        return True

    def succeeded(self) -> None:
        self._failed, self.is_new = 0, False

    def failed(self) -> None:
        self._failed += 1
        if self._failed >= FAILURES:
            self._pause()

    def _pause(self) -> None:
        self._closed_until = self.clock() + min(FIRST_PAUSE_S * 2.0 ** (self._failed - FAILURES), MAX_PAUSE_S)


class _Given(Struct, kw_only=True):
    """The parts of an answer that are read."""

    action: Any
    propensity: float | None
    policy: str
    logged: tuple[LoggedDecision, ...]
    fallback: NoDecision | None = None
    expected: dict[str, Expected] = {}
    proposal: Any = None
    cost_usd: float = 0.0


@dataclass(kw_only=True)
class HttpDecider:
    """The policy of a problem on a server, as a Decider of this process."""

    server: HttpServer
    problem: str
    timeout_s: float
    """Seconds that a choice waits."""
    breaker: Breaker = field(default_factory=Breaker)

    @property
    def version(self) -> str:
        """Where it is; each decision has the version of the policy that made it."""
        return self.server.url

    def decide(self, request: DecisionRequest) -> Decision:
        """NoDecisionError if the policy does not decide now, DataError if the request is wrong."""
        of_choice = self.problem.startswith(CHOICE)
        timeout_s = self.timeout_s + FIRST_S * self.breaker.is_new if of_choice else PLAN_TIMEOUT_S
        given = self._ask(self._body(request, timeout_s), timeout_s)
        if of_choice and given.fallback == "no option":
            raise NoOptionError("no option is within the limits of the request", given.expected)
        if of_choice and given.fallback is not None:
            raise NoDecisionError(f"the server says that its policy is {given.fallback}", reason=given.fallback)
        return Decision(
            action=given.action,
            propensity=given.propensity,
            policy=given.policy,
            logged=given.logged,
            cost_usd=given.cost_usd,
            expected=given.expected,
            proposal=given.proposal,
        )

    def _body(self, request: DecisionRequest, timeout_s: float) -> bytes:
        about = request.about
        asked = {
            "problem": self.problem,
            "context": plain(request.context),
            "options": None if request.options is None else plain(list(request.options)),
            "default": request.default,
            "preferences": request.preferences,
            "state": plain(request.state),
            "trajectory": request.trajectory,
            "conversation": request.conversation,
            "at_ms": request.at_ms,
            "timeout_ms": 1e3 * SHARE * timeout_s,
            "record": request.trajectory is not None,
            "explain": request.explain,
            "log": True,
        }
        return msgspec.json.encode(asked | ({} if about is None else plain(about)))

    def _ask(self, body: bytes, timeout_s: float) -> _Given:
        if not self.breaker.admits():
            raise NoDecisionError("it failed several times: it is tried again in some seconds", reason="away")
        try:
            answer = self.server.post("/v1/decisions", body, timeout_s=timeout_s)
        except RequestError as error:
            raise self._refused(error) from error
        except EndpointError as error:
            self.breaker.failed()
            raise NoDecisionError(str(error), reason="away") from error
        except TimeoutError:
            self.breaker.failed()
            raise
        self.breaker.succeeded()
        try:
            return msgspec.json.decode(answer, type=_Given)
        except msgspec.DecodeError as error:
            text = f"the answer cannot be read ({error}): is the server of an older version?"
            raise NoDecisionError(text, reason="broken") from error

    def _refused(self, error: RequestError) -> NoDecisionError | DataError:
        if error.status >= 500 or error.status == 429:
            self.breaker.failed()
            return NoDecisionError(f"status {error.status}: {error}", reason="away")
        self.breaker.succeeded()
        if error.status in (401, 403):
            hint = "set ETUDE_API_KEY to a key that `etude keys create --role decide` prints on the server"
            return NoDecisionError(f"{self.server.url} does not accept the API key ({error}): {hint}", reason="key")
        if error.status == 400 and not self.problem.startswith(CHOICE):
            return DataError(str(error))
        return NoDecisionError(f"status {error.status}: {error}", reason="refused")


class HttpEvents:
    """Where events are sent: finished tasks and ratings, in their order. The server stores each once."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server

    def publish(self, messages: Sequence[Message]) -> None:
        """BusError if they have to be sent again, RefusedError if one of them will never be accepted."""
        tasks = subject_of(Trajectory)
        for group in _groups(messages):
            if group[0].subject == tasks:
                self._send("/v1/trajectories", b'{"trajectories":[%b]}' % b",".join(one.body for one in group))
            else:
                self._rate(group[0])

    def close(self) -> None:
        self._server.close()

    def _rate(self, message: Message) -> None:
        if message.subject != subject_of(Feedback):
            raise RefusedError(f"{message.subject} cannot be sent to a server: expected a trajectory or a rating")
        event = msgspec.json.decode(message.body)
        known = ("thumbs", "stars", "comment", "user", "time")
        rating = {name: event[name] for name in known if name in event}
        rating |= {"id": event["trajectory_id"], "event": message.id}
        self._send("/v1/feedback", msgspec.json.encode(rating), {"Idempotency-Key": message.id})

    def _send(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        try:
            self._server.post(path, body, timeout_s=SEND_TIMEOUT_S, headers=headers)
        except RequestError as error:
            if error.status in (400, 403, 409, 413):
                raise RefusedError(f"{self._server.url} refuses it: {error}") from error
            hint = ": set ETUDE_API_KEY to a key of this server" if error.status == 401 else ""
            raise BusError(f"{self._server.url} answers {error.status} ({error}){hint}") from error
        except (EndpointError, TimeoutError) as error:
            raise BusError(str(error)) from error


def _groups(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Tasks that follow each other, as many as one request may have; each rating alone."""
    group: list[Message] = []
    size = 0
    for message in messages:
        is_task = message.subject == subject_of(Trajectory)
        full = len(group) == MAX_SENT or size + len(message.body) > MAX_SENT_BYTES
        if group and (full or not is_task or group[0].subject != message.subject):
            yield group
            group, size = [], 0
        group.append(message)
        size += len(message.body)
    if group:
        yield group
