"""How much a slot explored in the last days: stored trajectories in, numbers and named warnings out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from etude.contracts.decision import LoggedDecision
from etude.contracts.option import option_name
from etude.contracts.query import Where
from etude.contracts.store import ExperienceStore
from etude.evidence.exploration import Exploration, ExplorationThresholds, TakenOption, check_exploration

DAYS = 8.0
"""Days that are read: a day more than an option may be untried."""


class _Decisions(msgspec.Struct):
    """What is read of a trajectory; the rest is skipped."""

    decisions: tuple[LoggedDecision, ...] = ()


def explored(store: ExperienceStore, slot: str, *, until: datetime, version: int) -> Exploration:
    """The exploration of a slot in the days before `until`; one trajectory at a time is in memory."""
    where = Where(problem=slot, since=until - timedelta(days=DAYS), until=until)
    return check_exploration(_taken(store, where, version), ExplorationThresholds())


def _taken(store: ExperienceStore, where: Where, version: int) -> Iterator[TakenOption]:
    """Decisions of a policy that list what could be chosen."""
    decoder = msgspec.json.Decoder(_Decisions)
    for row in store.scan(where, version=version):
        for one in decoder.decode(row.body).decisions:
            if one.problem == where.problem and one.propensity is not None and isinstance(one.eligible, list):
                names = [option_name(option) for option in one.eligible]
                yield TakenOption(row.summary.time, option_name(one.action), names, one.propensity)
