"""A week of the loop under 200 random SIGKILLs: what is lost, done twice or served without proof, by counting.

    python benchmarks/loop_faults.py                     # about 15 minutes on 2 busy cores
    python benchmarks/loop_faults.py --kills 50 --speed 2000

Two coordinators, one of which leads, their jobs (`etude train`), a controller that looks at the canaries all day, and a
server for each of two slots are killed at random moments and started again at once, while a simulated week passes.
In each slot the loop trains three policies: the first is approved by a person, the second is better and is promoted by
its canary, the third passes its gates but does harm and is rolled back. The same week without a kill runs at the same
time in a folder of its own. Both must end in the same state: the same trajectories, jobs by trigger, steps of every
policy, and what serves. The versions themselves and the unit at which a decision falls may differ, since a job that
starts a few units later learns from a few units more. However slow the machine is, traffic waits after each third of
the week until the policy that was due is being released.

From outside, the ledgers are read all the time: whatever serves passed its gates before, no version is promoted twice,
and every hash and signature is right.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.loop_week import Week, live


def main() -> None:
    from results import save

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=1400.0, help="simulated seconds per second")
    parser.add_argument("--folder", type=Path, help="kept for a look at it; a temporary one by default")
    parser.add_argument("--one", choices=("killed", "calm"), help="one of the two weeks, which is printed as JSON")
    options = parser.parse_args()
    week = Week(factor=options.speed)
    if options.one:
        kills = options.kills if options.one == "killed" else 0
        print(json.dumps(live(options.folder / options.one, week, kills=kills, seed=options.seed)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        killed, calm = both(options.folder or Path(temporary), options)
    same = killed["end"] == calm["end"]
    values = {"week": {"slots": len(week.slots), "units": week.units * len(week.slots), "days": week.days}}
    save("loop_faults", {**values, "killed": killed, "calm": calm, "same_end": same})
    wrong = [
        name
        for run in (killed, calm)
        for name in ("lost", "stored_twice", "altered", "not_serving")
        if run["trajectories"][name]
    ]
    if not same or wrong or killed["violations"] or calm["violations"] or killed["record"]["replayed_differently"]:
        sys.exit(f"the loop did not survive: {'' if same else 'another end; '}{wrong} {killed['violations']}")


def both(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The week with kills and the one without, at the same time in processes of their own."""
    about = ["--kills", str(options.kills), "--seed", str(options.seed), "--speed", str(options.speed)]
    command = [sys.executable, __file__, "--folder", str(folder), *about, "--one"]
    weeks = {name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in ("killed", "calm")}
    found = []
    for name, week in weeks.items():
        said, _ = week.communicate()
        found.append(json.loads(said.splitlines()[-1]))
        _print(name, found[-1])
    return found


def _print(name: str, run: dict[str, Any]) -> None:
    print(f"{name}: {run['seconds']:.0f} s, {run['kills']} kills {run['killed']}, {run['looks']:,} looks")
    for key in ("ended_by_themselves", "violations", "trajectories", "record", "queue"):
        print(f"  {key:20} {run[key]}")
    for slot, end in run["end"].items():
        print(f"  {slot:20} {end}", flush=True)


if __name__ == "__main__":
    main()
