"""Every benchmark, one after the other: `make bench`. About two hours on 2 cores; results/ holds the numbers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SCRIPTS = (
    "inference.py",
    "throughput.py",
    "throughput.py --peers",
    "distributions.py",
    "time_to_target.py",
    "matched.py",
    "grammar_fuzz.py",
    "workflow_world.py",
    "executor.py",
    "experience_store.py",
    "ingest.py",
    "durability.py",
    "loop_faults.py",
    "loop_jobs.py",
    "prompt_mutations.py",
)
"""Run by hand: `plans.py`, `calibration.py`, `new_tools.py`, `choices.py`, `choice_explain.py` and `redaction.py` need
public data, `from_logs.py`, `office_logs.py` and `workflow_learning.py` take hours, `workflow_loop.py` half an hour,
and so does `chaos.py`, which needs a policy; `serving_decisions.py` and `serving_soak.py` need a machine that does
nothing else; `own_tools.py` and `verdicts.py` take an hour each and need a small
language model."""


def main() -> None:
    folder = Path(__file__).parent
    for script in SCRIPTS:
        began = time.perf_counter()
        print(f"── {script}", flush=True)
        name, *options = script.split()
        subprocess.run([sys.executable, str(folder / name), *options], check=True)
        print(f"   {time.perf_counter() - began:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
