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
    subprocess.run([sys.executable, "-c", HEAD + code], check=True, cwd=tmp_path, timeout=60)
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
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)
    store = SqliteStore(tmp_path / "store.sqlite")
    kept = [row.summary.id for row in store.scan(Where(), version=1)]
    store.close()
    assert len(kept) == len(set(kept)) == 1 + 160 + 60


def test_opening_a_file_again_releases_no_lock_so_that_other_processes_leave_its_log_alone(tmp_path: Path) -> None:
    """A process that closes its connection removes the write-ahead log if it believes to be the last one."""
    path = tmp_path / "experience.sqlite"
    one = SqliteStore(path)
    one.put("kind", "a", b"1")
    other = SqliteStore(path)
    code = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('SELECT 1 FROM documents'); db.close()"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    one.put("kind", "b", b"2")
    third = SqliteStore(path)
    assert third.documents("kind") == {"a": b"1", "b": b"2"}
    for store in (one, other, third):
        store.close()
