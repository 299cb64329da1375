"""The live stream: what happens arrives once and in order, a client that comes back misses nothing, and it ends."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from etude.adapters.live import SqliteLive
from etude.contracts.live import Happened
from etude.contracts.query import Where
from etude.loop.notify import Notice, NoticeKind
from etude.serving import live
from etude.serving.http import GRACE_S
from etude.serving.keys import Role
from tests.unit.release.traffic import SLOT
from tests.unit.serving.releases import register, registry_of
from tests.unit.serving.server import Served, serving
from tests.unit.serving.test_http import ASKED, problem
from tests.unit.serving.test_releases import given

NOTICE = Notice(id="n-1", kind=NoticeKind.ALARM, slot=SLOT, text="look", time=datetime.now(UTC))


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(live, "LOOK_S", 0.05)
    with serving(tmp_path) as found:
        yield found


def frames(lines: Iterator[str], count: int) -> list[tuple[int, str, Any]]:
    """The next events, heartbeats left out."""
    found, frame = list[tuple[int, str, Any]](), dict[str, str]()
    for line in lines:
        name, _, value = line.partition(": ")
        if name in ("id", "event", "data"):
            frame[name] = value
        if line == "" and "data" in frame:
            found.append((int(frame["id"]), frame["event"], json.loads(frame["data"])))
            frame = {}
            if len(found) == count:
                break
    return found


def test_jobs_releases_and_notices_arrive_and_nothing_is_missed(served: Served, tmp_path: Path) -> None:
    client = served.client()
    id = given(client.post("/v1/decisions", json=ASKED))["id"]
    given(client.post("/v1/feedback", json={"id": id, "success": True}), 202)
    served.server.ingest()
    with client.stream("GET", "/v1/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        other = served.client()
        (version,) = register(served, tmp_path, "old")
        seen = frames(answer.iter_lines(), 2)
    assert [(kind, data["step"]["action"]) for _, kind, data in seen] == [
        ("release", "registered"),
        ("release", "gates_passed"),
    ]
    job = given(other.post("/v1/jobs", json={"problem": "choice:model"}), 202)
    registry_of(served).approve(SLOT, version, by="ada")
    served.server.steering.notices.add([NOTICE])
    with client.stream("GET", "/v1/events", headers={"last-event-id": str(seen[-1][0])}) as answer:
        lines = answer.iter_lines()
        later = frames(lines, 3)
        given(other.post("/v1/notices/n-1/acknowledge", json={"by": "ada"}))
        given(other.post(f"/v1/jobs/{job['id']}/cancel"))
        last = {kind: data for _, kind, data in frames(lines, 2)}
    assert sorted(kind for _, kind, _ in later) == ["job", "notice", "release"]
    assert last["job"]["job"]["state"] == "cancelled"
    assert last["notice"]["acknowledged_by"].startswith("ada by key ")
    with client.stream("GET", "/v1/events", params={"after": 0}) as answer:
        every = frames(answer.iter_lines(), 7)
    numbers = [number for number, _, _ in every]
    assert numbers == sorted(set(numbers))
    assert every[:5] == seen + later


def test_where_events_are_gone_the_stream_says_so(served: Served) -> None:
    client, state = served.client(), served.server.steering.live.state
    old = datetime.now(UTC) - timedelta(days=8)
    state.publish([Happened(f"k{i}", "notice", old, b"{}") for i in range(3)])
    state.expire(datetime.now(UTC) - timedelta(days=7))
    with client.stream("GET", "/v1/events", headers={"last-event-id": "1"}) as answer:
        ((number, kind, data),) = frames(answer.iter_lines(), 1)
    assert (number, kind) == (3, "gap")
    assert "read the lists again" in data["detail"]
    with client.stream("GET", "/v1/events", headers={"last-event-id": "99"}) as answer:
        assert frames(answer.iter_lines(), 1)[0][:2] == (3, "gap")
    assert "expected the number" in problem(client.get("/v1/events", headers={"last-event-id": "x"}), 400)["detail"]


def test_a_quiet_stream_shows_that_it_lives(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_S", 0.05)
    with served.client().stream("GET", "/v1/events") as answer:
        assert next(line for line in answer.iter_lines() if line.startswith(":")) == ": alive"


def test_streams_end_with_the_server(tmp_path: Path) -> None:
    ended = threading.Event()

    def follow(client: httpx.Client, began: threading.Event) -> None:
        with client.stream("GET", "/v1/events") as answer:
            for _ in answer.iter_lines():
                began.set()
        ended.set()

    with serving(tmp_path) as served:
        began, (_, key) = threading.Event(), served.server.keys.create(Role.RELEASE)
        client = httpx.Client(base_url=served.url, headers={"authorization": f"Bearer {key}"})
        follower = threading.Thread(target=follow, args=(client, began))
        follower.start()
        assert began.wait(10)
        assert not ended.is_set()
        stopped = time.monotonic()
    assert ended.wait(5)
    assert time.monotonic() - stopped < GRACE_S  # it was not waited for
    follower.join()
    client.close()


def test_a_stream_ends_when_its_key_is_revoked(served: Served) -> None:
    key, text = served.server.keys.create(Role.RELEASE)
    with served.bare(authorization=f"Bearer {text}").stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()
        next(lines)
        served.server.keys.revoke(key.id)
        assert list(lines) is not None  # it ends


def test_too_many_streams_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    with served.client().stream("GET", "/v1/events") as answer:
        lines = answer.iter_lines()  # kept: it closes the stream when it goes
        next(lines)
        assert "streams are open" in problem(served.client().get("/v1/events"), 503)["detail"]


def test_what_is_published_again_is_one_event_with_the_next_number(tmp_path: Path) -> None:
    state, now = SqliteLive(tmp_path / "live.sqlite"), datetime.now(UTC)
    assert state.span() == (1, 0)
    for _ in range(2):
        state.publish([Happened("a", "job", now, b"1"), Happened("b", "job", now, b"2")])
    other = SqliteLive(tmp_path / "live.sqlite")
    other.publish([Happened("c", "job", now, b"3"), Happened("a", "job", now, b"1")])
    assert [(event.number, event.body) for event in state.events(after=0)] == [(1, b"1"), (2, b"2"), (3, b"3")]
    state.expire(now + timedelta(seconds=1))
    assert state.span() == (4, 3)
    state.close()
    other.close()


def test_following_stores_no_trajectory(served: Served) -> None:
    with served.client().stream("GET", "/v1/events") as answer:
        next(answer.iter_lines())
    assert served.server.store.stats(Where(), version=1).trajectories == 0
