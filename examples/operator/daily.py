"""The daily round of an operator: reads how training, releases and serving stand, and writes what people should know.

ETUDE_URL and ETUDE_API_KEY name the server and a key with the role `release`. It changes nothing and never approves:
what needs a person is at the top of its report. It ends with 1 if there is something for a person, else with 0.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

DAY = timedelta(days=1)


def get(path: str, **query: str) -> Any:
    """The answer of a route; what a refusal says becomes the error."""
    url = os.environ["ETUDE_URL"].rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
    request = Request(url, headers={"Authorization": f"Bearer {os.environ['ETUDE_API_KEY']}"})
    try:
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)
    except HTTPError as error:
        raise SystemExit(f"GET {path}: {error.code} {json.load(error).get('detail', '')}") from None
    except URLError as error:
        raise SystemExit(f"GET {path}: the server does not answer ({error.reason}): see “Down” in ROLE.md") from None


def rows(path: str, **query: str) -> Iterator[Any]:
    """All rows of a list, page by page."""
    cursor = ""
    while cursor is not None:
        page = get(path, **query, **({"cursor": cursor} if cursor else {}))
        yield from page["rows"]
        cursor = page["next"]


def is_new(time: str | None, now: datetime) -> bool:
    return time is not None and datetime.fromisoformat(time) > now - DAY


def for_people(now: datetime) -> Iterator[str]:
    """What the operator must not decide."""
    for notice in rows("/v1/notices"):
        is_urgent = notice["kind"] in ("rollback", "failure", "alarm")
        if is_urgent and not notice.get("acknowledged_by"):
            yield f"**{notice['kind']}** of `{notice['slot']}`: {notice['text']} (notice `{notice['id']}`)"
    for slot in rows("/v1/canary"):
        evidence = slot.get("evidence")
        if evidence and "waits for an approval" in evidence["reason"]:
            version = slot["serving"]["exposure"]["candidate"]
            yield f"**approval** of `{version}` for `{slot['slot']}`: {evidence['reason']}. Approve it, or abort it"
    for policy in rows("/v1/policies", status="refused"):
        if is_new(policy["since"], now):
            yield f"**refused** by a gate: `{policy['version']}` of `{policy['slot']}`: {policy['reason']}"
    last = [job["state"] for job in rows("/v1/jobs") if job["state"] in ("completed", "failed")][:3]
    if last == ["failed"] * 3:
        yield "**three trainings in a row failed**: see “Training failures” in ROLE.md"


def summary(now: datetime) -> Iterator[str]:
    """What happened since yesterday."""
    stats = get("/stats")
    bad = sum(count for status, count in stats["requests"].items() if status >= "500")
    yield f"{stats['trajectories']:,} tasks are stored, with {stats['decisions']:,} decisions"
    if stats["mean_reward"] is not None:
        yield f"the mean reward is {stats['mean_reward']:.3f}"
    yield f"{sum(stats['requests'].values()):,} requests since the server started, {bad:,} of them failed"
    jobs = [job for job in rows("/v1/jobs") if is_new(job["created"], now)]
    ended = sum(job["state"] == "completed" for job in jobs)
    yield f"{len(jobs)} trainings were queued since yesterday, {ended} of them are completed"
    for slot in rows("/v1/canary"):
        evidence, incumbent = slot.get("evidence"), slot["serving"].get("incumbent") or "no policy"
        stands = f"; a candidate is exposed: {evidence['verdict']}, {evidence['reason']}" if evidence else ""
        yield f"`{slot['slot']}` is served by `{incumbent}`{stands}"


def report(now: datetime) -> tuple[str, bool]:
    """The report in Markdown, and whether there is something for a person."""
    needed = list(for_people(now))
    lines = [f"# Etude, {now:%d %B %Y}", "", "## For a person", ""]
    lines += [f"- {line}" for line in needed] or ["- nothing"]
    lines += ["", "## Since yesterday", "", *(f"- {line}" for line in summary(now))]
    return "\n".join(lines), bool(needed)


if __name__ == "__main__":
    text, has_more = report(datetime.now(UTC))
    print(text)
    sys.exit(int(has_more))
