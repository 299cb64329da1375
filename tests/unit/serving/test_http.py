"""Over HTTP, on a real server: decisions, outcomes, trajectories, who may do what, and what is refused."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import etude
from etude.contracts.errors import BusError, DataError, EventError, StoreError
from etude.contracts.query import Where
from etude.contracts.trajectory import Trajectory
from etude.serving.errors import without_folders
from etude.serving.keys import REFRESH_S, STALE_S, Role
from tests.unit.serving.server import Served, serving

ASKED: dict[str, Any] = {"problem": "choice:model", "context": "where is my parcel?", "options": ["small", "large"]}
TRAJECTORY: dict[str, Any] = {
    "id": "t-1",
    "time": "2026-11-18T10:00:00Z",
    "task": "answer ana@example.com",
    "problem": "task",
    "outcome": {"success": True},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def client(served: Served) -> httpx.Client:
    return served.client()


def stored(served: Served) -> int:
    served.server.ingest()
    return served.server.store.stats(Where(), version=1).trajectories


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    """What a refusal says, after checks that all refusals pass."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["request_id"]) == (status, answer.headers["x-request-id"])
    assert body["detail"]
    return body


def test_a_decision_becomes_a_trajectory_when_its_outcome_is_reported(served: Served, client: httpx.Client) -> None:
    before = stored(served)
    made = client.post("/v1/decisions", json=ASKED | {"user": "u1", "task": "mail ana@example.com"}).json()
    assert made["action"] in ASKED["options"]
    assert (made["propensity"], made["policy"], made["problem"]) == (0.5, "uniform", "choice:model")
    assert "fallback" not in made
    trajectory = made["id"].rpartition(".")[0]
    assert stored(served) == before  # it waits
    report = {"id": made["id"], "success": False, "cost_usd": 0.2, "thumbs": "down", "user": "u1"}
    answer = client.post("/v1/feedback", json=report)
    assert answer.status_code == 202
    assert answer.json() == {"trajectory": trajectory, "outcome": True, "rating": True}
    assert stored(served) == before + 1
    found = client.get(f"/v1/trajectories/{trajectory}").json()
    assert found["trajectory"]["task"] == "mail [EMAIL_1]"
    assert found["trajectory"]["decisions"][0]["action"] == made["action"]
    assert found["trajectory"]["outcome"]["success"] is False
    assert found["trajectory"]["outcome"]["ended"] == "failed"
    assert found["feedback"][0]["thumbs"] == "down"
    problem(client.post("/v1/feedback", json=report | {"thumbs": None}), 409)  # once


def test_decisions_of_one_task_are_one_trajectory(served: Served, client: httpx.Client) -> None:
    first = client.post("/v1/decisions", json=ASKED).json()
    second = client.post("/v1/decisions", json=ASKED | {"problem": "tone", "id": first["id"]}).json()
    assert second["id"] == first["id"]
    client.post("/v1/feedback", json={"id": first["id"], "success": True})
    stored(served)
    found = client.get(f"/v1/trajectories/{first['id'].rpartition('.')[0]}").json()["trajectory"]
    assert [d["problem"] for d in found["decisions"]] == ["choice:model", "choice:tone"]
    assert "is over" in problem(client.post("/v1/decisions", json=ASKED | {"id": first["id"]}), 409)["detail"]


def test_what_is_not_recorded_leaves_nothing(served: Served, client: httpx.Client) -> None:
    before = served.server.state.count()
    made = client.post("/v1/decisions", json=ASKED | {"record": False}).json()
    assert made["action"] in ASKED["options"]
    assert served.server.state.count() == before
    problem(client.post("/v1/feedback", json={"id": made["id"], "success": True}), 409)


def test_nothing_of_users_who_opted_out_is_stored(served: Served, client: httpx.Client) -> None:
    served.server.store.set_opt_out("private", True)
    served.server.collector.opted_out = served.server.store.opted_out  # at once, not after some seconds
    waiting, before = served.server.state.count(), stored(served)
    made = client.post("/v1/decisions", json=ASKED | {"user": "private"}).json()
    assert made["action"] in ASKED["options"]
    assert served.server.state.count() == waiting
    other = client.post("/v1/decisions", json=ASKED).json()["id"]
    rated = client.post("/v1/feedback", json={"id": other, "success": True, "thumbs": "up", "user": "private"}).json()
    assert (rated["outcome"], rated["rating"]) == (True, False)
    client.post("/v1/trajectories", json={"trajectories": [TRAJECTORY | {"id": "private-1", "user": "private"}]})
    assert stored(served) == before + 1
    assert "private" not in client.get(f"/v1/trajectories/{other.rpartition('.')[0]}").text


