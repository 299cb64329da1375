"""Planners measured: their plans against the experts', or what happens to them in the simulated office."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from etude.contracts.errors import ConfigError, PlanError
from etude.evidence.intervals import interval
from etude.learning.artefact import Artefact
from etude.learning.comparison import POLICY
from etude.learning.evaluate import evaluate, greedy, sampled
from etude.learning.from_logs import FromLogs
from etude.learning.measure import Comparison
from etude.learning.requests import EvaluateRequest, Measurement
from etude.learning.run import Run
from etude.learning.run_folder import RunFolder, find_policy, find_root
from etude.problems.catalogue import read_catalogue
from etude.problems.spec import FROM_LOGS, PRACTISE
from etude.problems.workflow.artefact import load
from etude.problems.workflow.examples import read_examples
from etude.problems.workflow.metrics import score_plans
from etude.problems.workflow.phase2 import read_office, show_plans, unknown_in_office
from etude.problems.workflow.showcase import MAX_INSTRUCTIONS, write_before_and_after
from etude.problems.workflow.training_set import to_plan


def on_examples(request: EvaluateRequest) -> Measurement:
    """Plans for the instructions of a file, compared with the experts' plans."""
    data, planner = request.inputs["data"], load(find_policy(request.run))
    if request.inputs.get("catalogue") is not None:
        planner = planner.under(read_catalogue(request.inputs["catalogue"]))
    examples = read_examples(data, planner.catalogue, max_nodes=1000)
    wanted = [to_plan(planner.catalogue, example) for example in examples]
    planner.plan(examples[0].instruction)  # the first call loads what the others find loaded
    made, times, valid = [], [], 0
    for i, example in enumerate(examples):
        request.status(f"planning {i + 1} of {len(examples)}")
        began = time.perf_counter()
        made.append(planner.plan(example.instruction))
        times.append(1000 * (time.perf_counter() - began))
        with suppress(PlanError):
            made[-1].check(planner.catalogue, planner.limits)
            valid += 1
    scores = score_plans(made, wanted)
    found: dict[str, Any] = {"run": str(request.run), "data": str(data), "examples": len(examples)}
    rows = []
    for name in ("node_f1", "link_f1", "accuracy"):
        values = getattr(scores, name)
        mean, (low, high) = float(values.mean()), interval(values)
        found |= {name: mean, f"{name}_ci95": (low, high)}
        rows.append((name, f"{mean:.3f}", f"{low:.3f} … {high:.3f}"))
    latency = {"p50": float(np.percentile(times, 50)), "p99": float(np.percentile(times, 99))}
    found |= {"validity": valid / len(examples), "latency_ms": latency}
    return Measurement(
        title=f"{request.run}: {len(examples):,} instructions of {data}",
        json=found,
        columns=("metric", "mean", "95 % interval"),
        rows=(*rows, ("validity", f"{valid / len(examples):.3f}", "")),
        sentences=(f"One plan takes {latency['p50']:.1f} ms (p50), {latency['p99']:.1f} ms (p99) on this CPU.",),
    )


def compare_in_office(request: EvaluateRequest) -> Comparison:
    """A policy of phase 2 and what it continued from, compared with simpler ones on held-out instructions."""
    folder = RunFolder(find_root(request.run))
    if not is_simulated(folder):
        raise ConfigError(
            f"{request.run} did not learn in a simulated world: measure a planner on data, expert workflows, "
            "or on a dataset of logged decisions"
        )
    problem, policies = read_office(request.run)
    actors = {name: greedy(policy) for name, policy in policies.items()}
    if request.sampled:
        actors[POLICY] = sampled(policies[POLICY])
    actors |= problem.baselines()
    scores = {}
    for name, actor in actors.items() if request.baselines else [(POLICY, actors[POLICY])]:
        request.status(f"evaluating {name}: {request.episodes:,} workflows")
        scores[name] = evaluate(problem, actor, episodes=request.episodes, seed=request.seed)
    return Comparison(scores=scores)


def is_simulated(folder: RunFolder) -> bool:
    """Whether a run learned in a simulated world, or its logs may be from there: only there any plan has an outcome."""
    method = folder.config()["method"]
    if method == FROM_LOGS:
        return not unknown_in_office(folder.policy().manifest.details["task_types"])
    return bool(method == PRACTISE)


def keep_plans(run: Run) -> None:
    """Plans of a finished run for the report, with those of the policy that it continued from."""
    if run.about.method == PRACTISE:
        show_plans(run.folder.path)
    elif isinstance(run.learner, FromLogs):
        tasks = (example.trajectory.task for part in run.learner.held_out_examples() for example in part)
        texts = list(islice(dict.fromkeys(tasks), MAX_INSTRUCTIONS))
        before, after = (load(artefact).plans(texts) for artefact in (Artefact(run.folder.start), run.artefact()))
        write_before_and_after(run.folder, before, after)
