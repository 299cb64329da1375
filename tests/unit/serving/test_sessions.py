"""The routes of the source document on prompt mutation: a policy per caller, which learns from that caller alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from etude.problems.prompt.mutations import MUTATIONS
from etude.serving.keys import Role
from tests.unit.serving.server import Served, serving

WIDTH, BATCH = 1536, 64
PROMPT = "Write a function that sorts a list of names and explain how it works."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("sessions"), max_sessions=6) as found:
        yield found


@pytest.fixture
def caller(served: Served) -> Iterator[httpx.Client]:
    yield served.client(Role.DECIDE)
    served.server.sessions.held.clear()


def embedding(seed: int) -> list[float]:
    return np.random.default_rng(seed).normal(size=WIDTH).round(3).tolist()


def asked(client: httpx.Client, route: str, **body: Any) -> Any:
    answer = client.post(route, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def practise(client: httpx.Client, wanted: int, *, rounds: int) -> None:
    """Reward one mutation, whatever is seen, and update after each batch."""
    for number in range(rounds):
        for i in range(BATCH):
            seen = embedding(number * BATCH + i)
            chosen = asked(client, "/select_action", embedding=seen, seed=i)
            step = {name: chosen[name] for name in ("action", "log_prob", "value")}
            reward = float(chosen["action"] == wanted)
            asked(client, "/store_experience", embedding=seen, reward=reward, done=True, **step)
        assert asked(client, "/update")["updated"]


def test_a_prompt_comes_back_mutated(caller: httpx.Client) -> None:
    found = asked(caller, "/select_action", prompt=PROMPT, seed=3)
    assert found["mutation"] == MUTATIONS[found["action"]]
    assert found["prompt"] != PROMPT
    assert found["propensity"] == found["probabilities"][found["mutation"]]
    assert found["log_prob"] == pytest.approx(np.log(found["propensity"]), abs=1e-5)
    assert asked(caller, "/select_action", prompt=PROMPT, seed=3) == found
    assert asked(caller, "/get_distribution", prompt=PROMPT)["probabilities"] == found["probabilities"]
    assert asked(caller, "/select_action", embedding=embedding(0))["prompt"] is None


def test_it_learns_what_its_caller_rewards_and_serves_no_one_else(served: Served, caller: httpx.Client) -> None:
    wanted, seen = 2, embedding(9)
    other = served.client(Role.DECIDE)
    before = asked(other, "/get_distribution", embedding=seen)
    practise(caller, wanted, rounds=6)
    after = asked(caller, "/get_distribution", embedding=seen)["probabilities"][MUTATIONS[wanted]]
    assert after > 1.5 * before["probabilities"][MUTATIONS[wanted]]
    assert asked(other, "/get_distribution", embedding=seen) == before


def test_too_little_experience_changes_nothing(caller: httpx.Client) -> None:
    step = {"embedding": embedding(1), "action": 1, "reward": 1, "done": True}
    assert asked(caller, "/store_experience", **step) == {"stored": True, "buffer_size": 1}
    found = asked(caller, "/update")
    assert (found["updated"], found["policy_loss"], found["buffer_size"]) == (False, None, 1)


def test_saved_policies_are_versions_that_their_caller_may_load(served: Served, caller: httpx.Client) -> None:
    seen = embedding(4)
    practise(caller, 0, rounds=1)
    learned = asked(caller, "/get_distribution", embedding=seen)
    version = asked(caller, "/save", name="first try")["version"]
    practise(caller, 1, rounds=1)
    assert asked(caller, "/get_distribution", embedding=seen) != learned
    assert asked(caller, "/load", version=version[:8]) == {"loaded": True, "version": version}
    assert asked(caller, "/get_distribution", embedding=seen) == learned
    refused = served.client(Role.DECIDE).post("/load", json={"version": version})
    assert refused.status_code == 404
    assert version not in refused.json()["detail"].partition("expected")[2]
    assert asked(served.client(Role.RELEASE), "/load", version=version)["loaded"]


def test_a_tenant_loads_what_another_of_its_keys_saved(served: Served, caller: httpx.Client) -> None:
    mine, ours = (served.client(Role.DECIDE, tenant="a") for _ in range(2))
    practise(mine, 3, rounds=1)
    version = asked(mine, "/save")["version"]
    assert asked(ours, "/load", version=version)["version"] == version
    assert served.client(Role.DECIDE, tenant="b").post("/load", json={"version": version}).status_code == 404


@pytest.mark.parametrize(
    ("route", "body", "said"),
    [
        ("/select_action", {}, "neither an embedding nor a prompt"),
        ("/select_action", {"embedding": [1.0, 2.0]}, "1536"),
        ("/select_action", {"prompt": ""}, "empty"),
        ("/select_action", {"prompt": PROMPT, "mutation": "expansion"}, "mutation"),
        ("/store_experience", {"prompt": PROMPT, "action": 5, "reward": 1, "done": True}, "0 to 4"),
        ("/store_experience", {"prompt": PROMPT, "action": 1, "reward": "much", "done": True}, "reward"),
        ("/load", {"version": "../../etc"}, "version"),
    ],
)
def test_what_does_not_fit_is_refused(caller: httpx.Client, route: str, body: dict[str, Any], said: str) -> None:
    answer = caller.post(route, json=body)
    assert answer.status_code == 400
    assert said in answer.text


def test_sessions_are_limited_and_idle_ones_make_room(served: Served, caller: httpx.Client) -> None:
    sessions = served.server.sessions
    for _ in range(sessions.limit):
        asked(served.client(Role.DECIDE), "/get_distribution", embedding=embedding(0))
    refused = caller.post("/get_distribution", json={"embedding": embedding(0)})
    assert refused.status_code == 429
    assert "serving.max_sessions" in refused.json()["detail"]
    for held in sessions.held.values():
        held.used -= 2 * sessions.idle
    asked(caller, "/get_distribution", embedding=embedding(0))
    assert len(sessions.held) == 1


def test_a_key_that_may_only_ingest_is_refused(served: Served, tmp_path: Path) -> None:
    assert served.client(Role.INGEST).post("/update", json={}).status_code == 403
