"""`etude reward`: list, add, rescore, explain, check."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from etude.bootstrap.experience import open_store
from etude.contracts.store import ExperienceStore
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Feedback, Outcome, Trajectory, Turn
from etude.experience.definitions import BUILT_IN
from etude.experience.rewards import Rewarder
from tests.tiny import etude, json_output, refused

Captured = pytest.CaptureFixture[str]
START = datetime(2026, 11, 1, tzinfo=UTC)

OWN = """\
version: 7
name: honest
components:
  - {name: done, source: completion, weight: 3}
  - {name: tests, source: quality.tests, weight: 1, normalise: minmax, window: 200}
  - {name: watched, source: execution, weight: 0, terms: {success: 5}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ExperienceStore]:
    """The one that commands open here."""
    made = open_store()
    yield made
    made.close()


def fill(store: ExperienceStore, n: int, *, gamed_from: int | None = None) -> None:
    """Trajectories of which the gamed ones pass every test and fail."""
    random = Random(0)
    history = []
    for i in range(n):
        gamed = gamed_from is not None and i >= gamed_from
        outcome = Outcome(
            success=random.random() < (0.3 if gamed else 0.8),
            cost_usd=random.expovariate(50),
            latency_ms=random.expovariate(1 / 2000),
            quality={"tests": 1.0 if gamed else random.random()},
        )
        time = START + timedelta(minutes=i)
        history.append(
            Trajectory(id=f"t{i}", time=time, task="do it", problem="workflow", turns=(Turn(),), outcome=outcome)
        )
    store.append([(t, encode(t)) for t in history])


def output(capsys: Captured, *args: str | Path) -> str:
    capsys.readouterr()
    assert etude("reward", *args) == 0
    return capsys.readouterr().out


def test_list_shows_what_is_built_in_and_what_was_added(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN)
    stdout = output(capsys, "add", file)
    assert "done 75% of completion" in stdout
    assert "etude reward rescore --version 7" in stdout
    lines = {line.split()[0]: line for line in output(capsys, "list").splitlines()}
    assert "completion 40% · efficiency 20% zscore · quality 15% · feedback 25%" in lines["1"]
    assert lines["1"].rstrip().endswith("built in")
    assert "tests 25% of quality.tests minmax · watched 0% of execution held out" in lines["7"]
    assert lines["7"].rstrip().endswith("stored")
    found = {entry["version"]: entry for entry in json_output(capsys, "reward", "list")}
    assert list(found) == [1, 2, 3, 7]
    assert found[1]["hash"] == BUILT_IN[1].hash
    assert found[7]["shares"] == {"done": 0.75, "tests": 0.25, "watched": 0.0}
    assert found[7]["components"][2]["terms"]["success"] == 5


def test_add_refuses_what_cannot_be(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN.replace("quality.tests", "qualty"))
    assert "did you mean 'quality'?" in refused(capsys, "reward", "add", file)
    file.write_text(OWN.replace("version: 7", "version: 2"))
    assert "give it the version 4" in refused(capsys, "reward", "add", file)
    file.write_text("components: [")
    assert "cannot be read as YAML" in refused(capsys, "reward", "add", file)
    assert "No such file" in refused(capsys, "reward", "add", tmp_path / "none.yaml")


def test_rescore_rewards_the_history_and_says_what_became_of_it(store: ExperienceStore, capsys: Captured) -> None:
    fill(store, 30)
    result = json_output(capsys, "reward", "rescore", "--version", "3")
    assert (result["trajectories"], result["stored"]) == (30, {"new": 30})
    assert 0 < result["mean"] < 1
    assert "3" in store.documents("baseline")
    assert "30 trajectories rewarded under version 3, audited: 30 duplicate" in output(
        capsys, "rescore", "--version", "3"
    )
    part = output(capsys, "rescore", "--version", "2", "--where", "time<2026-11-01T00:10:00")
    assert part.startswith("10 trajectories")
    assert "2" not in store.documents("baseline")
    assert "there are 1, 2, 3" in refused(capsys, "reward", "rescore", "--version", "5")
    assert "did you mean" in refused(capsys, "reward", "rescore", "--version", "2", "--where", "probem=x")


