"""Events are stored by a process of its own, which is started again when it ends, and says what goes wrong."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest

from etude.bootstrap.experience import experience
from etude.bootstrap.ingesting import IngestProcess
from etude.contracts.bus import message_of
from etude.contracts.errors import StoreError
from etude.contracts.query import Where
from etude.contracts.trajectory import Outcome, Trajectory


def published(*names: str) -> None:
    with experience(catch_up=False) as opened:
        for name in names:
            made = Trajectory(
                id=name, time=datetime.now(UTC), task=name, problem="task", outcome=Outcome(ended="done", success=True)
            )
            opened.bus.publish([message_of(made)])


def stored() -> int:
    with experience(catch_up=False) as opened:
        return opened.store.stats(Where(), version=1).trajectories


def test_what_was_published_is_stored_once_per_call_and_again_after_the_process_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with IngestProcess() as ingest:
        published("one", "two")
        assert ingest() == 2
        assert (ingest(), stored()) == (0, 2)
        assert ingest._child is not None
        child = ingest._child.pid
        assert child != os.getpid()
        os.kill(child, signal.SIGKILL)
        published("three")
        with pytest.raises(StoreError, match="status -9: it is started again"):
            ingest()
        assert (ingest(), stored()) == (1, 3)
        last = ingest._child
    assert last.returncode == 0  # it ended by itself, when its input did


def test_it_says_why_the_store_cannot_be_opened_and_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    published("one")
    (tmp_path / ".etude" / "experience.sqlite").rename(tmp_path / "kept")
    (tmp_path / ".etude" / "experience.sqlite").write_bytes(b"no database" * 1000)
    with IngestProcess() as ingest:
        with pytest.raises(StoreError, match="no SQLite database: choose another path"):
            ingest()
        (tmp_path / "kept").rename(tmp_path / ".etude" / "experience.sqlite")
        assert (ingest(), stored()) == (1, 1)
