"""Creates a frozen dataset from a store: one scan into a local spool, then shard by shard to the blob store."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import version as installed_version
from itertools import islice
from typing import Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Raw, Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from etude.contracts.blobs import BlobStore
from etude.contracts.errors import DatasetError
from etude.contracts.option import CHOICE
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore, Summary
from etude.experience.datasets.manifest import (
    MANIFEST,
    OUTCOMES,
    UNKNOWN,
    Counts,
    Lineage,
    Manifest,
    Shard,
    content_hash,
    is_logged,
    open_manifest,
    read_manifest,
    remove_strays,
    sealed,
)
from etude.experience.datasets.read import erase
from etude.experience.datasets.sampling import SPLITS, Columns, DatasetConfig, Sample, draw

DOCUMENT = "dataset"
"""The kind of document in which a store keeps manifests."""
STEP = 1024
"""Number of trajectories between calls of `progress`."""
BATCH = 10_000
"""Ids per call of the store."""
OUTCOME: dict[bool | None, int] = {success: i for i, success in enumerate(OUTCOMES)}
CODES = {
    **dict.fromkeys(("context", "likeness", "task_types"), "Q"),
    **dict.fromkeys(("time", "size"), "q"),
    **dict.fromkeys(("policy", "decisions"), "i"),
    **dict.fromkeys(("outcome", "logged"), "b"),
    "reward": "d",
}
"""Columns of numbers about trajectories, and their type codes."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def create(
    store: ExperienceStore,
    blobs: BlobStore,
    *,
    problem: str,
    where: Where,
    version: int,
    config: DatasetConfig,
    time: datetime,
    progress: Callable[[int], None] | None = None,
    source: str = "",
    parent: str | None = None,
) -> Manifest:
    """Freeze matching trajectories into an empty prefix, and register the dataset with the store.

    `progress` is called with the number of rows read. A repeated call with the same content changes nothing; a killed
    one leaves no readable dataset and can be repeated. DatasetError if nothing matches, or another dataset is there.
    """
    if where.problem not in (None, problem):
        raise DatasetError(f"the problem is {problem!r}, but the conditions say problem={where.problem}: leave one out")
    where = replace(where, problem=problem)
    there = read_manifest(blobs)
    with (
        tempfile.TemporaryFile() as spool,
        tempfile.TemporaryFile() as ids,
    ):  # removed when this process ends, however it ends
        gathered = _gather(store, where, version, config, spool, progress)
        if not gathered.arrays["size"]:
            raise DatasetError(_nothing(store, where, version, gathered.left_out))
        drawn = draw(gathered.columns(), config)
        sample, shards = _write(store, blobs if there is None else None, gathered, drawn, spool, ids)
        gathered.left_out += Counter(
            {
                "duplicates": drawn.duplicates,
                "over the limit": drawn.over_limit,
                "forgotten": len(drawn.rows) - len(sample.rows),
            }
        )
        if not shards:
            raise DatasetError(f"all trajectories that match {str(where)!r} were erased meanwhile")
        content, began = content_hash(shards), gathered.columns().time[sample.rows]
        manifest = Manifest(
            id=content[:16],
            content=content,
            problem=problem,
            query=str(where),
            where=where,
            version=version,
            definition=_definition(store, ids, version),
            created=time,
            first=_moment(int(began[0])),
            last=_moment(int(began[-1])),
            config=config,
            cuts=tuple(map(_moment, sample.cuts)),
            counts=_counts(gathered, sample),
            left_out=dict(gathered.left_out),
            lineage=Lineage(source=source, parent=parent, etude=installed_version("etude")),
            url=blobs.url,
            shards=shards,
        )
        if there is not None:
            manifest = _same(there, manifest, blobs)
        for batch in _batches(ids):
            store.add_members(manifest.id, batch)
        if there is None:
            remove_strays(blobs, manifest.shards)
            # Another process may have been faster: then its manifest counts.
            blobs.put(MANIFEST, sealed(manifest), replace=False)
            there = _same(read_manifest(blobs) or manifest, manifest, blobs)
        manifest = there
        register(store, manifest)
        gone = set().union(*(store.forgotten(batch) for batch in _batches(ids)))
    # Trajectories erased before the members were registered were not erased from this dataset.
    if gone and erase(blobs, gone, time=time):
        manifest = read_manifest(blobs) or manifest
        register(store, manifest)
    return manifest


def register(store: ExperienceStore, manifest: Manifest) -> None:
    """Register a dataset with the store, replacing an earlier manifest."""
    store.put(DOCUMENT, manifest.id, sealed(manifest))


def registered(store: ExperienceStore) -> dict[str, Manifest]:
    """Datasets made from a store, by id, as last registered."""
    documents: Mapping[str, bytes] = store.documents(DOCUMENT)
    return {key: open_manifest(data, place=f"dataset {key}") for key, data in documents.items()}


