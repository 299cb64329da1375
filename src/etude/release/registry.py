"""Policies by version, and which of them serves: artefacts in, verified artefacts and serving states out.

artefacts/VERSION/     manifest.json, its files, signature.json      written once
attachments/VERSION/   gate reports, training logs, validation results
slots/SLOT/            the slot's ledger; its newest entry is the serving pointer
releases/ID/           the ledger of a release (`canary.py`)
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec
from msgspec import Struct

from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConflictError, EtudeError, ReleaseError, TamperedError
from etude.contracts.policy import Manifest, version_of
from etude.contracts.release import Action, Entry, Serving, Slot, State
from etude.files.durable import make_folder
from etude.learning.artefact import Artefact
from etude.learning.checkpoint import MANIFEST, write_folder
from etude.release.ledger import Ledger, Numbered
from etude.release.signing import Keys
from etude.release.steps import approver, check_actor, settled, states_after

log = logging.getLogger("etude")

SIGNATURE = "signature.json"
KEPT = frozenset({State.SERVING, State.PREVIOUS, State.EXPOSED})
"""States whose files are never deleted."""
LOOK_S = 1e-3
"""Seconds between two looks at a folder."""
POLL_S = 1.0
"""Seconds between two looks at a bucket."""
_VERSION = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")

E = TypeVar("E", bound=Numbered)


class Signature(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    key: str
    signature: str


@dataclass(kw_only=True)
class Registry:
    """Instances may be used by several threads, and any number of processes may share a store."""

    blobs: BlobStore
    keys: Keys
    cache: Path
    """Folder for verified copies of artefacts."""
    clock: Callable[[], datetime]
    require_approval: bool = False
    """Whether a person has to approve a version before it is promoted."""
    _ledgers: dict[str, Ledger[Any]] = field(default_factory=dict)

    def register(self, artefact: Artefact, slot: str, *, actor: str, evidence: Mapping[str, Any] | None = None) -> str:
        """Store and sign an artefact, and add it to a slot; a second call changes nothing.

        ReleaseError for a policy of another problem, or of another catalogue than the one that serves.
        """
        manifest, version = artefact.manifest, artefact.version
        check_slot(slot)
        problem = slot.partition(":")[0]
        if manifest.problem != problem:
            raise ReleaseError(
                f"{artefact.path} is a policy of {manifest.problem!r}: the slot {slot!r} needs {problem!r}"
            )
        serving = self.serving(slot).incumbent
        if serving is not None and serving != version:
            other = self.artefact(serving).manifest.catalogue
            if None not in (other, manifest.catalogue) and other != manifest.catalogue:
                raise ReleaseError(
                    f"{artefact.path} was trained with another catalogue ({manifest.catalogue}) than {serving}, which "
                    f"serves {slot!r} ({other}): train it with the catalogue in use"
                )
        for name in manifest.files:
            if not _FILE.fullmatch(name):
                raise ReleaseError(f"{artefact.path}: its manifest names the file {name!r}: expected a plain file name")
            self.blobs.put(f"artefacts/{version}/{name}", artefact.file(name), replace=False)
        data = (artefact.path / MANIFEST).read_bytes()
        if version_of(data) != version:
            raise TamperedError(f"{artefact.path}: its manifest changed while it was read: try again")
        self.blobs.put(f"artefacts/{version}/{MANIFEST}", data, replace=False)
        signature = Signature(key=self.keys.id, signature=self.keys.sign(data))
        self.blobs.put(f"artefacts/{version}/{SIGNATURE}", msgspec.json.encode(signature), replace=False)
        head = self.head(slot)
        if head is None or version not in head.states:
            self.record(slot, Action.REGISTERED, version, actor=actor, evidence=dict(evidence or {}))
        return version

    def artefact(self, version: str) -> Artefact:
        """A verified copy: the signature before the manifest is parsed, then the hash of every file."""
        version = check_version(version)
        data = self._blob(version, MANIFEST)
        try:
            found = msgspec.json.decode(self._blob(version, SIGNATURE), type=Signature)
        except msgspec.DecodeError as error:
            raise TamperedError(f"version {version}: {SIGNATURE} cannot be read ({error}): restore it") from error
        what = f"version {version}: {MANIFEST} in {self.blobs.url}"
        self.keys.verify(data, key=found.key, signature=found.signature, what=what)
        if version_of(data) != version:
            raise TamperedError(f"{what}: it is the manifest of {version_of(data)}: restore it")
        folder = self.cache / version
        if not (folder / MANIFEST).is_file() or (folder / MANIFEST).read_bytes() != data:
            manifest = msgspec.json.decode(data, type=Manifest)
            files = {name: self._checked(version, name, sha256) for name, sha256 in manifest.files.items()}
            make_folder(self.cache)
            _keep_copy(folder, files | {MANIFEST: data})
        return Artefact(folder)  # checks the hash of each file when it is read

    def verify(self, version: str) -> Manifest:
        """Check the signature and every file in the store; TamperedError for the first that is wrong."""
        manifest = self.artefact(version).manifest
        for name, sha256 in manifest.files.items():
            self._checked(check_version(version), name, sha256)
        return manifest

    def _checked(self, version: str, name: str, sha256: str) -> bytes:
        if not _FILE.fullmatch(name):
            raise TamperedError(f"version {version}: its manifest names the file {name!r}: expected a plain file name")
        data = self._blob(version, name)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise TamperedError(
                f"version {version}: {name} in {self.blobs.url} does not match its SHA-256 in the manifest: it was "
                "changed; restore it, or roll back to another version"
            )
        return data

    def _blob(self, version: str, name: str) -> bytes:
        data = self.blobs.get(f"artefacts/{version}/{name}")
        if data is None:
            raise ReleaseError(
                f"version {version}: {name} is not in {self.blobs.url}: register it, or restore it "
                "(`etude models list` shows the versions)"
            )
        return data

    def ledger(self, prefix: str, kind: type[E]) -> Ledger[E]:
        found = self._ledgers.get(prefix)
        if found is None:
            found = self._ledgers[prefix] = Ledger(self.blobs, prefix, kind, self.keys)
        return found

    def slots(self) -> list[str]:
        return sorted({unquote(key.split("/")[1]) for key in self.blobs.keys("slots/")})

    def history(self, slot: str) -> list[Entry]:
        return self.slot_ledger(slot).entries()

    def head(self, slot: str) -> Entry | None:
        return self.slot_ledger(slot).head()

    def serving(self, slot: str) -> Serving:
        head = self.head(slot)
        return Serving() if head is None else head.serving

    def slot_of(self, version: str) -> str:
        """The slot that a version is registered in."""
        found = [slot for slot in self.slots() if (head := self.head(slot)) is not None and version in head.states]
        if len(found) != 1:
            what = f"registered in {', '.join(found)}: name the slot" if found else "not registered"
            raise ReleaseError(f"version {version} is {what} (`etude models list`)")
        return found[0]

    def find(self, prefix: str) -> str:
        """The one version that begins with these digits."""
        known = {version for slot in self.slots() if (head := self.head(slot)) for version in head.states}
        found = sorted(version for version in known if version.startswith(prefix)) if prefix else []
        if len(found) != 1:
            what = f"{', '.join(found)} begin with it" if found else "no version begins with it"
            raise ReleaseError(f"version {prefix!r}: {what}: `etude models list` shows them")
        return found[0]

    def approved(self, slot: str, version: str) -> str | None:
        """Who approved a version; None if no one did."""
        return approver(self.history(slot), version)

    def may_promote(self, slot: str, version: str) -> bool:
        """Whether no approval is missing."""
        return not self.require_approval or self.approved(slot, version) is not None

    def record(
        self,
        slot: str,
        action: Action,
        version: str,
        *,
        actor: str,
        reason: str = "",
        evidence: Mapping[str, Any] | None = None,
        change: Callable[[Serving], Serving] = lambda serving: serving,
        expected: int | None = None,
    ) -> Entry:
        """Append a step to a slot's ledger; ReleaseError if it is not allowed.

        ConflictError if `expected`, the number of the newest entry that the step rests on, is not the newest one.
        """
        facts = dict(evidence or {})

        def make(head: Entry | None) -> Entry:
            if expected is not None and (0 if head is None else head.number) != expected:
                raise ConflictError(f"{slot}: another process was first: look at it again")
            before, states = (Serving(), {}) if head is None else (head.serving, head.states)
            serving = settled(version, action, change(before))
            entry = Entry(
                number=1 if head is None else head.number + 1,
                time=self.clock(),
                actor=actor,
                action=action,
                version=version,
                reason=reason,
                evidence=facts,
                serving=serving,
                states=states_after(version, action, states=states, before=before, after=serving),
            )
            check_actor(slot, entry, self.slot_ledger(slot).entries(), require_approval=self.require_approval)
            return entry

        return self.slot_ledger(slot).append(make)

    def approve(self, slot: str, version: str, *, by: str, reason: str = "") -> Entry:
        return self.record(slot, Action.APPROVED, version, actor=by, reason=reason)

    def promote_directly(self, slot: str, version: str, *, by: str, reason: str) -> Entry:
        """Without a canary: a policy that passed its gates and was approved by a person."""
        approver = self.approved(slot, version)
        if approver is None:
            raise ReleaseError(f"{slot}: {version} is not approved: `etude models approve {version}`")
        return self.record(
            slot,
            Action.PROMOTED,
            version,
            actor=by,
            reason=reason,
            evidence={"approved_by": approver},
            change=lambda serving: Serving(incumbent=version, previous=serving.incumbent),
        )

    def roll_back(self, slot: str, *, by: str, reason: str = "") -> Entry:
        """Return to the policy that served before, in one step; a candidate that is exposed loses its traffic."""
        head = self.head(slot)
        if head is None or head.serving.incumbent is None or head.serving.previous is None:
            raise ReleaseError(f"{slot}: there is no earlier policy to return to")
        return self.record(
            slot,
            Action.ROLLED_BACK,
            head.serving.incumbent,
            actor=by,
            reason=reason,
            change=lambda serving: Serving(incumbent=serving.previous),
            expected=head.number,
        )

    def attach(self, version: str, name: str, data: bytes) -> None:
        """Keep a report or a log with a version, in place of any of this name."""
        self.blobs.put(self._attachment(version, name), data)

    def attached(self, version: str, name: str) -> bytes | None:
        return self.blobs.get(self._attachment(version, name))

    def attachments(self, version: str) -> list[str]:
        prefix = f"attachments/{check_version(version)}/"
        return [key.removeprefix(prefix) for key in self.blobs.keys(prefix)]

    def _attachment(self, version: str, name: str) -> str:
        if not _FILE.fullmatch(name):
            raise ReleaseError(f"attachment {name!r}: expected a plain file name")
        return f"attachments/{check_version(version)}/{name}"

    def delete_files(self, slot: str, version: str, *, actor: str, reason: str) -> None:
        """Remove the files of a retired version; what happened to it stays in the ledger."""
        head = self.head(slot)
        state = None if head is None else head.states.get(version)
        if state in KEPT:
            raise ReleaseError(f"{slot}: {version} is {state}: its files are needed")
        if state is not State.RETIRED:
            self.record(slot, Action.RETIRED, version, actor=actor, reason=reason)
        for key in (*self.blobs.keys(f"artefacts/{version}/"), *self.blobs.keys(f"attachments/{version}/")):
            self.blobs.delete(key)
        # Last: what is killed before it is repeated, and a retired version can never serve again.
        self.record(slot, Action.DELETED, version, actor=actor, reason=reason)

    def follow(self, slot: str) -> Follower:
        """The serving state of a slot as of now, cheap enough to be asked at every decision."""
        return Follower(self, slot)

    def slot_ledger(self, slot: str) -> Ledger[Entry]:
        return self.ledger(f"slots/{quote(check_slot(slot), safe=':')}", Entry)


class Follower:
    """Notices a change by this process at the next call; one by another process within a millisecond on a folder, by
    the file of the next entry, and within a second on a bucket."""

    def __init__(self, registry: Registry, slot: str, *, poll_s: float = POLL_S) -> None:
        self._slot, self._ledger = slot, registry.slot_ledger(slot)
        self._folder = _folder_of(registry.blobs)
        self._look_at, self._appended = 0.0, Ledger.appended
        self._serving, self._next = Serving(), ""
        self._refused: tuple[int, int] | None = None  # the file of a next entry that was tampered with
        self._take(self._ledger.head())
        self._closed = threading.Event()
        if self._folder is None:
            threading.Thread(target=self._poll, args=(poll_s,), name="etude-follow", daemon=True).start()

    def serving(self) -> Serving:
        now, own = monotonic(), Ledger.appended
        if now < self._look_at and own == self._appended:
            return self._serving
        self._look_at = now + LOOK_S
        if own != self._appended:
            self._appended = own
            self._read()
        # Not by the time of change of the folder: several changes fit into one tick of the kernel, its resolution.
        elif self._folder is not None and (file := _stamp(self._next)) is not None and file != self._refused:
            self._refused = file if self._read() else None
        return self._serving

    def _read(self) -> bool:
        """Read the newest entry; while that fails, the last known policy serves. False if it should be tried again."""
        try:
            self._take(self._ledger.head())
        except (EtudeError, OSError) as error:
            log.warning(
                "%s: its serving pointer cannot be read, so %s stays: %s", self._slot, self._serving.incumbent, error
            )
            return isinstance(error, TamperedError)  # reading it again gives the same
        return True

    def _take(self, head: Entry | None) -> None:
        self._serving = Serving() if head is None else head.serving
        # Of this entry, not of the ledger, which another thread may have read further.
        self._next = f"{self._folder}/{self._ledger.key_of(1 if head is None else head.number + 1)}"

    def _poll(self, poll_s: float) -> None:
        while not self._closed.wait(poll_s):
            self._read()

    def close(self) -> None:
        """Stop looking; a second call does nothing."""
        self._closed.set()


def _keep_copy(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder by one rename. All processes that follow a slot do so at once when a version is new: the first
    whole copy stays, and only a damaged one is replaced."""
    draft, damaged = (folder.with_name(f".{uuid4().hex}") for _ in range(2))
    write_folder(draft, files)
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _has_files(folder, files):
            with suppress(OSError):  # another process replaced it meanwhile
                folder.rename(damaged)
                draft.rename(folder)
    for left in (draft, damaged):
        shutil.rmtree(left, ignore_errors=True)


def _has_files(folder: Path, files: Mapping[str, bytes]) -> bool:
    try:
        return all((folder / name).read_bytes() == data for name, data in files.items())
    except OSError:
        return False


def _stamp(path: str) -> tuple[int, int] | None:
    """Tells a file from another of this name; None without one."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _folder_of(blobs: BlobStore) -> str | None:
    """Where blobs are files."""
    return None if "://" in blobs.url else blobs.url


def check_slot(slot: str) -> str:
    try:
        return msgspec.convert(slot, Slot)
    except msgspec.ValidationError as error:
        raise ReleaseError(
            f"slot {slot!r}: expected PROBLEM or PROBLEM:NAME, such as choice:model, without slashes or percent signs"
        ) from error


def check_version(version: str) -> str:
    """The version of an artefact, without the suffix that says how it is used."""
    found = version.partition("+")[0]
    if not _VERSION.fullmatch(found):
        raise ReleaseError(f"version {version!r}: expected 16 hexadecimal digits")
    return found
