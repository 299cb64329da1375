"""Signs and verifies with Ed25519: bytes in, signatures out. The private key never leaves its file."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from etude.contracts.errors import ConfigError, MissingExtraError, TamperedError
from etude.files.durable import make_folder, sync_folder, write_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger("etude")

KEY_FILE = "signing.key"
KEY_BYTES = 32


@dataclass(frozen=True)
class Keys:
    """The key of this installation, made when it first signs, and the public keys that are trusted besides it."""

    folder: Path
    trusted: tuple[str, ...] = ()
    """Public keys of other installations, in hexadecimal."""

    @property
    def id(self) -> str:
        """Names this installation's key in signatures."""
        return key_id(self.public)

    @cached_property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> str:
        return self._private.sign(data).hex()

    def verify(self, data: bytes, *, key: str, signature: str, what: str) -> None:
        """TamperedError, naming `what`, unless a trusted key signed exactly these bytes."""
        public = self._known.get(key) or self._own().get(key)
        if public is None:
            raise TamperedError(
                f"{what}: signed with key {key!r}, which is not trusted: restore it from a backup, or add the public "
                "key to release.trusted_keys if it is from another machine of yours"
            )
        library = _ed25519()
        try:
            library.Ed25519PublicKey.from_public_bytes(public).verify(bytes.fromhex(signature), data)
        except (library.InvalidSignature, ValueError) as error:
            raise TamperedError(
                f"{what}: its signature does not fit: it was changed; restore it from a backup"
            ) from error

    @cached_property
    def _known(self) -> Mapping[str, bytes]:
        return {key_id(public): public for public in _read_public(self.trusted)}

    def _own(self) -> Mapping[str, bytes]:
        """The own key, where there is one: a machine that only serves needs none, and makes none."""
        return {self.id: self.public} if (self.folder / KEY_FILE).exists() else {}

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        private, file = _ed25519().Ed25519PrivateKey, self.folder / KEY_FILE
        if not file.exists():
            _make_key(file, private.generate().private_bytes_raw())
        if file.stat().st_mode & 0o077:
            log.warning("%s may be read by others, who could sign policies with it: chmod 600 %s", file, file)
        try:
            found: Ed25519PrivateKey = private.from_private_bytes(bytes.fromhex(file.read_text("ascii").strip()))
        except ValueError as error:
            raise ConfigError(
                f"{file}: not a private key of {2 * KEY_BYTES} hexadecimal digits: restore it; without it, what it "
                "signed is verified only if its public key is in release.trusted_keys"
            ) from error
        return found


def key_id(public: bytes) -> str:
    return hashlib.sha256(public).hexdigest()[:16]


def _make_key(file: Path, key: bytes) -> None:
    """The first of several processes wins."""
    make_folder(file.parent)
    draft = file.with_name(f".{uuid4().hex}.draft")
    try:
        write_file(draft, key.hex().encode())
        with suppress(FileExistsError):
            os.link(draft, file)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)


def _read_public(keys: Sequence[str]) -> list[bytes]:
    found = []
    for key in keys:
        try:
            data = bytes.fromhex(key)
        except ValueError:
            data = b""
        if len(data) != KEY_BYTES:
            raise ConfigError(
                f"release.trusted_keys has {key!r}: expected {2 * KEY_BYTES} hexadecimal digits, as `etude models key` "
                "prints them"
            )
        found.append(data)
    return found


def _ed25519() -> Any:
    """The library, imported when something is signed or verified."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise MissingExtraError(needs="cryptography", extra="release") from error
    return SimpleNamespace(
        Ed25519PrivateKey=ed25519.Ed25519PrivateKey,
        Ed25519PublicKey=ed25519.Ed25519PublicKey,
        InvalidSignature=InvalidSignature,
    )
