"""Over every route of the app, those of later too: roles hold, and no tenant reads anything of another."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from etude.serving.access import Guard
from etude.serving.app import ROUTES
from etude.serving.keys import RANK, Role
from tests.unit.serving.server import Served, serving
from tests.unit.serving.test_http import ASKED, TRAJECTORY

OPEN = {"/health", "/ready", "/openapi.json"}
MARK = "zebra"
"""In everything that the other tenant sent."""


class Planted:
    """What the other tenant sent, and how it may be asked for."""

    def __init__(self, served: Served) -> None:
        other = served.client(Role.DECIDE, tenant=f"{MARK}-tenant")
        asked = ASKED | {"context": f"{MARK} context", "task": f"{MARK} task", "user": f"{MARK}-user"}
        closed, self.open = (other.post("/v1/decisions", json=asked).json()["id"] for _ in range(2))
        report = {"id": closed, "success": False, "error": f"{MARK} error", "stars": 1, "comment": f"{MARK} comment"}
        assert other.post("/v1/feedback", json=report).status_code == 202
        sent = TRAJECTORY | {"id": f"{MARK}-1", "task": f"{MARK} task"}
        (self.stored,) = other.post("/v1/trajectories", json={"trajectories": [sent]}).json()["stored"]
        self.key = {"idempotency-key": f"{MARK}-key"}
        self.asked = asked
        assert other.post("/v1/decisions", json=asked, headers=self.key).status_code == 200
        served.server.ingest()
        self.closed = closed
        cursor = other.get("/v1/trajectories", params={"limit": 1}).json()["next"]
        self.ids = [
            f"{MARK}-1",
            self.stored,
            closed,
            self.open,
            closed.rpartition(".")[0],
            self.open.rpartition(".")[0],
            "x",
            "1",
        ]
        self.texts = ["", f"tenant={MARK}-tenant", f"user={MARK}-user", "problem=choice:model", f"task={MARK}"]
        self.cursors = [None, cursor]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("tenants")) as found:
        yield found


@pytest.fixture(scope="module")
def planted(served: Served) -> Planted:
    return Planted(served)


@pytest.fixture(scope="module")
def clients(served: Served) -> dict[Role, httpx.Client]:
    """Of another tenant, where a role can belong to one."""
    return {
        Role.INGEST: served.client(Role.INGEST, tenant="a"),
        Role.DECIDE: served.client(Role.DECIDE, tenant="a"),
        Role.RELEASE: served.client(Role.RELEASE),
    }


def routes() -> list[tuple[str, str, Role | None]]:
    """Method, path and needed role of every route of the app's table."""
    found = []
    for handler in ROUTES:
        role = next((one.role for one in handler.guards or () if isinstance(one, Guard)), None)
        paths = [re.sub(r":\w+}", "}", path) for path in handler.paths]
        found += [(str(method), path, role) for path in sorted(paths) for method in sorted(handler.http_methods)]
    return found


