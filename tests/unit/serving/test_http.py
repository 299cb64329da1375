"""Over HTTP, on a real server: decisions, outcomes, trajectories, who may do what, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import etude
from etude.contracts.query import Where
from etude.serving.keys import Role
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


def test_trajectories_are_sent_and_read_page_by_page(served: Served) -> None:
    client = served.client(Role.DECIDE, tenant="paged")
    sent = [TRAJECTORY | {"id": f"page-{i}", "time": f"2026-11-18T10:00:{i:02}Z"} for i in range(5)]
    assert client.post("/v1/trajectories", json={"trajectories": sent}).json() == {"stored": [t["id"] for t in sent]}
    assert client.post("/v1/trajectories", json={"trajectories": sent}).status_code == 202  # again, to no effect
    served.server.ingest()
    first = client.get("/v1/trajectories", params={"limit": 3}).json()
    rest = client.get("/v1/trajectories", params={"limit": 3, "cursor": first["next"]}).json()
    assert [row["id"] for row in first["rows"] + rest["rows"]] == [f"page-{i}" for i in (4, 3, 2, 1, 0)]
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
    assert text.rpartition("_")[2] not in str(served.server.keys.all())


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
