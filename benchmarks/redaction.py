"""How much of what is personal or secret is found, how much else is taken for it, and how long that takes.

python benchmarks/redaction.py                            made sentences, and speed
python benchmarks/redaction.py --data labelled.json       and a labelled file: a list of {"full_text", "spans": [
                                                          {"entity_type", "start_position", "end_position"}]}
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import numpy as np
from results import save

from etude.experience.redact import Redactor

sys.path.append(str(Path(__file__).parents[1]))
from tests.unit.experience.personal import sentences

LABELS = {
    "EMAIL_ADDRESS": "email",
    "PHONE_NUMBER": "phone",
    "CREDIT_CARD": "card",
    "IBAN_CODE": "iban",
    "US_SSN": "ssn",
    "IP_ADDRESS": "ip",
}
WANTED = {"phone": 0.90, "precision": 0.95}
"""Recall by kind, .99 where not named, and precision over all."""

Labelled = tuple[str, list[tuple[str, int, int]]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, help="a labelled file")
    arguments.add_argument("--seeds", type=int, default=5, help="how often 200 sentences of each kind are made")
    chosen = arguments.parse_args()
    redactor = Redactor()
    values: dict[str, Any] = {"made": score(redactor, made(chosen.seeds)), "speed": speed(redactor)}
    if chosen.data:
        values["labelled"] = score(redactor, labelled(chosen.data))
    for name, scores in values.items():
        print(name)
        for what, value in scores.items():
            wanted = "" if name == "speed" else f"  (wanted >= {WANTED.get(what, 0.99)})"
            print(f"  {what:28} {value:.4g}{wanted}")
    save("redaction", values)


def made(seeds: int) -> Iterable[Labelled]:
    for seed in range(seeds):
        for each in sentences(seed, 200):
            yield each.text, [(each.kind, each.start, each.end)] if each.kind else []


def labelled(path: Path) -> Iterable[Labelled]:
    for record in json.loads(path.read_text()):
        spans = [(span["entity_type"], span["start_position"], span["end_position"]) for span in record["spans"]]
        yield record["full_text"], [(LABELS[label], start, end) for label, start, end in spans if label in LABELS]


def score(redactor: Redactor, texts: Iterable[Labelled]) -> dict[str, float]:
    """Recall by kind, and precision: a span is met where one overlaps it."""
    asked, met = Counter[str](), Counter[str]()
    removed = right = 0
    for text, labels in texts:
        spans = redactor.spans(text)
        for kind, start, end in labels:
            asked[kind] += 1
            met[kind] += any(span.start < end and span.end > start for span in spans)
        removed += len(spans)
        right += sum(any(span.start < end and span.end > start for _, start, end in labels) for span in spans)
    return {kind: met[kind] / asked[kind] for kind in asked} | {"precision": right / removed}


def speed(redactor: Redactor) -> dict[str, float]:
    """Processor time; texts and trajectories are of 20 kB."""
    rng = Random(0)
    clean, little = trajectory(rng), trajectory(rng)
    little["turns"][3]["content"] += " write to somebody@example.com or call (415) 555-2671"
    texts = {
        "prose": " ".join(prose(rng) for _ in range(200)),
        "tool output": "\n".join(tool_output(rng) for _ in range(100)),
        "dense digits": " ".join(str(rng.randint(10**3, 10**11)) for _ in range(4000)),
    }
    took = {
        "trajectory, clean, ms": milliseconds(lambda: redactor.session().value(clean), 300),
        "trajectory, two found, ms": milliseconds(lambda: redactor.session().value(little), 300),
    }
    return took | {
        f"{name}, us per kB": milliseconds(lambda text=text[:20_000]: redactor.session().text(text), 30) * 1e3 / 20  # type: ignore[misc]
        for name, text in texts.items()
    }


def milliseconds(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return float(np.median(taken)) * 1e3


def trajectory(rng: Random) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    while len(json.dumps(turns)) < 20_000:
        turns.append(
            {
                "id": str(UUID(int=rng.getrandbits(128))),
                "role": rng.choice(["user", "assistant", "tool"]),
                "content": rng.choice([prose, tool_output, code])(rng),
                "at": 1_700_000_000 + rng.randint(0, 10**6),
                "latency_ms": rng.random() * 100,
            }
        )
    return {"task_id": "t1", "turns": turns}


def prose(rng: Random) -> str:
    words = ("the", "agent", "calls", "a", "tool", "and", "returns", "what", "it", "found", "for", "every", "order")
    return " ".join(rng.choices(words, k=25)).capitalize() + "."


def tool_output(rng: Random) -> str:
    return json.dumps(
        {
            "id": str(UUID(int=rng.getrandbits(128))),
            "created_at": f"2024-05-{rng.randint(1, 28):02d}T12:34:56.123Z",
            "amount": round(rng.random() * 1000, 2),
            "items": [{"sku": f"AB-{rng.randint(0, 99999):05d}", "qty": rng.randint(1, 9)} for _ in range(3)],
            "total_tokens": rng.randint(0, 5000),
            "sha": f"{rng.getrandbits(160):040x}",
        }
    )


def code(rng: Random) -> str:
    return (
        "def account(self, key: str) -> dict:\n    if key in self._cache:\n        return self._cache[key]\n"
        f"    return self.client.fetch_account(key, timeout={rng.randint(1, 99)})\n"
    )


if __name__ == "__main__":
    main()
