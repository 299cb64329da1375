"""Metrics: the table of their names, what this process counts, and the text format that Prometheus reads.

Values of the installation (`installation.py`) come from what is stored: they are right after a restart, and the same in
every process. Counters of the process begin at 0 with it, and are added up over all processes. Labels hold routes,
names of problems and settings, and versions, never what a request contains.
"""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Literal, NamedTuple

from etude.contracts.store import REWARD_BOUNDS

Kind = Literal["counter", "gauge", "histogram"]
Whose = Literal["installation", "process"]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
COLLECTING = {"/v1/trajectories", "/v1/feedback", "/v1/traces", "/v1/logs"}
"""Routes that agents send experience to."""
CALLER_S = (400, 404, 405, 409, 413, 415, 422)
"""Statuses of requests that were wrong; missing keys and limits of rate say nothing about what was sent."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
JOB_SECONDS = (10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0)
PROPENSITIES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
MAX_SERIES = 500
"""Combinations of labels that one metric of the process may have; more count as `other`."""


class Metric(NamedTuple):
    """What a metric means."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    whose: Whose
    help: str
    bounds: tuple[float, ...] = ()
    """Of a histogram: upper bounds of its buckets."""


METRICS: tuple[Metric, ...] = (
    Metric("agent_rl_trajectories_collected_total", "counter", ("problem",), "installation", "Trajectories stored."),
    Metric(
        "agent_rl_trajectory_reward",
        "histogram",
        ("problem",),
        "installation",
        "First reward of each trajectory, under experience.reward_version.",
        REWARD_BOUNDS,
    ),
    Metric("agent_rl_feedback_total", "counter", ("problem",), "installation", "Ratings stored."),
    Metric(
        "agent_rl_training_jobs_total",
        "counter",
        ("slot", "state"),
        "installation",
        "Training jobs that ended: completed, failed or cancelled.",
    ),
    Metric("agent_rl_training_jobs", "gauge", ("slot", "state"), "installation", "Training jobs queued or running."),
    Metric(
        "agent_rl_training_duration_seconds",
        "histogram",
        (),
        "installation",
        "Time for which the processes of a completed job ran.",
        JOB_SECONDS,
    ),
    Metric(
        "agent_rl_training_failures_in_a_row",
        "gauge",
        ("slot",),
        "installation",
        "Jobs that failed for good since the last one that completed.",
    ),
    Metric("agent_rl_training_cost_usd_total", "counter", (), "installation", "Cost of all training jobs in USD."),
    Metric("agent_rl_training_cpu_seconds_total", "counter", (), "installation", "CPU time of all training jobs."),
    Metric("agent_rl_training_gpu_seconds_total", "counter", (), "installation", "GPU time of all training jobs."),
    Metric(
        "agent_rl_model_reward_mean",
        "gauge",
        ("slot", "version"),
        "installation",
        "Mean reward of trajectories since yesterday, 0:00 UTC, by policy.",
    ),
    Metric(
        "agent_rl_model_error_rate",
        "gauge",
        ("slot", "version"),
        "installation",
        "Share of trajectories with a known outcome that failed, since yesterday, 0:00 UTC, by policy.",
    ),
    Metric(
        "agent_rl_model_trajectories",
        "gauge",
        ("slot", "version"),
        "installation",
        "Trajectories since yesterday, 0:00 UTC, by policy.",
    ),
    Metric(
        "agent_rl_model_cost_usd_mean",
        "gauge",
        ("slot", "version"),
        "installation",
        "Mean cost of trajectories since yesterday, 0:00 UTC, by policy.",
    ),
    Metric(
        "agent_rl_model_traffic_share",
        "gauge",
        ("slot", "version", "role"),
        "installation",
        "Share of new units that each policy decides: incumbent, candidate or previous.",
    ),
    Metric(
        "agent_rl_release_stage",
        "gauge",
        ("slot", "mode", "status"),
        "installation",
        "Stage of the present release from 1; mode is shadow, canary, experiment or holdback.",
    ),
    Metric("agent_rl_model_promotions_total", "counter", ("slot",), "installation", "Promotions of a policy."),
    Metric("agent_rl_model_rollbacks_total", "counter", ("slot",), "installation", "Rollbacks of a policy."),
    Metric("agent_rl_model_alarms_total", "counter", ("slot",), "installation", "Falls of rewards after a release."),
    Metric(
        "agent_rl_model_last_rollback_timestamp_seconds",
        "gauge",
        ("slot",),
        "installation",
        "Time of the last rollback.",
    ),
    Metric(
        "agent_rl_gate_verdicts_total",
        "counter",
        ("slot", "verdict"),
        "installation",
        "Verdicts of the gates on a policy: passed, failed or undecided.",
    ),
    Metric(
        "agent_rl_gate_last_failure_timestamp_seconds",
        "gauge",
        ("slot",),
        "installation",
        "Time when gates last refused a policy.",
    ),
    Metric(
        "agent_rl_dead_letters_total",
        "counter",
        (),
        "installation",
        "Events that could not be processed and were kept.",
    ),
    Metric(
        "agent_rl_events_waiting", "gauge", ("place",), "installation", "Trajectory events not yet forwarded or stored."
    ),
    Metric(
        "agent_rl_bus_connected", "gauge", (), "installation", "1 if the event bus answers, as seen by this process."
    ),
    Metric("agent_rl_loop_running", "gauge", (), "installation", "1 if a process runs the loop."),
    Metric(
        "etude_store_up", "gauge", (), "installation", "1 if the stores answered this scrape; 0 repeats old values."
    ),
    Metric("etude_open_tasks", "gauge", (), "installation", "Decisions that wait for their outcome."),
    Metric("etude_disk_free_bytes", "gauge", (), "installation", "Free space on the disk of experience.folder."),
    Metric(
        "etude_collection_requests_total",
        "counter",
        ("result",),
        "process",
        "Requests that send experience: stored, refused (they were wrong) or failed (they could not be stored).",
    ),
    Metric(
        "etude_decisions_total",
        "counter",
        ("problem", "policy", "fallback"),
        "process",
        "Decisions over HTTP, by policy.",
    ),
    Metric(
        "etude_decision_propensity",
        "histogram",
        ("problem",),
        "process",
        "Probability of the action that was taken: how much is explored.",
        PROPENSITIES,
    ),
    Metric("etude_http_requests_total", "counter", ("route", "method", "status"), "process", "Requests."),
    Metric(
        "etude_http_request_duration_seconds",
        "histogram",
        ("route", "method"),
        "process",
        "Time until a request was answered.",
        SECONDS,
    ),
    Metric("etude_http_requests_in_progress", "gauge", (), "process", "Requests that are being answered."),
    Metric("etude_otlp_total", "counter", ("result",), "process", "Trajectories from traces, and what was not mapped."),
    Metric("etude_ready", "gauge", ("check",), "process", "1 for each check of /ready that is fine."),
    Metric("etude_scrape_seconds", "gauge", (), "process", "Time that reading the stores took for this scrape."),
    Metric("etude_build_info", "gauge", ("version",), "process", "1, with the version of Etude."),
    Metric("process_cpu_seconds_total", "counter", (), "process", "User and system CPU time."),
    Metric("process_resident_memory_bytes", "gauge", (), "process", "Resident memory."),
    Metric("process_open_fds", "gauge", (), "process", "Open file descriptors."),
    Metric("process_max_fds", "gauge", (), "process", "Maximum number of open file descriptors."),
    Metric("process_start_time_seconds", "gauge", (), "process", "Start of the process since 1970."),
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}