@dataclass(kw_only=True)
class _Gathered:
    """Columns of numbers about the trajectories in the spool, by the names of `Columns`."""

    arrays: dict[str, array[Any]] = field(default_factory=lambda: {name: array(code) for name, code in CODES.items()})
    policies: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def columns(self) -> Columns:
        return Columns(**{name: np.asarray(values) for name, values in self.arrays.items()})


def _gather(
    store: ExperienceStore,
    where: Where,
    version: int,
    config: DatasetConfig,
    spool: BinaryIO,
    progress: Callable[[int], None] | None,
) -> _Gathered:
    """Gather the usable trajectories; the spool gets the id of each and its line without the weight."""
    found, opted_out, read = _Gathered(), store.opted_out(), 0
    for read, (row, body) in enumerate(store.scan(where, version=version), 1):
        if progress is not None and read % STEP == 0:
            progress(STEP)
        logged = is_logged(body, row.decisions)
        if why := _unfit(row, config, opted_out, logged):
            found.left_out[why] += 1
            continue
        if b"\n" in body or b"\r" in body:  # they can only be between tokens
            body = body.replace(b"\n", b" ").replace(b"\r", b" ")
        request = request_hash(row, body)
        context, rating = request.encode(), f',"rating":{row.feedback!r}' if row.feedback is not None else ""
        tail = f',"reward":{row.reward!r},"confidence":{row.confidence!r},"context":"{request}"{rating}'
        numbers: dict[str, float] = {
            "size": spool.write(b'%b\n{"trajectory":%b%b' % (row.id.encode(), body, tail.encode())),
            "context": _hash(context),
            "time": (row.time - EPOCH) // MICROSECOND,
            "reward": row.reward or 0.0,
            "outcome": OUTCOME[row.success],
            "policy": found.policies.setdefault(row.policy or UNKNOWN, len(found.policies)),
            "decisions": row.decisions,
            "logged": logged,
        }
        if config.deduplicate:
            numbers["likeness"] = _likeness(context, body)
        if config.balance == "task_type":
            numbers["task_types"] = _task_types(body)
        for name, number in numbers.items():
            found.arrays[name].append(number)
    if progress is not None and read % STEP:
        progress(read % STEP)
    return found


def _unfit(row: Summary, config: DatasetConfig, opted_out: frozenset[str], logged: bool) -> str:
    """Why a trajectory is left out; None if it is not."""
    if row.reward is None or not math.isfinite(row.reward):
        return "no reward"
    if row.confidence is None or row.confidence < config.min_confidence:
        return "low confidence"
    if row.user in opted_out:
        return "opted out"
    if config.require_propensity and not logged:
        return "no propensity"
    return ""


class _Asked(Struct, frozen=True):
    problem: str = ""
    context: Any = None


class _Requests(Struct, frozen=True):
    """The fields of a trajectory that say what its choices were asked."""

    decisions: tuple[_Asked, ...] = ()


_requests = msgspec.json.Decoder(_Requests)


def request_hash(row: Summary, body: bytes) -> str:
    """Equal for trajectories that answer the same request: of a choice, the task with its first decision's context.

    Later contexts may depend on what was chosen before.
    """
    if not row.problem.startswith(CHOICE):
        return row.context
    asked = next((one for one in _requests.decode(body).decisions if one.problem == row.problem), None)
    if asked is None or asked.context is None:
        return row.context
    known = msgspec.json.encode(asked.context, order="deterministic")
    return hashlib.blake2b(b"%b\0%b" % (row.context.encode(), known)).hexdigest()[:16]


class _Chosen(Struct, frozen=True):
    action: Raw = Raw()


class _Ended(Struct, frozen=True):
    success: bool | None = None
    ended: str = "done"


class _Turn(Struct, frozen=True):
    action: Any = None


class _Body(Struct, frozen=True):
    """The fields of a trajectory that are compared."""

    decisions: tuple[_Chosen, ...] = ()
    outcome: _Ended = _Ended()
    turns: tuple[_Turn, ...] = ()
    metadata: dict[str, Any] | None = None


_body = msgspec.json.Decoder(_Body)


def _likeness(context: bytes, body: bytes) -> int:
    """A hash that is equal for trajectories with equal request, actions and ending."""
    essence = _body.decode(body)
    actions = (bytes(decision.action) for decision in essence.decisions)
    return _hash(b"\0".join((context, repr(essence.outcome).encode(), *actions)))


