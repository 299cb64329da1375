"""Reads a frozen dataset shard by shard as examples for a learner, and erases trajectories from it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from datetime import datetime

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from etude.contracts.blobs import BlobStore
from etude.contracts.errors import DatasetError
from etude.contracts.trajectory import Trajectory
from etude.experience.datasets.manifest import (
    MANIFEST,
    OUTCOMES,
    UNKNOWN,
    Counts,
    Erasure,
    Manifest,
    Shard,
    content_hash,
    is_logged,
    read_manifest,
    remove_strays,
    sealed,
)
from etude.experience.datasets.sampling import SPLITS


class Example(Struct, frozen=True, kw_only=True):
    """A trajectory to learn from."""

    trajectory: Trajectory
    reward: float
    confidence: float
    weight: float
    context: str
    """Equal for trajectories that answer the same request."""
    rating: float | None = None
    """Mean rating from 0 to 1, with late feedback; null without one when the dataset was created."""


_examples = msgspec.json.Decoder(Example)


class Dataset:
    """An opened frozen dataset."""

    def __init__(self, blobs: BlobStore, *, verify: bool = True) -> None:
        """DatasetError if there is no dataset, its format is newer, or it was altered; without `verify` its shards are
        checked only when they are read."""
        self.blobs, self.manifest = blobs, _manifest(blobs)
        if verify:
            _verify(blobs, self.manifest)

    def shards(
        self, split: str, *, without: Callable[[Sequence[str]], set[str]] | None = None
    ) -> Iterator[list[Example]]:
        """Examples in lists; trajectories of one context are in the same list. `without` returns which of the given
        ids to leave out, such as the store's `forgotten`."""
        if split not in SPLITS:
            raise DatasetError(f"split {split!r}: expected one of {', '.join(SPLITS)}")
        for shard in self.manifest.shards:
            if shard.split == split:
                examples = self._read(shard)
                gone = without([example.trajectory.id for example in examples]) if without is not None else set()
                yield [example for example in examples if example.trajectory.id not in gone] if gone else examples

    def _read(self, shard: Shard) -> list[Example]:
        data = _shard(self.blobs, self.manifest, shard)
        try:
            return _examples.decode_lines(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DatasetError(
                f"{self.blobs.url}: {shard.key} holds what this Etude cannot read ({error}): create the dataset again"
            ) from error


def verify(blobs: BlobStore, *, progress: Callable[[int], None] | None = None) -> Manifest:
    """The manifest, after a check of all shards; DatasetError as in `Dataset`. `progress` is called with bytes read."""
    manifest = _manifest(blobs)
    _verify(blobs, manifest, progress)
    return manifest


def erase(blobs: BlobStore, trajectory_ids: Set[str], *, time: datetime) -> int:
    """Erase trajectories from a dataset, whose id stays; return how many. A killed call can be repeated.

    Its manifest records that and when it happened, but no ids. The dataset stays readable: changed shards are written
    next to the old ones, which are deleted last.
    """
    manifest = _manifest(blobs)
    shards: list[Shard] = []
    erased: Counter[tuple[str, str]] = Counter()
    for shard in manifest.shards:
        lines = _shard(blobs, manifest, shard).splitlines(keepends=True)
        facts = [(line, _lines.decode(line).trajectory) for line in lines]
        gone = [(line, fact) for line, fact in facts if fact.id in trajectory_ids]
        if not gone:
            shards.append(shard)
            continue
        kept = b"".join(line for line, fact in facts if fact.id not in trajectory_ids)
        for line, fact in gone:
            erased.update(_counted(line, fact, shard))
        if kept:
            name = shard.key.removesuffix(".jsonl").partition("-")[0]
            key, many = f"{name}-{len(manifest.erasures) + 1}.jsonl", len(lines) - len(gone)
            blobs.put(key, kept)
            digest = hashlib.sha256(kept).hexdigest()
            shards.append(Shard(key=key, split=shard.split, trajectories=many, bytes=len(kept), sha256=digest))
    count = erased["trajectories", ""]
    if count:
        manifest = replace(
            manifest,
            content=content_hash(shards),
            shards=tuple(shards),
            counts=_less(manifest.counts, erased),
            erasures=(*manifest.erasures, Erasure(time=time, trajectories=count, before=manifest.content)),
        )
        blobs.put(MANIFEST, sealed(manifest))
    remove_strays(blobs, manifest.shards)
    return count


def _manifest(blobs: BlobStore) -> Manifest:
    found = read_manifest(blobs)
    if found is None:
        raise DatasetError(
            f"{blobs.url}: is no dataset, or one that was never finished (there is no {MANIFEST}): "
            "`etude dataset create` makes one"
        )
    return found


def _verify(blobs: BlobStore, manifest: Manifest, progress: Callable[[int], None] | None = None) -> None:
    there = set(blobs.keys())
    for shard in manifest.shards:
        if shard.key not in there:
            raise _lost(blobs, manifest, shard)
        digest, size = hashlib.sha256(), 0
        for piece in blobs.stream(shard.key):
            digest.update(piece)
            size += len(piece)
            if progress is not None:
                progress(len(piece))
        _compare(blobs, manifest, shard, digest.hexdigest(), size)


def _shard(blobs: BlobStore, manifest: Manifest, shard: Shard) -> bytes:
    data = blobs.get(shard.key)
    if data is None:
        raise _lost(blobs, manifest, shard)
    _compare(blobs, manifest, shard, hashlib.sha256(data).hexdigest(), len(data))
    return data


def _lost(blobs: BlobStore, manifest: Manifest, shard: Shard) -> DatasetError:
    return DatasetError(
        f"{blobs.url}: {shard.key} of dataset {manifest.id} is missing: where trajectories were erased meanwhile, open "
        "it again; otherwise restore it, or create the dataset again"
    )


def _compare(blobs: BlobStore, manifest: Manifest, shard: Shard, digest: str, size: int) -> None:
    if digest != shard.sha256:
        what = "was altered" if size == shard.bytes else f"has {size:,} bytes, expected {shard.bytes:,}"
        raise DatasetError(
            f"{blobs.url}: {shard.key} of dataset {manifest.id} {what} (sha256 {digest[:16]}…, expected "
            f"{shard.sha256[:16]}…): restore it, or create the dataset again"
        )


class _Ended(Struct, frozen=True):
    success: bool | None = None


class _Fact(Struct, frozen=True):
    """The fields of a trajectory that are counted."""

    id: str
    policy: str | None = None
    decisions: tuple[Raw, ...] = ()
    outcome: _Ended = _Ended()


class _Line(Struct, frozen=True):
    trajectory: _Fact


_lines = msgspec.json.Decoder(_Line)


def _counted(line: bytes, fact: _Fact, shard: Shard) -> Counter[tuple[str, str]]:
    """The counts of one line, under the names of `Counts`."""
    many = len(fact.decisions)
    return Counter(
        {
            ("trajectories", ""): 1,
            ("decisions", ""): many,
            ("splits", shard.split): 1,
            ("policies", fact.policy or UNKNOWN): 1,
            ("outcomes", OUTCOMES[fact.outcome.success]): 1,
            ("propensities", "logged" if is_logged(line, many) else "unlogged"): 1,
        }
    )


def _less(counts: Counts, erased: Counter[tuple[str, str]]) -> Counts:
    def left(name: str) -> dict[str, int]:
        rest = {kind: many - erased[name, kind] for kind, many in getattr(counts, name).items()}
        return {kind: many for kind, many in rest.items() if many}

    return Counts(
        trajectories=counts.trajectories - erased["trajectories", ""],
        decisions=counts.decisions - erased["decisions", ""],
        splits=left("splits"),
        policies=left("policies"),
        outcomes=left("outcomes"),
        propensities=left("propensities"),
    )