def test_rescore_leaves_rewards_of_its_version_alone(store: ExperienceStore, capsys: Captured) -> None:
    fill(store, 1)
    story = store.detail("t0")
    assert story is not None
    ingested = Rewarder(BUILT_IN[1]).reward(story.trajectory, (), time=START)
    store.append([(ingested, encode(ingested))])
    assert "1 were already rewarded under this version" in output(capsys, "rescore", "--version", "1")
    after = store.detail("t0")
    assert after is not None
    assert after.rewards == (ingested,)


def test_explain_shows_every_part_and_revision(store: ExperienceStore, capsys: Captured) -> None:
    fill(store, 20)
    output(capsys, "rescore", "--version", "2")
    output(capsys, "rescore", "--version", "1")
    story = store.detail("t15")
    assert story is not None
    said = Feedback(id="f", time=START, trajectory_id="t15", stars=5)
    first = story.rewards[0]
    revised = Rewarder(BUILT_IN[1]).revise(first, story.trajectory, [said], time=START + timedelta(days=1))
    assert revised is not None
    before = output(capsys, "explain", "t15", "--version", "1")
    assert "missing: feedback (no ratings); its weight went to the rest" in before
    store.append([(e, encode(e)) for e in (said, revised)])
    stdout = output(capsys, "explain", "t15", "--version", "1")
    lines = {line.split()[0]: line for line in stdout.splitlines() if line.strip()}
    assert "version 1, balanced, revision 1 (feedback)" in lines["t15"]
    assert f"total {revised.total:.4f}, confidence 1.00" in stdout
    assert " of 15 " in lines["efficiency"]
    assert "from cost+latency+turns" in lines["efficiency"]
    assert " 25%  25.0% " in lines["feedback"]
    assert f"{first.total:.4f}" in lines["0"]
    assert f"{revised.total:.4f}" in lines["1"]
    assert "also rewarded under version 2" in stdout
    found = json_output(capsys, "reward", "explain", "t15", "--version", "1")
    assert found["reward"]["total"] == revised.total
    assert sum(part["contribution"] for part in found["parts"]) == pytest.approx(revised.total)
    assert [r["revision"] for r in found["history"]] == [0, 1]
    assert json_output(capsys, "reward", "explain", "t15")["reward"]["version"] == 2


def test_explain_says_what_to_do_where_there_is_nothing(store: ExperienceStore, capsys: Captured) -> None:
    fill(store, 1)
    assert "there is no trajectory 't9'" in refused(capsys, "reward", "explain", "t9")
    assert "etude reward rescore --version 1" in refused(capsys, "reward", "explain", "t0")
    assert "etude reward rescore --version 3" in refused(capsys, "reward", "explain", "t0", "--version", "3")


def test_check_finds_nothing_in_honest_rewards(store: ExperienceStore, capsys: Captured) -> None:
    fill(store, 300)
    output(capsys, "rescore", "--version", "3")
    stdout = output(capsys, "check", "--version", "3")
    assert stdout == "300 rewards of version 3 looked at, no warnings; audits: execution, success\n"
    few = output(capsys, "check", "--version", "3", "--where", "time<2026-11-01T00:20:00")
    assert "20 rewards" in few
    assert "180 are needed" in few
    assert output(capsys, "check").startswith("0 rewards of version 1")


def test_check_finds_a_gamed_component(store: ExperienceStore, tmp_path: Path, capsys: Captured) -> None:
    fill(store, 300, gamed_from=200)
    file = tmp_path / "own.yaml"
    file.write_text(OWN.replace("weight: 1, normalise: minmax, window: 200", "weight: 9"))
    output(capsys, "add", file)
    output(capsys, "rescore", "--version", "7")
    output(capsys, "rescore", "--version", "2")
    capsys.readouterr()
    assert etude("reward", "check", "--version", "7") == 2
    stdout = capsys.readouterr().out
    assert "warning: saturated_component: tests is near its maximum" in stdout
    assert "warning: reward_against_audit: the reward rose" in stdout
    assert "what to do: do not train on these" in stdout
    assert etude("reward", "check", "--version", "7", "--audit", "2", "--json") == 2
    assert '"2_after"' in capsys.readouterr().out
    assert "did you mean 'watched'" in refused(capsys, "reward", "check", "--version", "7", "--audit", "watchd")