def test_a_batch_is_decided_at_once(client: httpx.Client) -> None:
    made = client.post("/v1/decisions/batch", json={"decisions": [ASKED] * 20}).json()["decisions"]
    assert len({one["id"] for one in made}) == 20
    wrong = client.post("/v1/decisions/batch", json={"decisions": [ASKED, ASKED | {"options": []}]})
    assert "options is empty" in problem(wrong, 400)["detail"]
    problem(client.post("/v1/decisions/batch", json={"decisions": []}), 400)


def test_a_task_without_an_outcome_is_stored_when_its_time_is_over(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client = served.client()
        made = client.post("/v1/decisions", json=ASKED).json()
        decisions = served.server.decisions
        assert decisions.close_old() == 0
        clock = decisions.clock
        decisions.clock = lambda: clock() + timedelta(hours=1.1)
        assert decisions.close_old() == 1
        assert stored(served) == 1
        found = client.get(f"/v1/trajectories/{made['id'].rpartition('.')[0]}").json()["trajectory"]
        assert "success" not in found.get("outcome", {})


def test_a_task_that_cannot_be_stored_keeps_no_other_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose decisions together are larger than an event may be. It becomes a dead letter."""
    with serving(tmp_path, open_hours=1 / 3600) as served:
        decisions, client = served.server.decisions, served.client(Role.DECIDE)
        publish = decisions._publish

        def published(trajectories: Sequence[Trajectory]) -> None:
            if any(one.task == "too large" for one in trajectories):
                raise EventError("has 17,000,000 bytes: an event has at most 16,777,216")
            publish(trajectories)

        monkeypatch.setattr(decisions, "_publish", published)
        large, other = (client.post("/v1/decisions", json=ASKED | {"task": t}).json() for t in ("too large", "other"))
        deadline = monotonic() + 20
        while not (letters := decisions.collector.bus.dead_letters()) and monotonic() < deadline:
            sleep(0.05)
        while served.server.state.count() and monotonic() < deadline:  # the other one is younger
            sleep(0.05)
        assert [letter.message.id for letter in letters] == [large["id"].rpartition(".")[0]]
        assert b"too large" in letters[0].message.body
        assert stored(served) == 1
        assert client.get(f"/v1/trajectories/{other['id'].rpartition('.')[0]}").status_code == 200
        assert not served.server.state.count()
        assert not served.server.trouble


def test_a_policy_that_cannot_be_loaded_is_replaced_by_the_default(tmp_path: Path) -> None:
    with serving(tmp_path, experience={"policies": {"model": "runs/none"}}) as served:
        made = served.client().post("/v1/decisions", json=ASKED | {"default": "large"}).json()
        assert (made["action"], made["policy"], made["fallback"]) == ("large", "default", "missing")


def test_a_request_that_is_sent_again_gets_the_first_answer(served: Served, client: httpx.Client) -> None:
    key, before = {"idempotency-key": "k1"}, served.server.state.count()
    first, second = (client.post("/v1/decisions", json=ASKED, headers=key) for _ in range(2))
    assert first.json() == second.json()
    assert served.server.state.count() == before + 1
    other = client.post("/v1/decisions", json=ASKED | {"context": "else"}, headers=key)
    assert "used for another request" in problem(other, 409)["detail"]
    stranger = served.client(Role.DECIDE).post("/v1/decisions", json=ASKED, headers=key)
    assert stranger.json()["id"] != first.json()["id"]  # keys are of the caller


def test_requests_under_one_key_that_come_together_have_one_effect(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        client, key = served.client(Role.DECIDE), {"idempotency-key": "together"}
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: client.post("/v1/decisions", json=ASKED, headers=key), range(16)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
        assert served.server.state.count() == 1
        wrong = {"idempotency-key": "wrong"}
        problem(client.post("/v1/decisions", json=ASKED | {"options": []}, headers=wrong), 400)
        assert client.post("/v1/decisions", json=ASKED, headers=wrong).status_code == 200  # nothing came of the first


def test_a_request_under_a_key_that_took_too_long_has_its_answer_later(tmp_path: Path) -> None:
    with serving(tmp_path, request_timeout_s=0.3) as served:
        client, key = served.client(Role.DECIDE), {"idempotency-key": "slow"}
        opened = served.server.state.open
        served.server.state.open = lambda rows: (sleep(0.6), opened(rows))[1]  # type: ignore[method-assign]
        problem(client.post("/v1/decisions", json=ASKED, headers=key), 503)
        while (answer := client.post("/v1/decisions", json=ASKED, headers=key)).status_code != 200:
            problem(answer, 503)
        assert served.server.state.count() == 1


def test_trajectories_are_sent_and_read_page_by_page(served: Served) -> None:
    client = served.client(Role.DECIDE, tenant="paged")
    sent = [TRAJECTORY | {"id": f"page-{i}", "time": f"2026-11-18T10:00:{i:02}Z"} for i in range(5)]
    stored = client.post("/v1/trajectories", json={"trajectories": sent}).json()["stored"]
    assert [id.rpartition("-")[0] for id in stored] == [t["id"] for t in sent]  # with the mark of the tenant
    assert client.post("/v1/trajectories", json={"trajectories": sent}).status_code == 202  # again, to no effect
    served.server.ingest()
    first = client.get("/v1/trajectories", params={"limit": 3}).json()
    rest = client.get("/v1/trajectories", params={"limit": 3, "cursor": first["next"]}).json()
    assert [row["id"] for row in first["rows"] + rest["rows"]] == stored[::-1]
    assert rest["next"] is None
    assert client.get("/v1/trajectories/page-0").json()["trajectory"]["task"] == "answer [EMAIL_1]"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (ASKED | {"contxt": 1}, "contxt"),
        (ASKED | {"problem": 3}, "problem"),
        (ASKED | {"options": None}, "options is None"),
        (ASKED | {"options": ["a", "a"]}, "'a'"),
        (ASKED | {"default": "huge"}, "huge"),
        (ASKED | {"preferences": {"quality_weight": 2}}, "quality_weight"),
        (ASKED | {"timeout_ms": -1}, "timeout_ms"),
        ({}, "problem"),
        ([], "object"),
    ],
)
def test_a_wrong_request_says_which_field_is_wrong(client: httpx.Client, body: Any, said: str) -> None:
    answer = client.post("/v1/decisions", json=body)
    problem(answer, 400)
    assert said in answer.text


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (ASKED | {"contxt": 1}, "contxt", "contxt: is unknown"),
        ({"context": "x"}, "problem", "problem: is missing"),
        (ASKED | {"preferences": {"max_cost": 1}}, "preferences.max_cost", "preferences.max_cost: is unknown"),
        (ASKED | {"preferences": {"max_cost_usd": -1}}, "preferences.max_cost_usd", "Expected `float` >= 0.0"),
    ],
)
def test_a_refusal_says_what_to_do(client: httpx.Client, body: Any, field: str, said: str) -> None:
    found = problem(client.post("/v1/decisions", json=body), 400)
    assert [one["field"] for one in found["errors"]] == [field]
    assert said in found["detail"]
    assert found["detail"].endswith(": GET /openapi.json describes POST /v1/decisions")
    truncated = problem(client.post("/v1/decisions", content=b'{"problem": '), 400)["detail"]
    assert truncated.startswith("the body cannot be read: ")
    assert "there is " in problem(client.put("/v1/decisions"), 405)["detail"]
    assert "POST" in problem(client.put("/v1/decisions"), 405)["detail"]
    assert "serving.max_body_bytes" in problem(client.post("/v1/feedback", content=b"x" * (5 << 20)), 413)["detail"]


def test_a_large_request_does_not_keep_the_event_loop(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is redacted in a thread; small ones are as one text, on the event loop."""
    decisions, alone = served.server.decisions, list[bool]()
    clean, clean_all = served.server.collector.clean, decisions.clean

    def noted(event: Any) -> bytes:
        alone.append(not is_loop())
        return clean(event)

    def noted_all(tasks: Sequence[Trajectory]) -> Sequence[Any]:
        alone.extend(not is_loop() for _ in tasks)
        return clean_all(tasks)

    monkeypatch.setattr(served.server.collector, "clean", noted)
    monkeypatch.setattr(decisions, "clean", noted_all)
    large = ASKED | {"context": "mail ana@example.com " * 3000}
    assert client.post("/v1/decisions", json=large).status_code == 200
    assert client.post("/v1/decisions/batch", json={"decisions": [large]}).status_code == 200
    assert client.post("/v1/decisions", json=ASKED).status_code == 200
    assert alone == [True, True, False]


def is_loop() -> bool:
    """Whether this is the thread of an event loop."""
    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


def test_what_is_no_json_or_too_large_or_nowhere_is_refused(client: httpx.Client) -> None:
    problem(client.post("/v1/decisions", content=b"{nope"), 400)
    problem(client.post("/v1/decisions", json=ASKED | {"context": "x" * (5 << 20)}), 413)
    problem(client.get("/v1/nothing"), 404)
    problem(client.get("/v1/decisions"), 405)
    problem(client.get("/v1/trajectories", params={"limit": 0}), 400)
    assert "bogus" in problem(client.get("/v1/trajectories", params={"where": "bogus~1"}), 400)["detail"]
    problem(client.get("/v1/trajectories", params={"cursor": "no cursor"}), 400)


def test_each_role_may_do_what_it_is_for(served: Served) -> None:
    calls: dict[Role, Callable[[httpx.Client], httpx.Response]] = {
        Role.INGEST: lambda c: c.post("/v1/trajectories", json={"trajectories": [TRAJECTORY]}),
        Role.DECIDE: lambda c: c.post("/v1/decisions", json=ASKED),
        Role.RELEASE: lambda c: c.get("/stats"),
    }
    order = list(Role)
    for role in order:
        client = served.client(role)
        for needed, call in calls.items():
            may = order.index(role) >= order.index(needed)
            assert call(client).status_code == (403 if not may else 202 if needed is Role.INGEST else 200)


def test_a_key_that_is_missing_unknown_or_revoked_is_refused(served: Served) -> None:
    bare = served.bare()
    assert problem(bare.post("/v1/decisions", json=ASKED), 401)["detail"].startswith("the request has no API key")
    key, text = served.server.keys.create(Role.DECIDE)
    for wrong in (text + "x", text.replace("_", "", 1), "etude_x_y", "x", f"etude_{key.id}_"):
        problem(bare.post("/v1/decisions", json=ASKED, headers={"authorization": f"Bearer {wrong}"}), 401)
    given = {"authorization": f"bearer {text}"}
    assert bare.post("/v1/decisions", json=ASKED, headers=given).status_code == 200
    served.server.keys.revoke(key.id)
    assert "revoked" in problem(bare.post("/v1/decisions", json=ASKED, headers=given), 401)["detail"]
    assert text.removeprefix(f"etude_{key.id}_") not in str(served.server.keys.all())


def test_while_the_store_is_away_known_keys_are_accepted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    client, keys = served.client(Role.DECIDE), served.server.keys

    def away(kind: str) -> dict[str, bytes]:
        raise StoreError("the store does not answer")

    monkeypatch.setattr(served.server.store, "documents", away)
    keys._read_at -= 2 * REFRESH_S
    assert client.post("/v1/decisions", json=ASKED | {"record": False}).status_code == 200
    problem(served.bare(authorization="Bearer etude_1_x").post("/v1/decisions", json=ASKED), 401)
    keys._read_at -= STALE_S
    problem(client.post("/v1/decisions", json=ASKED | {"record": False}), 503)  # one of them may be revoked


@pytest.mark.parametrize("tenant", ["", " ", "a\nb", "x" * 300])
def test_a_tenant_has_a_name(served: Served, tenant: str) -> None:
    """A tenant without one would share the signatures of those who have none."""
    with pytest.raises(DataError, match="or leave tenant out"):
        served.server.keys.create(Role.DECIDE, tenant=tenant)


@pytest.mark.parametrize("id", ["ana@example.com", "t-1\n", f"sk-{'a1B2' * 10}"])
def test_an_id_that_cannot_be_stored_is_refused(client: httpx.Client, id: str) -> None:
    problem(client.post("/v1/decisions", json=ASKED | {"trajectory": id}), 400)
    problem(client.post("/v1/trajectories", json={"trajectories": [TRAJECTORY | {"id": id}]}), 400)
    made = client.post("/v1/decisions", json=ASKED).json()["id"]
    problem(client.post("/v1/feedback", json={"id": made, "stars": 1, "event": id}), 400)
    assert client.post("/v1/feedback", json={"id": made, "stars": 1}).status_code == 202


def test_a_key_that_sends_too_much_has_to_wait(served: Served) -> None:
    client = served.client(Role.DECIDE, requests_per_s=2.0)
    answers = [client.post("/v1/decisions", json=ASKED) for _ in range(6)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert int(refused[0].headers["retry-after"]) >= 1


def test_only_the_id_of_an_answer_reports_an_outcome(served: Served) -> None:
    ours, theirs = served.client(Role.DECIDE, tenant="a"), served.client(Role.DECIDE, tenant="b")
    id = ours.post("/v1/decisions", json=ASKED).json()["id"]
    for other in (id[:-1] + ("0" if id[-1] != "0" else "1"), id.rpartition(".")[0], "t-1", "." + id, "x" * 200):
        problem(ours.post("/v1/feedback", json={"id": other, "success": True}), 403)
    problem(theirs.post("/v1/feedback", json={"id": id, "success": True}), 403)
    problem(theirs.post("/v1/decisions", json=ASKED | {"id": id}), 403)
    assert "nothing is reported" in problem(ours.post("/v1/feedback", json={"id": id}), 400)["detail"]
    assert ours.post("/v1/feedback", json={"id": id, "success": True}).status_code == 202


def test_one_user_cannot_flood_the_policy_with_ratings(tmp_path: Path) -> None:
    with serving(tmp_path, max_ratings_per_day=3) as served:
        client = served.client(Role.DECIDE)
        ids = [client.post("/v1/decisions", json=ASKED).json()["id"] for _ in range(5)]
        rated = [client.post("/v1/feedback", json={"id": id, "stars": 5, "user": "u1"}).status_code for id in ids]
        assert rated == [202, 202, 202, 429, 429]
        assert client.post("/v1/feedback", json={"id": ids[4], "stars": 5, "user": "u2"}).status_code == 202
        twice = client.post("/v1/feedback", json={"id": ids[4], "stars": 1, "user": "u2"})
        assert "one counts" in problem(twice, 409)["detail"]


def test_one_key_cannot_flood_the_policy_under_names_that_it_makes_up(tmp_path: Path) -> None:
    with serving(tmp_path, max_ratings_per_key=3) as served:
        ours, others = served.client(Role.DECIDE), served.client(Role.DECIDE)
        id = ours.post("/v1/decisions", json=ASKED).json()["id"]
        rated = [ours.post("/v1/feedback", json={"id": id, "stars": 5, "user": f"u{i}"}) for i in range(5)]
        assert [answer.status_code for answer in rated] == [202, 202, 202, 429, 429]
        assert "this API key has sent 3 ratings today" in problem(rated[-1], 429)["detail"]
        assert others.post("/v1/feedback", json={"id": id, "stars": 5, "user": "u1"}).status_code == 202


def test_a_rating_that_could_not_be_stored_may_be_sent_again(
    served: Served, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = client.post("/v1/decisions", json=ASKED).json()["id"]
    assert client.post("/v1/feedback", json={"id": id, "success": True}).status_code == 202
    rating = {"id": id, "thumbs": "up", "user": "again"}
    said = problem(client.post("/v1/feedback", json=rating | {"success": True}), 409)["detail"]
    assert said.endswith("send ratings alone")
    with monkeypatch.context() as away:
        away.setattr(served.server.collector.bus, "publish", lambda messages: full_disk())
        problem(client.post("/v1/feedback", json=rating), 503)
    assert client.post("/v1/feedback", json=rating).status_code == 202
    problem(client.post("/v1/feedback", json=rating), 409)


def full_disk() -> None:
    raise BusError("the disk is full: free some space")


def test_a_rating_with_an_id_of_its_own_is_stored_once_however_often_it_is_sent(
    served: Served, client: httpx.Client
) -> None:
    id = client.post("/v1/decisions", json=ASKED).json()["id"]
    rating = {"id": id, "success": True, "thumbs": "up", "user": "u1", "event": "rating-7"}
    assert client.post("/v1/feedback", json=rating).status_code == 202
    del rating["success"]
    assert [client.post("/v1/feedback", json=rating).status_code for _ in range(2)] == [202, 202]
    stored(served)
    assert len(client.get(f"/v1/trajectories/{id.rpartition('.')[0]}").json()["feedback"]) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_tenant_never_reads_what_another_sent(
    served: Served, tenants: list[httpx.Client], data: st.DataObject
) -> None:
    sender = data.draw(st.integers(0, 1))
    number = data.draw(st.integers(0, 10**9))
    ours, theirs = tenants[sender], tenants[1 - sender]
    mine = TRAJECTORY | {"id": f"secret-{sender}-{number}", "task": f"secret {number}"}
    if data.draw(st.booleans()):
        problem(ours.post("/v1/trajectories", json={"trajectories": [mine | {"tenant": f"t{1 - sender}"}]}), 403)
    assert ours.post("/v1/trajectories", json={"trajectories": [mine]}).status_code == 202
    served.server.ingest()
    where = data.draw(st.sampled_from(["", f"tenant=t{sender}", "problem=task", f"tenant=t{sender} and problem=task"]))
    seen = theirs.get("/v1/trajectories", params={"where": where, "limit": 500})
    assert seen.status_code == 200
    assert {row["tenant"] for row in seen.json()["rows"]} <= {f"t{1 - sender}"}
    problem(theirs.get(f"/v1/trajectories/{mine['id']}"), 404)
    assert ours.get(f"/v1/trajectories/{mine['id']}").json()["trajectory"]["task"] == mine["task"]


@pytest.fixture(scope="module")
def tenants(served: Served) -> list[httpx.Client]:
    return [served.client(Role.DECIDE, tenant=f"t{i}") for i in range(2)]


def test_the_api_describes_itself_and_every_route_is_guarded(client: httpx.Client, served: Served) -> None:
    described = client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    bare = served.bare()
    for path, methods in described["paths"].items():
        for method in methods:
            answer = bare.request(method, re.sub(r"{\w+}", "1111", path), json={} if method == "post" else None)
            assert answer.status_code == (200 if path in ("/health", "/ready") else 401), path


def test_answers_carry_a_request_id_and_the_version_and_may_not_be_framed(client: httpx.Client) -> None:
    answer = client.get("/health", headers={"x-request-id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    assert client.get("/health", headers={"x-request-id": "a b\tc" * 40}).headers["x-request-id"] != "a b\tc" * 40
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    refused = client.post("/v1/decisions", json={})
    assert answer.headers["etude-version"] == refused.headers["etude-version"] == etude.__version__


def test_a_request_that_takes_too_long_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path, request_timeout_s=0.2) as served:
        client = served.client()
        served.server.state.open = lambda rows: sleep(1)  # type: ignore[method-assign,assignment]
        assert "longer than 0.2 seconds" in problem(client.post("/v1/decisions", json=ASKED), 503)["detail"]


def test_without_a_policy_the_rules_allocate(tmp_path: Path) -> None:
    with serving(tmp_path, experience={"policies": {"allocation": str(tmp_path / "gone")}}) as served:
        answer = served.client().post("/v1/decisions", json={"problem": "allocation", "context": [0.5] * 94})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["action"], found["policy"]) == ([[1.0, 1.0, 1.0]] * 4, "rules")
        assert found["fallback"] in ("loading", "missing")
        asked = {"problem": "allocation", "context": [0.5] * 30}
        assert "give named arrays" in problem(served.client().post("/v1/decisions", json=asked), 503)["detail"]


def test_conversations_of_two_tenants_are_two(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, ask = list[str | None](), served.server.decisions.runtime.ask

    async def noted(name: str, request: Any, **how: Any) -> Any:
        asked.append(request.conversation)
        return await ask(name, request, **how)

    monkeypatch.setattr(served.server.decisions.runtime, "ask", noted)
    for tenant in ("a", "b", "a", None):
        client = served.client(Role.DECIDE, tenant=tenant)
        assert client.post("/v1/decisions", json=ASKED | {"conversation": "c-1"}).status_code == 200
    assert asked[0] == asked[2] != asked[1]
    assert asked[3] == "c-1"


def test_callers_see_the_name_of_a_file_not_its_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with serving(tmp_path) as served:
        client = served.client(Role.DECIDE)

        def full(rows: object) -> None:
            raise StoreError(f"{tmp_path}/serving.sqlite: disk is full: free some space")

        served.server.state.open = full  # type: ignore[method-assign]
        with caplog.at_level("ERROR", "etude"):
            said = problem(client.post("/v1/decisions", json=ASKED), 503)["detail"]
        assert said == "serving.sqlite: disk is full: free some space"
        assert f"{tmp_path}/serving.sqlite" in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/a/.etude/serving.sqlite: is closed", "serving.sqlite: is closed"),
        (".etude/experience.sqlite: is closed", "experience.sqlite: is closed"),
        ("ask GET /v1/jobs/j-1 and /openapi.json", "ask GET /v1/jobs/j-1 and /openapi.json"),
        ("s3://bucket/a/b.json, and/or 1/2", "s3://bucket/a/b.json, and/or 1/2"),
    ],
)
def test_paths_of_files_lose_their_folders(text: str, shown: str) -> None:
    assert without_folders(text) == shown
