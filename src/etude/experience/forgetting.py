"""A user is forgotten: in the store, on the way to it, and in datasets; what already learned from them is named."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Struct

from etude.contracts.blobs import BlobStore
from etude.contracts.bus import EventBus, Message
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore
from etude.experience.cleaning import pseudonym
from etude.experience.datasets import erase, read_manifest, register

POLICIES = "policy"
"""Documents about what learned from datasets, by version."""


class PolicyRecord(Struct, frozen=True, kw_only=True):
    """What a policy learned from: kept so that it can be told whose data it used."""

    version: str
    problem: str
    dataset: str
    """The dataset's id."""
    run: str
    """Its folder."""
    time: datetime


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """What was removed, and what used it."""

    trajectories: int
    messages: int
    datasets: dict[str, int]
    """Ids, and how many trajectories were taken out of each."""
    unreachable: tuple[str, ...]
    """Datasets that could not be opened: remove the trajectories there too."""
    policies: tuple[PolicyRecord, ...]
    """They learned from these datasets before."""


class _About(Struct):
    """All that is read of a message to tell whose it is."""

    user: str | None = None
    id: str = ""
    trajectory_id: str = ""


def forget(
    user: str,
    store: ExperienceStore,
    buses: Iterable[EventBus],
    *,
    open_dataset: Callable[[str], BlobStore | None],
    time: datetime,
) -> Forgotten:
    """Everywhere, under this name and the pseudonym it may be stored by.

    The store comes last: as long as it knows whose trajectories they are, this can be interrupted and called again.
    """
    names = (user, pseudonym(user))
    ids = {row.summary.id for name in names for row in store.scan(Where(user=name), version=1)}
    used = dict(store.datasets_of(sorted(ids))) if ids else {}
    unreachable = [dataset for dataset in used if not _erased(open_dataset(dataset), ids, store, time)]
    messages = sum(bus.erase(_matches(names, ids)) for bus in buses)
    for name in names:
        ids |= set(store.forget(name))
    return Forgotten(
        trajectories=len(ids),
        messages=messages,
        datasets=used,
        unreachable=tuple(unreachable),
        policies=tuple(record for record in policies(store) if record.dataset in used),
    )


def _erased(blobs: BlobStore | None, ids: Set[str], store: ExperienceStore, time: datetime) -> bool:
    """Take them out of a dataset, and tell the store what it is now; False where it is not to be had."""
    if blobs is None:
        return False
    erase(blobs, ids, time=time)
    manifest = read_manifest(blobs)
    assert manifest is not None
    register(store, manifest)
    return True


def policies(store: ExperienceStore) -> list[PolicyRecord]:
    return [msgspec.json.decode(body, type=PolicyRecord) for body in store.documents(POLICIES).values()]


def remember_policy(store: ExperienceStore, record: PolicyRecord) -> None:
    store.put(POLICIES, record.version, msgspec.json.encode(record))


def _matches(names: Collection[str], ids: Collection[str]) -> Callable[[Message], bool]:
    reader = msgspec.json.Decoder(_About)

    def matches(message: Message) -> bool:
        try:
            about = reader.decode(message.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return any(name.encode("utf-8", "surrogatepass") in message.body for name in names)
        return about.user in names or about.id in ids or about.trajectory_id in ids

    return matches
