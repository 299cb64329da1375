"""Jobs, trainings, datasets, rewards, the catalogue and operations over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from etude.contracts.subjects import to_event
from etude.contracts.training import TrainingStatus
from tests.unit.serving.server import Served, serving
from tests.unit.serving.test_http import ASKED, problem, stored
from tests.unit.serving.test_releases import given

REQUEST: dict[str, Any] = {
    "type": "agent.rl.training.request.v1",
    "id": "train-1",
    "time": "2026-11-18T10:00:00Z",
    "problem": "choice:model",
    "requested_by": "ada",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With the outcomes of a few decisions."""
    with serving(tmp_path_factory.mktemp("jobs")) as found:
        client = found.client()
        for number in range(4):
            id = given(client.post("/v1/decisions", json=ASKED))["id"]
            given(client.post("/v1/feedback", json={"id": id, "success": number % 2 == 0, "cost_usd": 0.01}), 202)
        assert stored(found) == 4
        yield found


@pytest.fixture(scope="module")
def client(served: Served) -> httpx.Client:
    return served.client()


def ended(client: httpx.Client, operation: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found: dict[str, Any] = given(client.get(f"/v1/operations/{operation['id']}"))
        if found["state"] in ("completed", "failed"):
            return found
        time.sleep(0.1)  # another process works
    raise AssertionError(operation)


def test_a_job_is_submitted_listed_cancelled_and_retried(served: Served, client: httpx.Client) -> None:
    asked = {"problem": "choice:model", "priority": 7, "hyperparameters": {"choice.model.encoder": "fast"}}
    made = given(client.post("/v1/jobs", json=asked), 202)
    assert (made["slot"], made["request"]["priority"], made["state"]) == ("choice:model", 7, "queued")
    assert made["request"]["requested_by"].startswith("key ")
    ids = [made["id"]] + [given(client.post("/v1/jobs", json={"problem": "choice"}), 202)["id"] for _ in range(2)]
    first = given(client.get("/v1/jobs", params={"limit": 2}))
    rest = given(client.get("/v1/jobs", params={"limit": 2, "cursor": first["next"]}))
    assert [job["id"] for job in first["rows"] + rest["rows"]][:3] == ids[::-1]
    assert given(client.get(f"/v1/jobs/{made['id']}")) == made
    assert "can be retried" in problem(client.post(f"/v1/jobs/{made['id']}/retry"), 409)["detail"]
    assert given(client.post(f"/v1/jobs/{made['id']}/cancel"))["state"] == "cancelled"
    problem(client.post(f"/v1/jobs/{made['id']}/cancel"), 409)
    assert [j["id"] for j in given(client.get("/v1/jobs", params={"status": "cancelled"}))["rows"]] == [made["id"]]
    assert "there is no such job" in problem(client.post("/v1/jobs/job-none/cancel"), 404)["detail"]
    served.server.steering.jobs().cancel(ids[1])
    served.server.steering.jobs().cancel(ids[2])


def test_a_training_is_requested_in_the_form_of_the_event(served: Served, client: httpx.Client) -> None:
    said = given(client.post("/v1/training/requests", json=REQUEST), 202)
    assert isinstance(to_event(said), TrainingStatus)
    assert (said["status"], said["request_id"], said["problem"]) == ("queued", "train-1", "choice:model")
    again = given(client.post("/v1/training/requests", json=REQUEST), 202)
    assert again["job_id"] == said["job_id"]
    assert given(client.get(f"/v1/training/status/{said['job_id']}")) == said
    assert said in given(client.get("/v1/training/status"))["rows"]
    assert served.server.steering.jobs().find(said["job_id"]).request.requested_by.startswith("ada by key ")  # type: ignore
    claimed = served.server.steering.jobs().claim("me", lease_s=60)
    assert claimed is not None
    assert claimed.id == said["job_id"]
    assert given(client.get(f"/v1/training/status/{said['job_id']}"))["status"] == "running"
    served.server.steering.jobs().cancel(claimed.id)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hyperparameters": {"choice.model.encoder": "http://evil.example/"}}, "paths and URLs"),
        ({"hyperparameters": {"imitation": {"data": ["/etc/passwd"]}}}, "imitation.data"),
        ({"hyperparameters": {"--set": 1}}, "dotted key"),
        ({"problem": "choice:none"}, "there is no experience of 'choice:none'"),
        ({"problem": "../x"}, "../x"),
        ({"method": "guess"}, "guess"),
        ({"policy": "0123456789abcdef"}, "there is no version"),
        ({"algorithm": 3}, "algorithm"),
        ({"priority": 10}, "priority"),
    ],
)
def test_what_cannot_be_trained_is_refused(client: httpx.Client, change: dict[str, Any], said: str) -> None:
    before = jobs(client)
    answer = client.post("/v1/jobs", json={"problem": "choice:model"} | change)
    problem(answer, 404 if "version" in said else 400)
    assert said in answer.text
    refused = client.post("/v1/training/requests", json=REQUEST | {"id": "other"} | change)
    assert refused.status_code == answer.status_code
    assert jobs(client) == before


