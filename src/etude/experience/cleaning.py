"""Encodes events for storage: checks them against their schema and redacts personal data and secrets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from etude.contracts.errors import ConfigError, DataError, EtudeError, EventError
from etude.contracts.subjects import MAX_BYTES, encode, read_json, subject_of, to_event
from etude.contracts.trajectory import Event, Trajectory
from etude.experience.config import ExperienceConfig
from etude.experience.redact import RedactionConfig, Redactor, Session
from etude.experience.redaction.matches import KINDS, View
from etude.experience.redaction.secrets import find_tokens

IDS = ("id", "trajectory_id", "job_id", "request_id")
KEPT = ("type", "time", *IDS)
"""Fields that are not redacted, since their types cannot hold personal data. All other fields are redacted, whether in
the schema or not, keys as well as values; a user becomes a pseudonym."""
NOT_SEARCHED = frozenset(("type", *KEPT, "redacted"))
"""Of a trajectory without redacted values: what a search for such values leaves out."""
LISTS, MAX_LIST = 256, 1 << 16
"""Lists of eligible options that are remembered, and the maximum size in bytes of one."""


class Cleaner:
    """Redacts events under the rules of their tenant."""

    def __init__(self, config: RedactionConfig, *, allow: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """`allow` lists, by tenant, what is not redacted; `*` is for all tenants."""
        self._config, self._allow = config, dict(allow or {})
        self._redactors: dict[str, Redactor] = {}
        self._is_clean_list = lru_cache(LISTS)(self._search_list)

    def __call__(self, event: Event) -> bytes:
        """Encode and redact an event made in this process."""
        return self.clean(encode(event), subject=subject_of(event))[1]

    def clean_all(self, trajectories: Sequence[Trajectory]) -> list[bytes | EtudeError]:
        """What `__call__` gives for each, or the EtudeError that it raises. Their ids are made by this process.

        They are searched as one text, which is quicker; each by itself only if something is found. Lists of eligible
        options recur: each is searched once.
        """
        with suppress(EtudeError, TypeError, ValueError, RecursionError):  # of one of them
            by_tenant: dict[str | None, list[Any]] = {}
            bodies = list[bytes | EtudeError]()
            for one in trajectories:
                to_search, body = self._prepared(one)
                by_tenant.setdefault(one.tenant, []).append(to_search)
                bodies.append(body)
            if all(self._redactor(tenant).session().value(those) is those for tenant, those in by_tenant.items()):
                return bodies
        return [self._caught(one) for one in trajectories]

    def _prepared(self, trajectory: Trajectory) -> tuple[Any, bytes]:
        """What is to be searched of a trajectory, and its bytes if nothing is found."""
        if trajectory.redacted is not None:
            raise EventError("it holds redacted values already")
        short, whole = [], []
        for one in trajectory.decisions:
            listed = msgspec.json.encode(one.eligible)
            is_known = len(listed) <= MAX_LIST and self._is_clean_list(trajectory.tenant, listed)
            short.append(msgspec.structs.replace(one, eligible=None) if is_known else one)
            whole.append(msgspec.structs.replace(one, eligible=msgspec.Raw(listed)))
        raw = msgspec.to_builtins(msgspec.structs.replace(trajectory, decisions=tuple(short)))
        to_event(raw, subject=subject_of(trajectory))  # as others will read it
        body = encode(msgspec.structs.replace(trajectory, decisions=tuple(whole)))
        if len(body) > MAX_BYTES:
            raise EventError("too large")
        return {name: value for name, value in raw.items() if name not in NOT_SEARCHED}, body

    def _search_list(self, tenant: str | None, listed: bytes) -> bool:
        """Whether nothing in a list of eligible options is to be redacted."""
        value = {"decisions": [{"eligible": msgspec.json.decode(listed)}]}
        return self._redactor(tenant).session().value(value) is value

    def _caught(self, trajectory: Trajectory) -> bytes | EtudeError:
        try:
            return self(trajectory)
        except EtudeError as error:
            return error

    def clean(self, body: bytes, *, subject: str | None = None) -> tuple[Event, bytes]:
        """Decode an event from bytes; return it with the redacted bytes to store. EventError if it is not an event."""
        try:
            return self._clean(body, subject)
        except RecursionError as error:  # JSON that can just be parsed may be too deep to be redacted
            raise EventError("nested too deeply to be redacted: flatten it, or leave that part out") from error

    def _clean(self, body: bytes, subject: str | None) -> tuple[Event, bytes]:
        raw: dict[str, Any] = read_json(body)
        event = to_event(raw, subject=subject)
        typed = ("type", *event.__struct_fields__)  # only these were checked
        for name in IDS:
            if name in typed:
                check_id(name, raw.get(name) or "")
        session = self._redactor(getattr(event, "tenant", None)).session()
        own_rule = {name for name in (*KEPT, "user", "redacted") if name in typed}
        free = {name: value for name, value in raw.items() if name not in own_rule}
        redacted = session.value(free)
        user = getattr(event, "user", None)
        known = user if user is None or session.text(user) == user else pseudonym(user)
        before = event.redacted or {} if isinstance(event, Trajectory) else {}
        counts = {kind: count for kind, count in before.items() if session.text(kind) == kind}
        # A store keeps no subject next to an event, so the type is in its bytes. They are written again even if nothing
        # was redacted: a key that occurs twice hides its first value from every reader.
        if redacted is free and known is user and counts == before:
            return event, msgspec.json.encode({"type": subject_of(event)} | raw)
        made = {"type": subject_of(event)} | {name: raw[name] for name in KEPT if name in own_rule and name in raw}
        made |= redacted | ({} if user is None else {"user": known})
        if isinstance(event, Trajectory):
            made["redacted"] = Counter(counts) + _counts(session)
        return to_event(made, subject=subject), msgspec.json.encode(made)

    def unknown(self, body: bytes) -> bytes:
        """Redact bytes that are not an event: value by value if they are JSON, else as text."""
        session = self._redactor(None).session()
        with suppress(EventError, DataError, RecursionError):
            return msgspec.json.encode(session.value(read_json(body)))
        return session.text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def text(self, text: str) -> str:
        """Redact a text outside of an event."""
        return self._redactor(None).session().text(text)

    def value(self, value: Any) -> Any:
        """Redact a JSON-like value outside of an event."""
        return self._redactor(None).session().value(value)

    def _redactor(self, tenant: str | None) -> Redactor:
        key = tenant if tenant in self._allow else None
        name = key or "*"
        if name not in self._redactors:
            allow = (*self._config.allow, *self._allow.get("*", ()), *(self._allow[key] if key else ()))
            self._redactors[name] = Redactor(replace(self._config, allow=allow))
        return self._redactors[name]


def make_cleaner(config: ExperienceConfig) -> Cleaner:
    unknown = set(config.keep_kinds) - set(KINDS)
    if unknown:
        raise ConfigError(f"experience.keep_kinds holds {min(unknown)!r}: expected some of {', '.join(sorted(KINDS))}")
    kinds = tuple(kind for kind in KINDS if kind not in config.keep_kinds)
    return Cleaner(RedactionConfig(kinds=kinds), allow=config.allow)


def pseudonym(user: str) -> str:
    """The pseudonym of a user whose name is personal data: the same in every process."""
    return f"user-{blake2b(user.encode('utf-8', 'surrogatepass'), digest_size=12).hexdigest()}"


def check_id(name: str, value: str) -> None:
    """EventError for an id that looks like personal data or a secret, since ids are stored and shown unredacted, and
    for one that no path can hold."""
    if value.endswith("\n"):  # the pattern of the schema accepts it
        raise EventError(f"{name} ends with a line break: leave it out")
    if "@" in value:
        raise EventError(f"{name} holds an '@': give it an id that means nothing elsewhere")
    if next(find_tokens(View(value)), None) is not None:
        raise EventError(f"{name} looks like a key or token: give it an id that means nothing elsewhere")


def _counts(session: Session) -> Counter[str]:
    counts: Counter[str] = Counter()
    for removed in session.removed:
        counts[removed.kind] += removed.count
    return counts
