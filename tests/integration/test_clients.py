"""`etude.task`, `feedback` and `choose` with ETUDE_URL: the same code, the same results, also when the server is away,
slow or gives nonsense."""

from __future__ import annotations

import http.server
import json
import logging
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import etude
from etude.bootstrap import experience as wiring
from etude.contracts.errors import ConfigError, NoDecisionError
from etude.contracts.trajectory import Feedback
from etude.serving.ids import id_of_tenant
from etude.serving.keys import Role
from tests.integration.test_serve import served
from tests.unit.serving.server import Served, serving

MODELS = [
    {"name": "small", "description": "quick", "cost_usd": 0.0004, "regions": ["eu"]},
    {"name": "large", "description": "für schwere Fragen ✓", "cost_usd": 0.02},
]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ETUDE_EXPERIENCE__DECIDE_TIMEOUT_MS", "10000")
    forget_collectors()
    yield
    forget_collectors()


def forget_collectors(*, timeout_s: float = 5.0) -> None:
    """As if the process began: what the last ones began is ended as at exit."""
    for made in wiring._collector.made.values():
        made.end(timeout_s=timeout_s)
        made.bus.close()
    wiring._collector.made.clear()
    wiring._deciders.made.clear()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def there(server: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The server, named by the environment."""
    point_at(server.url, key_of(server), monkeypatch)
    return server


def key_of(server: Served, role: Role = Role.DECIDE, tenant: str | None = None) -> str:
    return server.server.keys.create(role, tenant=tenant)[1]


def point_at(url: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ETUDE_URL", url)
    monkeypatch.setenv("ETUDE_API_KEY", key)


def wait_for(condition: Callable[[], Any], timeout_s: float = 60) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found
    return found


def stored(server: Served, id: str) -> Any:
    """The trajectory on the server, when it is there."""

    def found() -> Any:
        server.server.ingest()
        return server.server.store.detail(id)

    return wait_for(found)


def agent() -> dict[str, Any]:
    """A script that uses all of `etude.task`; returns what it was given."""
    seen: dict[str, Any] = {}
    with etude.task(
        "answer ana@example.com \ud800 ü",
        user="u1",
        group="g",
        agent="zero",
        model="m-3",
        conversation="c1",
        metadata={"kind": "mail", "of": ["bo@example.com"]},
    ) as task:
        tone = task.decide("tone", {"mood": "good", "n": 4}, options=["formal", "casual"], allowed=["casual"])
        model = task.decide(
            "model", "q ana@example.com", options=MODELS, default="large", region="us", quality_weight=1
        )
        number = task.decide("count", options=[1, 2], default=2)
        flag = task.decide("retry", options=[True, False], default=False)
        task.decided("route", "b", policy="router-7", propensity=0.25, options=["a", "b"])
        task.turn(observation="a mail", action=tone, result={"to": "ana@example.com"}, cost_usd=0.5, latency_ms=3)
        task.turn(action=model, error="late", cost_usd=0.25)
        task.outcome(success=True, quality={"judge": 0.75}, subtasks=2, subtasks_done=1)
        task.feedback(stars=4)
        seen |= {"tone": tone, "model": model, "number": number, "flag": flag}
        seen |= {"chances": [(one.propensity, one.policy) for one in (tone, model, number)]}
        seen |= {"logged": tuple(msgspec.structs.replace(one, at_ms=0.0) for one in task.decisions)}
        seen |= {"decision": msgspec.structs.replace(model.decision, logged=())}
    seen["id"], seen["collected"] = task.id, task.collected
    seen["rated"] = etude.feedback(task.id, thumbs="up", user="u1", comment="für ana@example.com")
    try:
        with etude.task("fails", user="u1") as failed:
            failed.decide("tone", options=["formal"])
            raise ValueError("no ✓")
    except ValueError:
        seen["failed"] = failed.id
    with etude.task("without decisions") as bare:
        bare.outcome(success=None, error="unknown")
    seen["bare"] = bare.id
    choice = etude.choose("model", {"text": "where is it?"}, options=["small"], user="u2")
    choice.task.outcome(success=False, cost_usd=0.1)
    seen["choice"], seen["chosen"] = choice.task.id, (choice, choice.propensity, choice.policy)
    dropped = etude.choose("model", "never mind", options=["small"], user="u2").task.id
    seen["dropped"] = dropped
    return seen


def without_times(found: Any) -> Any:
    """A trajectory with its feedback, without ids and measured times."""
    made = msgspec.to_builtins(found.trajectory)
    made["id"] = made["time"] = ""
    assert made["outcome"].pop("latency_ms", 0) >= 0
    steps = [*made.get("decisions", ()), *made.get("turns", ())]
    times = [step.pop("at_ms", 0.0) for step in made.get("decisions", ())]
    assert times == sorted(times)
    assert all(step.pop("at_ms", 0.0) >= 0 for step in steps)
    ratings = [msgspec.to_builtins(msgspec.structs.replace(one, id="f", trajectory_id="t")) for one in found.feedback]
    return made, [rating | {"time": ""} for rating in ratings]


def test_the_same_script_gives_the_same_over_http(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    here = agent()
    forget_collectors()
    with wiring.experience() as opened:
        embedded = {name: opened.store.detail(here[name]) for name in ("id", "failed", "bare", "choice", "dropped")}
    point_at(server.url, key_of(server), monkeypatch)
    over = agent()
    forget_collectors()
    ids = ("id", "failed", "bare", "choice", "dropped")
    assert {k: v for k, v in over.items() if k not in ids} == {k: v for k, v in here.items() if k not in ids}
    assert over["model"] is MODELS[1] or over["model"] == MODELS[1]
    assert over["flag"] is False
    for name in ids:
        found = stored(server, over[name])
        assert embedded[name] is not None
        if name == "id":
            wait_for(lambda id=over[name]: stored(server, id).feedback)
            found = stored(server, over[name])
            assert isinstance(found.feedback[0], Feedback)
        assert without_times(found) == without_times(embedded[name]), name
    assert wait_for(lambda: server.server.state.count() == 0)


def test_a_workflow_is_planned_by_the_server(there: Served) -> None:
    with etude.task("Summarise the report") as task:
        decision = task.decide("workflow", "Summarise the report and mail it")
    assert (decision.policy, bool(decision.action)) == ("rules", True)
    assert task.decisions[0].problem == "workflow"
    assert stored(there, task.id).trajectory.decisions[0].policy == "rules"
    with etude.task("x") as task, pytest.raises(etude.DataError, match="options are for a choice"):
        task.decide("workflow", "x", options=["a"])


class Size(Enum):
    S = 1


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: etude.task(5), "task is 5"),  # type: ignore[arg-type]
    (lambda: etude.task("x", id="a b"), "id is 'a b'"),
    (lambda: etude.task("x").decide("tone"), "options"),
    (lambda: etude.task("x").decide("tone", options=[]), "options"),
    (lambda: etude.task("x").decide("tone", options=["a", "a"]), r"options\[1\] has the name 'a'"),
    (lambda: etude.task("x").decide("tone", {"a": {"b": 1}}, options=["a"]), "context"),
    (lambda: etude.task("x").decide("tone", options=["a"], default="b"), "default is 'b'"),
    (lambda: etude.task("x").decide("tone", options=["a"], allowed=["b"]), "none of the 1 options"),
    (lambda: etude.choose("tone", options=[Size.S]), "names or mappings"),
    (lambda: etude.choose("tone", options=[]), "options"),
    (lambda: etude.choose("workflow", options=["a"]), "'workflow' is a problem"),
    (lambda: etude.choose(5, options=["a"]), "name is 5"),  # type: ignore[arg-type]
    (lambda: etude.feedback("t-1"), "feedback is empty"),
    (lambda: etude.feedback("t-1", stars=9), "stars is 9"),
]


@pytest.mark.parametrize("remote", [False, True], ids=["embedded", "http"])
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_arguments_are_refused_at_the_call(
    remote: bool, call: Callable[[], Any], message: str, server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote:
        point_at(server.url, "etude_1_2", monkeypatch)  # nothing is asked
    with pytest.raises(etude.DataError, match=message):
        call()


def test_the_outcome_of_a_choice_is_reported_once(there: Served) -> None:
    choice = etude.choose("model", options=["small", "large"])
    assert f"use {choice}" in ("use small", "use large")
    assert choice.task.outcome(success=True)
    with pytest.raises(etude.DataError, match="reported already"):
        choice.task.outcome(success=False)
    assert choice.task.feedback(thumbs="up")
    assert wait_for(lambda: stored(there, choice.task.id).feedback)
    assert stored(there, choice.task.id).trajectory.decisions[0].propensity == 0.5


def test_a_wrong_key_is_said_once_and_what_was_recorded_arrives_with_the_right_one(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    point_at(server.url, "etude_0123_wrong", monkeypatch)
    with pytest.raises(NoDecisionError, match="set ETUDE_API_KEY to a key that `etude keys create --role decide`"):
        etude.choose("tone", options=["a", "b"])
    with etude.task("goes on") as task:
        assert task.decide("tone", options=["a", "b"]).policy == "default"
    assert task.collected
    wait_for(lambda: [one for one in caplog.messages if "events wait in the outbox" in one and "401" in one])
    point_at(server.url, key_of(server, Role.INGEST), monkeypatch)
    forget_collectors(timeout_s=0)
    with pytest.raises(NoDecisionError, match="has the role ingest: this needs decide"):
        etude.choose("tone", options=["a", "b"])
    found = stored(server, task.id).trajectory
    assert (found.policy, found.decisions[0].policy) == ("default", "default")


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("http://127.0.0.1:1", "", "ETUDE_URL is set and ETUDE_API_KEY is not"),
        ("127.0.0.1:8765", "k", "ETUDE_URL and ETUDE_API_KEY cannot be used: url is '127.0.0.1:8765'"),
        ("http://me:secret@host", "k", "holds an '@'"),
        ("http://host", "a\nb", "the API key holds a character"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, key: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(url, key, monkeypatch)
    with pytest.raises(ConfigError, match=message):
        etude.task("x")


def test_tenants_rate_what_is_their_own(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(server.url, key_of(server, tenant="acme"), monkeypatch)
    with etude.task("of acme") as task:
        task.decide("tone", options=["a", "b"])
    etude.feedback(task.id, thumbs="up")
    kept = id_of_tenant(task.id, "acme")
    assert wait_for(lambda: stored(server, kept).feedback)
    assert stored(server, kept).trajectory.tenant == "acme"
    forget_collectors()
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key_of(server, tenant='other')}"}) as c:
        for body in ({"id": task.id, "thumbs": "down"}, {"id": "t-none", "thumbs": "down"}):
            assert c.post("/v1/feedback", json=body).status_code == 403
        asked = {"problem": "tone", "options": ["a", "b"], "trajectory": "t-mine"}
        assert c.post("/v1/decisions", json=asked).status_code == 200
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key_of(server, tenant='acme')}"}) as c:
        assert c.post("/v1/decisions", json=asked).status_code == 200  # another task of the same id
        sent = {"id": "t-mine", "time": "2026-11-18T10:00:00Z", "task": "x", "problem": "task"}
        assert c.post("/v1/trajectories", json={"trajectories": [sent | {"id": "t-mine2"}]}).status_code == 202
        assert (
            c.post("/v1/feedback", json={"id": task.id, "success": True}).status_code == 403
        )  # outcomes: signed alone
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key_of(server, Role.INGEST)}"}) as c:
        assert c.post("/v1/feedback", json={"id": task.id, "thumbs": "down"}).status_code == 403
    for tenant in ("acme", "other"):
        assert len(server.server.state.parts(id_of_tenant("t-mine", tenant))) == 1
    server.server.state.close_tasks(["t-mine"])


def test_a_task_that_never_ends_is_stored_later_than_one_without_its_outcome(there: Served) -> None:
    task = etude.task("a long one", user="u1", model="m-1")
    task.decide("tone", options=["a"])
    answered = httpx.post(
        f"{there.url}/v1/decisions",
        json={"problem": "tone", "options": ["a"]},
        headers={"authorization": f"Bearer {os.environ['ETUDE_API_KEY']}"},
    ).json()
    now = datetime.now(UTC)
    assert there.server.state.waiting(now + timedelta(hours=2)) != []
    assert task.id in there.server.state.waiting(now + timedelta(hours=24))
    waiting = there.server.state.waiting(now + timedelta(minutes=1))
    assert answered["id"].rpartition(".")[0] in waiting
    assert task.id not in waiting
    first = json.loads(there.server.state.parts(task.id)[0])
    assert (first["model"], first["task"]) == ("m-1", "a long one")
    there.server.state.close_tasks([task.id])


# A server that is away, slow, or something else.


@contextmanager
def answering(status: int, body: bytes, kind: str = "application/json") -> Iterator[str]:
    """A server that gives every request this answer."""

    class Fixed(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fixed) as made:
        made.daemon_threads = True
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_address[1]}"
        finally:
            made.shutdown()
            thread.join()


PROBLEM = "application/problem+json"
ILLEGAL = {"action": "c", "propensity": 1.0, "policy": "p", "logged": [{"problem": "x", "policy": "p"}]}
NONSENSE: list[tuple[int, bytes, str, str]] = [
    (200, b"<html>", "text/html", "the answer cannot be read"),
    (200, b"{}", "application/json", "the answer cannot be read"),
    (200, json.dumps(ILLEGAL).encode(), "application/json", "chose 'c', which is not eligible"),
    (404, b"<html>", "text/html", "status 404 is not from Etude"),
    (302, b"", "text/html", "status 302"),
    (503, b'{"detail": "busy"}', PROBLEM, "status 503: busy"),
    (429, b"x", PROBLEM, "status 429"),
    (413, b'{"detail": "too large"}', PROBLEM, "too large"),
]


@pytest.mark.parametrize(("status", "body", "kind", "why"), NONSENSE)
def test_a_server_that_gives_no_decision_costs_no_task(
    status: int, body: bytes, kind: str, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with answering(status, body, kind) as url:
        point_at(url, "k", monkeypatch)
        with etude.task("x", collect=False) as task:
            for _ in range(2):
                choice = task.decide("tone", options=["a", "b"], default="b")
                assert (choice, choice.policy, choice.propensity) == ("b", "default", 1.0)
        assert len([one for one in caplog.messages if why in one]) == 1  # once
        assert wiring.collector().defaults == {"choice:tone": 2}
        forget_collectors()


def test_a_server_that_hangs_costs_a_deadline_and_then_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ETUDE_EXPERIENCE__DECIDE_TIMEOUT_MS", "40")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        point_at(f"http://127.0.0.1:{deaf.getsockname()[1]}", "k", monkeypatch)
        task, began = etude.task("x", collect=False), time.monotonic()
        for _ in range(300):
            assert task.decide("tone", options=["a", "b"]) == "a"
        assert time.monotonic() - began < 6  # 300 deadlines are 12 s
        assert [one for one in caplog.messages if "did not answer in time" in one]
        with pytest.raises(NoDecisionError, match="it failed several times"):
            task.decide("workflow", "x")
        forget_collectors()


def test_certificates_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    now = datetime.now(UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    made = built.sign(key, hashes.SHA256())
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file = tmp_path / "both.pem"
    file.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    def greet() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with accepted:
                try:
                    context.wrap_socket(accepted, server_side=True).close()
                except OSError:
                    continue

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=greet)
        thread.start()
        point_at(f"https://127.0.0.1:{listening.getsockname()[1]}", "k", monkeypatch)
        assert etude.task("x", collect=False).decide("tone", options=["a", "b"]).policy == "default"
        assert [one for one in caplog.messages if "certificate verify failed" in one.lower()]
        forget_collectors()
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_nothing_connects_and_no_thread_starts_before_the_first_task() -> None:
    code = "import etude, threading, sys; print(threading.active_count(), 'http.client' in sys.modules)"
    environ = {**os.environ, "ETUDE_URL": "http://127.0.0.1:1", "ETUDE_API_KEY": "k"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=240)
    assert done.stdout.strip() == "1 False", done.stderr


FORKS = """
import etude, os, threading
with etude.task("parent", id="t-parent") as task:
    task.decide("tone", options=["a", "b"])
    child = os.fork()
    if child == 0:
        with etude.task("child", id="t-child") as own:
            own.decide("tone", options=["a", "b"])
        print("child", own.decisions[0].policy, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    task.decide("tone", options=["a", "b"])
def work(n):
    with etude.task("thread", id=f"t-thread-{n}") as own:
        own.decide("tone", options=["a", "b"])
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for one in threads: one.start()
for one in threads: one.join()
print("parent", *(d.policy for d in task.decisions))
"""


def test_forks_and_threads(server: Served, tmp_path: Path) -> None:
    environ = {**os.environ, "ETUDE_URL": server.url, "ETUDE_API_KEY": key_of(server)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], cwd=tmp_path, capture_output=True, text=True, env=environ
    )
    assert done.stdout.split("\n")[:2] == ["child uniform", "parent uniform uniform"], done.stderr
    for name in ("parent", "child", *(f"thread-{n}" for n in range(4))):
        assert stored(server, f"t-{name}").trajectory.policy == "uniform"


def test_a_killed_server_loses_nothing_and_stores_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 tasks, with ratings, while the server is killed and started again."""
    folder = tmp_path / "server"
    folder.mkdir()
    ids: list[str] = []

    def work(count: int) -> None:
        for _ in range(count):
            with etude.task("one of many") as task:
                task.decide("tone", options=["a", "b"])
            assert task.collected
            ids.append(task.id)
            if len(ids) % 50 == 0:
                assert etude.feedback(task.id, thumbs="up")

    def started(count: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=work, args=(count,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        return threads

    with served(folder, "--no-loop") as (process, url, key):
        assert key is not None
        point_at(url, key, monkeypatch)
        threads = started(125)
        wait_for(lambda: len(ids) > 200)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        for thread in threads:
            thread.join()
        for thread in started(100):  # while it is away
            thread.join()
    port = url.rpartition(":")[2]
    with served(folder, "--no-loop", "--port", port) as (_, again, _):
        assert again == url
        for thread in started(25):
            thread.join()
        made = wiring.collector()
        wait_for(lambda: made.bus.pending(wiring.TRAJECTORIES, "forward") == 0, 60)
        assert len(set(ids)) == 1000
        rows = wait_for(lambda: listed(url, key, 1000), 30)
        assert sorted(row["id"] for row in rows) == sorted(ids)
        assert {row["policy"] for row in rows} == {"uniform", "default"}
        assert sum(row["feedback"] is not None for row in rows) == 20
        forget_collectors()


def listed(url: str, key: str, count: int) -> list[Any] | None:
    """What is stored, as soon as there is as much, and ratings for one in 50."""
    found: list[Any] = []
    cursor: str | None = ""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=30) as client:
        while cursor is not None:
            more = {"cursor": cursor} if cursor else {}
            page = client.get("/v1/trajectories", params={"limit": 500, **more}).json()
            found, cursor = found + page["rows"], page["next"]
    rated = sum(row["feedback"] is not None for row in found)
    return found if len(found) >= count and rated >= count // 50 else None


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="etude")
    return caplog
