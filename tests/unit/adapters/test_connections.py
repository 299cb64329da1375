"""Processes that fork while they collect: nothing acknowledged is lost, no file is damaged, no child waits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from etude.adapters.outbox import Outbox
from etude.adapters.sqlite import SqliteStore
from etude.contracts.query import Where
from etude.contracts.subjects import TRAJECTORIES

HEAD = """
import os, sys, threading, time
from pathlib import Path
from etude.adapters.outbox import Outbox
from etude.adapters.sqlite import SqliteStore
from etude.contracts.query import Where
from etude.contracts.bus import Message
outbox = Outbox(Path("outbox.sqlite"))
def send(name, count):
    for i in range(count):
        outbox.publish([Message(id=f"{name}-{i}", subject="agent.rl.trajectory.v1", body=b"{}")])
send("first", 1)
"""
PARENT_ENDS_FIRST = """
if os.fork() == 0:
    time.sleep(0.2)
    send("child", 40)
    os._exit(0)
outbox.close()
Outbox(Path("outbox.sqlite")).close()
os.wait()
"""
BUSY_THREADS = """
threads = [threading.Thread(target=send, args=(f"thread{k}", 40)) for k in range(4)]
for thread in threads: thread.start()
children = []
for c in range(6):
    time.sleep(0.01)
    pid = os.fork()
    if pid == 0:
        send(f"child{c}", 10)
        os._exit(0)
    children.append(pid)
for pid in children: os.waitpid(pid, 0)
for thread in threads: thread.join()
"""


@pytest.mark.parametrize(("code", "sent"), [(PARENT_ENDS_FIRST, 41), (BUSY_THREADS, 1 + 160 + 60)])
def test_whoever_forks_may_go_on_on_both_sides(code: str, sent: int, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HEAD + code], check=True, cwd=tmp_path, timeout=240)
    outbox = Outbox(tmp_path / "outbox.sqlite")
    given: list[str] = []
    while batch := outbox.pull(TRAJECTORIES, "g", limit=200, timeout_s=0):
        given += [delivery.message.id for delivery in batch]
        outbox.ack(batch)
    outbox.close()
    assert len(given) == len(set(given)) == sent, json.dumps(given)[:500]


STORE = """
import os, threading, time
from datetime import UTC, datetime
from pathlib import Path
from etude.adapters.sqlite import SqliteStore
from etude.contracts.subjects import encode
from etude.contracts.trajectory import Trajectory
store = SqliteStore(Path("store.sqlite"))
def keep(name, count):
    for i in range(count):
        event = Trajectory(id=f"{name}-{i}", time=datetime.now(UTC), task="x", problem="workflow")
        store.append([(event, encode(event))])
keep("first", 1)
"""


def test_the_store_may_be_forked_amid_writing(tmp_path: Path) -> None:
    code = STORE + BUSY_THREADS.replace("send", "keep")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=240)
    store = SqliteStore(tmp_path / "store.sqlite")
    kept = [row.summary.id for row in store.scan(Where(), version=1)]
    store.close()
    assert len(kept) == len(set(kept)) == 1 + 160 + 60


def test_a_second_store_of_the_process_keeps_the_log_of_the_first(tmp_path: Path) -> None:
    """Another process that was the last to close the file would remove its write-ahead log."""
    path = tmp_path / "experience.sqlite"
    store = SqliteStore(path)
    store.put("kind", "before", b"1")
    second = SqliteStore(path)  # opens no file that SQLite has locked
    second.documents("kind")
    program = f"import pathlib; from etude.adapters.sqlite import SqliteStore as S; s = S(pathlib.Path({str(path)!r}))"
    done = subprocess.run([sys.executable, "-c", f"{program}; s.documents('kind'); s.close()"], capture_output=True)
    assert done.returncode == 0, done.stderr
    assert Path(f"{path}-wal").exists()
    store.put("kind", "after", b"2")
    assert set(SqliteStore(path).documents("kind")) == {"before", "after"}
    store.close()
    second.close()
