"""Inference latency and memory: requests in, percentiles of decision times and the growth of memory out."""

from __future__ import annotations

import ctypes
import gc
import resource
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import msgspec
import numpy as np

from etude.contracts.decision import DecisionRequest
from etude.contracts.ports import Decider
from etude.evidence.overlap import Verdict
from etude.release.gates.asking import ask
from etude.release.gates.gate import GateContext, GateResult, PolicyFailedError, UndecidedError, load, requests_of

WARM = 0.1
"""Share of the calls that come first and are not counted: they load what the others find loaded."""
WINDOWS = 3
"""Times that growth is measured; the least counts, because a leak is in all of them and a cache fills once."""
MB = 1_000_000
COPIES = 2
"""Times that the policy is loaded to measure its memory; the most counts, because what other code of this process frees
meanwhile is missing from one of them."""
SMAPS = Path("/proc/self/smaps_rollup")


def latency(context: GateContext) -> GateResult:
    """The 99th percentile of the time of a decision, one after the other on this machine."""
    config, decider = context.config, load(context.candidate)
    requests = requests_of(context)
    limit = min(config.latency_p99_ms, config.latency_p99_ms_by_problem.get(context.spec.name, config.latency_p99_ms))
    times, interrupted = _times(decider, requests, config.latency_calls)
    p50, p99 = float(np.percentile(times, 50)), float(np.percentile(times, 99))
    evidence = {"calls": len(times), "p50_ms": p50, "p99_ms": p99, "max_ms": float(times.max()), "limit_ms": limit}
    if context.incumbent is not None:
        before, _ = _times(load(context.incumbent), requests, config.latency_calls)
        evidence["incumbent_p99_ms"] = float(np.percentile(before, 99))
    found = f"99 % of {len(times)} decisions took at most {p99:.3g} ms, half of them {p50:.3g} ms"
    own = times[~interrupted]
    if p99 > limit and 2 * len(own) >= len(times) and np.percentile(own, 99) <= limit:
        raise UndecidedError(
            f"{found}, above {limit:g} ms, but only where other work took the processor: this machine is too busy.",
            evidence | {"interrupted": int(interrupted.sum())},
        )
    if p99 <= limit:
        verdict, reason = Verdict.PASS, f"{found}; the limit is {limit:g} ms."
    else:
        verdict = Verdict.FAIL
        reason = f"{found}; the limit is {limit:g} ms: use a smaller network or encoder, or a faster machine."
    return GateResult(name="latency", verdict=verdict, value=p99, bound=limit, reason=reason, evidence=evidence)


def _times(decider: Decider, requests: Sequence[DecisionRequest], calls: int) -> tuple[np.ndarray, np.ndarray]:
    """(calls,) milliseconds, and whether the system gave the processor to other work meanwhile; without the first."""
    found, interrupted = [], []
    for request in islice(cycle(requests), calls + int(WARM * calls)):
        began, switches = time.perf_counter(), _switches()
        answer = ask(decider, request)
        found.append(1000 * (time.perf_counter() - began))
        interrupted.append(_switches() > switches)
        if answer.error:
            raise PolicyFailedError(f"The policy raised {answer.error}.")
    return np.array(found[-calls:]), np.array(interrupted[-calls:])


def _switches() -> int:
    """How often this thread lost the processor without asking for it; 0 where the system does not say."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw


def memory(context: GateContext) -> GateResult:
    """The memory that loading and deciding take, and how much it grows per decision."""
    config, requests = context.config, requests_of(context)
    with _traced():
        used, decider = _used_mb(context, requests[:50])
        growth = _growth(decider, requests[:50], config.latency_calls)
    evidence = {
        "used_mb": round(used, 1),
        "limit_mb": config.memory_mb,
        "bytes_per_decision": round(growth, 1),
        "limit_bytes_per_decision": config.leak_bytes,
    }
    if growth > config.leak_bytes:
        return GateResult(
            name="memory",
            verdict=Verdict.FAIL,
            value=growth,
            bound=config.leak_bytes,
            reason=f"Every decision leaves {growth:,.0f} bytes behind, more than {config.leak_bytes:,.0f}: the policy "
            "keeps what it was asked; correct it.",
            evidence=evidence,
        )
    is_small = used <= config.memory_mb
    advice = "." if is_small else ": use a smaller network or encoder."
    return GateResult(
        name="memory",
        verdict=Verdict.PASS if is_small else Verdict.FAIL,
        value=used,
        bound=config.memory_mb,
        reason=f"Loading and deciding took {used:,.0f} MB, with a limit of {config.memory_mb:,.0f} MB{advice}",
        evidence=evidence,
    )


@contextmanager
def _traced() -> Iterator[None]:
    """Python and NumPy count what they allocate meanwhile."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        yield
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _used_mb(context: GateContext, requests: Sequence[DecisionRequest]) -> tuple[float, Decider]:
    """Memory that a copy of the policy takes, in MB, and the last copy.

    Each copy is measured twice. The system sees everything that was allocated, but not what took the place of something
    else; Python sees its own objects and NumPy's alone, wherever they are.
    """
    copies, used = [], 0.0
    for _ in range(COPIES):
        _give_back()
        private, traced = _private_mb(), tracemalloc.get_traced_memory()[0]
        copies.append(load(context.candidate))
        _times(copies[-1], requests, 100)
        gc.collect()
        used = max(used, _private_mb() - private, (tracemalloc.get_traced_memory()[0] - traced) / MB)
    return used, copies[-1]


def _give_back() -> None:
    """Return free memory to the system: what a policy takes of it would not be seen, and what is returned later would
    be subtracted."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def _private_mb() -> float:
    """Memory of this process in MB, without files, whose pages the system takes away as it likes, and without what the
    counting itself takes."""
    if not SMAPS.exists():
        raise UndecidedError(f"Memory is measured on Linux only, where {SMAPS} exists: run the gates there.")
    sizes = dict(line.split()[:2] for line in SMAPS.read_text().splitlines()[1:])
    return (int(sizes["Anonymous:"]) + int(sizes["Swap:"])) * 1024 / MB - tracemalloc.get_tracemalloc_memory() / MB


def _growth(decider: Decider, requests: Sequence[DecisionRequest], calls: int) -> float:
    """Bytes per decision that stay allocated by Python and NumPy: the same requests again and again, with new seeds."""
    sizes = []
    for window in range(WINDOWS + 1):
        for number, request in enumerate(islice(cycle(requests), calls)):
            ask(decider, msgspec.structs.replace(request, seed=window * calls + number))
        gc.collect()
        sizes.append(tracemalloc.get_traced_memory()[0])
    return float(np.diff(sizes).min()) / calls
