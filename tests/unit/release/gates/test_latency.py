"""Latency and memory: slow, leaking and oversized policies fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from etude.contracts.decision import Decision, DecisionRequest
from etude.evidence.overlap import Verdict
from etude.learning.artefact import Artefact
from etude.learning.gate import GateConfig
from etude.release.gates import latency as latency_module
from etude.release.gates.gate import run_gate
from etude.release.gates.latency import latency, memory
from tests.unit.release.gates.policies import Crashes, Fills, Good, Leaks, Slow, make_contender, make_context

CONFIG = GateConfig(latency_calls=100, latency_p99_ms=2000.0, latency_p99_ms_by_problem={})


def test_a_quick_policy_passes_and_the_incumbent_is_measured_too(artefact: Artefact) -> None:
    context = make_context(artefact, config=CONFIG, incumbent=make_contender(artefact))
    found = run_gate("latency", latency, context)
    assert found.verdict is Verdict.PASS, found.reason
    assert 0 < found.evidence["p50_ms"] <= found.evidence["p99_ms"] <= found.evidence["max_ms"]
    assert found.evidence["incumbent_p99_ms"] > 0


def test_a_slow_policy_fails(artefact: Artefact) -> None:
    config = GateConfig(latency_calls=100, latency_p99_ms=2.9, latency_p99_ms_by_problem={})
    found = run_gate("latency", latency, make_context(artefact, Slow, config=config))
    assert found.verdict is Verdict.FAIL
    assert found.value is not None
    assert found.value > 3


class SlowNowAndThen(Good):
    """Every 20th decision takes longer, as where other work has the processor."""

    calls = interruptions = 0

    def decide(self, request: DecisionRequest) -> Decision:
        self.calls += 1
        if self.calls % 20 == 0:
            SlowNowAndThen.interruptions += 1
            time.sleep(0.2)
        return super().decide(request)


def test_a_busy_machine_cannot_tell(artefact: Artefact, monkeypatch: pytest.MonkeyPatch) -> None:
    config = GateConfig(latency_calls=100, latency_p99_ms=150.0, latency_p99_ms_by_problem={})
    context = make_context(artefact, SlowNowAndThen, config=config)
    assert run_gate("latency", latency, context).verdict is Verdict.FAIL, "it is slow by itself"
    monkeypatch.setattr(latency_module, "_switches", lambda: SlowNowAndThen.interruptions)
    found = run_gate("latency", latency, context)
    assert found.verdict is Verdict.CANNOT_TELL
    assert "too busy" in found.reason


def test_the_smaller_limit_of_the_problem_holds(artefact: Artefact) -> None:
    config = GateConfig(latency_calls=100, latency_p99_ms_by_problem={"choice": 2.9})
    assert run_gate("latency", latency, make_context(artefact, Slow, config=config)).bound == 2.9
    wider = GateConfig(latency_calls=100, latency_p99_ms_by_problem={"choice": 9_999.0})
    assert run_gate("latency", latency, make_context(artefact, Good, config=wider)).bound == 500.0


def test_a_policy_that_raises_fails(artefact: Artefact) -> None:
    from etude.contracts.decision import DecisionRequest

    context = make_context(artefact, Crashes, requests=[DecisionRequest(context="\ud800", options=("a",))])
    assert run_gate("latency", latency, context).verdict is Verdict.FAIL


def test_a_policy_of_constant_size_passes(artefact: Artefact) -> None:
    found = run_gate("memory", memory, make_context(artefact, config=CONFIG))
    assert found.verdict is Verdict.PASS, found.reason
    assert found.evidence["bytes_per_decision"] < 200


def test_a_policy_that_leaks_fails(artefact: Artefact) -> None:
    found = run_gate("memory", memory, make_context(artefact, Leaks, config=CONFIG))
    assert found.verdict is Verdict.FAIL
    assert found.value is not None
    assert 3_500 <= found.value < 6_000
    assert "leaves" in found.reason


class FillsTensors(Good):
    """Keeps 40 MB that torch allocates, which Python does not count."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.kept: Any = [torch.ones(25_000) for _ in range(400)]


class FillsObjects(Good):
    """Keeps 40 MB of small objects, which Python puts where others were."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.kept: Any = [bytes(447) for _ in range(83_000)]


def too_large(artefact: Artefact, kind: Callable[[str], Good], size_mb: float = 40) -> None:
    config = GateConfig(latency_calls=20, memory_mb=30.0)
    found = run_gate("memory", memory, make_context(artefact, kind, config=config))
    assert found.verdict is Verdict.FAIL, found.reason
    assert found.value is not None
    assert size_mb - 2 < found.value < size_mb + 20


def test_a_policy_that_is_too_large_fails(artefact: Artefact) -> None:
    too_large(artefact, Fills, 96)


def freed_in_pieces(make: Callable[[], Any], pieces: int) -> list[Any]:
    """One in a thousand of them, between which the process has memory that it does not use."""
    made = [make() for _ in range(pieces)]
    return made[::1000]


def test_memory_that_the_process_has_freed_does_not_hide_the_policy(artefact: Artefact) -> None:
    kept = [
        freed_in_pieces(lambda: bytes(447), 160_000),
        freed_in_pieces(lambda: torch.ones(25_000), 800),
        freed_in_pieces(lambda: np.ones(12_500), 800),
    ]
    too_large(artefact, FillsObjects)
    too_large(artefact, FillsTensors)
    assert all(kept)


def test_memory_that_goes_while_the_policy_loads_does_not_hide_it(artefact: Artefact, tmp_path: Path) -> None:
    """The system takes pages of files away whenever it likes, and another thread has freed what it had."""
    with (tmp_path / "library").open("wb") as file:
        file.truncate(60_000_000)
    with (tmp_path / "library").open("rb") as file:
        libraries = [mmap(file.fileno(), 0, access=ACCESS_READ) for _ in range(2)]
    others = [torch.ones(15_000_000)]
    assert all(library[::4096] for library in libraries)  # now they are in memory

    def load(version: str) -> Good:
        libraries.pop().close()
        made = FillsTensors(version)
        others.clear()
        return made

    too_large(artefact, load)
    assert libraries == []
