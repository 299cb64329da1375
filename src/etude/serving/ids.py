"""Ids of what callers send: signed ones, so that only who got an answer can report its outcome; and those of tenants,
who may choose the same ids."""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from etude.contracts.errors import RequestError
from etude.files.durable import make_folder, write_file

KEY_FILE = "ids.key"
DIGITS = 20
MAX_CHARS = 128
"""Maximum length of an id."""


class SignedIds:
    """Ids of one installation; all its processes share the key."""

    def __init__(self, folder: Path) -> None:
        """The key is made in this folder if there is none."""
        path = folder / KEY_FILE
        make_folder(folder)
        if not path.exists():
            made = path.with_suffix(f".{secrets.token_hex(4)}")
            write_file(made, secrets.token_bytes(32))
            with suppress(FileExistsError):
                os.link(made, path)  # the first of several processes wins
            made.unlink()
        self._key = path.read_bytes()

    def sign(self, id: str, tenant: str | None) -> str:
        return f"{id}.{self._mac(id, tenant)}"

    def verify(self, signed: str, tenant: str | None) -> str:
        """The id; RequestError unless this installation signed it for this tenant."""
        id, _, mac = signed.rpartition(".")
        if not id or not hmac.compare_digest(mac.encode(), self._mac(id, tenant).encode()):
            raise RequestError(
                f"the id {signed[:80]!r} was not signed here for this key: give the id of the answer as it is",
                status=403,
            )
        return id

    def _mac(self, id: str, tenant: str | None) -> str:
        text = f"{id}\0{tenant or ''}".encode()
        return blake2b(text, key=self._key, digest_size=DIGITS // 2).hexdigest()


def id_of_tenant(id: str, tenant: str | None) -> str:
    """The id under which is stored what a tenant calls `id`. It ends with a mark of the tenant, so that no tenant can
    take, or find out, an id of another; an id that has it stays as it is."""
    if tenant is None:
        return id
    mark = f"-{_hash(tenant, 4)}"
    if id.endswith(mark):
        return id
    most = MAX_CHARS - len(mark)
    return (id if len(id) <= most else f"{id[: most - 17]}-{_hash(id, 8)}") + mark


def _hash(text: str, bytes: int) -> str:
    return blake2b(text.encode(), digest_size=bytes).hexdigest()
