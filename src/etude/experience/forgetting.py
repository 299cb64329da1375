"""Erases a user from the store, the bus and the datasets, and names the policies that learned from the user's data."""

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
"""The kind of document that records which dataset a policy learned from, by policy version."""


class PolicyRecord(Struct, frozen=True, kw_only=True):
    """The dataset that a policy learned from."""

    version: str
    problem: str
    dataset: str
    """Id of the dataset."""
    run: str
    """Folder of the run."""
    time: datetime


@dataclass(frozen=True, kw_only=True)
class Forgotten:
    """What was removed, and which policies used it."""

    trajectories: int
    messages: int
    datasets: dict[str, int]
    """Number of trajectories removed, by id of the dataset."""
    unreachable: tuple[str, ...]
    """Datasets that could not be opened: the trajectories must still be removed from them."""
    policies: tuple[PolicyRecord, ...]
    """Policies that learned from these datasets before."""


class _About(Struct):
    """The fields of a message that identify its user."""

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
    """Erase a user everywhere, under the given name and its pseudonym.

    The store comes last: as long as it has the user's trajectories, an interrupted call can be repeated.
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
    """Erase trajectories from a dataset and register the result; False if it cannot be opened."""
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
