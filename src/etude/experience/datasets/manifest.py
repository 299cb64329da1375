"""What a dataset says of itself: what is in it, from where, under which rules, with which hashes."""

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
"""Whatever else lies beside a dataset is none of its own."""
UNKNOWN = "unknown"
OUTCOMES: dict[bool | None, str] = {True: "success", False: "failure", None: UNKNOWN}

_UNLOGGED = re.compile(rb'"propensity"\s*:\s*null')


class Shard(Struct, frozen=True, kw_only=True):
    """A blob with a line per trajectory; trajectories of one context are in the same one."""

    key: str
    split: str
    trajectories: int
    bytes: int
    sha256: str


class Counts(Struct, frozen=True, kw_only=True):
    """Each dict by its key, of trajectories."""

    trajectories: int
    decisions: int
    splits: dict[str, int]
    policies: dict[str, int]
    """By the version that decided; `unknown` where none is told."""
    outcomes: dict[str, int]
    """success, failure, unknown."""
    propensities: dict[str, int]
    """logged: every decision has one; unlogged: some have none, or there is no decision."""


class Lineage(Struct, frozen=True, kw_only=True):
    source: str
    """The store it was made from, without secrets."""
    parent: str | None = None
    """The dataset it follows, if any."""
    etude: str
    """The version that made it."""


class Erasure(Struct, frozen=True, kw_only=True):
    """That trajectories were taken out; never which, nor whose."""

    time: datetime
    trajectories: int
    before: str
    """The content's hash until then."""


class Manifest(Struct, frozen=True, kw_only=True):
    """Written last: where there is one, the dataset is whole."""

    format: int = FORMAT
    id: str
    """The first 16 digits of the content's hash when it was made; it stays when trajectories are erased."""
    content: str
    """SHA-256 of what `sha256sum` would print of all shards, in their order here."""
    problem: str
    query: str
    """As `--where` takes it."""
    where: Where
    version: int
    """Of the reward."""
    definition: str | None
    """The reward definition's hash."""
    created: datetime
    first: datetime
    """When the oldest trajectory began."""
    last: datetime
    config: DatasetConfig
    """Sampling, splits and their seed."""
    cuts: tuple[datetime, ...]
    """Split by time: when validation begins, and when the test does."""
    counts: Counts
    left_out: dict[str, int]
    """Trajectories that match the query and are not in it, by why; duplicates are counted in weights."""
    lineage: Lineage
    url: str
    """Where it was made."""
    shards: tuple[Shard, ...]
    erasures: tuple[Erasure, ...] = ()
    seal: str = ""
    """SHA-256 of the manifest without it."""


class _Versioned(Struct):
    format: int
    seal: str = ""


_decoder = msgspec.json.Decoder(Manifest)


def read_manifest(blobs: BlobStore) -> Manifest | None:
    """None where there is none; DatasetError where it was altered, or is of a format that is newer than this Etude."""
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
    """As it is written: for people as well, and with its seal."""
    open_end = msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(manifest, seal="")), indent=1)
    head, key, tail = open_end.rpartition(b'"seal": "')
    return head + key + _seal(open_end).encode() + tail


def content_hash(shards: Iterable[Shard]) -> str:
    return hashlib.sha256("".join(f"{shard.sha256}  {shard.key}\n" for shard in shards).encode()).hexdigest()


def is_logged(body: bytes, decisions: int) -> bool:
    """Whether every decision has its propensity, by a look at the bytes: quotes within texts are escaped."""
    found = body.count(b'"propensity"') if decisions else 0
    return found >= max(1, decisions) and found - len(_UNLOGGED.findall(body)) >= decisions


def remove_strays(blobs: BlobStore, shards: Iterable[Shard]) -> None:
    """Shards that no manifest speaks of: of a dataset that was never finished, or from before an erasure."""
    for key in set(blobs.keys()) - {shard.key for shard in shards}:
        if SHARD_KEY.fullmatch(key):
            blobs.delete(key)


def _seal(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
