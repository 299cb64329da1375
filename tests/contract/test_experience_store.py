"""What every store of experience promises, on each: in memory, SQLite in a file, and ClickHouse's own engine."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.adapters.clickhouse import ClickHouseStore
from etude.adapters.sqlite import SqliteStore
from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import DataError, MissingExtraError, StoreError
from etude.contracts.query import Where
from etude.contracts.reward import Component, Reward
from etude.contracts.store import REWARD_BOUNDS, ExperienceStore, Page, Stored, Summary
from etude.contracts.subjects import encode
from etude.contracts.training import TrainingRequest
from etude.contracts.trajectory import Event, Feedback, Outcome, Rating, Trajectory, Turn
from tests.memory_store import MemoryStore
from tests.servers.clickhouse import ClickHouse

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
EVERYTHING = Where()
ODD_NAMES = (
    *("Zoë 🎻", "Robert'); DROP TABLE trajectories;--", 'a"b\\c', "100%s %(x)s {y}", "a\0b", "tab\tnew\nline"),
    *("ß" * 256, "null", "\\N"),
)


def trajectory(name: str, *, minutes: float = 0, **more: Any) -> Trajectory:
    return Trajectory(
        id=name, time=NOON + timedelta(minutes=minutes), **{"task": "do it", "problem": "workflow", **more}
    )


def feedback(name: str, of: str, *, minutes: float = 60, **more: Any) -> Feedback:
    return Feedback(id=name, trajectory_id=of, time=NOON + timedelta(minutes=minutes), **more)


def reward(name: str, of: str, total: float, *, version: int = 1, revision: int = 0, **more: Any) -> Reward:
    known = {"time": NOON, "definition": "abc", "confidence": 0.5, **more}
    return Reward(id=name, trajectory_id=of, total=total, version=version, revision=revision, **known)


def store_all(store: ExperienceStore, *events: Event) -> list[Stored]:
    return store.append([(event, encode(event)) for event in events])


def ids(rows: Sequence[Summary]) -> list[str]:
    return [row.id for row in rows]


def scanned(store: ExperienceStore, where: Where = EVERYTHING, *, version: int = 1) -> list[str]:
    return [row.summary.id for row in store.scan(where, version=version)]


def pages(store: ExperienceStore, where: Where = EVERYTHING, *, version: int = 1, limit: int = 100) -> list[Summary]:
    rows: list[Summary] = []
    after = None
    while True:
        page = store.page(where, version=version, after=after, limit=limit)
        assert len(page.rows) <= limit
        rows += page.rows
        after = page.next
        if after is None:
            return rows


def only(store: ExperienceStore, *, version: int = 1) -> Summary:
    (summary,) = store.page(EVERYTHING, version=version).rows
    return summary


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a store keeps what it is given."""

    open: Callable[[], ExperienceStore]
    lasting: bool  # opened again, it has what it was given
    bytes: Callable[[], bytes]  # all of them, where they can be seen


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouse]:
    with ClickHouse(tmp_path_factory.mktemp("clickhouse")) as server:
        yield server


numbers = count()


def place_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    if kind == "memory":
        return Place(open=MemoryStore, lasting=False, bytes=bytes)
    if kind == "sqlite":
        return Place(
            open=lambda: SqliteStore(folder / "experience.db"),
            lasting=True,
            bytes=lambda: b"".join(file.read_bytes() for file in sorted(folder.glob("experience.db*"))),
        )
    url = request.getfixturevalue("server").url.replace("/etude", f"/etude_{next(numbers)}")
    return Place(open=lambda: ClickHouseStore(url), lasting=True, bytes=bytes)


