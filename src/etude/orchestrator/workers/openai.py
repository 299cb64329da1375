"""A worker for any OpenAI-compatible chat endpoint: a subtask becomes a prompt, and the reply is its output.

The cost of an answer is computed from the token counts of the service and the configured prices.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import reprlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from etude.contracts.errors import EndpointError, MissingExtraError, WorkersError
from etude.contracts.services import authorisation, checked_url
from etude.contracts.work import Fault, Reply, Subtask, WorkerError
from etude.orchestrator.workers.template import Template, as_text, needs_input

if TYPE_CHECKING:
    import httpx

DEFAULT_PROMPT = """\
You carry out one step of a larger task.

The task: {instruction}

Your step: {task_type}
{description}
{parameters}

{inputs}

Answer with the result of your step alone."""

CONNECT_S = 10.0
CHECK_S = 5.0
KEPT_S = 30.0
"""How long a connection that is not used is kept."""
SILENCE_S = 600.0
"""Of an answer that does not stream, nothing comes until all of it is there."""
FIRST_WAIT_S = 0.5
MAX_WAIT_S = 30.0
"""Where a service asks for a longer wait, the orchestrator decides what to do instead."""
LAST_CHUNK_S = 0.05
"""How long the end of a stream is waited for once its last event is there: a connection read to its end is reused."""
BODY_BYTES = 2**26
LINE_BYTES = 2**20
ERROR_BYTES = 2**14
MESSAGE_TOKENS = 32
"""What chat markup adds to a message at most."""
MAX_TOKENS = 2**53

RESERVED = ("model", "messages", "stream", "n")
LIMITS = ("max_tokens", "max_completion_tokens")
AGAIN = (408, 409, 429)
FAULTS = {
    400: Fault.WRONG_INPUT,
    408: Fault.TIMEOUT,
    413: Fault.WRONG_INPUT,
    422: Fault.WRONG_INPUT,
    429: Fault.RATE_LIMIT,
}
"""By status. Any other that is no answer is UNAVAILABLE."""
REMEDIES = {
    401: ": it does not take the API key; check the variable that api_key_env names",
    403: ": the API key may not use this model; check both",
    404: ": there is no such route or model; check url and model",
}


class OpenAIWorker:
    """Asks one model at one URL. It connects when it is first asked, and holds no more than idle connections.

    It asks again, with exponential back-off and full jitter, only where nothing was answered: on 408, 409, 429, 5xx
    and on connections that fail before an answer begins. Nothing is billed for those, so an attempt is billed once at
    most, which `max_usd` relies on. Of an answer that breaks off or stalls, the tokens until then are in the
    `cost_usd` of the error. A worker without any price leaves the cost to the catalogue (None).
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,  # …/v1 or …/v1/chat/completions
        model: str,
        api_key: str | None = None,  # sent to this URL alone; in no message
        prompts: Mapping[str, str] = {},  # a template per task type
        prompt: str = DEFAULT_PROMPT,  # the template of all others
        system: str = "",  # a system message, as it stands
        usd_per_mtok_in: float = 0.0,
        usd_per_mtok_out: float = 0.0,
        usd_per_call: float = 0.0,  # of each answer, in addition to its tokens
        max_tokens: int = 1024,  # of an answer
        temperature: float | None = None,  # None: the service's own
        stream: bool = True,
        stall_s: float = 20.0,  # maximum silence of a stream, its beginning included
        attempts: int = 3,  # requests until one is answered
        extra: Mapping[str, Any] = {},  # more of the request's fields; null leaves one out
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtraError(needs="httpx", extra="run") from error
        parts = checked_url(url, of="a chat service", key_in="by api_key_env", error=WorkersError)
        path = parts.path.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self.name = name
        self._parts = parts
        self._url = parts._replace(path=path, fragment="").geturl()
        self._shown = parts._replace(path=path, query="", fragment="").geturl()  # a query may hold a key
        self._secrets = tuple(secret for secret in (api_key, parts.query) if secret)
        self._headers = {"Content-Type": "application/json", "User-Agent": "etude", "Accept-Encoding": "identity"}
        self._headers |= authorisation(api_key, error=WorkersError)
        self._prompts = {kind: Template(f"the prompt of {kind!r}", text) for kind, text in prompts.items()}
        self._prompt = Template("the prompt", prompt)
        self._system = [{"role": "system", "content": _utf8(system)}] if system else []
        self._usd_in = _checked_number("usd_per_mtok_in", usd_per_mtok_in) / 1e6
        self._usd_out = _checked_number("usd_per_mtok_out", usd_per_mtok_out) / 1e6
        self._usd_call = _checked_number("usd_per_call", usd_per_call)
        self._priced = bool(usd_per_mtok_in or usd_per_mtok_out or usd_per_call)
        self._max_tokens = int(_checked_number("max_tokens", max_tokens, least=1))
        self._stall_s = _checked_number("stall_s", stall_s, least=1e-3)
        self._attempts = int(_checked_number("attempts", attempts, least=1))
        self._stream = stream
        self._request = self._checked_request(model, temperature, extra)
        self._sleep, self._random = sleep, random
        self._idle: list[httpx.AsyncClient] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tls: ssl.SSLContext | None = None
        self._httpx: Any = httpx

    async def check(self) -> None:
        """Whether somebody listens there; EndpointError otherwise. Nothing is asked, nothing is sent."""
        host, port = _door(self._parts)
        try:
            async with asyncio.timeout(CHECK_S):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, UnicodeError) as error:
            why = "no answer in time" if isinstance(error, TimeoutError) else error
            raise EndpointError(
                f"no service listens at {host}:{port} for {self._shown} ({why}): start the service, or correct `url`"
            ) from error
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    def check_subtask(self, subtask: Subtask) -> None:
        self.rendered(subtask)

    def needs_input(self, task_type: str) -> bool:
        return needs_input(self._prompts.get(task_type, self._prompt))

    def max_usd(self, subtask: Subtask) -> float | None:
        """One answer of the longest kind: every byte of the prompt a token, for a token takes at least one."""
        return self.max_usd_for(self.rendered(subtask))

    def max_usd_for(self, prompt: str) -> float | None:
        """The same of a prompt as it stands."""
        if not self._priced:
            return None
        messages = [*self._system, {"content": _utf8(prompt)}]
        tokens_in = sum(MESSAGE_TOKENS + len(message["content"].encode()) for message in messages)
        return self._usd(tokens_in, self._max_tokens)

    async def do(self, subtask: Subtask) -> Reply:
        return await self.ask(self.rendered(subtask), timeout_s=subtask.timeout_s)

    def rendered(self, subtask: Subtask) -> str:
        """The prompt for a subtask."""
        return _utf8(self._prompts.get(subtask.task_type, self._prompt).render(subtask).strip())

    async def ask(self, prompt: str, *, timeout_s: float | None = None, extra: Mapping[str, Any] = {}) -> Reply:
        """The answer to a prompt as it stands; `extra` are more fields of this request.

        It does not wait for another request beyond `timeout_s`.
        """
        messages = [*self._system, {"role": "user", "content": _utf8(prompt)}]
        tokens_in = math.ceil(sum(len(message["content"].encode()) for message in messages) / 4)
        body = json.dumps(self._request | dict(extra) | {"messages": messages}).encode()
        loop = asyncio.get_running_loop()
        ends_s = math.inf if timeout_s is None else loop.time() + timeout_s
        tried = 0
        while True:
            tried += 1
            try:
                return await self._ask_once(body, _Answer(tokens_in=tokens_in))
            except _UnansweredError as failure:
                # Full jitter, so that those who were turned away together do not come back together.
                wait_s = self._random() * min(math.ldexp(FIRST_WAIT_S, tried - 1), MAX_WAIT_S)
                wait_s += failure.retry_after_s or 0.0
                if tried == self._attempts or wait_s > MAX_WAIT_S or loop.time() + wait_s >= ends_s:
                    raise
            await self._sleep(wait_s)

    async def close(self) -> None:
        idle, self._idle = self._idle, []  # one that is in use is closed when its attempt ends
        if self._loop is asyncio.get_running_loop():  # of a loop that is gone, the connections are too
            for client in idle:
                await client.aclose()

    def _checked_request(self, model: str, temperature: float | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        """All of a request but its messages."""
        wrong = [key for key in extra if key in RESERVED]
        if wrong:
            raise WorkersError(f"extra has {wrong[0]!r}, which is not for it: remove it; the worker sets it itself")
        request: dict[str, Any] = {
            "model": model,
            "stream": self._stream,
            "max_tokens": self._max_tokens,
            "temperature": temperature,
        }
        request |= {"stream_options": {"include_usage": True}} if self._stream else {}
        request = {key: value for key, value in (request | dict(extra)).items() if value is not None}
        limits = [request[key] for key in LIMITS if key in request]
        if not limits or not all(type(limit) is int and limit >= 1 for limit in limits):
            raise WorkersError(f"extra leaves answers unlimited: expected {' or '.join(LIMITS)} as a whole number")
        self._max_tokens = max(limits)
        try:
            json.dumps(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise WorkersError(
                f"extra cannot be sent as JSON ({error}): expected texts, numbers, lists, maps"
            ) from error
        return request

    async def _ask_once(self, body: bytes, answer: _Answer) -> Reply:
        """By a client that the running loop has to spare, or a new one.

        Each has one connection: the time that a pool of httpx takes for a request grows with the square of its
        connections, and at 200 of them is ten times that of all the rest.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle = loop, []
        idle = self._idle
        client = idle.pop() if idle else self._client()
        try:
            return await self._ask_by(client, body, answer)
        finally:
            if idle is self._idle:
                idle.append(client)
            else:
                await client.aclose()

    def _client(self) -> httpx.AsyncClient:
        if self._tls is None:
            # A context that trusts no certificate is made a hundred times quicker, and plain HTTP never asks it.
            secure = self._parts.scheme == "https"
            self._tls = self._httpx.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client: httpx.AsyncClient = self._httpx.AsyncClient(
            headers=self._headers,
            verify=self._tls,
            follow_redirects=False,  # the key would go wherever they lead
            timeout=self._httpx.Timeout(self._stall_s if self._stream else SILENCE_S, connect=CONNECT_S),
            limits=self._httpx.Limits(max_connections=1, keepalive_expiry=KEPT_S),
        )
        return client

    async def _ask_by(self, client: httpx.AsyncClient, body: bytes, answer: _Answer) -> Reply:
        try:
            response = await client.send(client.build_request("POST", self._url, content=body), stream=True)
        except (self._httpx.ReadTimeout, self._httpx.WriteTimeout) as error:
            raise WorkerError(f"{self._shown} did not answer in time", fault=Fault.TIMEOUT, cost_usd=0.0) from error
        except (self._httpx.HTTPError, OSError) as error:
            message = f"{self._shown} cannot be asked: {self._readable(error)}"
            raise _UnansweredError(message, fault=Fault.UNAVAILABLE, cost_usd=0.0) from error
        try:
            if response.status_code >= 300:
                raise await self._refused(response)
            await self._read(response, answer)
            return self._reply(answer)
        finally:
            await response.aclose()

    async def _refused(self, response: httpx.Response) -> WorkerError:
        """The error for a status that is no answer."""
        status, body = response.status_code, b""
        with suppress(self._httpx.HTTPError, OSError):
            body = await _beginning(response, ERROR_BYTES)
        message = f"{self._shown} answered status {status}{REMEDIES.get(status, '')}: {self._readable(body)}".rstrip(
            ": "
        )
        if status < 400:
            message = (
                f"{self._shown} redirects (status {status}), which is not followed: give the final address as `url`"
            )
        elif status == 400 and (b"content_filter" in body or b"content_policy" in body):
            return WorkerError(message, fault=Fault.REFUSAL, cost_usd=0.0)
        again = status in AGAIN or status >= 500
        return (_UnansweredError if again else WorkerError)(
            message,
            fault=FAULTS.get(status, Fault.UNAVAILABLE),
            cost_usd=0.0,
            retry_after_s=_retry_after_s(response.headers.get("Retry-After", "")) if again else None,
        )

    async def _read(self, response: httpx.Response, answer: _Answer) -> None:
        """Fills the answer from the body. Whatever goes wrong from here on may have been billed."""
        streams = self._stream and "json" not in response.headers.get("Content-Type", "")
        try:
            await (_read_events if streams else _read_whole)(response, answer)
        except (self._httpx.HTTPError, OSError) as error:
            if answer.complete:  # all that is missing is its end
                return
            if not isinstance(error, self._httpx.TimeoutException):
                raise self._failed(answer, f"broke off: {self._readable(error)}", Fault.UNAVAILABLE) from error
            raise self._failed(answer, "stalled", Fault.TIMEOUT) from error
        except (ValueError, RecursionError) as error:
            raise self._failed(answer, f"is not what was asked for: {self._readable(error)}") from error

    def _reply(self, answer: _Answer) -> Reply:
        if answer.error is not None:
            status = answer.error.get("code")
            fault = FAULTS.get(status, Fault.UNAVAILABLE) if isinstance(status, int) else Fault.UNAVAILABLE
            raise self._failed(answer, f"is an error: {self._readable(as_text(answer.error))}", fault)
        if answer.finish == "content_filter" or answer.refusal:
            why = self._readable("".join(answer.refusal)) or "it is filtered"
            raise self._failed(answer, f"is a refusal: {why}", Fault.REFUSAL)
        if not answer.complete:
            raise self._failed(answer, "broke off before its end", Fault.UNAVAILABLE)
        if not answer.text.strip():
            longer = "; its tokens went elsewhere: raise max_tokens" if answer.finish == "length" else ""
            raise self._failed(answer, f"is empty (finish_reason {answer.finish!r}){longer}")
        tokens_in, tokens_out = self._used(answer)
        usage = {"tokens_in": tokens_in, "tokens_out": tokens_out}
        return Reply(output=_utf8(answer.text), cost_usd=self._cost_usd(answer), usage=usage)

    def _failed(self, answer: _Answer, problem: str, fault: Fault = Fault.INVALID_OUTPUT) -> WorkerError:
        return WorkerError(f"the answer of {self._shown} {problem}", fault=fault, cost_usd=self._cost_usd(answer))

    def _cost_usd(self, answer: _Answer) -> float | None:
        return self._usd(*self._used(answer)) if self._priced else None

    def _used(self, answer: _Answer) -> tuple[int, int]:
        """Tokens in and out as the service counts them; where it does not, four bytes are taken for one."""
        tokens_out = min(math.ceil(answer.text_bytes / 4), self._max_tokens)
        return (
            _count(answer.usage.get("prompt_tokens"), answer.tokens_in),
            _count(answer.usage.get("completion_tokens"), tokens_out),
        )

    def _usd(self, tokens_in: int, tokens_out: int) -> float:
        return tokens_in * self._usd_in + tokens_out * self._usd_out + self._usd_call

    def _readable(self, said: bytes | str | Exception) -> str:
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        if isinstance(said, Exception) and not text:
            text = type(said).__name__
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return " ".join(text[:2000].split())[:300]


class _UnansweredError(WorkerError):
    """Nothing was answered and nothing billed: it may be asked again."""


@dataclass(kw_only=True, slots=True)
class _Answer:
    """What has come of an answer so far."""

    tokens_in: int  # of the prompt, estimated
    parts: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    events: int = 0
    complete: bool = False

    @property
    def text(self) -> str:
        return "".join(self.parts)

    @property
    def text_bytes(self) -> int:
        return sum(len(part.encode("utf-8", "replace")) for part in self.parts)

    def add(self, data: Any, key: str) -> None:
        """An event of a stream (`key` "delta") or a whole answer ("message"); ValueError where it is neither."""
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, got {reprlib.repr(data)}")
        self.events += 1
        if isinstance(usage := data.get("usage"), dict):
            self.usage = usage
        if data.get("error"):
            error = data["error"]
            self.error = error if isinstance(error, dict) else {"message": error}
            return
        choices = data.get("choices")
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise ValueError(f"expected a list 'choices' of objects in {reprlib.repr(data)}")
        if choices:
            self._add_choice(choices[0], key)

    def _add_choice(self, choice: dict[str, Any], key: str) -> None:
        message = choice.get(key) or {}
        if not isinstance(message, dict):
            raise ValueError(f"expected an object {key!r} in {reprlib.repr(choice)}")
        self.parts.append(_content(message.get("content")))
        if isinstance(refusal := message.get("refusal"), str) and refusal:
            self.refusal.append(refusal)
        if isinstance(finish := choice.get("finish_reason"), str):
            self.finish, self.complete = finish, True


def _content(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, list):
        content = "".join(_content(part.get("text")) for part in content if isinstance(part, dict))
    if content is not None and not isinstance(content, str):
        raise ValueError(f"expected text as 'content', got {reprlib.repr(content)}")
    return content or ""


def _chunks(response: httpx.Response) -> aclosing[AsyncGenerator[bytes, None]]:
    """The body as it comes, left without a trace wherever reading it stops."""
    return aclosing(cast("AsyncGenerator[bytes, None]", response.aiter_bytes()))


async def _read_whole(response: httpx.Response, answer: _Answer) -> None:
    body = await _beginning(response, BODY_BYTES)
    if len(body) > BODY_BYTES:
        raise ValueError(f"more than {BODY_BYTES:,} bytes")
    try:
        answer.add(json.loads(body), "message")
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {body[:200]!r}") from error
    if not answer.parts and answer.error is None:
        raise ValueError("no choices")
    answer.complete = True


async def _beginning(response: httpx.Response, most: int) -> bytes:
    """The body, or a little more than `most` bytes of it."""
    body = bytearray()
    async with _chunks(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                break
    return bytes(body)


async def _read_events(response: httpx.Response, answer: _Answer) -> None:
    """Server-sent events, `data: {…}` a line, until `data: [DONE]` or the end."""
    rest, taken = b"", 0
    async with _chunks(response) as chunks:
        async for chunk in chunks:
            taken += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            if taken > BODY_BYTES or len(rest) > LINE_BYTES:
                raise ValueError("more bytes than an answer has")
            for line in lines:
                if _read_event(line, answer):
                    await _finish(chunks)
                    return
    _read_event(rest, answer)
    if not answer.events and not answer.complete:
        raise ValueError(f"no events: {rest[:200]!r}")


def _read_event(line: bytes, answer: _Answer) -> bool:
    """Whether it is the last. Lines without data, such as comments that keep a connection alive, are none."""
    if not line.startswith(b"data:"):
        return False
    data = line[5:].strip()
    if data == b"[DONE]":
        answer.complete = True
        return True
    try:
        answer.add(json.loads(data), "delta")
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {data[:200]!r}") from error
    return False


async def _finish(chunks: AsyncGenerator[bytes, None]) -> None:
    import httpx

    with suppress(TimeoutError, httpx.HTTPError, OSError):
        async with asyncio.timeout(LAST_CHUNK_S):
            async for _ in chunks:
                pass


def _retry_after_s(asked: str) -> float | None:
    try:
        seconds = float(asked)
    except ValueError:  # absent, or a date
        return None
    return seconds if 0 <= seconds < math.inf else None


def _count(counted: Any, otherwise: int) -> int:
    return counted if type(counted) is int and 0 <= counted < MAX_TOKENS else otherwise


def _utf8(text: str) -> str:
    """Lone surrogates are no UTF-8: they become question marks."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _checked_number(name: str, value: float, *, least: float = 0.0) -> float:
    if not least <= value < math.inf:
        raise WorkersError(f"{name} is {value!r}: expected a number of at least {least:g}")
    return value


def _door(parts: SplitResult) -> tuple[str, int]:
    """The host and port that connections go to: the service's, or those of the proxy that the environment names."""
    host = parts.hostname or ""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if proxy and not proxy_bypass(host):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme="http")
    return parts.hostname or host, parts.port or (443 if parts.scheme == "https" else 80)
