"""How long a decision over HTTP takes from TypeScript, compared with Node's bare HTTP client in the same run.

    cd clients/typescript && npm ci && npm run build
    python benchmarks/typescript_latency.py --folder DIR --learn     # half a minute: the policy
    python benchmarks/typescript_latency.py --folder DIR             # two minutes, on a machine that does nothing else

A choice among 20 options whose text is read by the fast encoder, by a policy that learned from 1,500 decisions; each
decision is on disk, synced, before its answer. The server has core 0, Node core 1. Latencies at a rate are from when a
request was due.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from results import save
from serving_home import TEXT, begin, bodies, learn_choice, make_key, promote, serving, until_it_decides

SERVER, CLIENT = 0, 1
"""Cores."""
SCRIPT = Path(__file__).resolve().with_suffix(".mjs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the policy is")
    parser.add_argument("--learn", action="store_true", help="make the policy, and measure nothing")
    parser.add_argument("--requests", type=int, default=3000, help="decisions one by one")
    parser.add_argument("--seconds", type=int, default=30, help="seconds at the rate")
    parser.add_argument("--rate", type=int, default=100, help="decisions per second")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    begin(given.folder.resolve(), policies=(TEXT,))
    if given.learn:
        promote(TEXT, learn_choice(TEXT, 0))
        return
    key = make_key()
    Path("bodies.json").write_text(json.dumps(bodies(TEXT)))
    with serving(core=SERVER) as running:
        until_it_decides(running.port, key, TEXT)
        took = measure(f"http://127.0.0.1:{running.port}", key, given.requests, given.seconds, given.rate)
    values: dict[str, Any] = {"rate": given.rate, "body_bytes": len(json.dumps(bodies(TEXT)[0]))}
    values |= {way: {how: summary(ms) for how, ms in of.items()} for way, of in took.items()}
    print(json.dumps(values, indent=1))
    save("typescript_latency", values)


def measure(url: str, key: str, requests: int, seconds: int, rate: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each decision, by what asked and how."""
    command = ["taskset", "-c", str(CLIENT), "node", str(SCRIPT), url, key, "bodies.json"]
    done = subprocess.run(
        [*command, str(requests), str(seconds), str(rate)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, dict[str, list[float]]] = json.loads(done.stdout)
    return found


def summary(took: list[float]) -> dict[str, float]:
    p50, p99, p999 = np.percentile(took, (50, 99, 99.9))
    return {"p50": float(p50), "p99": float(p99), "p999": float(p999), "max": max(took), "requests": len(took)}


if __name__ == "__main__":
    main()
