"""While requests arrive, policies are promoted and rolled back by another process's means: no request fails."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import etude
from etude.adapters.objects import open_blobs
from etude.bootstrap.experience import experience
from etude.bootstrap.release import open_registry
from etude.contracts.query import Where
from etude.contracts.release import Action
from etude.experience.datasets import DatasetConfig, create
from etude.learning.run_folder import find_policy
from tests.unit.serving.server import serving

SLOT = "choice:model"
OPTIONS = ["small", "large"]
ASKED: dict[str, Any] = {"problem": SLOT, "context": {"kind": "a", "size": 3}, "options": OPTIONS}


def learn(folder: Path, best: str) -> str:
    """A version that prefers one option, ready to be promoted."""
    rng = random.Random(0)
    for i in range(120):
        with etude.task("x") as task:
            option = rng.choice(OPTIONS)
            context = {"kind": rng.choice("ab"), "size": i}  # datasets are split by context
            task.decided(SLOT, option, options=OPTIONS, propensity=0.5, policy="uniform", context=context)
            task.outcome(success=option == best)
    where = Where(problem=SLOT)
    with experience() as opened:
        blobs, now = open_blobs(folder / f"data-{best}"), datetime.now(UTC)
        create(opened.store, blobs, problem=SLOT, where=where, version=1, config=DatasetConfig(), time=now)
    run = etude.train("choice", out=folder / f"run-{best}", dataset=folder / f"data-{best}")
    registry = open_registry()
    version = registry.register(find_policy(Path(run.folder.path)), SLOT, actor="test")
    registry.record(SLOT, Action.GATES_PASSED, version, actor="test")
    registry.approve(SLOT, version, by="test")
    return version


def test_promotions_and_rollbacks_fail_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    versions = [learn(tmp_path, best) for best in OPTIONS]
    registry = open_registry()
    registry.promote_directly(SLOT, versions[0], by="test", reason="first")
    with serving(tmp_path) as served:
        clients = [served.client() for _ in range(4)]
        served.server.collector.deciders.wait(SLOT)
        statuses, seen, stop = Counter[int](), Counter[str](), threading.Event()

        def ask(client: Any) -> None:
            while not stop.is_set():
                answer = client.post("/v1/decisions", json=ASKED)
                statuses[answer.status_code] += 1
                seen[answer.json().get("policy", answer.text) + answer.json().get("fallback", "")] += 1

        def until(version: str) -> None:
            before = seen[version]
            for _ in range(4000):
                if seen[version] > before:
                    return
                stop.wait(0.005)
            raise AssertionError(f"{version} never decided: {seen}")

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask, client) for client in clients]
            try:
                until(versions[0])
                for version in (versions[1], versions[0], versions[1]):
                    registry.promote_directly(SLOT, version, by="test", reason="better")
                    until(version)
                registry.roll_back(SLOT, by="test", reason="not better")
                until(versions[0])
            finally:
                stop.set()
            for one in asking:
                one.result()
        assert set(statuses) == {200}
        assert set(seen) == set(versions)  # and nothing stood in for them
        assert served.server.state.count() == sum(statuses.values())
