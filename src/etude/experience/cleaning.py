"""Events to bytes that may be stored: checked against their schema, personal data and secrets replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import msgspec

from etude.contracts.errors import EventError
from etude.contracts.subjects import encode, read_json, subject_of, to_event
from etude.contracts.trajectory import Event, Trajectory
from etude.experience.redact import RedactionConfig, Redactor, Session

FREE = ("task", "turns", "decisions", "outcome", "feedback", "metadata", "comment", "agent", "group")
"""Where anything may stand; the rest are ids, versions, numbers and times."""


class Cleaner:
    """Redacts events by the rules of their tenant."""

    def __init__(self, config: RedactionConfig, *, allow: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """`allow` is by tenant, `*` for all of them: what is left as it is."""
        self._config, self._allow = config, dict(allow or {})
        self._redactors: dict[str, Redactor] = {}

    def __call__(self, event: Event) -> bytes:
        """An event of ours, as the bytes to send."""
        return self.clean(encode(event), subject=subject_of(event))[1]

    def clean(self, body: bytes, *, subject: str | None = None) -> tuple[Event, bytes]:
        """An event from bytes, and those to keep: the same ones where nothing was found. EventError if it is none."""
        try:
            return self._clean(body, subject)
        except RecursionError as error:  # what can just be read may be too deep to be looked through
            raise EventError("nested too deeply to be redacted: flatten it, or leave that part out") from error

    def _clean(self, body: bytes, subject: str | None) -> tuple[Event, bytes]:
        raw: dict[str, Any] = read_json(body)
        event = to_event(raw, subject=subject)
        for name in ("id", "trajectory_id"):
            if "@" in raw.get(name, ""):
                raise EventError(f"{name} holds an '@': give it an id that means nothing elsewhere")
        session = self._redactor(raw.get("tenant")).session()
        free = {name: raw[name] for name in FREE if name in raw}
        kept = session.value(free)
        user = raw.get("user")
        known = user if user is None or session.text(user) == user else pseudonym(user)
        if kept is free and known is user and "type" in raw:
            return event, body
        raw |= {"type": raw.get("type", subject_of(event))}  # a store has no subject beside it to read it by
        raw |= kept | ({} if known is None else {"user": known})
        if isinstance(event, Trajectory):
            raw["redacted"] = Counter(raw.get("redacted") or {}) + _counts(session)
        body = msgspec.json.encode(raw)
        return to_event(raw, subject=subject), body

    def text(self, text: str) -> str:
        """Of what is no event."""
        return self._redactor(None).session().text(text)

    def _redactor(self, tenant: str | None) -> Redactor:
        key = tenant if tenant in self._allow else None
        name = key or "*"
        if name not in self._redactors:
            allow = (*self._config.allow, *self._allow.get("*", ()), *(self._allow[key] if key else ()))
            self._redactors[name] = Redactor(replace(self._config, allow=allow))
        return self._redactors[name]


def pseudonym(user: str) -> str:
    """What a user is called whose name is personal data: the same wherever it is asked for."""
    return f"user-{blake2b(user.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"


def _counts(session: Session) -> Counter[str]:
    counts: Counter[str] = Counter()
    for removed in session.removed:
        counts[removed.kind] += removed.count
    return counts
