"""`etude models`, `canary`, `experiment`, `shadow` and `audit` as a user types them, on a registry in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import etude as api
from etude.bootstrap.clock import now
from etude.bootstrap.release import open_registry, release
from etude.contracts.release import Action, ClosedUnit, Mode, ReleaseEntry
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Outcome, Trajectory
from tests.tiny import etude, json_output, refused
from tests.unit.release.traffic import SLOT, make_artefact

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def versions(tmp_path: Path) -> tuple[str, str]:
    """Two registered versions; neither has passed its gates."""
    for name in ("old", "new"):
        assert etude("models", "register", make_artefact(tmp_path / name, name).path, "--slot", SLOT) == 0
    old, new = (make_artefact(tmp_path / f"again-{name}", name).version for name in ("old", "new"))
    return old, new


@pytest.fixture
def serving(versions: tuple[str, str]) -> tuple[str, str]:
    """The first one serves, the second passed its gates."""
    registry = open_registry()
    for version in versions:
        registry.record(SLOT, Action.GATES_PASSED, version, actor="test")
    assert etude("models", "approve", versions[0], "--by", "ada") == 0
    assert etude("canary", "start", versions[0], "--by", "ada") == 0
    return versions


def says(capsys: Captured, *args: str | Path) -> str:
    capsys.readouterr()
    assert etude(*args) == 0
    return " ".join(capsys.readouterr().out.split())


def test_an_empty_machine_says_how_to_begin(capsys: Captured) -> None:
    assert "no version is registered" in says(capsys, "models", "list")
    assert "etude models register" in says(capsys, "canary", "status")
    assert says(capsys, "audit", "log") == "empty"
    assert "nothing" in says(capsys, "audit", "verify") or capsys.readouterr().out == ""
    assert "no version is registered" in refused(capsys, "canary", "status", SLOT)


def test_versions_are_listed_shown_compared_and_verified(versions: tuple[str, str], capsys: Captured) -> None:
    old, new = versions
    listed = json_output(capsys, "models", "list")
    assert {(row["version"], row["state"]) for row in listed} == {(old, "registered"), (new, "registered")}
    shown = json_output(capsys, "models", "show", old[:6])
    assert (shown["version"], shown["slot"], shown["manifest"]["method"]) == (old, SLOT, "from-logs")
    assert list(json_output(capsys, "models", "diff", old, new)) == ["files.policy.txt"]
    assert says(capsys, "models", "diff", old, old) == "the same"
    assert "unaltered: signed, 1 files" in says(capsys, "models", "verify", new)
    assert json_output(capsys, "models", "lineage", new) == {
        "versions": [{"version": new, "data": [], "datasets": []}], "children": []
    }  # fmt: skip
    assert len(says(capsys, "models", "key")) == 64


def test_an_altered_file_is_found(versions: tuple[str, str], capsys: Captured, tmp_path: Path) -> None:
    (file,) = tmp_path.rglob(f"artefacts/{versions[0]}/policy.txt")
    file.write_text("evil")
    assert "does not match its SHA-256" in refused(capsys, "models", "verify", versions[0])


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a\0b", "%2e%2e", "", "zz"])
def test_path_tricks_are_no_versions(versions: tuple[str, str], capsys: Captured, name: str) -> None:
    for command in (("models", "show"), ("models", "verify"), ("canary", "start"), ("shadow", "start")):
        assert "no version begins with it" in refused(capsys, *command, name)
    for slot in (name, f"choice:{name}/"):
        said = refused(capsys, "canary", "status", slot) + refused(capsys, "models", "rollback", slot)
        assert "slot" in said or "no version is registered" in said or "no earlier policy" in said


def test_a_version_that_did_not_pass_is_not_exposed(versions: tuple[str, str], capsys: Captured) -> None:
    assert "is not approved" in refused(capsys, "canary", "start", versions[0])
    assert etude("models", "approve", versions[0], "--by", "ada") == 0
    assert "cannot be promoted" in refused(capsys, "canary", "start", versions[0])
    assert "no policy serves yet" in refused(capsys, "canary", "start", versions[0], "--strategy", "canary")


def test_a_person_is_needed_to_approve(versions: tuple[str, str], capsys: Captured) -> None:
    assert "the name of an automatic actor" in refused(capsys, "models", "approve", versions[0], "--by", "controller")


def test_errors_count_when_the_slots_tasks_have_ended(serving: tuple[str, str], capsys: Captured) -> None:
    with release() as opened:
        tasks = [
            Trajectory(id=f"t-{i}", time=now(), task="t", problem=SLOT, outcome=Outcome(success=True, latency_ms=ms))
            for i, ms in enumerate([1e3] * 90 + [120e3] * 10 + [None])
        ]
        opened.experience.store.append([(task, encode(task)) for task in tasks])
    started = says(capsys, "canary", "start", serving[1], "--strategy", "canary")
    assert "errors count after 2 minutes" in started
    with release() as opened:
        exposure = opened.registry.serving(SLOT).exposure
        assert exposure is not None
        assert opened.controller.release(exposure.release).spec.early_window_s == 120.0


def test_a_canary_from_start_to_abort(serving: tuple[str, str], capsys: Captured) -> None:
    old, new = serving
    said = says(capsys, "canary", "start", new[:8], "--strategy", "canary", "--stages", "10,25,50,100", "--over", "4h")
    assert "10%, 25%, 50%, 100% of the traffic" in said
    assert "no unit was logged in the last day" in said
    assert "is in shadow already" in refused(capsys, "canary", "start", new)
    (status,) = json_output(capsys, "canary", "status")
    assert (status["serving"]["incumbent"], status["serving"]["exposure"]["mode"]) == (old, "shadow")
    assert status["evidence"]["units"] == 0
    assert "more evidence is needed" in says(capsys, "canary", "status", SLOT)
    assert "paused" in says(capsys, "canary", "pause", SLOT)
    assert "resumed" in says(capsys, "canary", "resume", SLOT)
    assert f"{old} serves" in says(capsys, "canary", "abort", SLOT, "--reason", "enough")
    assert "nothing is being released" in refused(capsys, "canary", "abort", SLOT)
    assert [step["action"] for step in json_output(capsys, "audit", "log", SLOT)][-4:] == [
        "started", "paused", "resumed", "stopped"
    ]  # fmt: skip


def test_without_traffic_the_rules_choose_shadow(serving: tuple[str, str], capsys: Captured) -> None:
    assert "begins in shadow (a policy serves already, 0 units per day" in says(capsys, "canary", "start", serving[1])


def test_a_promotion_by_a_person_and_its_rollback(serving: tuple[str, str], capsys: Captured) -> None:
    old, new = serving
    assert "no earlier policy" in refused(capsys, "models", "rollback", SLOT)
    assert "is not approved" in refused(capsys, "canary", "start", new, "--strategy", "direct")
    assert etude("models", "approve", new, "--by", "ada", "--reason", "urgent") == 0
    assert f"{new} serves" in says(capsys, "canary", "start", new, "--strategy", "direct")
    assert f"{new} is rolled back: {old} serves" in says(capsys, "models", "rollback", SLOT, "--reason", "wrong")
    states = {row["version"]: row["state"] for row in json_output(capsys, "models", "list")}
    assert states == {old: "serving", new: "rolled_back"}
    assert f"deleted: {new}" in says(capsys, "models", "expire", "--days", "0")
    assert "artefacts" not in says(capsys, "models", "lineage", old)


def test_experiments_and_shadows(serving: tuple[str, str], capsys: Captured) -> None:
    old, new = serving
    assert f"{new} has 30% of the traffic" in says(capsys, "experiment", "start", old, new, "--split", "70/30")
    (status,) = json_output(capsys, "experiment", "status")
    assert status["serving"]["exposure"]["mode"] == Mode.EXPERIMENT
    assert f"{old} serves" in says(capsys, "experiment", "stop", SLOT)
    assert "answers in shadow" in says(capsys, "shadow", "start", new)
    assert "the shadow ended" in says(capsys, "shadow", "stop", SLOT)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--stages", "50,10,100"), "percentages that grow and end with 100"),
        (("--stages", "ten"), "--stages is 'ten'"),
        (("--stages", "10,nan,100"), "percentages that grow"),
        (("--stages", "50,100"), "give each stage one"),
        (("--over", "4 parsecs"), "expected a number and s, m, h or d"),
        (("--deadline", ""), "--deadline is ''"),
        (("--strategy", "yolo"), "expected auto"),
    ],
)
def test_wrong_options_of_a_canary_are_named(
    serving: tuple[str, str], capsys: Captured, flags: tuple[str, str], why: str
) -> None:
    start = ("canary", "start", serving[1], *(() if "--strategy" in flags else ("--strategy", "canary")))
    assert why in refused(capsys, *start, *flags)
    assert open_registry().serving(SLOT).exposure is None


def close_units(count: int, group_b: dict[bool, float], *, groups: tuple[str | None, ...]) -> None:
    """Units of the release that runs, half of them on the candidate; in group b they succeed as often as given."""
    registry = open_registry()
    exposure = registry.serving(SLOT).exposure
    assert exposure is not None
    units = []
    for i in range(count):
        candidate, group = i % 2 == 0, groups[i // 2 % len(groups)]
        success = group_b[candidate] if group == "b" else 1.4 - group_b[candidate]
        units.append(
            ClosedUnit(
                unit=f"u{i}",
                assigned_ns=i,
                candidate=candidate,
                share=0.5,
                error=False,
                group=group,
                score=float(i // 4 % 10 < 10 * success),
            )
        )
    registry.ledger(f"releases/{exposure.release}", ReleaseEntry).append(
        lambda last: ReleaseEntry(number=2, time=now(), units=tuple(units))
    )


def test_a_group_that_gets_less_is_shown_during_a_release(
    serving: tuple[str, str], capsys: Captured, tmp_path: Path
) -> None:
    assert etude("experiment", "start", *serving, "--split", "50/50") == 0
    close_units(2400, {True: 0.5, False: 0.7}, groups=("a", "b"))
    (status,) = json_output(capsys, "canary", "status")
    fairness = status["evidence"]["fairness"]
    candidate, incumbent = ({one["group"]: one for one in fairness[arm]["groups"]} for arm in fairness)
    assert (fairness["candidate"]["verdict"], fairness["incumbent"]["verdict"]) == ("fail", "pass")
    assert candidate["b"]["count"] == incumbent["b"]["count"] == 600
    assert candidate["b"]["difference"]["mean"] == pytest.approx(-0.4)
    assert candidate["b"]["difference"]["ci95"][1] < -0.05
    said = says(capsys, "canary", "status", SLOT)
    assert "b 600 -0.400 [-0.527, -0.265] +0.000 [-0.150, +0.150] fail" in said
    assert said.count("fail") == 1, "group b on the candidate"
    assert etude("canary", "report", SLOT, "--html", tmp_path / "release.html") == 0
    page = (tmp_path / "release.html").read_text("utf-8")
    assert "Groups of users" in page
    assert "<b>fail</b>" in page
    assert "less than the rest; allowed is 0.05" in page


def test_small_groups_cannot_be_judged_and_one_group_is_none(serving: tuple[str, str], capsys: Captured) -> None:
    assert etude("experiment", "start", *serving, "--split", "50/50") == 0
    close_units(400, {True: 0.7, False: 0.7}, groups=("a", "b", None))
    (status,) = json_output(capsys, "canary", "status")
    assert {one["verdict"] for one in status["evidence"]["fairness"]["candidate"]["groups"]} == {"cannot tell"}
    assert "cannot tell" in says(capsys, "canary", "status", SLOT)
    assert etude("experiment", "stop", SLOT) == 0
    assert etude("experiment", "start", *serving, "--split", "50/50") == 0
    close_units(400, {True: 0.7, False: 0.7}, groups=("a", None))
    (status,) = json_output(capsys, "canary", "status")
    assert status["evidence"]["fairness"] == {}


@pytest.mark.parametrize("split", ["60/60", "half", "0/100", "50", "nan/50"])
def test_a_wrong_split_is_named(serving: tuple[str, str], capsys: Captured, split: str) -> None:
    assert f"--split is '{split}'" in refused(capsys, "experiment", "start", *serving, "--split", split)


def test_an_experiment_needs_the_policy_that_serves(serving: tuple[str, str], capsys: Captured) -> None:
    new = serving[1]
    assert "experiment compares it with another" in refused(capsys, "experiment", "start", new, new)


def test_the_record_is_verified_and_replayed(serving: tuple[str, str], capsys: Captured, tmp_path: Path) -> None:
    new = serving[1]
    assert etude("experiment", "start", *serving) == 0
    assert etude("experiment", "stop", SLOT) == 0
    said = says(capsys, "audit", "verify")
    assert "unaltered: 8 entries; 1 decisions of 1 releases recomputed" in said
    head = said.split()[-1]
    assert "unaltered" in says(capsys, "audit", "verify", SLOT, "--head", head)
    assert "name the slot" in refused(capsys, "audit", "verify", "--head", head)
    assert json_output(capsys, "audit", "replay", f"{SLOT}#8")["equal"] is True
    assert "rests on no e-values" in refused(capsys, "audit", "replay", f"{SLOT}#1")
    for wrong in (f"{SLOT}#99", SLOT, "#1", f"{SLOT}#-1", "nothing#1"):
        assert "expected SLOT#NUMBER" in refused(capsys, "audit", "replay", wrong)
    entry = next(path for path in tmp_path.rglob("slots/choice:model/*.json") if b'"ada"' in path.read_bytes())
    entry.write_bytes(entry.read_bytes().replace(b'"ada"', b'"eve"'))
    assert "its signature does not fit" in refused(capsys, "audit", "verify")
    assert "its signature does not fit" in refused(capsys, "canary", "start", new)


def test_another_key_is_not_trusted(serving: tuple[str, str], capsys: Captured, tmp_path: Path) -> None:
    with release() as opened:
        folder = Path(opened.settings.experience.folder)
    public = says(capsys, "models", "key")
    (folder / "keys" / "signing.key").unlink()
    said = refused(capsys, "models", "list")
    assert "which is not trusted" in said
    assert "release.trusted_keys" in said
    (tmp_path / "etude.yaml").write_text(f"release: {{trusted_keys: ['{public}']}}\n")
    assert len(json_output(capsys, "models", "list")) == 2
    (tmp_path / "etude.yaml").write_text("release: {trusted_keys: ['abc']}\n")
    assert "expected 64 hexadecimal digits" in refused(capsys, "models", "list")


def test_from_a_trajectory_to_the_policies_and_what_erasure_touches(capsys: Captured) -> None:
    for i in range(60):
        with api.task(f"question {i}", user=f"u{i % 3}") as task:
            picked = task.decide("model", context=f"question {i}", options=["small", "large"])
            task.outcome(success=picked == "large")
    first = json_output(capsys, "experience", "list", "--limit", "1")["rows"][0]["id"]
    create = ("dataset", "create", "--problem", SLOT, "--out", "datasets/d")
    assert etude(*create) == 0
    assert etude("train", "choice", "--name", "model", "--dataset", "datasets/d", "--out", "runs/m", "--quiet") == 0
    assert etude("models", "register", "runs/m", "--slot", SLOT) == 0
    (version,) = (row["version"] for row in json_output(capsys, "models", "list"))
    found = json_output(capsys, "models", "lineage", version)
    assert [one["trajectories"] for one in found["versions"][0]["datasets"]] == [60]
    back = json_output(capsys, "models", "lineage", first)
    assert back["versions"] == [{"version": version, "slot": SLOT, "state": "registered"}]
    assert "config.json" in json_output(capsys, "models", "show", version)["attachments"]
    said = says(capsys, "experience", "forget", "--user", "u0", "--yes")
    assert "20 trajectories" in said
    assert f"policy {version}" in said
    assert f"registered in {SLOT}" in said