class Sample(NamedTuple):
    """A value of a counter or a gauge, or of a histogram the counts of its ranges with their sum."""

    name: str
    labels: tuple[str, ...]
    """In the order of its metric."""
    value: float = 0.0
    counts: tuple[int, ...] = ()
    """Of a histogram, one for each bound, and one for what is above: not added up."""


def render(samples: Sequence[Sample]) -> str:
    """The text format 0.0.4, in the order of METRICS."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    lines: list[str] = []
    for metric in METRICS:
        some = found.pop(metric.name, [])
        if some:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            for sample in some:
                lines += _lines(metric, sample)
    assert not found, f"not in METRICS: {sorted(found)}"
    return "\n".join(lines) + "\n"


def _lines(metric: Metric, sample: Sample) -> Iterator[str]:
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(metric.labels, sample.labels, strict=True)]
    labels = f"{{{','.join(pairs)}}}" if pairs else ""
    if metric.kind != "histogram":
        yield f"{metric.name}{labels} {_number(sample.value)}"
        return
    below = 0
    for bound, count in zip((*map(_number, metric.bounds), "+Inf"), sample.counts, strict=True):
        below += count
        limited = ",".join((*pairs, f'le="{bound}"'))
        yield f"{metric.name}_bucket{{{limited}}} {below}"
    yield f"{metric.name}_sum{labels} {_number(sample.value)}"
    yield f"{metric.name}_count{labels} {below}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if not isfinite(value):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))


class _Timed:
    """Durations of the requests of one route and method, and how many had each status."""

    __slots__ = ("counts", "seconds", "statuses")

    def __init__(self) -> None:
        self.counts, self.seconds, self.statuses = [0] * (len(SECONDS) + 1), 0.0, Counter[int]()


@dataclass(kw_only=True)
class ProcessMetrics:
    """What one process of the server counts. Used from its event loop alone."""

    version: str = ""
    in_progress: int = 0
    _timed: dict[tuple[str, str], _Timed] = field(default_factory=dict)
    _decisions: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _propensities: dict[str, tuple[list[int], list[float]]] = field(default_factory=dict)

    def answered(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. This is on the way of every request: about a microsecond."""
        timed = self._timed.get((route, method))
        if timed is None:
            timed = self._route(route, method)
        timed.counts[bisect_left(SECONDS, seconds)] += 1
        timed.seconds += seconds
        timed.statuses[status] += 1

    def _route(self, route: str, method: str) -> _Timed:
        place = (route, method if method in METHODS else OTHER)
        if place not in self._timed and len(self._timed) >= MAX_SERIES:
            place = (OTHER, OTHER)
        return self._timed.setdefault(place, _Timed())

    def decided(self, problem: str, policy: str, fallback: str | None, propensity: float | None) -> None:
        """Count a decision. `problem` may have a name after a colon, which is left out: callers choose it."""
        problem = problem.partition(":")[0]
        place = (problem, policy, fallback or "")
        if place not in self._decisions and len(self._decisions) >= MAX_SERIES:
            place = (problem, OTHER, fallback or "")
        self._decisions[place] += 1
        if propensity is not None:
            found = self._propensities.get(problem)
            if found is None:
                found = self._propensities[problem] = ([0] * (len(PROPENSITIES) + 1), [0.0])
            found[0][bisect_left(PROPENSITIES, propensity)] += 1
            found[1][0] += propensity

    @property
    def statuses(self) -> Counter[int]:
        """Requests by their status."""
        return sum((timed.statuses for timed in self._timed.values()), Counter[int]())

    def samples(self) -> Iterator[Sample]:
        results = dict.fromkeys(("stored", "refused", "failed"), 0)
        for (route, method), timed in sorted(self._timed.items()):
            for status, count in sorted(timed.statuses.items()):
                yield Sample("etude_http_requests_total", (route, method, str(status)), count)
                if route in COLLECTING and method == "POST":
                    result = "failed" if status >= 500 else "refused" if status in CALLER_S else None
                    result = "stored" if status < 300 else result
                    if result is not None:
                        results[result] += count
            yield Sample(
                "etude_http_request_duration_seconds", (route, method), timed.seconds, counts=tuple(timed.counts)
            )
        for result, count in results.items():
            yield Sample("etude_collection_requests_total", (result,), count)
        for place, count in sorted(self._decisions.items()):
            yield Sample("etude_decisions_total", place, count)
        for problem, (counts, total) in sorted(self._propensities.items()):
            yield Sample("etude_decision_propensity", (problem,), total[0], counts=tuple(counts))
        yield Sample("etude_http_requests_in_progress", (), self.in_progress)
        yield Sample("etude_build_info", (self.version,), 1)
        yield from _process()


def _process() -> Iterator[Sample]:
    """Of the process that asks; what the system does not say is left out."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield Sample("process_cpu_seconds_total", (), used.ru_utime + used.ru_stime)
    yield Sample("process_max_fds", (), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield Sample("process_resident_memory_bytes", (), pages * os.sysconf("SC_PAGE_SIZE"))
        yield Sample("process_open_fds", (), len(os.listdir("/proc/self/fd")) - 1)
        ticks = int(Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[19])
        since_boot = ticks / os.sysconf("SC_CLK_TCK")
        yield Sample(
            "process_start_time_seconds", (), time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
        )
