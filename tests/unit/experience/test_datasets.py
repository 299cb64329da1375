"""Datasets: what is in them, that they never change unseen, and what may be taken out of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.adapters.objects import FolderBlobs
from etude.contracts.decision import LoggedDecision
from etude.contracts.errors import ConfigError, DatasetError
from etude.contracts.query import Where, parse
from etude.contracts.reward import Reward
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Event, Feedback, Outcome, Rating, Trajectory, Turn
from etude.experience.datasets import (
    SPLITS,
    Dataset,
    DatasetConfig,
    Example,
    Manifest,
    create,
    erase,
    read_manifest,
    registered,
    verify,
)
from etude.experience.datasets.manifest import is_logged, open_manifest, sealed
from etude.experience.datasets.sampling import Columns, draw
from tests.memory_store import MemoryStore

START = datetime(2026, 11, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 16, tzinfo=UTC)


def trajectory(i: int, *, contexts: int = 20, **changed: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "id": f"t{i}",
        "time": START + timedelta(minutes=i),
        "task": f"request {i % contexts}",
        "problem": "workflow",
        "policy": f"p{i % 2}",
        "user": f"u{i % 5}",
        "decisions": (LoggedDecision(problem="workflow", action=i % 3, propensity=0.5, policy=f"p{i % 2}"),),
        "outcome": Outcome(success=i % 4 != 0),
    }
    return Trajectory(**fields | changed)


def reward(of: Trajectory, total: float, *, confidence: float = 1.0, version: int = 1) -> Reward:
    return Reward(
        id=f"{of.id}.{version}",
        time=of.time,
        trajectory_id=of.id,
        version=version,
        definition="abc",
        total=total,
        confidence=confidence,
    )


def filled(n: int = 200, **changed: Any) -> MemoryStore:
    store = MemoryStore()
    for i in range(n):
        one = trajectory(i, **changed)
        add(store, one, reward(one, i / n))
    return store


def add(store: MemoryStore, *events: Event) -> None:
    store.append([(event, encode(event)) for event in events])


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    return FolderBlobs(tmp_path / "dataset")


def make(
    store: MemoryStore, blobs: FolderBlobs, where: str = "", *, problem: str = "workflow", **config: Any
) -> Manifest:
    return create(
        store,
        blobs,
        problem=problem,
        where=parse(where),
        version=1,
        config=DatasetConfig(**{"shard_size": 32, **config}),
        time=NOW,
        source="memory",
    )


def examples(blobs: FolderBlobs, split: str | None = None) -> list[Example]:
    dataset = Dataset(blobs)
    return [e for name in ([split] if split else SPLITS) for shard in dataset.shards(name) for e in shard]


def contents(blobs: FolderBlobs) -> dict[str, bytes]:
    return {key: blobs.get(key) or b"" for key in blobs.keys()}  # noqa: SIM118


def test_everything_is_in_it_once(blobs: FolderBlobs) -> None:
    manifest = make(filled(), blobs)
    found = {e.trajectory.id: e for e in examples(blobs)}
    assert len(found) == len(examples(blobs)) == 200
    assert found["t7"].trajectory == trajectory(7)
    assert (found["t7"].reward, found["t7"].confidence, found["t7"].weight) == (7 / 200, 1.0, 1.0)
    assert manifest.counts.trajectories == manifest.counts.decisions == 200
    assert manifest.counts.policies == {"p0": 100, "p1": 100}
    assert manifest.counts.outcomes == {"success": 150, "failure": 50}
    assert manifest.counts.propensities == {"logged": 200}
    assert manifest.counts.splits == Counter(
        shard.split for shard in manifest.shards for _ in range(shard.trajectories)
    )
    assert (manifest.first, manifest.last) == (START, START + timedelta(minutes=199))
    assert (manifest.query, manifest.definition, manifest.created) == ("problem=workflow", "abc", NOW)
    assert manifest.lineage.source == "memory"
    assert manifest.left_out == {}


def test_the_request_of_a_choice_is_its_task_with_its_first_context(blobs: FolderBlobs) -> None:
    def asked(context: Any, problem: str = "choice:model") -> LoggedDecision:
        return LoggedDecision(problem=problem, context=context, action="a", propensity=0.5, policy="uniform")

    store = MemoryStore()
    for i in range(200):
        question = {"question": f"question {i % 40}", "words": 2}
        if i % 2:
            question = dict(reversed(question.items()))  # the order of the entries does not matter
        made = (asked("other", "choice:tone"), asked(question), asked(f"chosen before: {i}"))
        one = trajectory(i, task="answer the customer", problem="choice:model", decisions=made)
        add(store, one, reward(one, 1.0))
    manifest = make(store, blobs, problem="choice:model")
    assert set(manifest.counts.splits) == set(SPLITS)
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for split in SPLITS:
        for example in examples(blobs, split):
            context = example.trajectory.decisions[1].context
            found[context["question"]].add((split, example.context))
    assert len(found) == 40
    assert all(len(places) == 1 for places in found.values())
    assert len({context for ((_, context),) in found.values()}) == 40


def test_a_choice_without_a_context_is_its_task(blobs: FolderBlobs) -> None:
    made = LoggedDecision(problem="choice:model", action="a", propensity=0.5, policy="uniform")
    make(filled(40, contexts=4, problem="choice:model", decisions=(made,)), blobs, problem="choice:model")
    assert len({(example.trajectory.task, example.context) for example in examples(blobs)}) == 4


def test_ratings_are_those_before_the_dataset_was_created(blobs: FolderBlobs) -> None:
    store, rated = MemoryStore(), trajectory(0, feedback=(Rating(thumbs="up"),))
    add(store, rated, reward(rated, 1.0), Feedback(id="f1", time=NOW, trajectory_id="t0", stars=1))
    late, never = trajectory(1), trajectory(2)
    add(store, late, reward(late, 1.0), Feedback(id="f2", time=NOW, trajectory_id="t1", stars=4))
    add(store, never, reward(never, 1.0))
    make(store, blobs)
    assert {one.trajectory.id: one.rating for one in examples(blobs)} == {"t0": 0.5, "t1": 0.75, "t2": None}


def test_hashes_are_those_that_sha256sum_prints(blobs: FolderBlobs) -> None:
    manifest = make(filled(), blobs)
    listing = ""
    for shard in manifest.shards:
        data = blobs.get(shard.key)
        assert data is not None
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard.bytes, shard.sha256)
        listing += f"{shard.sha256}  {shard.key}\n"
    assert hashlib.sha256(listing.encode()).hexdigest() == manifest.content
    assert manifest.id == manifest.content[:16]


def test_trajectories_stand_in_it_as_they_came(blobs: FolderBlobs) -> None:
    one, store = trajectory(0), MemoryStore()
    came = (
        json.dumps(json.loads(encode(one)) | {"of_a_later_version": "\n ü"}, indent=2).encode().replace(b"\n", b"\r\n")
    )
    store.append([(one, came), (reward(one, 0.5), encode(reward(one, 0.5)))])
    make(store, blobs)
    (key,) = (key for key in contents(blobs) if key.endswith(".jsonl"))
    line = contents(blobs)[key]
    assert len(line.splitlines()) == 1
    assert came.replace(b"\r\n", b"  ") in line
    assert json.loads(line)["trajectory"] == json.loads(came)
    assert examples(blobs)[0].trajectory == one
    assert erase(blobs, {"t0"}, time=NOW) == 1


def test_the_same_request_is_in_one_split_and_one_shard(blobs: FolderBlobs) -> None:
    manifest = make(filled(600, contexts=60), blobs)
    places = defaultdict(set)
    for split in SPLITS:
        for number, shard in enumerate(Dataset(blobs).shards(split)):
            for example in shard:
                places[example.context].add((split, number))
    assert len(places) == 60
    assert all(len(place) == 1 for place in places.values())
    assert len({place for (place,) in places.values()}) == len(manifest.shards) > 10
    assert 0.6 < manifest.counts.splits["train"] / 600 < 0.95


def test_another_seed_splits_otherwise(tmp_path: Path) -> None:
    store = filled()
    by_seed = []
    for seed in (0, 1):
        blobs = FolderBlobs(tmp_path / str(seed))
        make(store, blobs, seed=seed, shares=(0.5, 0.25, 0.25))
        by_seed.append({e.context for e in examples(blobs, "train")})
    assert by_seed[0] != by_seed[1]


def test_split_by_time(blobs: FolderBlobs) -> None:
    manifest = make(filled(), blobs, split="time", shares=(0.7, 0.2, 0.1))
    times = {split: [e.trajectory.time for e in examples(blobs, split)] for split in SPLITS}
    assert {split: len(found) for split, found in times.items()} == {"train": 140, "validation": 40, "test": 20}
    assert max(times["train"]) < manifest.cuts[0] == min(times["validation"])
    assert max(times["validation"]) < manifest.cuts[1] == min(times["test"])


def test_the_manifest_counts_what_is_left_out(blobs: FolderBlobs) -> None:
    store = filled(100)
    unrewarded = trajectory(100)
    doubtful, unlogged = trajectory(101), trajectory(102, decisions=(LoggedDecision(problem="workflow", policy="p0"),))
    add(store, unrewarded, doubtful, unlogged, reward(doubtful, 1, confidence=0.3), reward(unlogged, 1))
    store.set_opt_out("u3", True)
    manifest = make(store, blobs, min_confidence=0.5, require_propensity=True)
    assert manifest.left_out == {"no reward": 1, "low confidence": 1, "opted out": 20, "no propensity": 1}
    assert manifest.counts.trajectories == len(examples(blobs)) == 80
    assert "u3" not in {e.trajectory.user for e in examples(blobs)}


def test_trajectories_without_a_policy_are_counted_as_unknown(blobs: FolderBlobs) -> None:
    store = filled(2)
    for i, policy in ((2, None), (3, "unknown")):
        one = trajectory(i, policy=policy)
        add(store, one, reward(one, 1))
    assert make(store, blobs).counts.policies == {"p0": 1, "p1": 1, "unknown": 2}
    erase(blobs, {"t2"}, time=NOW)
    assert verify(blobs).counts.policies == {"p0": 1, "p1": 1, "unknown": 1}


def test_only_what_matches(blobs: FolderBlobs) -> None:
    manifest = make(filled(), blobs, "policy=p1 and reward>=0.5")
    assert manifest.query == "problem=workflow and policy=p1 and reward>=0.5"
    assert manifest.where == Where(problem="workflow", policy="p1", min_reward=0.5)
    assert {e.trajectory.policy for e in examples(blobs)} == {"p1"}
    assert min(e.reward for e in examples(blobs)) >= 0.5
    assert manifest.counts.trajectories == 50


def test_the_store_knows_of_it(blobs: FolderBlobs) -> None:
    store = filled()
    manifest = make(store, blobs)
    assert registered(store) == {manifest.id: read_manifest(blobs)}
    assert registered(store)[manifest.id].url == blobs.url
    assert store.datasets_of(["t1", "t2", "none"]) == {manifest.id: 2}


def test_again_changes_nothing(blobs: FolderBlobs, tmp_path: Path) -> None:
    store = filled()
    first, before = make(store, blobs), contents(blobs)
    later = create(
        store,
        blobs,
        problem="workflow",
        where=Where(),
        version=1,
        config=DatasetConfig(shard_size=32),
        time=NOW + timedelta(days=1),
    )
    assert (later.id, later.created) == (first.id, NOW)
    assert contents(blobs) == before
    assert make(store, FolderBlobs(tmp_path / "elsewhere")).id == first.id


def test_another_dataset_is_not_overwritten(blobs: FolderBlobs) -> None:
    store = filled()
    before = make(store, blobs)
    with pytest.raises(DatasetError, match=rf"holds dataset {before.id} .*choose another place"):
        make(store, blobs, "policy=p1")
    assert verify(blobs).id == before.id
    assert store.datasets_of(["t1"]) == {before.id: 1}


class Stopping(FolderBlobs):
    """Stops the process, as far as a test can be, at a put of its choice."""

    def __init__(self, folder: Path, at: Callable[[str], bool]) -> None:
        super().__init__(folder)
        self.at = at

    def put(self, key: str, data: bytes, *, replace: bool = True) -> bool:
        if self.at(key):
            raise KeyboardInterrupt
        return super().put(key, data, replace=replace)

    def delete(self, key: str) -> bool:
        if self.at(key):
            raise KeyboardInterrupt
        return super().delete(key)


@pytest.mark.parametrize("at", ["test", "manifest.json"])
def test_half_made_is_no_dataset_and_can_be_made_again(blobs: FolderBlobs, at: str) -> None:
    store = filled()
    with pytest.raises(KeyboardInterrupt):
        make(store, Stopping(blobs.folder, lambda key: key.startswith(at)), shares=(0.4, 0.3, 0.3), shard_size=8)
    assert blobs.keys("train/")
    (blobs.folder / "notes.txt").write_text("the user's own")
    with pytest.raises(DatasetError, match="never finished"):
        Dataset(blobs)
    manifest = make(store, blobs)
    assert verify(blobs) == manifest == read_manifest(blobs)
    assert set(blobs.keys()) == {"manifest.json", "notes.txt", *(shard.key for shard in manifest.shards)}


def test_a_shard_that_was_altered(blobs: FolderBlobs) -> None:
    key = make(filled(), blobs).shards[0].key
    whole = blobs.get(key)
    assert whole is not None
    for data, message in ((whole.replace(b"t", b"x", 1), "was altered"), (whole[:-10], "bytes, expected")):
        blobs.put(key, data)
        with pytest.raises(DatasetError, match=message):
            Dataset(blobs)
        with pytest.raises(DatasetError, match=message):
            next(Dataset(blobs, verify=False).shards("train"))
    blobs.delete(key)
    with pytest.raises(DatasetError, match=f"{key} of dataset .* is missing"):
        Dataset(blobs)


def test_a_manifest_that_was_altered_or_is_none(blobs: FolderBlobs) -> None:
    make(filled(), blobs)
    whole = blobs.get("manifest.json") or b""
    for data, message in (
        (whole.replace(b'"trajectories": 200', b'"trajectories": 201'), "was altered"),
        (whole.replace(b'"format": 1', b'"format": 2'), "format 2, this Etude reads up to 1: upgrade"),
        (whole[:-20], "is not that of a dataset"),
        (b"{}", "is not that of a dataset"),
        (b"\xff", "is not that of a dataset"),
    ):
        assert data != whole
        blobs.put("manifest.json", data)
        with pytest.raises(DatasetError, match=message):
            Dataset(blobs, verify=False)


def test_a_sealed_manifest_with_hashes_of_another_dataset(blobs: FolderBlobs) -> None:
    import msgspec

    manifest = make(filled(), blobs)
    other = msgspec.structs.replace(manifest, shards=manifest.shards[1:])
    with pytest.raises(DatasetError, match="does not have the hash of its shards"):
        open_manifest(sealed(other), place="here")


def test_erased_trajectories_are_nowhere(blobs: FolderBlobs) -> None:
    store = filled()
    before = make(store, blobs)
    gone = set(store.forget("u2"))
    assert len(gone) == 40
    assert erase(blobs, gone | {"unknown"}, time=NOW) == 40
    after = verify(blobs)
    assert after.id == before.id
    assert after.content != before.content
    assert [(e.trajectories, e.time, e.before) for e in after.erasures] == [(40, NOW, before.content)]
    assert after.counts.trajectories == after.counts.decisions == 160
    assert after.counts.policies == {"p0": 80, "p1": 80}
    assert after.counts.outcomes == {"success": 120, "failure": 40}
    assert after.counts.propensities == {"logged": 160}
    assert {e.trajectory.id for e in examples(blobs)} == {f"t{i}" for i in range(200)} - gone
    for data in contents(blobs).values():
        assert b'"u2"' not in data
        assert not any(f'"{name}"'.encode() in data for name in gone)
    assert set(blobs.keys()) == {"manifest.json", *(shard.key for shard in after.shards)}


def test_erasing_again_and_all(blobs: FolderBlobs) -> None:
    make(filled(), blobs)
    assert erase(blobs, {"t1"}, time=NOW) == 1
    before = contents(blobs)
    assert erase(blobs, {"t1"}, time=NOW) == 0
    assert contents(blobs) == before
    assert erase(blobs, {"t2"}, time=NOW) == 1
    assert len(verify(blobs).erasures) == 2
    assert erase(blobs, {f"t{i}" for i in range(200)}, time=NOW) == 198
    assert examples(blobs) == []
    assert blobs.keys() == ["manifest.json"]
    assert verify(blobs).counts.policies == {}


def test_erasing_is_killed_and_called_again(blobs: FolderBlobs) -> None:
    make(filled(), blobs)
    for at in ("manifest.json", "train/00000.jsonl"):
        stopping = Stopping(blobs.folder, at.__eq__)
        with pytest.raises(KeyboardInterrupt):
            erase(stopping, {f"t{i}" for i in range(50)}, time=NOW)
        verify(blobs)
    assert erase(blobs, {f"t{i}" for i in range(50)}, time=NOW) == 0
    assert not any(b'"t7"' in data for data in contents(blobs).values())
    assert verify(blobs).counts.trajectories == 150


def test_a_reader_leaves_out_what_was_forgotten(blobs: FolderBlobs) -> None:
    store = filled()
    make(store, blobs)
    gone = set(store.forget("u4"))
    left = [e for split in SPLITS for s in Dataset(blobs).shards(split, without=store.forgotten) for e in s]
    assert {e.trajectory.id for e in left} == {f"t{i}" for i in range(200)} - gone


def test_forgotten_while_it_is_made(blobs: FolderBlobs) -> None:
    store = filled()

    def progress(many: int) -> None:
        store.forget("u1")

    config = DatasetConfig(shard_size=32)
    manifest = create(
        store, blobs, problem="workflow", where=Where(), version=1, config=config, time=NOW, progress=progress
    )
    assert manifest.left_out == {"forgotten": 40}
    assert manifest.counts.trajectories == len(examples(blobs)) == 160
    assert manifest.counts.policies == {"p0": 80, "p1": 80}


def test_forgotten_at_the_last_moment(tmp_path: Path) -> None:
    store = filled()
    blobs = Stopping(tmp_path, lambda key: key == "manifest.json" and not store.forget("u1") and False)
    manifest = make(store, blobs)
    assert [erasure.trajectories for erasure in manifest.erasures] == [40]
    assert registered(store)[manifest.id].counts.trajectories == len(examples(blobs)) == 160


def test_duplicates_weigh_in_one(blobs: FolderBlobs) -> None:
    manifest = make(filled(200, contexts=1), blobs, deduplicate=True)
    found = examples(blobs)  # 3 actions × 2 endings
    assert [e.trajectory.id for e in found] == ["t0", "t1", "t2", "t3", "t4", "t8"]
    assert sum(e.weight for e in found) == 200
    assert manifest.left_out == {"duplicates": 194}


@pytest.mark.parametrize("kind", ["outcome", "policy"])
def test_balance(blobs: FolderBlobs, kind: str) -> None:
    store = filled(200, policy="p0")
    more = trajectory(300, policy="p9")
    add(store, more, reward(more, 1))
    make(store, blobs, balance=kind)
    mass: Counter[Any] = Counter()
    for e in examples(blobs):
        mass[e.trajectory.policy if kind == "policy" else e.trajectory.outcome.success] += e.weight  # type: ignore[assignment]
    assert len(mass) == 2
    assert list(mass.values()) == pytest.approx([100.5, 100.5], rel=1e-4)


def test_balance_by_task_type(blobs: FolderBlobs) -> None:
    store, rare = filled(200), Turn(action={"task_type": "mail", "worker": "clerk"})
    for i in (300, 301):
        more = trajectory(i, turns=(rare,))
        add(store, more, reward(more, 1))
    make(store, blobs, balance="task_type")
    mass: Counter[bool] = Counter()
    for e in examples(blobs):
        mass[bool(e.trajectory.turns)] += e.weight  # type: ignore[assignment]
    assert [mass[True], mass[False]] == pytest.approx([101, 101], rel=1e-4)


def test_priorities(blobs: FolderBlobs) -> None:
    make(filled(40, contexts=2), blobs, prioritise=0.5)
    found = examples(blobs)
    mean = {
        context: np.mean([e.reward for e in found if e.context == context]) for context in {e.context for e in found}
    }
    expected = np.array([(abs(e.reward - mean[e.context]) + 0.01) ** 0.5 for e in found])
    assert [e.weight for e in found] == pytest.approx(list(expected / expected.mean()), rel=1e-4)


def test_no_weight_above_the_cap(blobs: FolderBlobs) -> None:
    make(filled(100), blobs, prioritise=4.0, cap=2.0)
    weights = [e.weight for e in examples(blobs)]
    assert max(weights) == pytest.approx(2.0)
    assert sum(w > 1.999 for w in weights) > 1


def test_at_most_so_many_of_whole_contexts(blobs: FolderBlobs) -> None:
    manifest = make(filled(200, contexts=20), blobs, limit=45)
    many = Counter(e.context for e in examples(blobs))
    assert sorted(many.values()) == [5, 10, 10, 10, 10]
    assert manifest.left_out == {"over the limit": 155}


def test_what_a_limit_takes_is_split_as_the_rest(blobs: FolderBlobs) -> None:
    manifest = make(filled(200, contexts=200), blobs, limit=100, shares=(0.5, 0.25, 0.25))
    assert min(manifest.counts.splits[split] for split in SPLITS) > 10


@settings(max_examples=50)
@given(data=st.data(), split=st.sampled_from(["context", "time"]), deduplicate=st.booleans())
def test_laws_of_sampling(data: st.DataObject, split: Any, deduplicate: bool) -> None:
    n = data.draw(st.integers(1, 60))
    columns = Columns(
        context=np.array(data.draw(st.lists(st.integers(0, 8), min_size=n, max_size=n)), np.uint64),
        time=np.sort(np.array(data.draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)), np.int64)),
        reward=np.linspace(0, 1, n),
        outcome=np.arange(n) % 3,
        policy=np.arange(n) % 2,
        size=np.full(n, 1000),
        decisions=np.ones(n, np.int64),
        logged=np.ones(n, np.int64),
        task_types=np.zeros(0, np.uint64),
        likeness=np.array(data.draw(st.lists(st.integers(0, 30), min_size=n, max_size=n)), np.uint64),
    )
    limit = data.draw(st.none() | st.integers(1, 80))
    config = DatasetConfig(split=split, deduplicate=deduplicate, limit=limit, shard_size=4, balance="outcome")
    sample = draw(columns, config)
    assert len(sample.rows) + sample.duplicates + sample.over_limit == n
    assert (np.diff(sample.rows) > 0).all()
    assert (sample.weight > 0).all()
    if deduplicate:
        assert len(set(columns.likeness[sample.rows])) == len(sample.rows)
    places = defaultdict(set)
    for context, part, shard in zip(columns.context[sample.rows], sample.split, sample.shard, strict=True):
        places[context, None if split == "context" else part].add((part, shard))
    assert all(len(place) == 1 for place in places.values())
    if split == "time":
        time = columns.time[sample.rows]
        assert (np.diff(sample.split[time.argsort(kind="stable")]) >= 0).all()
        assert all(len(set(sample.split[time == moment])) == 1 for moment in time)


@pytest.mark.parametrize(
    ("body", "decisions", "logged"),
    [
        (b'{"decisions":[{"propensity":0.5},{"propensity" : 1}]}', 2, True),
        (b'{"decisions":[{"propensity":0.5},{"propensity": null}]}', 2, False),
        (b'{"decisions":[{"propensity":0.5},{}]}', 2, False),
        (b'{"task":"say \\"propensity\\":","decisions":[{}]}', 1, False),
        (b'{"decisions":[]}', 0, False),
    ],
)
def test_whether_propensities_were_logged(body: bytes, decisions: int, logged: bool) -> None:
    assert is_logged(body, decisions) == logged


def test_where_nothing_matches_each_condition_is_judged(blobs: FolderBlobs) -> None:
    with pytest.raises(DatasetError) as raised:
        make(filled(), blobs, "policy=p7 and outcome=success")
    assert str(raised.value).splitlines() == [
        "no trajectory matches 'problem=workflow and policy=p7 and outcome=success'",
        "  without problem=workflow: 0",
        "  without policy=p7: 150",
        "  without outcome=success: 0",
        "  in the whole store: 200; loosen a condition",
    ]
    assert blobs.keys() == []


def test_where_nothing_can_be_used(blobs: FolderBlobs) -> None:
    store = MemoryStore()
    with pytest.raises(DatasetError, match="in the whole store: 0; `etude ingest` brings"):
        make(store, blobs)
    add(store, trajectory(0))
    with pytest.raises(DatasetError, match=r"1 trajectories match .* \(1: no reward\); `etude reward rescore"):
        make(store, blobs)


def test_a_problem_that_contradicts_the_conditions(blobs: FolderBlobs) -> None:
    with pytest.raises(DatasetError, match="'workflow', but the conditions say problem=prompt"):
        make(filled(1), blobs, "problem=prompt")


def test_a_split_that_is_none(blobs: FolderBlobs) -> None:
    make(filled(10), blobs)
    with pytest.raises(DatasetError, match="'valid': expected one of train, validation, test"):
        next(Dataset(blobs).shards("valid"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shares": (0.8, 0.1, 0.2)},
        {"shares": (1.2, -0.1, -0.1)},
        {"shard_size": 0},
        {"limit": 0},
        {"min_confidence": 1.1},
        {"prioritise": float("nan")},
        {"cap": 0.5},
    ],
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .*: expected"):
        DatasetConfig(**wrong)
