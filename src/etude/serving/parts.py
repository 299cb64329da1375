"""The parts of a task that is open, put together as one trajectory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from etude.contracts.trajectory import Outcome, SuccessBy, Trajectory

AUTHORITY: tuple[SuccessBy | None, ...] = (None, "self", "judge", "verifier", "person")
"""Who is believed, the last one most, where two say whether a task succeeded."""


def put_together(bodies: Sequence[bytes], reported: Mapping[str, Any], now: datetime) -> Trajectory:
    """All decisions and turns; of outcomes what is reported, then what the parts say, the later ones winning."""
    parts = [msgspec.json.decode(body, type=Trajectory) for body in bodies]
    first, known = parts[0], dict[str, Any]()
    for part in parts:
        known = _with(known, part.outcome)
    if "latency_ms" not in {*known, *reported} and reported:
        known["latency_ms"] = (now - first.time) / timedelta(milliseconds=1)
    if "success" in reported:  # by the one who has the task, whose word counts most
        known.pop("success_by", None)
    quality = {**known.pop("quality", {}), **reported.get("quality", {})}
    known |= reported
    ended: Literal["failed", "done"] = "failed" if known.get("success") is False else "done"
    redacted = sum((Counter(part.redacted or {}) for part in parts), Counter[str]())
    metadata = {name: value for part in parts for name, value in (part.metadata or {}).items()}
    return msgspec.structs.replace(
        first,
        decisions=tuple(decision for part in parts for decision in part.decisions),
        turns=tuple(turn for part in parts for turn in part.turns),
        outcome=Outcome(**({"ended": ended} | known | {"quality": quality or None})),
        redacted=dict(redacted) or None,
        metadata=metadata or None,
    )


def _with(known: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    given = {name: value for name, value in msgspec.structs.asdict(outcome).items() if value is not None}
    if given["ended"] == "done":
        del given["ended"]
    if "success" in given and AUTHORITY.index(given.get("success_by")) < AUTHORITY.index(known.get("success_by")):
        del given["success"]
        given.pop("success_by", None)
    quality = {**known.get("quality", {}), **given.get("quality", {})}
    return known | given | ({"quality": quality} if quality else {})
