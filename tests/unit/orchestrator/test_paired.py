"""Policies on the same instructions: paired differences, peers, within a budget."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from etude.contracts.errors import ConfigError
from etude.contracts.trajectory import Outcome
from etude.learning.requests import Measurement
from etude.orchestrator.paired import Trial, carry_out_all, make_contenders, measured, random_orders
from etude.orchestrator.workplace import fresh_instructions, make_workplace
from tests.chat_server import Act, ChatServer, in_thread
from tests.office import first_phase
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
NAMES = {"new": "new", "old": "old"}


def compared(new: str, old: str, *peers: str, count: int, max_cost_usd: float | None = None) -> Measurement:
    """In the simulated office."""
    place = make_workplace(None)
    asked = fresh_instructions(place, count)
    contenders = make_contenders(new, old, peers, place)
    trials = carry_out_all(contenders, place, asked, max_cost_usd=max_cost_usd, seed=0)
    assert [trial.instruction for trial in trials] == asked[: len(trials)]
    return measured(trials, {role: one.name for role, one in contenders.items()}, place, asked=count)


def test_both_carry_out_every_instruction() -> None:
    found = compared("rules", "random", count=12)
    success = found.json["success"]
    assert success["new"] - success["old"] == pytest.approx(success["difference"]["mean"])
    assert found.json["answer"] == "better than"  # rules do about half, random choices hardly any
    assert found.json["peers"] == {}
    assert "carried out by both on simulated workers" in found.title


def test_a_policy_is_not_distinguishable_from_itself_and_the_budget_holds() -> None:
    found = compared("rules", "rules", count=30, max_cost_usd=0.5)
    assert 1 <= found.json["instructions"] < 30
    assert found.json["answer"] == "not distinguishable from"
    assert any(f"after {found.json['instructions']} of 30 instructions" in said for said in found.sentences)
    with pytest.raises(ConfigError, match="raise max-cost"):
        measured([], NAMES, make_workplace(None), asked=30)


def test_peers_carry_out_every_instruction_too_and_are_compared_with_the_new_policy() -> None:
    found = compared("rules", "rules", "random", "retry", count=12)
    assert found.title.startswith("rules, rules, random and retry: 12 instructions, carried out by all 4")
    assert list(found.json["peers"]) == ["random", "retry"]
    peer = found.json["peers"]["random"]
    assert peer["answer"] == "better than"
    for measure in ("success", "cost_usd", "latency_ms"):
        difference = peer[measure]["difference"]
        assert difference["mean"] == pytest.approx(found.json[measure]["new"] - peer[measure]["mean"])
        assert difference["ci95"][0] < difference["mean"] < difference["ci95"][1]
    assert [(row[0], row[-1]) for row in found.rows[:3]] == [
        (found.rows[0][0], n) for n in ("rules", "random", "retry")
    ]
    assert "By success, rules is better than random." in found.sentences


def test_the_budget_counts_what_peers_cost() -> None:
    alone, with_peers = (compared("rules", "rules", *peers, count=30, max_cost_usd=1.0) for peers in ((), ("retry",)))
    assert with_peers.json["instructions"] < alone.json["instructions"]


def test_the_order_of_policies_is_random_and_follows_the_seed() -> None:
    roles = ["new", "old", "peer 1"]
    orders = random_orders(roles, 300, seed=0)
    assert all(sorted(order) == roles for order in orders)
    assert min(Counter(tuple(order) for order in orders).values()) > 25  # each of six about 50 times
    assert orders == random_orders(roles, 300, seed=0) != random_orders(roles, 300, seed=1)


def test_an_instruction_that_is_repeated_is_one_piece_of_evidence() -> None:
    right, wrong = Outcome(success=True), Outcome(success=False)

    def answer(trials: list[Trial]) -> Any:
        return measured(trials, NAMES, make_workplace(None), asked=40).json

    outcomes = [{"new": right, "old": wrong}, {"new": right, "old": right}] * 20
    repeated = answer([Trial(instruction="ab"[i % 2], outcomes=both) for i, both in enumerate(outcomes)])
    assert repeated["success"]["difference"]["ci95"][0] < 0
    assert repeated["answer"] == "not distinguishable from"
    different = answer([Trial(instruction=f"{i}", outcomes=both) for i, both in enumerate(outcomes)])
    assert different["answer"] == "better than"


# On workers of one's own, from the command line

WORKERS = """
task_types: {count: {description: count words}}
workers:
  wc: {kind: command, command: [wc, -w], stdin: "{instruction}", task_types: [count]}
