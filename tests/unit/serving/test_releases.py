"""Policies, releases and the audit log over HTTP: a policy from its registration to its rollback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from etude.contracts.policy import version_of
from etude.serving.keys import Role
from tests.unit.release.traffic import SLOT, make_manifest
from tests.unit.serving.releases import register, registry_of
from tests.unit.serving.server import Served, serving
from tests.unit.serving.test_http import problem

NOWHERE = "0123456789abcdef"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found


@pytest.fixture
def client(served: Served) -> httpx.Client:
    return served.client()


@pytest.fixture
def versions(served: Served, tmp_path: Path) -> list[str]:
    return register(served, tmp_path, "old", "new", "third")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An admin's client of a server without anything."""
    with serving(tmp_path_factory.mktemp("bare")) as found:
        yield found.client()


def given(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def first_serves(client: httpx.Client, version: str) -> None:
    given(client.post(f"/v1/policies/{version}/approve", json={"by": "ada", "reason": "seen"}))
    given(client.post("/v1/canary", json={"version": version, "strategy": "direct"}))


def test_a_policy_is_approved_released_and_rolled_back(client: httpx.Client, versions: list[str]) -> None:
    old, new, _ = versions
    assert "is not approved" in problem(client.post("/v1/canary", json={"version": old}), 409)["detail"]
    approved = given(client.post(f"/v1/policies/{old[:6]}/approve", json={"by": "ada", "reason": "seen"}))
    assert approved["step"]["actor"].startswith("ada by key ")
    started = given(client.post("/v1/canary", json={"version": old}))
    assert (started["slot"], started["strategy"], started["step"]["action"]) == (SLOT, "direct", "promoted")
    assert given(client.get(f"/v1/canary/{SLOT}"))["serving"] == {"incumbent": old}
    begun = given(client.post("/v1/canary", json={"version": new, "strategy": "canary", "over_minutes": 60}))
    assert begun["step"]["evidence"]["stage_minutes"] == 20
    assert problem(client.post("/v1/canary", json={"version": new, "strategy": "canary"}), 409)
    status = given(client.get(f"/v1/canary/{SLOT}"))
    assert status["serving"]["exposure"]["candidate"] == new
    assert (status["evidence"]["units"], status["evidence"]["mean_candidate"]) == (0, None)
    paused = given(client.post(f"/v1/canary/{SLOT}/pause", json={}))
    assert paused["step"]["serving"]["exposure"]["status"] == "paused"
    assert given(client.post(f"/v1/canary/{SLOT}/resume", json={}))["step"]["action"] == "resumed"
    assert given(client.post(f"/v1/canary/{SLOT}/abort", json={"reason": "no"}))["step"]["reason"] == "no"
    assert "nothing is being released" in problem(client.post(f"/v1/canary/{SLOT}/pause", json={}), 409)["detail"]
    given(client.post(f"/v1/policies/{new}/approve", json={}))
    given(client.post("/v1/canary", json={"version": new, "strategy": "direct"}))
    back = given(client.post("/v1/policies/rollback", json={"slot": SLOT, "reason": "worse", "by": "ada"}))
    assert back["step"]["serving"] == {"incumbent": old}
    nothing = problem(client.post("/v1/policies/rollback", json={"slot": SLOT}), 409)
    assert "no earlier policy" in nothing["detail"]


def test_an_experiment_and_a_shadow_begin_and_end(client: httpx.Client, versions: list[str]) -> None:
    old, new, third = versions
    first_serves(client, old)
    wrong = client.post("/v1/experiments", json={"a": new, "b": third})
    assert f"{old} serves" in problem(wrong, 409)["detail"]
    begun = given(client.post("/v1/experiments", json={"a": new, "b": old, "share_of_b": 0.75}))
    assert begun["step"]["serving"]["exposure"]["share"] == 0.25  # of the candidate
    assert [row["slot"] for row in given(client.get("/v1/experiments"))["rows"]] == [SLOT]
    assert given(client.post(f"/v1/experiments/{SLOT}/stop", json={}))["step"]["reason"] == "stopped"
    assert given(client.get("/v1/experiments"))["rows"] == []
    shadow = given(client.post("/v1/shadow", json={"version": third}))
    assert shadow["step"]["serving"]["exposure"]["mode"] == "shadow"
    assert given(client.post(f"/v1/canary/{SLOT}/abort", json={}))["step"]["action"] == "stopped"


def test_versions_are_listed_shown_compared_and_verified(
    served: Served, client: httpx.Client, versions: list[str]
) -> None:
    pages = [given(client.get("/v1/policies", params={"limit": 2}))]
    pages.append(given(client.get("/v1/policies", params={"limit": 2, "cursor": pages[0]["next"]})))
    rows = [row for one in pages for row in one["rows"]]
    assert [row["version"] for row in rows] == sorted(versions)
    assert pages[1]["next"] is None
    assert {row["state"] for row in rows} == {"passed"}
    assert given(client.get("/v1/policies", params={"status": "serving"}))["rows"] == []
    shown = given(client.get(f"/v1/policies/{versions[0]}"))
    assert [step["action"] for step in shown["history"]] == ["registered", "gates_passed"]
    assert shown["manifest"]["problem"] == "choice"
    found = given(client.get(f"/v1/policies/{versions[0]}/lineage"))
    assert found == {"versions": [{"version": versions[0], "data": [], "datasets": []}], "children": []}
    changed = given(client.get(f"/v1/policies/{versions[0]}/diff/{versions[1]}"))["changed"]
    assert list(changed) == ["files.policy.txt"]
    assert given(client.get(f"/v1/policies/{versions[0]}/verification"))["unaltered"] is True
    registry_of(served).blobs.put(f"artefacts/{versions[0]}/policy.txt", b"other")
    altered = given(client.get(f"/v1/policies/{versions[0]}/verification"))
    assert altered["unaltered"] is False
    assert "does not match" in altered["detail"]
    assert len(given(client.get("/v1/training/models"))["rows"]) == 3


def test_the_record_is_listed_verified_and_replayed(client: httpx.Client, versions: list[str]) -> None:
    first_serves(client, versions[0])
    rows, cursor = list[Any](), None
    for _ in range(5):
        one = given(client.get("/v1/audit", params={"limit": 2, "slot": SLOT} | ({"cursor": cursor} if cursor else {})))
        rows, cursor = rows + one["rows"], one["next"]
        if cursor is None:
            break
    assert [row["step"]["number"] for row in rows] == list(range(1, 9))
    assert rows == given(client.get("/v1/audit"))["rows"]
    checked = given(client.get(f"/v1/audit/{SLOT}/verification"))
    assert (checked["unaltered"], checked["entries"]) == (True, 8)
    lost = given(client.get(f"/v1/audit/{SLOT}/verification", params={"head": "0" * 64}))
    assert "cut off" in lost["detail"]
    assert "rests on no e-values" in problem(client.get(f"/v1/audit/{SLOT}/7/replay"), 409)["detail"]
    assert "there is no step 9" in problem(client.get(f"/v1/audit/{SLOT}/9/replay"), 404)["detail"]


def test_gates_run_as_an_operation_and_leave_their_report(served: Served, client: httpx.Client, tmp_path: Path) -> None:
    (version,) = register(served, tmp_path, "old", passed=False)
    problem(client.get(f"/v1/policies/{version}/gates"), 404)
    begun = given(client.post(f"/v1/policies/{version[:8]}/gates", json={}), 202)
    assert (begun["kind"], begun["about"], begun["result"]) == ("gates", version, f"/v1/policies/{version}/gates")
    again = given(client.post(f"/v1/policies/{version}/gates", json={"seed": 1}), 202)
    assert again["id"] == begun["id"]  # it has not ended
    assert given(client.get("/v1/operations"))["rows"][0]["id"] == begun["id"]
    served.server.steering.operations.close()
    ended = given(client.get(f"/v1/operations/{begun['id']}"))
    assert (ended["state"], ended["error"]) == ("failed", "the server that ran it has ended: ask for it again")
    registry_of(served).attach(version, "gates.json", b'{"slot": "choice:model", "verdict": "pass", "results": []}')
    assert given(client.get(f"/v1/policies/{version}/gates"))["verdict"] == "pass"


def test_what_is_not_there_is_named_with_what_is(client: httpx.Client, versions: list[str]) -> None:
    for call in (
        client.get(f"/v1/policies/{NOWHERE}"),
        client.get(f"/v1/policies/{versions[0]}/diff/{NOWHERE}"),
        client.post("/v1/canary", json={"version": NOWHERE}),
        client.post("/v1/shadow", json={"version": NOWHERE}),
        client.post(f"/v1/policies/{NOWHERE}/gates", json={}),
        client.post(f"/v1/policies/{NOWHERE}/approve", json={}),
    ):
        assert versions[0] in problem(call, 404)["detail"]
    for call in (
        client.get("/v1/canary/choice:other"),
        client.get("/v1/audit", params={"slot": "choice:other"}),
        client.post("/v1/policies/rollback", json={"slot": "choice:other"}),
        client.post("/v1/canary/choice:other/abort", json={}),
    ):
        assert SLOT in problem(call, 404)["detail"]


def test_several_versions_that_begin_alike_are_named(served: Served, client: httpx.Client, tmp_path: Path) -> None:
    begins: dict[str, str] = {}
    for number in range(2000):
        name = str(number)
        digits = version_of(make_manifest(name).encode())[:4]
        if digits in begins:
            break
        begins[digits] = name
    pair = [begins[digits], name]
    found = register(served, tmp_path, *pair)
    assert all(one in problem(client.get(f"/v1/policies/{found[0][:4]}"), 404)["detail"] for one in found)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/policies/..%2F..%2Fetc%2Fpasswd",
        "/v1/policies/%2e%2e",
        "/v1/policies/abcd%00",
        "/v1/policies/abcd%0a",
        "/v1/policies/ABCD",
        "/v1/canary/..",
        "/v1/canary/%2e%2e",
        "/v1/canary/%2Fetc",
        "/v1/canary/choice:a%2Fb",
        "/v1/canary/choice:a%5Cb",
        "/v1/canary/choice%0a",
        "/v1/canary/choice:%252e",
        "/v1/jobs/..%5C..",
        "/v1/jobs/%00",
        "/v1/datasets/%2Fetc%2Fpasswd",
        "/v1/datasets/C:%5C",
        "/v1/operations/op-1",
        "/v1/training/status/-x",
        "/v1/audit/choice:model/0/replay",
        "/v1/audit/choice:model/99999999999999999999/replay",
        "/v1/rewards/0",
        "/v1/policies?cursor=e30",
        "/v1/policies?cursor=ä",
        "/v1/policies?limit=0",
        "/v1/policies?slot=../x",
        "/v1/jobs?status=lost",
    ],
)
def test_ids_are_checked_before_they_are_looked_up(bare: httpx.Client, path: str) -> None:
    answer = bare.get(path)
    assert answer.status_code in (400, 404), answer.text
    body = problem(answer, answer.status_code)
    if answer.status_code == 400:
        assert body.get("errors") or "cursor" in body["detail"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/canary", {"version": "../x"}, "version"),
        ("/v1/canary", {"version": "abcd", "stages": [0]}, "stages"),
        ("/v1/canary", {"version": "abcd", "strategy": "blind"}, "strategy"),
        ("/v1/canary", {"version": "abcd", "over_minutes": -1}, "over_minutes"),
        ("/v1/experiments", {"a": "abcd", "b": "abce", "share_of_b": 1}, "share_of_b"),
        ("/v1/policies/rollback", {"slot": "choice:a/b"}, "slot"),
        ("/v1/policies/rollback", {"slot": SLOT, "why": "x"}, "why"),
        ("/v1/policies/abcd/approve", {"by": "a\nb"}, "by"),
    ],
)
def test_a_wrong_body_says_which_field_is_wrong(bare: httpx.Client, path: str, body: Any, said: str) -> None:
    problem(answer := bare.post(path, json=body), 400)
    assert said in answer.text


def test_only_an_admin_approves_and_a_repeated_approval_is_one_step(
    served: Served, client: httpx.Client, versions: list[str]
) -> None:
    path = f"/v1/policies/{versions[0]}/approve"
    problem(served.client(Role.RELEASE).post(path, json={}), 403)
    key = {"idempotency-key": "a1"}
    first, second = (given(client.post(path, json={}, headers=key)) for _ in range(2))
    assert first == second
    steps = given(client.get("/v1/audit"))["rows"]
    assert [row["step"]["action"] for row in steps].count("approved") == 1
