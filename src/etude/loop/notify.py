"""Notifies people by webhooks of promotions, rollbacks and failures: at least once, and again if no one acknowledges.

A notice is stored before what caused it is settled, and a delivery is recorded after it was answered: whatever is
killed in between, the notice is posted again, with the same id.
"""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from etude.contracts.errors import ConfigError, EndpointError, JobError
from etude.contracts.jobs import Change, Job, JobState
from etude.contracts.release import Action, Entry
from etude.contracts.store import ExperienceStore
from etude.contracts.trajectory import Id, Time
from etude.loop.config import WebhookConfig

DOCUMENT = "notice"
"""The kind of document in which the store keeps notices."""
MAX_ESCALATIONS = 3
MIN_PAUSE, MAX_PAUSE = timedelta(seconds=5), timedelta(hours=1)
"""Pauses after failed deliveries; each is twice the previous one."""

Post = Callable[[str, bytes, str], None]
"""Function that posts JSON with an id to a URL; EndpointError if it was not accepted."""


class NoticeKind(StrEnum):
    PROMOTION = "promotion"
    ROLLBACK = "rollback"
    FAILURE = "failure"
    REFUSAL = "refusal"  # by a gate
    ALARM = "alarm"  # a canary is held, or rewards fell after a release


KINDS = {
    Action.PROMOTED: NoticeKind.PROMOTION,
    Action.ROLLED_BACK: NoticeKind.ROLLBACK,
    Action.HELD: NoticeKind.ALARM,
    Action.ALARMED: NoticeKind.ALARM,
}
"""Steps of releases that people are notified of."""
URGENT = frozenset({NoticeKind.ROLLBACK, NoticeKind.FAILURE, NoticeKind.ALARM})
"""Kinds that somebody has to acknowledge; the others are only reported."""