def _task_types(body: bytes) -> int:
    """The same for trajectories with the same task types: those of their turns, or the one their metadata names."""
    work = _body.decode(body)
    actions = [turn.action for turn in work.turns if isinstance(turn.action, dict)]
    found = {str(action["task_type"]) for action in actions if "task_type" in action}
    named = (work.metadata or {}).get("task_type")
    return _hash("\0".join(sorted(found) or [str(named)]).encode())


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _nothing(store: ExperienceStore, where: Where, version: int, left_out: Mapping[str, int]) -> str:
    """The error if nothing was gathered: the matches without each condition, or why the matches cannot be used."""
    if left_out:
        matching = sum(left_out.values())
        reasons = ", ".join(f"{count:,}: {why}" for why, count in left_out.items())
        rescore = f"; `etude reward rescore --version {version}` computes rewards" if "no reward" in left_out else ""
        return f"{matching:,} trajectories match {str(where)!r}, but none can be used ({reasons}){rescore}"
    lines = [f"no trajectory matches {str(where)!r}"]
    for name in where.__struct_fields__:
        if getattr(where, name) is not None:
            without_it = replace(where, **{name: None})
            many = store.stats(without_it, version=version).trajectories
            condition = str(replace(Where(), **{name: getattr(where, name)}))
            lines.append(f"  without {condition}: {many:,}")
    total = store.stats(Where(), version=version).trajectories
    hint = "loosen a condition" if total else "`etude ingest` brings trajectories in"
    return "\n".join([*lines, f"  in the whole store: {total:,}; {hint}"])


def _write(
    store: ExperienceStore, blobs: BlobStore | None, gathered: _Gathered, sample: Sample, spool: BinaryIO, ids: BinaryIO
) -> tuple[Sample, tuple[Shard, ...]]:
    """Write the shards without trajectories erased meanwhile; without blobs, only compute the hashes."""
    spool.flush()
    size = gathered.columns().size
    offset = size.cumsum() - size
    shards, gone = [], np.zeros(len(sample.rows), bool)
    for members in _by_shard(sample):
        rows = sample.rows[members]
        places = zip(offset[rows].tolist(), size[rows].tolist(), strict=True)
        lines_of = [os.pread(spool.fileno(), many, start).partition(b"\n") for start, many in places]
        records = [(name.decode(), line) for name, _, line in lines_of]
        erased = store.forgotten([name for name, _ in records])
        gone[members] = [name in erased for name, _ in records]
        weighed = zip(records, sample.weight[members].tolist(), strict=True)
        lines = [b'%b,"weight":%.6g}\n' % (line, weight) for (name, line), weight in weighed if name not in erased]
        if not lines:
            continue
        ids.writelines(f"{name}\n".encode() for name, _ in records if name not in erased)
        split, data = SPLITS[sample.split[members[0]]], b"".join(lines)
        key, digest = f"{split}/{sample.shard[members[0]]:05d}.jsonl", hashlib.sha256(data).hexdigest()
        if blobs is not None:
            blobs.put(key, data)
        shards.append(Shard(key=key, split=split, trajectories=len(lines), bytes=len(data), sha256=digest))
    kept: dict[str, Any] = {name: getattr(sample, name)[~gone] for name in ("rows", "weight", "split", "shard")}
    return dataclasses.replace(sample, **kept), tuple(shards)


def _by_shard(sample: Sample) -> list[NDArray[np.intp]]:
    """Indices into the sample, by split, shard and time."""
    order = np.lexsort((sample.shard, sample.split))
    shard = sample.split[order] * (sample.shard.max() + 1) + sample.shard[order]
    return np.split(order, np.flatnonzero(np.diff(shard)) + 1)


def _counts(gathered: _Gathered, sample: Sample) -> Counts:
    columns = gathered.columns()

    def tally(names: Iterable[str], kinds: NDArray[np.int64]) -> dict[str, int]:
        many = np.bincount(kinds).tolist()
        return {name: count for name, count in zip(names, many, strict=False) if count}

    return Counts(
        trajectories=len(sample.rows),
        decisions=int(columns.decisions[sample.rows].sum()),
        splits=tally(SPLITS, sample.split),
        policies=tally(gathered.policies, columns.policy[sample.rows]),
        outcomes=tally(OUTCOMES.values(), columns.outcome[sample.rows]),
        propensities=tally(("unlogged", "logged"), columns.logged[sample.rows]),
    )


def _definition(store: ExperienceStore, ids: BinaryIO, version: int) -> str | None:
    """The hash of the reward definition, as the rewards name it."""
    detail = store.detail(next(_batches(ids))[0])
    found = [reward.definition for reward in detail.rewards if reward.version == version] if detail else []
    return found[-1] if found else None


def _batches(ids: BinaryIO) -> Iterator[list[str]]:
    ids.seek(0)
    while batch := [line.decode().rstrip("\n") for line in islice(ids, BATCH)]:
        yield batch


def _same(there: Manifest, manifest: Manifest, blobs: BlobStore) -> Manifest:
    """The existing manifest if it is the same dataset; DatasetError if not."""
    if there.id != manifest.id:
        raise DatasetError(
            f"{blobs.url} holds dataset {there.id} ({there.query or 'everything'}; {there.counts.trajectories:,} "
            f"trajectories), not {manifest.id}, as it would be now: a dataset never changes, choose another place"
        )
    return there


def _moment(us: int) -> datetime:
    return EPOCH + us * MICROSECOND
