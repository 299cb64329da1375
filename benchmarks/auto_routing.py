"""`etude/auto` from a cold start: four simulated upstreams of different skill and price, real queries, real servers.

    python benchmarks/auto_routing.py /path/to/routes/llmrouter

Nothing is special here: `etude serve` with its loop, four models in `etude.yaml`, a client that names `etude/auto` and
reports under the id of each answer whether it was right. An upstream is right by a rule: a probability per kind of
query (SKILL). The queries are those of the public routing data, whose kinds the client does not send. What is wanted is
said by a budget: `choice.max_mean_cost_usd`, a share of what the best upstream costs (BUDGET). The policy is trained by
the loop after as many calls as it waits for by default, sampled evenly, and serves when a person approves it: the
script runs `etude models approve` as soon as there is a version. Meanwhile HELD more calls are made, then the client
waits: in life there are minutes between calls, not milliseconds.

`served_at` is the call from which the policy decides: before it, all calls are sampled evenly.

The baselines see the same queries and rules: always the best upstream, always the cheapest, any at random, and
epsilon-greedy on the mean utility of each upstream. `possible` knows the kind of each query and how often each upstream
is right there, and takes the best that costs at most HALF of the best upstream: no policy can do more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import yaml
from chat_proxy import _free_port as free_port
from chat_proxy import _running as running
from chat_proxy import _until_ready as until_ready
from results import save, summary

from etude.loop.config import LoopConfig

ROOT = Path(__file__).parents[1]
KINDS = {
    "facts": ("openbook_qa", "commonsense_qa", "arc_challenge"),
    "maths": ("gsm8k", "math"),
    "code": ("mbpp", "human_eval"),
    "logic": ("agentverse-logicgrid",),
}
SKILL = {  # probability of a right answer, in the order of KINDS
    "best": (0.94, 0.94, 0.94, 0.94),
    "mid": (0.93, 0.92, 0.40, 0.30),
    "coder": (0.40, 0.30, 0.93, 0.15),
    "tiny": (0.93, 0.20, 0.15, 0.10),
}
PRICE = {"best": 10.0, "mid": 1.5, "coder": 1.0, "tiny": 0.3}  # USD per million tokens
ABOUT = {
    "best": "the largest model, good at everything",
    "mid": "a model of medium size for questions and arithmetic",
    "coder": "a small model for program code",
    "tiny": "a tiny, fast model for simple questions",
}
TOKENS = 19
"""Of every call, in and out."""
SHARES = (0.3, 0.3, 0.3, 0.1)
"""Of the kinds, in the traffic."""
CALLS, LAST = 2000, 500
THRESHOLD = LoopConfig().threshold
BUDGET, HALF = 0.45, 0.5
"""Of what the best upstream costs."""
WEIGHT, EPSILON = 0.8, 0.1
"""Of epsilon-greedy: weight of success against cost, and how often it tries any."""
TOGETHER = 4
HELD, TRAINING_S = 350, 900.0
SETTINGS: dict[str, Any] = {
    "experience": {"explore": 0.05},
    "choice": {"score": "success", "max_mean_cost_usd": BUDGET * TOKENS * PRICE["best"] / 1e6},
    "loop": {
        "min_hours_between": 0.0,
        "schedule": None,
        "regate_hours": 0.005,
        "poll_s": 1.0,
        "slots": ["choice:model"],
    },
}


BASELINES = ("best", "possible", "cheapest", "uniform", "epsilon-greedy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of routes/llmrouter")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--per-s", type=float, default=25.0, help="calls per second")
    arguments = parser.parse_args()
    texts = _texts(arguments.data)
    found: dict[str, list[Mapping[str, float]]] = {}
    for seed in arguments.seeds:
        queries = _queries(texts, seed)
        runs = {name: _baseline(name, queries, seed) for name in BASELINES}
        with ExitStack() as stack:
            runs["auto"], served_at = _auto(stack, queries, seed, per_s=arguments.per_s)
        for name, calls in runs.items():
            row = _row(calls, queries)
            found.setdefault(name, []).append(row)
            print(f"seed {seed}, {name}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()), flush=True)
        print(f"seed {seed}: the policy served from call {served_at}", flush=True)
        found["auto"][-1] = {**found["auto"][-1], "served_at": served_at}
    rows = {name: {key: summary([row[key] for row in rows]) for key in rows[0]} for name, rows in found.items()}
    save("auto_routing", {"calls": CALLS, "last": LAST, "threshold": THRESHOLD, "budget": BUDGET, "policies": rows})


def _texts(folder: Path) -> dict[str, list[str]]:
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().split("\n") if line]
    return {kind: [row["instruction"] for row in rows if row["task_type"] in types] for kind, types in KINDS.items()}


def _queries(texts: Mapping[str, Sequence[str]], seed: int) -> list[tuple[int, str, float]]:
    """Kind, text, and a number that decides for every upstream alike whether it is right."""
    rng = random.Random(seed)
    kinds = rng.choices(range(len(KINDS)), SHARES, k=CALLS)
    return [(kind, rng.choice(texts[list(KINDS)[kind]]), rng.random()) for kind in kinds]


def _right(model: str, query: tuple[int, str, float]) -> bool:
    return query[2] < SKILL[model][query[0]]


def _baseline(name: str, queries: Sequence[tuple[int, str, float]], seed: int) -> list[str]:
    """The upstream of each call."""
    rng, names = random.Random(seed), list(SKILL)
    if name in ("best", "cheapest"):
        return ["best" if name == "best" else "tiny"] * len(queries)
    if name == "uniform":
        return [rng.choice(names) for _ in queries]
    if name == "possible":
        by_kind = max(product(names, repeat=len(KINDS)), key=_worth)
        return [by_kind[kind] for kind, _, _ in queries]
    sums, counts, chosen = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0), list[str]()
    for query in queries:
        untried = [model for model in names if not counts[model]]
        best = untried[0] if untried else max(names, key=lambda model: sums[model] / counts[model])
        model = rng.choice(names) if rng.random() < EPSILON else best
        sums[model] += WEIGHT * _right(model, query) - (1 - WEIGHT) * PRICE[model] / PRICE["best"]
        counts[model] += 1
        chosen.append(model)
    return chosen


def _worth(by_kind: Sequence[str]) -> tuple[float, float]:
    """The share of right answers with an upstream for each kind, or -1 above HALF; then what it saves."""
    cost = sum(share * PRICE[model] for model, share in zip(by_kind, SHARES, strict=True))
    right = sum(SKILL[model][kind] * share for kind, (model, share) in enumerate(zip(by_kind, SHARES, strict=True)))
    return (round(right, 9) if cost <= HALF * PRICE["best"] else -1.0), -cost


def _row(calls: Sequence[str], queries: Sequence[tuple[int, str, float]]) -> dict[str, float]:
    """Of all calls and of the last ones: how often they were right, and what they cost, compared with the best."""
    right = np.array([_right(model, query) for model, query in zip(calls, queries, strict=True)], float)
    best = np.array([_right("best", query) for query in queries], float)
    cost = np.array([PRICE[model] for model in calls]) / PRICE["best"]
    expected = np.array(
        [SKILL[model][query[0]] - SKILL["best"][query[0]] for model, query in zip(calls, queries, strict=True)]
    )
    last = slice(-LAST, None)
    return {
        "right": right.mean(),
        "cost": cost.mean(),
        "last_right": right[last].mean(),
        "last_right_to_best": right[last].mean() - best[last].mean(),
        "last_expected_to_best": expected[last].mean(),
        "last_cost": cost[last].mean(),
    }


def _auto(
    stack: ExitStack, queries: Sequence[tuple[int, str, float]], seed: int, *, per_s: float
) -> tuple[list[str], int]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    urls = stack.enter_context(_upstreams(queries))
    models = {
        name: {"upstream": name, "description": ABOUT[name], "usd_per_mtok_in": price, "usd_per_mtok_out": price}
        for name, price in PRICE.items()
    }
    upstreams = {name: {"url": urls[name], "allow_private": True} for name in models}
    (folder / "etude.yaml").write_text(
        yaml.safe_dump(SETTINGS | {"routing": {"upstreams": upstreams, "models": models}})
    )
    etude = [sys.executable, "-m", "etude.cli"]
    made = subprocess.run([*etude, "keys", "create", "--role", "decide"], cwd=folder, capture_output=True, text=True)
    key = next(word for word in made.stdout.split() if word.startswith("etude_"))
    port = free_port()
    stack.enter_context(running([*etude, "serve", "--port", str(port)], folder, os.sched_getaffinity(0), {}))
    until_ready(f"http://127.0.0.1:{port}/ready", {})
    return asyncio.run(_drive(f"http://127.0.0.1:{port}", key, queries, folder, per_s=per_s))


async def _drive(
    url: str, key: str, queries: Sequence[tuple[int, str, float]], folder: Path, *, per_s: float
) -> tuple[list[str], int]:
    chosen, policies = [""] * len(queries), [""] * len(queries)
    turn, approving = asyncio.Semaphore(TOGETHER), asyncio.create_task(_approve(folder))
    async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60) as client:

        async def call(i: int) -> None:
            async with turn:
                messages = [{"role": "user", "content": queries[i][1]}]
                body = {"model": "etude/auto", "messages": messages, "seed": i}  # which the upstream answers by
                answer = await client.post("/v1/chat/completions", json=body)
                answer.raise_for_status()
                chosen[i], policies[i] = answer.headers["x-etude-model"], answer.headers["x-etude-policy"]
                right = answer.json()["choices"][0]["message"]["content"] == "right"
                report = {"id": answer.headers["x-etude-decision"], "success": right}
                (await client.post("/v1/feedback", json=report)).raise_for_status()

        began, work = time.monotonic(), []
        for i in range(len(queries)):
            if i == THRESHOLD + HELD:
                await asyncio.wait({approving}, timeout=TRAINING_S)
                await _until_served(client, approving, folder)
            work.append(asyncio.create_task(call(i)))
            await asyncio.sleep(max(0.0, began + (i + 1) / per_s - time.monotonic()))
        await asyncio.gather(*work)
    served_at = next((i for i, policy in enumerate(policies) if policy != "uniform"), len(queries))
    return chosen, served_at


async def _until_served(client: httpx.AsyncClient, approving: asyncio.Task[None], folder: Path) -> None:
    """Until the approved policy decides, which costs no call of a model."""
    if not approving.done():
        approving.cancel()
        return
    asked = {"problem": "choice:model", "context": "", "options": list(SKILL), "record": False}
    deadline = time.monotonic() + TRAINING_S
    while time.monotonic() < deadline:
        if (await client.post("/v1/decisions", json=asked)).json()["policy"] != "uniform":
            return
        await asyncio.sleep(0.5)
    listed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "etude.cli", "models", "list"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    print(f"not served: {listed.stdout}", flush=True)


async def _approve(folder: Path) -> None:
    """What a person does, once: look whether there is a version, and approve it."""
    etude = [sys.executable, "-m", "etude.cli", "models"]
    while True:
        listed = await asyncio.to_thread(
            subprocess.run, [*etude, "list"], cwd=folder, capture_output=True, text=True, check=False
        )
        if found := re.findall(r"\b[0-9a-f]{16}\b", listed.stdout):
            command = [*etude, "approve", found[0]]
            done = await asyncio.to_thread(subprocess.run, command, cwd=folder, capture_output=True, text=True)
            print(f"approve {found[0]}: {(done.stdout + done.stderr).strip()}", flush=True)
            if done.returncode == 0:
                return
        await asyncio.sleep(3)


@contextmanager
def _upstreams(queries: Sequence[tuple[int, str, float]]) -> Iterator[dict[str, str]]:
    """A server for each, in threads: it knows by the number of the query, its `seed`, whether it is right."""
    sys.path.insert(0, str(ROOT))
    from tests.chat_server import ChatServer, in_thread

    def answers(name: str) -> Any:
        def answer(request: dict[str, Any]) -> str:
            return "right" if _right(name, queries[request["seed"]]) else "wrong"

        return answer

    with ExitStack() as stack:
        yield {name: stack.enter_context(in_thread(ChatServer(answer=answers(name)))).url for name in SKILL}


if __name__ == "__main__":
    main()
