"""The manifest of a dataset: its content, source, sampling rules and hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime

import msgspec
from msgspec import Struct

from etude.contracts.blobs import BlobStore
from etude.contracts.errors import DatasetError
from etude.contracts.query import Where
from etude.experience.datasets.sampling import SPLITS, DatasetConfig

FORMAT = 1
MANIFEST = "manifest.json"
SHARD_KEY = re.compile(rf"(?:{'|'.join(SPLITS)})/\d{{5,}}(?:-\d+)?\.jsonl")
"""Keys of shards; other files next to a dataset do not belong to it."""
UNKNOWN = "unknown"
OUTCOMES: dict[bool | None, str] = {True: "success", False: "failure", None: UNKNOWN}

_UNLOGGED = re.compile(rb'"propensity"\s*:\s*null')


class Shard(Struct, frozen=True, kw_only=True):
    """A blob with a line per trajectory; trajectories of one context are in the same shard."""

    key: str
    split: str
    trajectories: int
    bytes: int
    sha256: str


class Counts(Struct, frozen=True, kw_only=True):
    """Numbers of trajectories."""

    trajectories: int
    decisions: int
    splits: dict[str, int]
    policies: dict[str, int]
    """Trajectories by version of the behaviour policy; `unknown` if it is not logged."""
    outcomes: dict[str, int]
    """Trajectories by outcome: success, failure, unknown."""
    propensities: dict[str, int]
    """Trajectories by propensities. logged: every decision has one; unlogged: a decision has none, or there is none."""


class Lineage(Struct, frozen=True, kw_only=True):
    source: str
    """URL of the store, without secrets."""
    parent: str | None = None
    """Id of the dataset that it continues, if any."""
    etude: str
    """Version of Etude that made it."""


class Erasure(Struct, frozen=True, kw_only=True):
    """A record that trajectories were erased, without their ids and users."""

    time: datetime
    trajectories: int
    before: str
    """Hash of the content before the erasure."""


class Manifest(Struct, frozen=True, kw_only=True):
    """The manifest, which is written last: if it exists, the dataset is complete."""

    format: int = FORMAT
    id: str
    """First 16 digits of the content's hash at creation; it stays when trajectories are erased."""
    content: str
    """SHA-256 of the output of `sha256sum` over all shards, in this order."""
    problem: str
    query: str
    """Query in the syntax of `--where`."""
    where: Where
    version: int
    """Version of the reward."""
    definition: str | None
    """Hash of the reward definition."""
    created: datetime
    first: datetime
    """Start of the oldest trajectory."""
    last: datetime
    config: DatasetConfig
    """Sampling, splits and their seed."""
    cuts: tuple[datetime, ...]
    """Start times of validation and test, for a split by time."""
    counts: Counts
    left_out: dict[str, int]
    """Number of matching trajectories that are left out, by reason; duplicates are counted in weights."""
    lineage: Lineage
    url: str
    """URL where it was created."""
    shards: tuple[Shard, ...]
    erasures: tuple[Erasure, ...] = ()
    seal: str = ""
    """SHA-256 of the manifest without it."""


class _Versioned(Struct):
    format: int
    seal: str = ""


_decoder = msgspec.json.Decoder(Manifest)


def read_manifest(blobs: BlobStore) -> Manifest | None:
    """The manifest; None if there is none. DatasetError if it was altered or has a newer format than this Etude."""
    data = blobs.get(MANIFEST)
    return None if data is None else open_manifest(data, place=blobs.url)


def open_manifest(data: bytes, *, place: str) -> Manifest:
    try:
        head = msgspec.json.decode(data, type=_Versioned)
        if head.format > FORMAT:
            raise DatasetError(
                f"{place}: the dataset has format {head.format}, this Etude reads up to {FORMAT}: upgrade Etude"
            )
        if _seal(data.replace(head.seal.encode(), b"")) != head.seal:
            raise DatasetError(f"{place}: {MANIFEST} was altered: restore it, or create the dataset again")
        manifest = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{place}: {MANIFEST} is not that of a dataset ({error}): create the dataset again"
        ) from error
    made = manifest.erasures[0].before if manifest.erasures else manifest.content
    if content_hash(manifest.shards) != manifest.content or manifest.id != made[:16]:
        raise DatasetError(f"{place}: {MANIFEST} does not have the hash of its shards: create the dataset again")
    return manifest


def sealed(manifest: Manifest) -> bytes:
    """The manifest as indented JSON, with its seal."""
    open_end = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, seal="")), indent=1)
    head, key, tail = open_end.rpartition(b'"seal": "')
    return head + key + _seal(open_end).encode() + tail


def content_hash(shards: Iterable[Shard]) -> str:
    return hashlib.sha256("".join(f"{shard.sha256}  {shard.key}\n" for shard in shards).encode()).hexdigest()


def is_logged(body: bytes, decisions: int) -> bool:
    """Whether every decision has a propensity, judged by the bytes: quotes within texts are escaped."""
    found = body.count(b'"propensity"') if decisions else 0
    return found >= max(1, decisions) and found - len(_UNLOGGED.findall(body)) >= decisions


def remove_strays(blobs: BlobStore, shards: Iterable[Shard]) -> None:
    """Delete shards that are not in the manifest: of an unfinished dataset, or from before an erasure."""
    for key in set(blobs.keys()) - {shard.key for shard in shards}:
        if SHARD_KEY.fullmatch(key):
            blobs.delete(key)


def _seal(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
