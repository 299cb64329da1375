"""API keys: who calls, for which tenant, and what it may do. Only hashes of keys are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from threading import Lock
from time import monotonic

import msgspec
from msgspec import Struct

from etude.contracts.errors import DataError, RequestError, StoreError
from etude.contracts.store import ExperienceStore

KIND = "api_key"
"""Kind of document of a key in the experience store."""
PREFIX = "etude"
REFRESH_S = 2.0
"""Seconds after which keys that another process created or revoked are known."""
STALE_S = 300.0
"""Seconds for which known keys are accepted while the store cannot be read: decisions need nothing else of it."""


class Role(StrEnum):
    """What a key is for. Each may do what the roles before it may, except that `ingest` and `decide` alone can belong
    to a tenant."""

    INGEST = "ingest"  # sends trajectories, feedback and traces
    DECIDE = "decide"  # asks for decisions, calls language models, reads what it sent
    RELEASE = "release"  # reads everything; trains, releases, rolls back
    ADMIN = "admin"  # all of it, and approves


RANK = {role: rank for rank, role in enumerate(Role)}
OF_TENANTS = (Role.INGEST, Role.DECIDE)


class ApiKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as it is stored."""

    id: str
    hash: str
    role: Role
    created: datetime
    name: str = ""
    tenant: str | None = None
    """Tenant that it belongs to: it writes to this one and reads nothing else. Null reads all."""
    requests_per_s: float | None = None
    revoked: datetime | None = None


class Caller(Struct, frozen=True, kw_only=True):
    """Who made a request."""

    key: str
    role: Role
    tenant: str | None

    def may(self, role: Role) -> bool:
        return RANK[self.role] >= RANK[role]


class Keys:
    """The keys of an installation, in its experience store."""

    def __init__(
        self, store: ExperienceStore, *, clock: Callable[[], datetime], requests_per_s: float = 2000.0
    ) -> None:
        self._store, self._clock, self._rate = store, clock, requests_per_s
        self._known: dict[str, ApiKey] = {}
        self._read_at, self._tried_at, self._turn = float("-inf"), float("-inf"), Lock()
        self._buckets: dict[str, _Bucket] = {}

    def create(
        self, role: Role, *, name: str = "", tenant: str | None = None, requests_per_s: float | None = None
    ) -> tuple[ApiKey, str]:
        """A new key, and its text, which is shown once."""
        if tenant is not None and role not in OF_TENANTS:
            raise DataError(f"a key of a tenant has the role {' or '.join(OF_TENANTS)}, not {role}: leave tenant out")
        if tenant is not None and not (tenant.strip() == tenant and tenant.isprintable() and 0 < len(tenant) <= 256):
            raise DataError(f"tenant is {tenant[:80]!r}: expected a name of 1 to 256 characters, or leave tenant out")
        id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        text = f"{PREFIX}_{id}_{secret}"
        key = ApiKey(
            id=id,
            hash=_hash(text),
            role=role,
            created=self._clock(),
            name=name,
            tenant=tenant,
            requests_per_s=requests_per_s,
        )
        self._put(key)
        return key, text

    def all(self) -> list[ApiKey]:
        self.refresh()
        return sorted(self._known.values(), key=lambda key: key.created)

    def revoke(self, id: str) -> ApiKey:
        """DataError if there is no such key. A revoked one stays listed."""
        self.refresh()
        if id not in self._known:
            raise DataError(f"there is no API key {id!r}: `etude keys list` shows them")
        revoked = msgspec.structs.replace(self._known[id], revoked=self._known[id].revoked or self._clock())
        self._put(revoked)
        return revoked

    def caller(self, text: str) -> Caller:
        """Who a key belongs to; RequestError if it is unknown or revoked, or sends too much."""
        self._freshen()
        id = text.split("_", 2)[1] if text.startswith(f"{PREFIX}_") and text.count("_") >= 2 else ""
        key = self._known.get(id)
        if key is None or not hmac.compare_digest(key.hash, _hash(text)):
            raise RequestError("the API key is not known: `etude keys create` on the server makes one", status=401)
        if key.revoked is not None:
            raise RequestError(f"the API key {key.id} was revoked: create another", status=401)
        bucket = self._buckets.get(key.id)
        if bucket is None:
            bucket = self._buckets.setdefault(key.id, _Bucket(key.requests_per_s or self._rate))
        wait_s = bucket.take()
        if wait_s > 0:
            raise RequestError(
                f"the API key {key.id} may send {bucket.rate:g} requests per second: wait", status=429, wait_s=wait_s
            )
        return Caller(key=key.id, role=key.role, tenant=key.tenant)

    def is_active(self, id: str) -> bool:
        """Whether a key may still be used; it does not count as a request."""
        self._freshen()
        key = self._known.get(id)
        return key is not None and key.revoked is None

    def _freshen(self) -> None:
        """Read the keys again if they are old. StoreError if they are too old, and that is not possible."""
        now = monotonic()
        age_s = now - self._read_at
        is_tried = self._turn.locked() or now - self._tried_at <= REFRESH_S  # by the background work, which logs it
        if age_s <= REFRESH_S or (age_s <= STALE_S and is_tried):
            return
        try:
            self.refresh()
        except StoreError:
            if age_s > STALE_S:
                raise

    def _put(self, key: ApiKey) -> None:
        self._store.put(KIND, key.id, msgspec.json.encode(key))
        self.refresh()

    def refresh(self) -> None:
        """Read the keys again."""
        with self._turn:
            self._tried_at = monotonic()
            found = self._store.documents(KIND)
            self._known = {id: msgspec.json.decode(body, type=ApiKey) for id, body in found.items()}
            self._read_at = monotonic()


class _Bucket:
    """A token bucket with room for one second."""

    def __init__(self, rate: float) -> None:
        self.rate, self._left, self._at = rate, max(rate, 1.0), monotonic()

    def take(self) -> float:
        """0 if a request may pass, else the seconds to wait."""
        now = monotonic()
        self._left = min(max(self.rate, 1.0), self._left + (now - self._at) * self.rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self.rate


def _hash(text: str) -> str:
    """Keys are random, so that a plain hash cannot be reversed."""
    return hashlib.sha256(text.encode()).hexdigest()