class Notice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that people should know."""

    id: Id
    kind: NoticeKind
    slot: str
    text: str
    time: Time
    job: str | None = None
    version: str | None = None
    delivered: tuple[str, ...] = ()
    """URLs that accepted it, since its last escalation."""
    failures: int = 0
    """Deliveries in a row that failed."""
    tried: Time | None = None
    """When a delivery last failed."""
    escalations: int = 0
    escalated: Time | None = None
    acknowledged_by: str | None = None
    acknowledged: Time | None = None


def notice_of_failure(change: Change, *, retries: int) -> Notice | None:
    """The notice of a job that failed for good; None if it is tried again."""
    job, error = change.job, change.job.error
    if job.state != JobState.FAILED or error is None or (error.retryable and job.failures <= retries):
        return None
    return Notice(
        id=f"{job.id}.{change.revision}",
        kind=NoticeKind.FAILURE,
        slot=job.slot,
        text=f"job {job.id} of {job.slot} failed after {_attempts(job)}: {error.message}",
        time=change.time,
        job=job.id,
    )


def _attempts(job: Job) -> str:
    return f"{job.failures} {'attempt' if job.failures == 1 else 'attempts'}"


def notice_of_refusal(job: Job, now: datetime) -> Notice:
    text = f"{job.slot}: the gates refused version {job.version}: `etude gates run {job.version}` shows why"
    return Notice(
        id=f"{job.id}.refused",
        kind=NoticeKind.REFUSAL,
        slot=job.slot,
        text=text,
        time=now,
        job=job.id,
        version=job.version,
    )


def notice_of_release(slot: str, entry: Entry) -> Notice | None:
    """The notice of a step that people should know; None for the others."""
    kind = KINDS.get(entry.action)
    if kind is None:
        return None
    done = "reported" if kind == NoticeKind.ALARM else entry.action.replace("_", " ")
    return Notice(
        id=f"{slot.partition(':')[0]}-{hashlib.sha256(slot.encode()).hexdigest()[:6]}.{entry.number}",
        kind=kind,
        slot=slot,
        text=f"{slot}: version {entry.version} was {done} by {entry.actor}"
        + (f": {entry.reason}" if entry.reason else ""),
        time=entry.time,
        version=entry.version,
    )


class Notices:
    """The notices of a store."""

    def __init__(self, store: ExperienceStore, config: WebhookConfig, *, post: Post | None = None) -> None:
        for url in (*config.urls, *config.escalate_urls):
            if not url.startswith(("https://", "http://")):
                raise ConfigError("loop.webhooks has a URL of another kind: expected https://… or http://…")
        self._store, self._config = store, config
        self._post = post or (lambda url, body, id: post_json(url, body, id, timeout_s=config.timeout_s))

    def all(self) -> list[Notice]:
        """By time."""
        found = [msgspec.json.decode(body, type=Notice) for body in self._store.documents(DOCUMENT).values()]
        return sorted(found, key=lambda notice: (notice.time, notice.id))

    def add(self, notices: Sequence[Notice]) -> None:
        """Store notices; those that are there stay as they are."""
        known = self._store.documents(DOCUMENT) if notices else {}
        for notice in notices:
            if notice.id not in known:
                self._put(notice)

    def acknowledge(self, id: str, *, by: str, now: datetime) -> Notice:
        """Record that somebody takes care of it. JobError if there is no such notice."""
        found = [notice for notice in self.all() if notice.id == id]
        if not found:
            raise JobError(f"notice {id!r}: there is no such notice: `etude loop notices` shows them")
        if found[0].acknowledged is not None:
            return found[0]
        done = replace(found[0], acknowledged_by=by, acknowledged=now)
        self._put(done)
        return done

    def deliver(self, now: datetime) -> list[str]:
        """Post what is due; returns what was delivered and what could not be, in sentences."""
        if not self._config.urls:
            return []
        return [line for notice in self.all() for line in self._deliver(notice, now)]

    def _deliver(self, notice: Notice, now: datetime) -> list[str]:
        if self._is_overdue(notice, now):
            notice = replace(
                notice, escalations=notice.escalations + 1, escalated=now, delivered=(), failures=0, tried=None
            )
            self._put(notice)
        targets = self._config.escalate_urls if notice.escalations else ()
        waiting = [url for url in targets or self._config.urls if url not in notice.delivered]
        if not waiting or notice.acknowledged is not None or not _may_try(notice, now):
            return []
        lines, failed = [], False
        for url in waiting:
            try:
                self._post(url, msgspec.json.encode(_body(notice)), f"{notice.id}.{notice.escalations}")
            except EndpointError as error:
                failed = True
                lines.append(f"notice {notice.id} was not delivered: {error}")
                continue
            notice = replace(notice, delivered=(*notice.delivered, url))
            self._put(notice)
            what = "escalated" if notice.escalations else "delivered"
            lines.append(f"notice {notice.id} {what}: {notice.text}")
        self._put(replace(notice, failures=notice.failures + 1 if failed else 0, tried=now if failed else None))
        return lines

    def _is_overdue(self, notice: Notice, now: datetime) -> bool:
        if notice.kind not in URGENT or notice.acknowledged is not None or notice.escalations >= MAX_ESCALATIONS:
            return False
        since = notice.escalated or notice.time
        return bool(notice.delivered) and now - since >= timedelta(minutes=self._config.escalate_after_minutes)

    def _put(self, notice: Notice) -> None:
        self._store.put(DOCUMENT, notice.id, msgspec.json.encode(notice))


def _may_try(notice: Notice, now: datetime) -> bool:
    """Whether the pause after the last failure is over; a failure in the future is of a clock that was wrong."""
    if notice.tried is None or notice.tried > now + MAX_PAUSE:
        return True
    pause: timedelta = MIN_PAUSE * 2 ** min(notice.failures - 1, 16)
    return now - notice.tried >= min(MAX_PAUSE, pause)


def _body(notice: Notice) -> dict[str, object]:
    names = ("id", "kind", "slot", "text", "time", "job", "version", "escalations")
    asks = f"etude loop ack {notice.id}" if notice.kind in URGENT else None
    return {name: getattr(notice, name) for name in names} | {"acknowledge": asks}


def post_json(url: str, body: bytes, id: str, *, timeout_s: float) -> None:
    """Post JSON; EndpointError if no one answers, or not with 2xx. A receiver drops repeats by Idempotency-Key."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": id}
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        error.close()
        raise EndpointError(f"the webhook at {_host(url)} answered {error.code}") from error
    except (OSError, ValueError) as error:
        raise EndpointError(f"the webhook at {_host(url)} does not answer ({error})") from error


def _host(url: str) -> str:
    """The host of a webhook; the rest of its URL is often a secret."""
    return urlsplit(url).hostname or "an unknown host"
