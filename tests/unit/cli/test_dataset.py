"""`etude dataset`: create, list, show, verify."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from etude.bootstrap.experience import open_store
from etude.cli.dataset import app
from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import ConfigError, DataError, DatasetError
from etude.contracts.reward import Reward
from etude.contracts.store import ExperienceStore
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Event, Outcome, Trajectory

START = datetime(2026, 11, 1, tzinfo=UTC)
CREATE = ("create", "--problem", "workflow")


@pytest.fixture(autouse=True)
def store() -> Iterator[ExperienceStore]:
    """The one that commands open here, with 60 rewarded trajectories and one without a reward."""
    made, events = open_store(), list[tuple[Event, bytes]]()
    for i in range(61):
        decision = LoggedDecision(problem="workflow", action=i % 2, propensity=0.5, policy="p[1]")
        one = Trajectory(
            id=f"t{i}",
            time=START + timedelta(hours=i),
            task=f"request {i % 12}",
            problem="workflow",
            policy="p[1]",
            decisions=(decision,),
            outcome=Outcome(success=i % 3 > 0),
        )
        of_it = Reward(
            id=f"r{i}", time=one.time, trajectory_id=one.id, version=1, definition="abc", total=i / 60, confidence=0.8
        )
        events += [(one, encode(one)), *([(of_it, encode(of_it))] if i < 60 else [])]
    made.append(events)
    yield made
    made.close()


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def stdout_of(*args: str | Path) -> str:
    done = run(*args)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.stdout


def test_create_tells_what_it_made(store: ExperienceStore) -> None:
    lines = stdout_of(*CREATE, "--out", "a", "--where", "time>=2026-11-01").splitlines()
    manifest = json.loads(Path("a/manifest.json").read_text())
    assert lines[0] == f"dataset {manifest['id']}  {Path('a').absolute()}"
    assert lines[1].startswith(
        "problem=workflow and time>=2026-11-01T00:00:00+00:00, reward version 1 (abc), 2026-11-01"
    )
    table = [line.split() for line in lines[3:-1]]
    assert table[:2] == [["trajectories", "60"], ["decisions", "60"]]
    assert ["policy", "p[1]", "60", "100.0%"] in table
    assert ["outcome", "success", "40", "66.7%"] in table
    assert ["left", "out", "no", "reward", "1"] in table
    assert lines[-1].endswith(f"content {manifest['content']}")
    assert manifest["lineage"]["source"].endswith("experience.sqlite")
    assert store.datasets_of(["t3"]) == {manifest["id"]: 1}


def test_create_takes_every_setting() -> None:
    options = {
        "--split": "time",
        "--shares": "0.5,0.25,0.25",
        "--balance": "outcome",
        "--prioritise": "0.6",
        "--max": "40",
        "--min-confidence": "0.5",
        "--seed": "7",
        "--cap": "5",
    }
    pairs = [part for option in options.items() for part in option]
    made = json.loads(stdout_of(*CREATE, "--out", "a", *pairs, "--deduplicate", "--require-propensity", "--json"))
    assert made["config"] == {
        "split": "time",
        "shares": [0.5, 0.25, 0.25],
        "seed": 7,
        "shard_size": 4096,
        "balance": "outcome",
        "prioritise": 0.6,
        "deduplicate": True,
        "limit": 40,
        "min_confidence": 0.5,
        "require_propensity": True,
        "cap": 5.0,
    }
    assert made["left_out"]["duplicates"] + made["counts"]["trajectories"] == 60
    assert made == json.loads(stdout_of("show", "a", "--json"))


def test_list_and_show(store: ExperienceStore) -> None:
    assert stdout_of("list").startswith("no datasets: `etude dataset create")
    one = json.loads(stdout_of(*CREATE, "--out", "a", "--json"))
    other = json.loads(stdout_of(*CREATE, "--out", "b", "--where", "outcome=success", "--json"))
    lines = [line.split() for line in stdout_of("list").splitlines()]
    assert [line[0] for line in lines] == ["dataset", one["id"], other["id"]]
    assert lines[1][3:6] == ["workflow", "1", "60"]
    assert lines[2][-1] == str(Path("b").absolute())
    assert [entry["id"] for entry in json.loads(stdout_of("list", "--json"))] == [one["id"], other["id"]]
    for name in (one["id"], one["id"][:6], "a"):
        assert stdout_of("show", name).startswith(f"dataset {one['id']}")


def test_verify() -> None:
    made = json.loads(stdout_of(*CREATE, "--out", "a", "--json"))
    shard = made["shards"][0]
    assert "unaltered" in stdout_of("verify", made["id"])
    file = Path("a") / shard["key"]
    file.write_bytes(file.read_bytes()[:-3])
    spoiled = run("verify", "a")
    assert isinstance(spoiled.exception, DatasetError)
    assert f"{shard['key']} of dataset {made['id']} has {shard['bytes'] - 3:,} bytes" in str(spoiled.exception)


@pytest.mark.parametrize(
    ("args", "kind", "message"),
    [
        ((*CREATE, "--out", "a", "--where", "policy=p2"), DatasetError, "  without policy=p2: 61"),
        ((*CREATE, "--out", "a", "--reward-version", "2"), DatasetError, "61: no reward"),
        ((*CREATE, "--out", "a", "--where", "polcy=p2"), DataError, "did you mean 'policy='"),
        ((*CREATE, "--out", "a", "--shares", "1,2"), ConfigError, "three numbers"),
        ((*CREATE, "--out", "a", "--shares", "0.5,0.5,0.5"), ConfigError, "sum to 1"),
        ((*CREATE, "--out", "gs://a"), ConfigError, "s3://bucket/prefix"),
        (("show", "none"), DatasetError, "there is no such dataset or folder"),
        (("verify", "."), DatasetError, "is no dataset"),
    ],
)
def test_what_cannot_be_done(args: tuple[str, ...], kind: type[Exception], message: str) -> None:
    done = run(*args)
    assert isinstance(done.exception, kind)
    assert message in str(done.exception)
    assert not Path("a/manifest.json").exists()
