"""A real small language model as the judge: the loop from prompts to judgements to a policy, and its win rate.

    python benchmarks/prompt_judge.py        # about an hour on one core; continues what --out holds

SmolLM2-135M-Instruct compares generated prompts with what random sequences of mutations make of them, in both orders,
by the probabilities of its answers. DPO learns from these pairs. Then the policy mutates prompts of held-out templates,
and the same judge compares each with the prompt as it was, in both orders: a win is above one half. Prompts that the
policy leaves alone are ties. The judge is weak: the figure says that the loop runs, and what this judge prefers.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from ledgers.model_server import serving
from results import save

from etude.bootstrap.policies import load_policy
from etude.bootstrap.runs import make_request, start_run
from etude.evidence.intervals import estimate_mean
from etude.problems.prompt.generated.prompts import make_prompts
from etude.problems.prompt.judge import Judge

MODEL, SEED = "smollm2", 6_000_003
MAX_CHARS = 700
"""Longer prompts are left out: a small model reads a few hundred tokens a second."""


def short_prompts(n: int, seed: int, **options: Any) -> list[str]:
    made = [one.text for one in make_prompts(4 * n, seed, **options)]
    return [text for text in made if len(text) <= MAX_CHARS][:n]


def train(folder: Path, judge: str, prompts: int, samples: int) -> dict[str, float]:
    data = folder / "prompts.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    data.write_text("".join(json.dumps(text) + "\n" for text in short_prompts(prompts, 0)))
    began = time.perf_counter()
    request = make_request(
        "prompt",
        out=folder / "run",
        inputs={"data": data, "judge": judge},
        assignments=[f"prompt.samples={samples}", "prompt.max_mutations=2", "run.threads=1", "run.device=cpu"],
        isolated=True,
    )
    run = start_run(request)
    judged = time.perf_counter() - began
    for _ in run.updates():
        continue
    return {"judged_s": judged, "learned_s": time.perf_counter() - began - judged}


def compare(folder: Path, judge: Judge, held_out: int) -> list[dict[str, Any]]:
    """A row per held-out prompt: the mutations, and how sure the judge is that they made it better."""
    policy, file = load_policy(folder / "run"), folder / "compared.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    with file.open("a") as log:
        for text in short_prompts(held_out, SEED, split="held out")[len(rows) :]:
            found = policy.improve(text)
            share = judge.compare(found.prompt, text) if found.steps else 0.5
            rows.append({"mutations": list(found.mutations), "share": share})
            log.write(json.dumps(rows[-1]) + "\n")
            log.flush()
    return rows


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="folder for the run and what was judged")
    arguments.add_argument("--prompts", type=int, default=150, help="prompts to learn from")
    arguments.add_argument("--samples", type=int, default=3, help="sequences of mutations of each")
    arguments.add_argument("--held-out", type=int, default=300)
    given = arguments.parse_args()
    with serving() as url:
        named = f"{url}#{MODEL}"
        took = train(given.out, named, given.prompts, given.samples)
        print(f"judged in {took['judged_s']:.0f} s, learned in {took['learned_s']:.0f} s", flush=True)
        judge = Judge(named)
        rows = compare(given.out, judge, given.held_out)
    share = np.array([row["share"] for row in rows])
    wins = (share > 0.5).astype(float) + 0.5 * (share == 0.5)
    rate, mean = estimate_mean(wins), estimate_mean(share)
    chosen = {
        name: float(np.mean([name in row["mutations"] for row in rows])) for row in rows for name in row["mutations"]
    }
    print(f"win rate over no change {rate.mean:.1%} [{rate.low:.1%}, {rate.high:.1%}] on {len(rows)} prompts")
    print(f"how sure it is {mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]; mutations {chosen}")
    save(
        "prompt_judge",
        {
            "model": MODEL,
            "prompts": given.prompts,
            "samples": given.samples,
            "held_out": len(rows),
            "win_rate": rate.to_json(),
            "share": mean.to_json(),
            "left_alone": float(np.mean([not row["mutations"] for row in rows])),
            "chosen": chosen,
            "took": took,
        },
    )


if __name__ == "__main__":
    main()
