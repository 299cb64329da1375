"""An append-only log over a blob store: entries in, the same entries out, or TamperedError.

Entry n is the blob PREFIX/n.json, written by a conditional create, so that of two writers one wins, on a folder and on
S3 alike, and a writer that dies leaves an entry or none. Each entry has the hash of the one before and is signed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from threading import RLock
from typing import ClassVar, Generic, Protocol, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from etude.contracts.blobs import BlobStore
from etude.contracts.errors import ConflictError, ReleaseError, TamperedError
from etude.release.signing import Keys


class Numbered(Protocol):
    @property
    def number(self) -> int: ...

    @property
    def before(self) -> str: ...


E = TypeVar("E", bound=Numbered)


class Envelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry as it is stored."""

    entry: msgspec.Raw
    key: str
    signature: str
    nonce: str
    """Random: two writers of the same entry write different bytes."""


class Ledger(Generic[E]):
    """Entries are read once: they never change. Instances may be used by several threads."""

    appended: ClassVar[int] = 0
    """Number of entries that this process appended to any ledger: tells at no cost whether it changed one."""

    def __init__(self, blobs: BlobStore, prefix: str, kind: type[E], keys: Keys) -> None:
        self._blobs, self.prefix, self._kind, self._keys = blobs, prefix, kind, keys
        self._read: list[E] = []
        self._hashes: list[str] = []
        self._turn = RLock()

    @property
    def head_hash(self) -> str:
        """SHA-256 of the newest entry that was read; empty without one."""
        return self._hashes[-1] if self._hashes else ""

    def key_of(self, number: int) -> str:
        """Key of an entry: the blob of the one after the newest exists once somebody appends."""
        return f"{self.prefix}/{number:09d}.json"

    def hashes(self) -> list[str]:
        """SHA-256 of every entry, in order."""
        self.entries()
        return list(self._hashes)

    def entries(self, after: int = 0) -> list[E]:
        """Entries with a higher number than `after`, verified."""
        with self._turn:
            while (data := self._blobs.get(self.key_of(len(self._read) + 1))) is not None:
                self._add(data)
            return self._read[after:]

    def head(self) -> E | None:
        with self._turn:
            self.entries(len(self._read))
            return self._read[-1] if self._read else None

    def append(self, make: Callable[[E | None], E]) -> E:
        """Append what `make` makes of the newest entry; ConflictError if another writer appended first.

        ReleaseError for an entry that could not be read again: nothing is written then.
        """
        with self._turn:
            entry = make(self.head())
            if entry.number != len(self._read) + 1:
                raise self._conflict(entry.number)
            data = self._sealed(entry)
            key = self.key_of(entry.number)
            # A store that repeats a request whose answer was lost finds its own blob there.
            if not self._blobs.put(key, data, replace=False) and self._blobs.get(key) != data:
                raise self._conflict(entry.number)
            self._add(data)
            Ledger.appended += 1
            return self._read[-1]

    def verify(self) -> int:
        """Read every entry again from the store and return their number; TamperedError for the first that is wrong."""
        again = Ledger(self._blobs, self.prefix, self._kind, self._keys)
        count = len(again.entries())
        strays = set(self._blobs.keys(f"{self.prefix}/")) - {self.key_of(number + 1) for number in range(count)}
        if strays:
            raise TamperedError(
                f"{self.prefix} in {self._blobs.url}: has {count} entries in a row, and {min(strays)} besides them: "
                "restore the entry that is missing, or remove what does not belong there"
            )
        return count

    def _sealed(self, entry: E) -> bytes:
        linked = msgspec.structs.replace(entry, before=self.head_hash)  # type: ignore[type-var]
        try:
            raw = msgspec.json.encode(linked)
            msgspec.json.decode(raw, type=self._kind)
        except (msgspec.MsgspecError, UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
            raise ReleaseError(f"{self.prefix}: entry {entry.number} is not written: {error}") from error
        signature = self._keys.sign(self._signed(raw))
        return msgspec.json.encode(
            Envelope(entry=msgspec.Raw(raw), key=self._keys.id, signature=signature, nonce=uuid4().hex)
        )

    def _add(self, data: bytes) -> None:
        number = len(self._read) + 1
        what = f"{self.key_of(number)} in {self._blobs.url}"
        try:
            envelope = msgspec.json.decode(data, type=Envelope)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TamperedError(f"{what}: not an entry ({error}): restore it from a backup") from error
        raw = bytes(envelope.entry)
        self._keys.verify(self._signed(raw), key=envelope.key, signature=envelope.signature, what=what)
        if msgspec.json.encode(envelope) != data:
            raise TamperedError(f"{what}: not the bytes that were written: restore it from a backup")
        try:
            entry = msgspec.json.decode(raw, type=self._kind)
        except msgspec.DecodeError as error:
            raise TamperedError(
                f"{what}: signed, but not an entry that this Etude reads ({error}): use the Etude that wrote it"
            ) from error
        if entry.number != number or entry.before != self.head_hash:
            raise TamperedError(f"{what}: it does not follow the entry before: one of them was replaced; restore it")
        self._read.append(entry)
        self._hashes.append(hashlib.sha256(data).hexdigest())

    def _conflict(self, number: int) -> ConflictError:
        return ConflictError(f"{self.prefix}: entry {number} was written by another process: read it again")

    def _signed(self, raw: bytes) -> bytes:
        """The prefix is signed too: an entry of one ledger is none of another."""
        return self.prefix.encode() + b"\n" + raw
