"""The wire: events to bytes and back, versions that are not ours, and the schemas as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.contracts.bus import message_of
from etude.contracts.deployment import ModelDeployed
from etude.contracts.errors import EventError
from etude.contracts.examples import EXAMPLES
from etude.contracts.schemas import FOLDER, REGISTRY, schema_files
from etude.contracts.subjects import MAX_BYTES, STREAMS, TOPICS, decode, encode, stream_of, subject_of
from etude.contracts.training import TrainingRequest, TrainingStatus
from etude.contracts.trajectory import Event, Trajectory

ROOT = Path(__file__).parents[3]
DOCUMENT_SUBJECTS = {
    "agent.rl.trajectory.v1": 30,
    "agent.rl.reward.v1": 30,
    "agent.rl.training.request.v1": 7,
    "agent.rl.training.status.v1": 7,
    "agent.rl.model.deployed.v1": 7,
}

events = pytest.mark.parametrize("event", EXAMPLES.values(), ids=lambda event: subject_of(event))


@events
def test_what_is_written_is_read_back(event: Event) -> None:
    assert decode(encode(event)) == event
    assert decode(encode(event), subject=subject_of(event)) == event
    assert message_of(event).id == event.id


def test_the_subjects_are_those_of_the_document_with_its_retention() -> None:
    kept = {topic.subject: topic.retention_days for topic in TOPICS}
    assert kept.items() >= DOCUMENT_SUBJECTS.items()
    assert set(EXAMPLES) == {topic.event for topic in TOPICS}
    assert {stream_of(subject) for subject in DOCUMENT_SUBJECTS} <= set(STREAMS)


def test_the_files_are_as_the_code_says() -> None:
    for name, text in schema_files().items():
        assert (ROOT / "contracts" / name).read_text("utf-8") == text, "write it again: etude schemas export contracts/"
    written = {path.relative_to(ROOT / "contracts").as_posix() for path in (ROOT / "contracts").rglob("*.json")}
    assert written == set(schema_files())


def schema_of(event: type[Event]) -> dict[str, Any]:
    topic = next(topic for topic in TOPICS if topic.event is event)
    file, _, part = topic.schema.partition("#/$defs/")
    tree: dict[str, Any] = json.loads(schema_files()[f"{FOLDER}/{file}"])
    return {**tree["$defs"][part], "$defs": tree["$defs"]} if part else tree


@events
def test_examples_hold_for_their_schema_and_the_schema_for_its_dialect(event: Event) -> None:
    schema = schema_of(type(event))
    jsonschema.Draft202012Validator.check_schema(schema)
    strict = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    strict.validate(json.loads(encode(event)))
    for part in (schema, *schema["$defs"].values()):
        assert part["description"]
        assert [name for name, field in part["properties"].items() if not field.get("description")] == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "id"),
    ({"id": 7}, "id"),
    ({"time": "yesterday"}, "time"),
    ({"time": "2026-11-16T08:00:00"}, "time"),
    ({"task": None}, "task"),
    ({"decisions": [{"problem": "x", "policy": "p", "propensity": 1.5}]}, "propensity"),
    ({"decisions": [{"problem": "x", "policy": "p", "propensity": 0}]}, "propensity"),
    ({"outcome": {"success": "yes"}}, "success"),
    ({"outcome": {"ended": "exploded"}}, "ended"),
    ({"outcome": {"cost_usd": -1}}, "cost_usd"),
    ({"feedback": [{"stars": 6}]}, "stars"),
    ({"feedback": [{"thumbs": "sideways"}]}, "thumbs"),
]


@pytest.mark.parametrize(("change", "where"), WRONG)
def test_what_the_schema_forbids_is_refused_where_it_stands(change: dict[str, Any], where: str) -> None:
    raw = json.loads(encode(EXAMPLES[Trajectory])) | change
    with pytest.raises(EventError, match=where):
        decode(json.dumps(raw).encode())
    if "time" not in change:  # of formats JSON Schema only tells
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(schema_of(Trajectory)).validate(raw)


def changed(event: type[Event], **change: Any) -> bytes:
    return json.dumps(json.loads(encode(EXAMPLES[event])) | change).encode()


@pytest.mark.parametrize("event", [Trajectory, TrainingRequest, TrainingStatus, ModelDeployed])
def test_the_problem_is_required(event: type[Event]) -> None:
    raw = json.loads(encode(EXAMPLES[event]))
    del raw["problem"]
    with pytest.raises(EventError, match="problem"):
        decode(json.dumps(raw).encode())


POLICIES = ["5d41402abc4b2a76", "5d41402abc4b2a76+sampled", "rules", "rules+0.3", "router-7"]
PLACES = ["runs/a", "runs/a/best/step-000000001200", "s3://bucket/policy", "file:policy", "a@b", "..", "", "a b"]


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_named_by_version(policy: str) -> None:
    for body in (
        changed(TrainingRequest, policy=policy),
        changed(ModelDeployed, policy=policy, replaces=policy, traffic={policy: 1.0}),
        changed(TrainingStatus, artifacts=[{"name": "policy", "version": policy, "sha256": "0" * 64}]),
    ):
        decode(body)


@pytest.mark.parametrize("place", PLACES)
def test_policies_are_named_by_no_path_and_no_url(place: str) -> None:
    for body in (
        changed(TrainingRequest, policy=place),
        changed(ModelDeployed, policy=place),
        changed(ModelDeployed, replaces=place),
        changed(ModelDeployed, traffic={place: 1.0}),
        changed(TrainingStatus, artifacts=[{"name": "policy", "version": place, "sha256": "0" * 64}]),
        changed(TrainingStatus, artifacts=[{"name": "policy", "sha256": place}]),
    ):
        with pytest.raises(EventError, match="schema"):
            decode(body)


def test_every_trigger_method_and_stage_can_be_said() -> None:
    for trigger in ("threshold", "schedule", "drift", "feedback", "regression", "manual"):
        decode(changed(TrainingRequest, trigger=trigger))
    for method in ("practise", "imitate", "from-logs", "fit", "one-of-your-own"):
        decode(changed(TrainingRequest, method=method, algorithm=None))
    for stage in ("shadow", "canary", "hold", "experiment", "full", "rolled_back"):
        decode(changed(ModelDeployed, stage=stage))
    with pytest.raises(EventError, match="trigger"):
        decode(changed(TrainingRequest, trigger="whim"))


@events
def test_fields_of_a_later_etude_are_ignored_at_every_depth(event: Event) -> None:
    raw = json.loads(encode(event))
    later = raw | {"mood": "good"} | {k: v | {"mood": 1} for k, v in raw.items() if k == "outcome"}
    assert decode(json.dumps(later).encode()) == event
    jsonschema.Draft202012Validator(schema_of(type(event))).validate(later)


def test_a_newer_version_is_refused_with_what_to_do() -> None:
    raw = json.loads(encode(EXAMPLES[Trajectory])) | {"type": "agent.rl.trajectory.v2"}
    with pytest.raises(EventError, match=r"newer version.*upgrade.*replay-dead-letters"):
        decode(json.dumps(raw).encode())
    assert stream_of("agent.rl.trajectory.v2") == stream_of("agent.rl.trajectory.v1")


def test_older_versions_are_brought_up_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it will be when there is a version 3: every migration knows two neighbours only."""
    raw = json.loads(encode(EXAMPLES[Trajectory]))
    oldest = {
        "type": "agent.rl.trajectory.v0",
        "id": "a",
        "started": raw["time"],
        "instruction": "tidy up",
        "problem": "task",
    }
    with pytest.raises(EventError, match="older version that this Etude has no migration for"):
        decode(json.dumps(oldest).encode())

    def renamed(old: dict[str, Any]) -> dict[str, Any]:
        names = {"started": "time", "instruction": "task"}
        return {names.get(name, name): value for name, value in old.items()}

    event = decode(json.dumps(oldest).encode(), migrations={"agent.rl.trajectory.v0": renamed})
    assert isinstance(event, Trajectory)
    assert (event.id, event.task) == ("a", "tidy up")
    with pytest.raises(EventError, match="schema"):
        decode(json.dumps(oldest | {"started": 3}).encode(), migrations={"agent.rl.trajectory.v0": renamed})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'"\xff"',
        b'{"type": "agent.rl.trajectory.v1"}',
        b'{"type": "who knows"}',
        b'{"type": "agent.rl.trajectory.v99999999"}',
        b'{"type": 3}',
        b'{"type": "agent.rl.trajectory.v1", "id": "\xff\xfe", "task": "", "time": "2026-11-16T08:00:00Z"}',
        b'{"type": "agent.rl.trajectory.v1", "id": "a", "time": "2026-11-16T08:00:00Z", "task": "x", "metadata": '
        + b'{"a":' * 100_000
        + b"1"
        + b"}" * 100_000
        + b"}",
        b" " * (MAX_BYTES + 1),
    ],
    ids=lambda body: repr(body[:20]),
)
def test_whatever_the_bytes_only_an_event_error_is_raised(body: bytes) -> None:
    with pytest.raises(EventError):
        decode(body)


@given(st.binary(max_size=300))
def test_any_bytes(body: bytes) -> None:
    with pytest.raises(EventError):
        decode(body)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, json_values)
def test_any_json_travels_in_turns_and_metadata(result: Any, value: Any) -> None:
    base = EXAMPLES[Trajectory]
    assert isinstance(base, Trajectory)
    turn = msgspec.structs.replace(base.turns[0], result=result)
    event = msgspec.structs.replace(base, turns=(turn,), metadata={"x": value})
    assert decode(encode(event)) == event


def test_the_registry_leads_to_every_schema() -> None:
    files = schema_files()
    registry = json.loads(files[REGISTRY])
    for topic in registry["topics"].values():
        file, _, part = topic["schema"].partition("#/$defs/")
        assert not part or part in json.loads(files[file])["$defs"]
        assert topic["retention_days"] == registry["streams"][topic["stream"]]["retention_days"]
    assert len([name for name in files if name.endswith(".schema.json")]) == 5