@pytest.fixture(params=["memory", "sqlite", "clickhouse"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_of(request.param, request, tmp_path)


@pytest.fixture
def store(place: Place) -> Iterator[ExperienceStore]:
    store = place.open()
    yield store
    store.close()


class TestClickHouse:
    def test_says_what_is_wrong_and_never_the_password(self, tmp_path: Path) -> None:
        with ClickHouse(tmp_path, password="s3cret") as server:
            ClickHouseStore(server.url, password="s3cret").close()
            ClickHouseStore(server.url.replace("@", ":s3cret@")).close()
            for url, password in ((server.url, "hunter2"), (server.url.replace("@", ":hunter2@"), None)):
                with pytest.raises(StoreError, match="Authentication failed") as caught:
                    ClickHouseStore(url, password=password)
                assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
            store = ClickHouseStore(server.url, password="s3cret")
        with pytest.raises(StoreError, match=r"ClickHouse at 127.0.0.1.*do it again") as gone:
            store_all(store, trajectory("a"))
        assert "s3cret" not in str(gone.value)
        with pytest.raises(StoreError, match="ClickHouse at"):
            store.ping()
        store.close()

    def test_what_two_write_at_the_same_moment_counts_once(
        self, server: ClickHouse, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = ClickHouseStore(server.url.replace("/etude", "/twice"))
        about = store._about
        unknown = lambda query, ids: () if "digest" in query else about(query, ids)  # noqa: E731
        monkeypatch.setattr(store, "_about", unknown)  # both looked before either wrote
        events = (trajectory("a", user="u"), feedback("f", "a", stars=3), reward("r", "a", 0.5))
        assert store_all(store, *events) == store_all(store, *events) == ["new"] * 3
        assert scanned(store) == ids(pages(store)) == ["a"]
        stats = store.stats(EVERYTHING, version=1)
        assert (stats.trajectories, stats.feedback, stats.rewards, stats.mean_reward) == (1, 1, 1, 0.5)
        story = store.detail("a")
        assert story is not None
        assert (len(story.feedback), len(story.rewards)) == (1, 1)
        assert store.forget("u") == ["a"]
        for table in ("trajectories", "feedback", "rewards"):
            assert store._select(f"SELECT count() FROM {table}") == [(0,)]
        store.close()

    def test_needs_an_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'etude\[scale\]'"):
            ClickHouseStore("clickhouse://localhost/etude")

    def test_trajectories_that_left_their_problem_out_say_it(self, server: ClickHouse) -> None:
        url = server.url.replace("/etude", "/older")
        event = trajectory("a", task='say "hello", {x}')
        store = ClickHouseStore(url)
        store.append([(event, encode(event).replace(b'"problem":"workflow",', b""))])
        store._run("TRUNCATE TABLE migrations")
        store._insert("migrations", [(1,)])
        store.close()
        again = ClickHouseStore(url)
        detail = again.detail("a")
        again.close()
        assert detail is not None
        assert detail.trajectory == event

    def test_refuses_what_is_no_address_and_what_a_newer_etude_made(self, server: ClickHouse) -> None:
        for url in ("http://localhost:8123", "clickhouse:///etude", "clickhouse://h/a;b", "clickhouse://u:hun/ter@h/d"):
            with pytest.raises(StoreError, match="expected"):
                ClickHouseStore(url)
        url = server.url.replace("/etude", "/newer")
        store = ClickHouseStore(url)
        store._insert("migrations", [(99,)])
        store.close()
        with pytest.raises(StoreError, match="has version 99, and this Etude knows 3: upgrade it"):
            ClickHouseStore(url)


class TestExperienceStore:
    def test_ping_answers_until_it_is_closed(self, store: ExperienceStore) -> None:
        store.ping()
        store.close()
        with pytest.raises(StoreError, match="closed"):
            store.ping()

    def test_tells_what_became_of_each_event_in_order(self, store: ExperienceStore) -> None:
        a, b = trajectory("a"), trajectory("b")
        other = trajectory("a", task="something else")
        assert store_all(store, a, b, a, other) == ["new", "new", "duplicate", "conflict"]
        assert store_all(store, other, b, feedback("a", "a"), reward("a", "a", 0.5)) == [
            *("conflict", "duplicate", "new", "new"),  # ids are of their kind
        ]
        assert store_all(store, feedback("a", "a"), feedback("a", "b")) == ["duplicate", "conflict"]
        assert store_all(store, reward("a", "a", 0.5), reward("a", "a", 0.6)) == ["duplicate", "conflict"]
        assert sorted(scanned(store)) == ["a", "b"]
        assert only_detail(store, "a").task == "do it"
        assert store.stats(EVERYTHING, version=1).rewards == 1
        assert store.append([]) == []

    def test_content_is_the_bytes(self, store: ExperienceStore) -> None:
        a = trajectory("a")
        longer = encode(a)[:-1] + b',"of_a_later_version":1}'
        assert store.append([(a, longer)]) == [Stored.NEW]
        assert store.append([(a, encode(a)), (a, longer)]) == [Stored.CONFLICT, Stored.DUPLICATE]
        assert next(store.scan(EVERYTHING, version=1)).body == longer
        assert only(store).size == len(longer)

    def test_takes_experience_only(self, store: ExperienceStore) -> None:
        wish = TrainingRequest(id="w", time=NOON, problem="workflow")
        with pytest.raises(ValueError, match="TrainingRequest 'w' is no experience"):
            store_all(store, trajectory("a"), wish)
        assert scanned(store) == []

    def test_a_summary_says_what_is_in_a_trajectory(self, store: ExperienceStore) -> None:
        whole = trajectory(
            "a",
            task="  book a flight ",
            problem="prompt",
            policy="v7",
            agent="planner",
            user="u1",
            group="trial",
            tenant="acme",
            decisions=(LoggedDecision(problem="prompt", policy="v7", action=1, propensity=0.5),),
            turns=(Turn(action="search"), Turn(action="book")),
            outcome=Outcome(success=False, cost_usd=0.25, latency_ms=12.5),
            feedback=(Rating(thumbs="up", stars=2),),
        )
        same = trajectory("b", minutes=1, task="book a flight", problem="prompt")
        other = trajectory("c", minutes=2, task="book a flight")
        store_all(store, whole, same, other, reward("r", "a", 0.75, confidence=0.5))
        c, b, a = store.page(EVERYTHING, version=1).rows
        assert a == Summary(
            id="a",
            time=NOON,
            problem="prompt",
            policy="v7",
            agent="planner",
            user="u1",
            group="trial",
            tenant="acme",
            success=False,
            cost_usd=0.25,
            latency_ms=12.5,
            context=b.context,
            decisions=1,
            turns=2,
            size=len(encode(whole)),
            reward=0.75,
            confidence=0.5,
            feedback=(1 + 0.25) / 2,
        )
        assert c.context != b.context
        assert b.context == hashlib.blake2b(b"prompt\0book a flight").hexdigest()[:16]
        assert (b.policy, b.user, b.success, b.cost_usd, b.reward, b.confidence, b.feedback) == (None,) * 7
        assert [row.summary for row in store.scan(EVERYTHING, version=1)] == [a, b, c]

    def test_pages_are_newest_first_and_scans_oldest_first(self, store: ExperienceStore) -> None:
        tied = [trajectory(f"t{i}", minutes=i // 3) for i in (5, 1, 8, 0, 3, 7, 2, 6, 4)]
        store_all(store, *tied)
        names = [f"t{i}" for i in range(9)]
        assert scanned(store) == names
        for limit in (1, 2, 3, 4, 9, 10):
            assert ids(pages(store, limit=limit)) == names[::-1]
        assert store.page(EVERYTHING, version=1, limit=9).next is None
        assert store.page(Where(problem="none"), version=1) == Page([], None)
        assert list(store.scan(Where(problem="none"), version=1)) == []

    def test_wrong_cursors_and_limits_are_refused(self, store: ExperienceStore) -> None:
        for cursor in ("", "12", ":a", "soon:a"):
            with pytest.raises(DataError, match="is no cursor"):
                store.page(EVERYTHING, version=1, after=cursor)
        with pytest.raises(ValueError, match="limit is 0"):
            store.page(EVERYTHING, version=1, limit=0)

    def test_a_cursor_outlives_what_is_appended(self, store: ExperienceStore) -> None:
        store_all(store, *(trajectory(f"t{i:02}", minutes=i) for i in range(40)))
        began = threading.Event()

        def write() -> None:
            for i in range(30):
                among = trajectory(f"n{i}", minutes=(i * 7) % 40 + 0.5)
                store_all(store, among, trajectory(f"late{i}", minutes=41 + i))
                began.set()

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            began.wait()
            seen = ids(pages(store, limit=3))
            writing.result()
        assert [name for name in seen if name.startswith("t")] == [f"t{i:02}" for i in reversed(range(40))]
        assert len(seen) == len(set(seen))

    def test_a_scan_shows_the_store_as_it_was_when_it_began(self, store: ExperienceStore) -> None:
        store_all(store, *(trajectory(f"t{i:03}", minutes=i) for i in range(300)))
        rows = store.scan(EVERYTHING, version=1)
        store_all(store, trajectory("before", minutes=-1), trajectory("after", minutes=999), reward("r", "t299", 1.0))
        assert [row.summary.id for row in rows] == [f"t{i:03}" for i in range(300)]
        assert len(scanned(store)) == 302

    def test_a_scan_may_be_left_half_way_or_never_begun(self, store: ExperienceStore) -> None:
        store_all(store, *(trajectory(f"t{i}") for i in range(9)))
        half = store.scan(EVERYTHING, version=1)
        assert len(list(islice(half, 3))) == 3
        del half
        store.scan(EVERYTHING, version=1)
        assert store_all(store, trajectory("more")) == [Stored.NEW]
        assert len(scanned(store)) == 10

    def test_the_last_revision_of_the_version_asked_for_counts(self, store: ExperienceStore) -> None:
        first, second, third = (
            reward("z", "a", 0.1),
            reward("b", "a", 0.9, revision=2),
            reward("c", "a", 0.5, revision=1),
        )
        store_all(store, trajectory("a"), first, second, third, reward("other", "a", 7.0, version=2, confidence=1.0))
        assert (only(store).reward, only(store).confidence) == (0.9, 0.5)
        assert (only(store, version=2).reward, only(store, version=2).confidence) == (7.0, 1.0)
        assert only(store, version=3).reward is None
        assert ids(pages(store, Where(min_reward=1.0))) == []
        assert ids(pages(store, Where(min_reward=1.0), version=2)) == ["a"]
        stats = store.stats(EVERYTHING, version=1)
        assert (stats.mean_reward, stats.rewards, stats.groups[0].mean_reward) == (0.9, 4, 0.9)
        story = store.detail("a")
        assert story is not None
        assert [r.id for r in story.rewards] == ["z", "c", "b", "other"]

    def test_a_story_is_all_there_is(self, store: ExperienceStore) -> None:
        whole = trajectory("a", metadata={"deep": [1, {"x": None}]})
        late, early = feedback("f1", "a", minutes=90, stars=5), feedback("f2", "a", minutes=30, comment="naja")
        mark = reward("r", "a", 0.5, components=(Component(name="quality", raw=0.5, weight=1.0),))
        store_all(store, whole, late, early, mark, trajectory("b"), feedback("f3", "b"))
        story = store.detail("a")
        assert story is not None
        assert (story.trajectory, story.feedback, story.rewards) == (whole, (early, late), (mark,))
        assert store.detail("nobody") is None
        assert store.detail("f1") is None

    def test_feedback_and_rewards_may_come_before_and_long_after(self, store: ExperienceStore) -> None:
        said = feedback("f", "a", thumbs="down", user="u")
        assert store_all(store, said, reward("r", "a", 0.25)) == ["new", "new"]
        assert (pages(store), store.detail("a"), store.stats(EVERYTHING, version=1).trajectories) == ([], None, 0)
        store_all(store, trajectory("a", feedback=(Rating(comment="nice"),)))
        assert (only(store).feedback, only(store).reward) == (0.0, 0.25)
        store_all(store, feedback("g", "a", stars=5, minutes=1e6), reward("r2", "a", 0.75, revision=1))
        assert (only(store).feedback, only(store).reward) == (0.5, 0.75)
        stats = store.stats(EVERYTHING, version=1)
        assert (stats.feedback, stats.rewards, stats.mean_reward) == (3, 2, 0.75)

    def test_what_was_ever_collected_does_not_fall(self, store: ExperienceStore) -> None:
        store_all(store, trajectory("a", user="u"), trajectory("b", problem="choice:model"), reward("r", "b", 0.25))
        store_all(store, reward("r1", "a", 12.0), feedback("f", "b", stars=4), reward("r2", "b", 0.95, revision=1))
        store_all(store, reward("r3", "b", 0.5, version=2))
        assert store.groups(EVERYTHING, version=1) == store.stats(EVERYTHING, version=1).groups
        before = store.collected(version=1)
        choice, workflow = before
        assert (choice.problem, choice.trajectories, choice.ratings, choice.reward) == ("choice:model", 1, 1, 0.25)
        assert choice.rewards[bisect_left(REWARD_BOUNDS, 0.25)] == sum(choice.rewards) == 1  # the first reward stays
        assert (workflow.rewards[-1], workflow.reward) == (1, 12.0)
        assert [one.reward for one in store.collected(version=2)] == [0.5, 0.0]
        store.forget("u")
        assert store.collected(version=1) == before
        store.expire(NOON + timedelta(days=1))
        assert store.stats(EVERYTHING, version=1).trajectories == 0
        assert store.collected(version=1) == before
        store_all(store, trajectory("c", problem="choice:model", minutes=2000), reward("r4", "c", -99.0))
        later = store.collected(version=1)[0]
        assert (later.trajectories, later.rewards[0], later.reward) == (2, 1, -98.75)

    def test_a_comment_is_feedback_without_a_mark(self, store: ExperienceStore) -> None:
        store_all(store, trajectory("a"), trajectory("b"), feedback("f", "a", comment="hm"), feedback("g", "b"))
        assert [row.feedback for row in pages(store)] == [None, None]
        assert ids(pages(store, Where(feedback=True))) == ["a"]
        assert ids(pages(store, Where(feedback=False))) == ["b"]

    def test_forgets_a_user_to_the_last_byte(self, store: ExperienceStore, place: Place) -> None:
        secret = "Vera-Wolkenstein"
        mine = [trajectory(f"m{i}", minutes=i, user="vera", task=f"{secret} {'x' * 40 * i}") for i in range(60)]
        theirs = [trajectory(f"o{i}", minutes=i, user="otto", task="y" * 40 * i) for i in range(60)]
        mixed = [event for pair in zip(mine, theirs, strict=True) for event in pair]
        Random(1).shuffle(mixed)
        store_all(store, *mixed)
        store_all(store, feedback("of-me", "m1", user="otto", comment=secret), reward("r", "m1", 0.5))
        by_me = feedback("by-me", "o1", user="vera", thumbs="up", comment=secret)
        store_all(store, by_me, feedback("by-otto", "o1", user="otto", thumbs="down"))
        store.add_members("d1", ["m1", "o1"])
        if place.lasting and place.bytes():
            assert secret.encode() in place.bytes()

        assert sorted(store.forget("vera")) == sorted(event.id for event in mine)

        assert (pages(store, Where(user="vera")), store.detail("m1")) == ([], None)
        assert sorted(scanned(store)) == sorted(event.id for event in theirs)
        assert not any(b"Vera" in row.body for row in store.scan(EVERYTHING, version=1))
        stats = store.stats(EVERYTHING, version=1)
        assert (stats.trajectories, stats.users, stats.feedback, stats.rewards) == (60, 1, 1, 0)
        assert (stats.mean_reward, sum(group.count for group in stats.groups), stats.days) == (
            *(None, 60, (("2026-11-01", 60),)),
        )
        story = store.detail("o1")
        assert story is not None
        assert [said.id for said in story.feedback] == ["by-otto"]
        assert next(row for row in pages(store) if row.id == "o1").feedback == 0.0
        assert store.forgotten(["m1", "o1", "m2", "nobody"]) == {"m1", "m2"}
        assert store.datasets_of(["m1"]) == {"d1": 1}
        assert secret.encode() not in place.bytes()
        assert b"vera" not in place.bytes()

        again = (mine[1], feedback("late", "m1", comment=secret), reward("late", "m1", 1.0), by_me)
        assert store_all(store, *again, trajectory("back", user="vera")) == [*["forgotten"] * 4, "new"]
        assert store.forget("vera") == ["back"]
        assert store.forget("vera") == store.forget("nobody") == []
        assert len(scanned(store)) == 60

    def test_stores_nothing_of_who_opted_out(self, store: ExperienceStore) -> None:
        store_all(store, trajectory("before", user="u"))
        store.set_opt_out("u", True)
        store.set_opt_out("u", True)
        store.set_opt_out("v", True)
        assert store.opted_out() == {"u", "v"}
        said = feedback("f", "before", user="u", thumbs="up")
        assert store_all(store, trajectory("t", user="u"), said, trajectory("w", user="w"), trajectory("x")) == [
            *("opted_out", "opted_out", "new", "new"),
        ]
        assert store_all(store, reward("r", "before", 0.5)) == ["new"]
        assert sorted(scanned(store)) == ["before", "w", "x"]
        assert next(row for row in pages(store) if row.id == "before").feedback is None
        store.set_opt_out("u", False)
        store.set_opt_out("nobody", False)
        assert store.opted_out() == {"v"}
        assert store_all(store, trajectory("t", user="u"), said) == ["new", "new"]

    def test_what_expired_is_gone_but_not_forgotten(self, store: ExperienceStore) -> None:
        old = trajectory("old", minutes=-1, user="u")
        events = (
            old,
            feedback("f", "old", stars=1),
            reward("r", "old", 0.5),
            trajectory("edge"),
            trajectory("new", minutes=1),
        )
        store_all(store, *events, feedback("g", "new"), reward("s", "new", 0.75))
        assert store.expire(NOON.astimezone(timezone(timedelta(hours=9)))) == 1
        assert store.expire(NOON) == 0
        assert (scanned(store), store.detail("old"), store.forgotten(["old"])) == (["edge", "new"], None, set())
        stats = store.stats(EVERYTHING, version=1)
        assert (stats.trajectories, stats.feedback, stats.rewards, stats.users, stats.mean_reward) == (2, 0, 1, 0, 0.75)
        assert store_all(store, *events) == ["new", "new", "new", "duplicate", "duplicate"]
        assert store.page(EVERYTHING, version=1).rows[-1].feedback == 0.0

    def test_what_was_said_of_nothing_expires_too(self, store: ExperienceStore) -> None:
        lost = (feedback("f", "never", minutes=-2, stars=1), reward("r", "never", 0.5, time=NOON - timedelta(days=1)))
        waits = feedback("g", "soon", minutes=2, stars=5)
        store_all(store, *lost, waits)
        assert store.expire(NOON) == 0
        assert store_all(store, *lost, waits) == ["new", "new", "duplicate"]

    def test_keeps_documents_by_kind_and_key(self, store: ExperienceStore) -> None:
        assert store.documents("jobs") == {}
        store.put("jobs", "b", b"1")
        store.put("jobs", "a", b"\x00\xff not text")
        store.put("datasets", "a", "Größe".encode())
        for i in range(3):
            store.put("jobs", "b", b"again %d" % i)
        assert list(store.documents("jobs").items()) == [("a", b"\x00\xff not text"), ("b", b"again 2")]
        assert store.documents("datasets") == {"a": "Größe".encode()}

    def test_knows_the_members_of_datasets(self, store: ExperienceStore) -> None:
        store.add_members("d2", ["a", "b", "c"])
        store.add_members("d1", ["b"])
        store.add_members("d2", ["b", "c", "d"])
        store.add_members("d3", [])
        assert store.datasets_of(["a", "b", "b", "z"]) == {"d1": 1, "d2": 2}
        assert store.datasets_of(["z"]) == store.datasets_of([]) == {}
        store.add_members("large", [f"t{i}" for i in range(2500)])
        assert store.datasets_of([f"t{i}" for i in range(3000)]) == {"large": 2500}

    def test_names_may_be_anything(self, store: ExperienceStore) -> None:
        for number, name in enumerate(ODD_NAMES):
            named = dict.fromkeys(("user", "policy", "agent", "group", "tenant", "problem"), name)
            event, where = trajectory(f"a{number}", task=name, **named), Where(**named)  # type: ignore[arg-type]
            store_all(store, event, feedback(f"f{number}", "b", user=name, comment=name))
            (found,) = store.page(where, version=1).rows
            assert {key: getattr(found, key) for key in named} == named
            assert [(row.summary, row.body) for row in store.scan(where, version=1)] == [(found, encode(event))]
            assert store.stats(Where(user=name), version=1).groups[0].policy == name
            store.put(name, name, b"x")
            assert store.documents(name) == {name: b"x"}
            store.set_opt_out(name, True)
        assert store.opted_out() == set(ODD_NAMES)
        assert store.forget(ODD_NAMES[1]) == ["a1"]
        assert len(scanned(store)) == len(ODD_NAMES) - 1

    def test_a_body_may_be_huge(self, store: ExperienceStore) -> None:
        huge = trajectory("huge", task="é" * (5 << 20))
        assert store_all(store, huge, trajectory("small", minutes=1)) == ["new", "new"]
        assert store_all(store, huge) == ["duplicate"]
        first, _ = store.scan(EVERYTHING, version=1)
        assert first.body == encode(huge)
        assert store.stats(EVERYTHING, version=1).bytes > 10 << 20

    def test_time_is_one_whatever_the_zone(self, store: ExperienceStore) -> None:
        kolkata, lima = timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-5))
        moments = {
            "east": datetime(2026, 11, 2, 0, 30, tzinfo=kolkata),  # 19:00 the day before in UTC
            "micro": datetime(2026, 11, 1, 19, 0, 0, 1, tzinfo=UTC),
            "west": datetime(2026, 11, 1, 23, 0, tzinfo=lima),  # 04:00 the day after
            "tie": datetime(2026, 11, 2, 4, 0, tzinfo=UTC),
        }
        store_all(
            store, *(Trajectory(id=name, time=time, task="x", problem="workflow") for name, time in moments.items())
        )
        assert scanned(store) == ["east", "micro", "tie", "west"]
        assert [row.time for row in pages(store)][::-1] == sorted(moments.values())
        assert scanned(store, Where(since=moments["micro"])) == ["micro", "tie", "west"]
        assert scanned(store, Where(until=moments["micro"].astimezone(lima))) == ["east"]
        stats = store.stats(EVERYTHING, version=1)
        assert stats.days == (("2026-11-01", 2), ("2026-11-02", 2))
        assert (stats.first, stats.last) == (moments["east"], moments["tie"])

    def test_times_at_both_ends_of_the_calendar(self, store: ExperienceStore) -> None:
        east = timezone(timedelta(hours=14))
        ends = [
            datetime.min.replace(tzinfo=east),
            datetime.max.replace(tzinfo=UTC),
            datetime(1969, 7, 20, 20, 17, 0, 7, UTC),
        ]
        store_all(
            store, *(Trajectory(id=f"t{i}", time=time, task="x", problem="workflow") for i, time in enumerate(ends))
        )
        assert ids(pages(store, limit=1)) == ["t1", "t2", "t0"]
        stats = store.stats(EVERYTHING, version=1)
        assert stats.days == (("0001-01-01", 1), ("1969-07-20", 1), ("9999-12-31", 1))
        assert (stats.first, stats.last) == (datetime.min.replace(tzinfo=UTC), ends[1])
        assert store.expire(datetime(1970, 1, 1, tzinfo=UTC)) == 2

    def test_many_threads_may_write_and_read(self, store: ExperienceStore) -> None:
        shared = [trajectory(f"s{i}", minutes=i, user=f"u{i % 3}") for i in range(5)]

        def work(number: int) -> list[Stored]:
            own = [trajectory(f"t{number}-{i}", minutes=i) for i in range(10)]
            marks = [reward(f"r{number}-{i}", event.id, 0.5) for i, event in enumerate(own)]
            outcomes = store_all(store, *own, *marks)
            store_all(store, *shared)
            store.page(EVERYTHING, version=1, limit=5)
            assert len(scanned(store)) >= 10
            return outcomes

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(work, range(8)))
        assert outcomes == [[Stored.NEW] * 20] * 8
        assert len(scanned(store)) == len(set(scanned(store))) == 85
        stats = store.stats(EVERYTHING, version=1)
        assert (stats.trajectories, stats.rewards, stats.users, stats.mean_reward) == (85, 80, 3, 0.5)

    def test_everyone_sees_what_was_appended(self, store: ExperienceStore, place: Place) -> None:
        if not place.lasting:
            return
        other = place.open()
        try:
            for i in range(5):
                store_all(store, trajectory(f"t{i}", minutes=i))
                assert len(scanned(other)) == i + 1
                assert store_all(other, trajectory(f"t{i}", minutes=i)) == [Stored.DUPLICATE]
                other.put("jobs", "one", b"%d" % i)
                assert store.documents("jobs") == {"one": b"%d" % i}
        finally:
            other.close()

    def test_has_what_it_was_given_when_it_is_opened_again(self, store: ExperienceStore, place: Place) -> None:
        store_all(store, trajectory("a"), feedback("f", "a", stars=4), reward("r", "a", 0.5))
        store.set_opt_out("u", True)
        store.close()
        store.close()
        for call in (lambda: store.page(EVERYTHING, version=1), lambda: store_all(store, trajectory("b"))):
            with pytest.raises(StoreError, match="closed"):
                call()
        if place.lasting:
            again = place.open()
            assert (only(again).feedback, only(again).reward) == (0.75, 0.5)
            assert again.opted_out() == {"u"}
            again.close()

    def test_ratings_wait_for_their_trajectory(self, store: ExperienceStore) -> None:
        def waiting(where: Where = EVERYTHING) -> int:
            return store.stats(where, version=1).waiting

        assert waiting() == 0
        store_all(
            store, feedback("f1", "a", stars=5), feedback("f2", "a", thumbs="up"), feedback("f3", "typo", stars=1)
        )
        assert (waiting(), waiting(Where(problem="none"))) == (3, 3)
        store_all(store, feedback("f1", "a", stars=5), trajectory("b"), feedback("f4", "b", stars=2, user="u"))
        assert waiting() == 3
        store_all(store, trajectory("a"))
        assert (waiting(), store.stats(EVERYTHING, version=1).feedback) == (1, 3)
        store_all(store, feedback("f5", "later", stars=1, user="u"))
        assert waiting() == 2
        store.forget("u")
        assert waiting() == 1
        store.expire(NOON + timedelta(days=1))
        assert waiting() == 0

    def test_stats_follow_every_change(self, store: ExperienceStore) -> None:
        """Compares with the in-memory store, which counts from scratch each time."""
        random, model = Random(3), MemoryStore()
        for step in range(6):
            batch = list(some_events(random, step, 25))
            assert store_all(store, *batch) == store_all(model, *batch)
            if step % 3 == 1:
                user = random.choice(USERS[:3])
                assert store.forget(user) == model.forget(user)
            if step % 4 == 3:
                before = NOON + timedelta(hours=random.randrange(-30, 0))
                assert store.expire(before) == model.expire(before)
            for where in (EVERYTHING, Where(problem="prompt", outcome="success"), Where(since=NOON), Where(user="u1")):
                same_stats(store, model, where)
        assert pages(store, version=2) == pages(model, version=2)


@pytest.fixture(scope="module", params=["memory", "sqlite", "clickhouse"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperienceStore]:
    store = place_of(request.param, request, tmp_path_factory.mktemp("filled")).open()
    store_all(store, *EVENTS)
    yield store
    store.close()


NAMED = {
    "problem": ("workflow", "prompt"),
    "policy": ("v1", "v2"),
    "agent": ("a1", "a2"),
    "user": ("u1", "u2"),
    "group": ("g1", "g2"),
    "tenant": ("n1", "n2"),
    "outcome": ("success", "failure", "unknown"),
    "since": tuple(NOON + timedelta(minutes=m) for m in (-9999, -3000, -720, 0, 1.5, 2160)),
    "until": tuple(NOON + timedelta(minutes=m) for m in (-2160, 0, 720, 1999, 9999)),
    "min_reward": (0.0, 0.3, 0.9),
    "max_reward": (0.2, 0.7),
    "min_confidence": (0.25, 0.5, 0.75),
    "feedback": (True, False),
}
wheres = st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in NAMED.items()}).map(
    lambda chosen: Where(**chosen)  # type: ignore[arg-type]
)


class TestWhere:
    @given(where=wheres, version=st.sampled_from((1, 2, 3)))
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_finds_what_a_plain_filter_finds(self, filled: ExperienceStore, where: Where, version: int) -> None:
        expected = [event for event in TRAJECTORIES if holds(event, where, version)]
        names = [event.id for event in expected]
        assert ids(pages(filled, where, version=version, limit=40)) == names[::-1]
        assert scanned(filled, where, version=version) == names
        stats = filled.stats(where, version=version)
        assert stats.trajectories == len(names) == sum(number for _, number in stats.days)
        assert stats.users == len({event.user for event in expected} - {None})
        assert stats.bytes == sum(len(encode(event)) for event in expected)
        assert stats.rewards == sum(isinstance(e, Reward) and e.trajectory_id in names for e in EVENTS)
        totals = [found.total for event in expected if (found := last_reward(event, version))]
        assert stats.mean_reward == (pytest.approx(sum(totals) / len(totals)) if totals else None)
        assert stats.first == (expected[0].time if expected else None)
        assert stats.last == (expected[-1].time if expected else None)
        assert stats.successes_by == Counter(e.outcome.success_by or "unknown" for e in expected if e.outcome.success)

    @pytest.mark.parametrize("name", NAMED)
    def test_each_condition_tells_some_from_others(self, filled: ExperienceStore, name: str) -> None:
        found = {value: len(scanned(filled, Where(**{name: value}))) for value in NAMED[name]}  # type: ignore[arg-type]
        assert any(0 < number < len(TRAJECTORIES) for number in found.values()), found


def holds(event: Trajectory, where: Where, version: int) -> bool:
    for name in ("problem", "policy", "agent", "user", "group", "tenant"):
        if getattr(where, name) is not None and getattr(event, name) != getattr(where, name):
            return False
    if (
        where.outcome
        and {"success": True, "failure": False, "unknown": None}[where.outcome] is not event.outcome.success
    ):
        return False
    if (where.since and event.time < where.since) or (where.until and event.time >= where.until):
        return False
    said = bool(event.feedback) or any(isinstance(e, Feedback) and e.trajectory_id == event.id for e in EVENTS)
    if where.feedback is not None and where.feedback != said:
        return False
    found = last_reward(event, version)
    total, confidence = (found.total, found.confidence) if found else (math.nan, math.nan)  # within no bound
    return (
        (where.min_reward is None or total >= where.min_reward)
        and (where.max_reward is None or total <= where.max_reward)
        and (where.min_confidence is None or confidence >= where.min_confidence)
    )


def last_reward(event: Trajectory, version: int) -> Reward | None:
    own = [e for e in EVENTS if isinstance(e, Reward) and (e.trajectory_id, e.version) == (event.id, version)]
    return max(own, key=lambda e: (e.revision, e.id), default=None)


USERS = ("u1", "u2", "u3", "")


def only_detail(store: ExperienceStore, name: str) -> Trajectory:
    story = store.detail(name)
    assert story is not None
    return story.trajectory


def same_stats(store: ExperienceStore, model: ExperienceStore, where: Where) -> None:
    found, expected = (rounded(msgspec.to_builtins(one.stats(where, version=1))) for one in (store, model))
    assert found == expected, where


def rounded(value: Any) -> Any:
    """Sums of floats differ with their order."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return round(value, 9) if isinstance(value, float) else value


def some_events(random: Random, step: int, count: int) -> Iterator[Event]:
    """Of every kind, in any order, now and then about a trajectory that comes later."""
    for i in range(count):
        name = f"t{step}-{i}"
        about = f"t{max(0, step - random.randrange(3))}-{random.randrange(count)}"
        yield some_trajectory(random, name)
        if random.random() < 0.4:
            yield feedback(
                f"f-{name}", about, user=random.choice(USERS) or None, stars=random.choice((None, 1, 4)), thumbs="up"
            )
        for version in (1, 2):
            if random.random() < 0.5:
                revision = random.randrange(3)
                sure = random.choice((0.25, 0.5, 1.0))
                mark = reward(f"r{version}-{name}", about, random.random(), version=version, revision=revision)
                yield msgspec.structs.replace(mark, confidence=sure)


def some_trajectory(random: Random, name: str) -> Trajectory:
    return trajectory(
        name,
        minutes=random.randrange(-4000, 4000),
        problem=random.choice(("workflow", "prompt")),
        policy=random.choice(("v1", "v2", None)),
        agent=random.choice(("a1", "a2", None)),
        user=random.choice(USERS) or None,
        group=random.choice(("g1", "g2", None)),
        tenant=random.choice(("n1", "n2", None)),
        outcome=Outcome(
            success=random.choice((True, False, None)),
            cost_usd=random.choice((None, 0.0, 0.25)),
            latency_ms=random.choice((None, 100.0)),
            success_by=random.choice((None, "self", "person", "verifier")),
        ),
        feedback=random.choice(((), (Rating(comment="ok"),), (Rating(stars=3), Rating(thumbs="down")))),
    )


EVENTS = [event for step in range(6) for event in some_events(Random(step), step, 25)]
TRAJECTORIES = sorted((e for e in EVENTS if isinstance(e, Trajectory)), key=lambda e: (e.time, e.id))