verify: {regex: "[0-9]"}
"""
COUNTED = json.dumps({"nodes": [{"id": 1, "task_type": "count", "worker": "wc", "after": []}]})


@pytest.fixture
def given(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """A planner and the rules on two instructions."""
    (tmp_path / "workers.yaml").write_text(WORKERS)
    (tmp_path / "asked.txt").write_text("count these words\ncount those\n")
    on = ["--workers", tmp_path / "workers.yaml", "--instructions", tmp_path / "asked.txt"]
    return ["evaluate", first_phase(tmp_path_factory), "rules", *on]


def with_model(tmp_path: Path, **options: Any) -> None:
    """Name a language model in the workers file."""
    (tmp_path / "workers.yaml").write_text(f"{WORKERS}llm: {json.dumps({'attempts': 1, **options})}\n")


def test_on_workers_of_ones_own(given: list[str | Path], tmp_path: Path, capsys: Captured) -> None:
    found = json_output(capsys, *given)
    assert found["instructions"] == 2
    assert found["judged_by"] == ["verifier"]
    assert etude(*given) == 0
    assert "name the other one too" in refused(capsys, *given[:2], *given[3:])
    assert "go with --instructions" in refused(capsys, *given[:3])
    assert "go with --instructions" in refused(capsys, *given[:2], "--peer", "rules")
    assert "'random' is compared twice" in refused(capsys, *given, "--peer", "random", "--peer", "random")
    assert "'rules' is compared twice" in refused(capsys, *given, "--peer", "rules")


def test_a_language_model_as_the_peer(given: list[str | Path], tmp_path: Path, capsys: Captured) -> None:
    with in_thread(ChatServer(answer=lambda request: COUNTED)) as server:
        with_model(tmp_path, usd_per_call=0.25)
        found = json_output(capsys, *given, "--peer", f"llm:{server.url}#m")
        assert server.requests == 2
        assert etude(*given, "--peer", f"llm:{server.url}#m", "--peer", "random") == 0
        shown = " ".join(capsys.readouterr().out.split())
    version = f"llm:m@{server.url.split('/')[2]}"
    assert found["peers"][version]["success"]["mean"] == 1.0
    assert found["peers"][version]["cost_usd"]["mean"] == pytest.approx(0.25)
    assert found["peers"][version]["cost_usd"]["difference"]["mean"] == pytest.approx(-0.25)
    assert found["peers"][version]["latency_ms"]["mean"] > 0
    assert f"-0.25 USD [-0.25, -0.25] {version}" in shown
    assert f"not distinguishable from {version}." in shown
    assert "carried out by all 4" in shown


def test_the_language_model_of_the_workers_file(given: list[str | Path], tmp_path: Path, capsys: Captured) -> None:
    with in_thread(ChatServer(answer=lambda request: COUNTED)) as server:
        with_model(tmp_path, url=server.url, model="small")
        found = json_output(capsys, *given, "--peer", "llm")
    assert list(found["peers"]) == [f"llm:small@{server.url.split('/')[2]}"]
    assert server.asked[0]["model"] == "small"
    with_model(tmp_path, url=server.url)
    assert "give it `llm: {url: …, model: …}`" in refused(capsys, *given, "--peer", "llm")


def test_a_key_is_sent_to_its_own_url_alone(
    given: list[str | Path], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cret")
    with (
        in_thread(ChatServer(answer=lambda request: COUNTED)) as own,
        in_thread(ChatServer(answer=lambda request: COUNTED)) as other,
    ):
        with_model(tmp_path, url=f"{own.url}/", model="m", api_key_env="MY_API_KEY")
        peers = [part for peer in (f"llm:{own.url}#m", f"llm:{other.url}#m") for part in ("--peer", peer)]
        assert etude(*given, *peers) == 0
    assert {headers.get("authorization") for headers in own.headers} == {"Bearer s3cret"}
    assert {headers.get("authorization") for headers in other.headers} == {None}


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (ChatServer(answer=lambda request: "I had rather not"), "made no plan that can be used, asked 2 times"),
        (ChatServer([Act.ERROR] * 9), "answered status 500"),
        (ChatServer([Act.HANG] * 9), "made no plan within 0.2 s"),
    ],
    ids=["nonsense", "error", "silence"],
)
def test_a_peer_that_makes_no_plan_has_failed(
    server: ChatServer, reason: str, given: list[str | Path], tmp_path: Path, capsys: Captured
) -> None:
    with in_thread(server):
        with_model(tmp_path, url=server.url, model="m", timeout_s=0.2)
        found = json_output(capsys, *given, "--peer", "llm")
        (peer,) = found["peers"].values()
        assert (peer["success"]["mean"], peer["success"]["difference"]["mean"]) == (0.0, 1.0)
        assert found["success"]["new"] == found["success"]["old"] == 1.0
        assert etude(*given, "--peer", "llm") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "made no plan for 2 of 2 instructions, which count as failed" in shown
    assert reason in shown


def test_a_peer_that_cannot_be_reached_is_an_error_before_anything_runs(
    given: list[str | Path], tmp_path: Path, capsys: Captured
) -> None:
    with in_thread(ChatServer()) as server:
        pass
    begun = tmp_path / "begun"
    touch = WORKERS.replace('[wc, -w], stdin: "{instruction}"', f"[touch, {begun}]")
    (tmp_path / "workers.yaml").write_text(touch)
    assert "no service listens at 127.0.0.1" in refused(capsys, *given, "--peer", f"llm:{server.url}#m")
    assert not begun.exists()