def filled(path: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


VALUES = {"id": "x", "slot": "choice:model", "version": "1111", "other": "2222", "number": "1"}


def test_every_route_is_in_the_table() -> None:
    assert {("POST", "/v1/decisions", Role.DECIDE), ("GET", "/v1/events", Role.RELEASE)} <= set(routes())
    assert {path for _, path, role in routes() if role is None} <= OPEN


def test_no_key_of_a_tenant_reads_or_steers_releases() -> None:
    """Keys of tenants have lower roles than these routes need."""
    steering = {"policies", "releases", "audit", "jobs", "training", "datasets", "rewards", "catalogue", "events"}
    own = [handler for handler in ROUTES if steering & set(handler.tags or ())]
    assert len(own) > 40
    needed = {path: one.role for one_of in own for path in one_of.paths for one in one_of.guards}
    assert {role for path, role in needed.items() if not path.endswith("/approve")} == {Role.RELEASE}
    assert {role for path, role in needed.items() if path.endswith("/approve")} == {Role.ADMIN}


@pytest.mark.parametrize(("method", "path", "role"), [one for one in routes() if one[2] is not None])
def test_a_lower_role_is_refused(
    clients: dict[Role, httpx.Client], served: Served, method: str, path: str, role: Role
) -> None:
    for own, client in clients.items():
        if RANK[own] < RANK[role]:
            answer = client.request(method, filled(path, VALUES), json={} if method == "POST" else None)
            assert answer.status_code == 403, (own, answer.text)
            assert f"this needs {role}" in answer.text
    assert served.bare().request(method, filled(path, VALUES)).status_code == 401


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_answer_holds_anything_of_another_tenant(
    planted: Planted, clients: dict[Role, httpx.Client], data: st.DataObject
) -> None:
    method, path, _ = data.draw(st.sampled_from([one for one in routes() if one[1] != "/v1/events"]))
    id = data.draw(st.sampled_from(planted.ids))
    query = {
        "where": data.draw(st.sampled_from(planted.texts)),
        "cursor": data.draw(st.sampled_from(planted.cursors)),
        "limit": "500",
        "slot": data.draw(st.sampled_from([None, "choice:model"])),
    }
    body = data.draw(
        st.sampled_from(
            [
                {},
                planted.asked,
                {"decisions": [planted.asked]},
                ASKED | {"id": id},
                {"id": id, "success": True, "stars": 5},
                {"trajectories": [TRAJECTORY | {"id": f"{MARK}-1", "task": "mine"}]},
                {"where": query["where"]},
            ]
        )
    )
    headers = data.draw(st.sampled_from([{}, planted.key]))
    client = clients[data.draw(st.sampled_from([Role.INGEST, Role.DECIDE]))]
    answer = client.request(
        method,
        filled(path, VALUES | {"id": id}),
        params={name: value for name, value in query.items() if value is not None} if method == "GET" else None,
        json=body if method == "POST" else None,
        headers=headers,
    )
    said = answer.text + json.dumps(dict(answer.headers))
    own: list[Any] = [
        id,
        query["where"],
        json.dumps(body),
        f"{MARK}-1",
        *headers.values(),
    ]  # what the request says may be repeated
    for text in own:
        said = said.replace(str(text), "") if MARK in str(text) else said
    assert MARK not in said, (method, path, answer.text)


def test_what_the_other_tenant_sees_is_what_it_sent(served: Served, planted: Planted) -> None:
    """The marks are there: otherwise nothing above could fail."""
    reader = served.client(Role.RELEASE)
    rows = reader.get("/v1/trajectories", params={"where": f"tenant={MARK}-tenant"}).json()["rows"]
    assert {row["id"] for row in rows} >= {planted.stored, planted.closed.rpartition(".")[0]}
    assert f"{MARK} comment" in reader.get(f"/v1/trajectories/{planted.closed.rpartition('.')[0]}").text


def test_two_tenants_may_use_the_same_ids(served: Served) -> None:
    """What one sends is neither lost nor found because another had the id first."""
    clients = [served.client(Role.DECIDE, tenant=f"same-{i}") for i in range(2)]
    stored = []
    for number, client in enumerate(clients):
        mine = TRAJECTORY | {"id": "order-1", "task": f"task of {number}"}
        stored += client.post("/v1/trajectories", json={"trajectories": [mine]}).json()["stored"]
        opened = client.post("/v1/decisions", json=ASKED | {"trajectory": "order-2", "context": f"of {number}"})
        assert opened.status_code == 200, opened.text
    assert len(set(stored)) == 2
    served.server.ingest()
    for number, client in enumerate(clients):
        rating = {"id": "order-1", "stars": 1 + number, "event": "rating-1"}
        assert client.post("/v1/feedback", json=rating).status_code == 202
        served.server.ingest()
        for id in ("order-1", stored[number]):
            found = client.get(f"/v1/trajectories/{id}").json()
            assert found["trajectory"]["task"] == f"task of {number}"
            assert [one["stars"] for one in found["feedback"]] == [1 + number]
        assert client.get(f"/v1/trajectories/{stored[1 - number]}").status_code == 404
        # The whole task closes what was open under its id, and is stored under the same one.
        whole = TRAJECTORY | {"id": "order-2", "task": f"whole {number}"}
        (kept,) = client.post("/v1/trajectories", json={"trajectories": [whole]}).json()["stored"]
        assert not served.server.state.parts(kept)