def jobs(client: httpx.Client) -> list[str]:
    return [job["id"] for job in given(client.get("/v1/jobs", params={"limit": 500}))["rows"]]


def test_a_dataset_is_created_by_its_name(client: httpx.Client) -> None:
    begun = given(client.post("/v1/datasets", json={"name": "a-1", "problem": "choice:model"}), 202)
    done = ended(client, begun)
    assert done["state"] == "completed", done
    found = given(client.get(done["result"]))
    assert (found["problem"], found["counts"]["trajectories"]) == ("choice:model", 4)
    assert given(client.get(f"/v1/datasets/{found['id']}")) == found
    assert given(client.get("/v1/datasets", params={"problem": "choice:model"}))["rows"] == [found]
    again = ended(client, given(client.post("/v1/datasets", json={"name": "a-2", "problem": "choice:model"}), 202))
    assert given(client.get(again["result"]))["id"] == given(client.get("/v1/datasets/a-1"))["id"] == found["id"]
    assert found["id"] in problem(client.get("/v1/datasets/other"), 404)["detail"]
    (learned,) = [given(client.get(f"/v1/trajectories/{id}/policies")) for id in trajectories(client)[:1]]
    assert (learned["datasets"], learned["versions"]) == ([found["id"]], [])


def trajectories(client: httpx.Client) -> list[str]:
    return [row["id"] for row in given(client.get("/v1/trajectories"))["rows"]]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"name": "../x"}, 400, "name"),
        ({"name": "/etc/x"}, 400, "name"),
        ({"name": "a\x00"}, 400, "name"),
        ({"name": "a\n"}, 400, "name"),
        ({"name": "s3://bucket"}, 400, "name"),
        ({"where": "bogus~1"}, 400, "bogus"),
        ({"where": "problem=choice:other"}, 400, "leave one out"),
        ({"where": 'user="\x00"'}, 400, "where"),
        ({"problem": "choice:other"}, 409, "no trajectory"),
        ({"folder": "/tmp"}, 400, "folder"),
    ],
)
def test_a_dataset_that_cannot_be_made_is_refused(
    client: httpx.Client, change: dict[str, Any], status: int, said: str
) -> None:
    asked = {"name": "refused", "problem": "choice:model"} | change
    problem(answer := client.post("/v1/datasets", json=asked), status)
    assert said in answer.text


def test_an_operation_that_fails_says_why(served: Served, client: httpx.Client) -> None:
    made = served.server.steering.operations.submit(
        "rescore", "99", ["reward", "rescore", "--version=99"], by="me", result=""
    )
    done = ended(client, {"id": made.id})
    assert done["state"] == "failed"
    assert "there is no reward definition of version 99" in done["error"]


def test_rewards_are_listed_explained_and_computed_again(client: httpx.Client) -> None:
    rows = given(client.get("/v1/rewards"))["rows"]
    assert [row["version"] for row in rows] == sorted(row["version"] for row in rows)
    assert [row["version"] for row in rows if row["in_use"]] == [1]
    page = given(client.get("/v1/rewards", params={"limit": 1}))
    assert given(client.get("/v1/rewards", params={"cursor": page["next"]}))["rows"] == rows[1:]
    status = given(client.get("/v1/rewards/1"))
    assert (status["trajectories"], status["rewarded"]) == (4, 4)
    assert given(client.get("/v1/rewards/2"))["rewarded"] == 0
    assert "there are 1," in problem(client.get("/v1/rewards/99"), 404)["detail"]
    why = given(client.get(f"/v1/trajectories/{trajectories(client)[0]}/reward"))
    assert why["versions"] == [1]
    problem(client.get(f"/v1/trajectories/{trajectories(client)[0]}/reward", params={"version": 2}), 404)
    problem(client.get("/v1/trajectories/none/reward"), 404)
    assert ended(client, given(client.post("/v1/rewards/2/rescore", json={}), 202))["state"] == "completed"
    assert given(client.get("/v1/rewards/2"))["rewarded"] == 4


def test_the_catalogue_is_that_of_the_settings(tmp_path: Path) -> None:
    file = tmp_path / "workers.yaml"
    file.write_text(
        "task_types: {sort: {description: Sort lines}}\n"
        "workers: {sorter: {kind: command, description: Sorts, task_types: [sort], command: [sort]}}\n"
    )
    with serving(tmp_path, experience={"workers": str(file)}) as served:
        found = given(served.client().get("/v1/catalogue"))
        assert [one["name"] for one in found["task_types"]] == ["sort"]
        assert [one["name"] for one in found["workers"]] == ["sorter"]
    with serving(tmp_path, experience={"workers": str(tmp_path / "none.yaml")}) as served:
        assert "none.yaml" in problem(served.client().get("/v1/catalogue"), 503)["detail"]
