"""Do mutations of prompts lose anything, and how long do they take?

For each of 100,000 random Markdown prompts and chats, and for every README found on this machine (in the metadata of
Python packages, in node_modules, in /usr/share/doc), every mutation is carried out, checked for what it lost, reverted,
and carried out again. Exits 1 on any violation.

python benchmarks/prompt_mutations.py               # half an hour on two cores; goes on with --resume
python benchmarks/prompt_mutations.py --part speed  # seconds; needs the machine alone; keeps the rest of the results
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from email import message_from_string
from importlib.metadata import distributions
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from results import FOLDER, save

from etude.contracts.errors import PromptError
from etude.problems.prompt.features import features
from etude.problems.prompt.kinds import _probabilities, kind_of
from etude.problems.prompt.masks import reasons
from etude.problems.prompt.mutations import MUTATIONS, Prompt, mutate, violations
from etude.problems.prompt.mutations.document import _cached, parse

sys.path.append(str(Path(__file__).parents[1]))
from tests.unit.problems.prompt.mutations.random_prompts import random_chat, random_prompt

NAME = "prompt_mutations"
CHECKS = ("placeholder", "code", "link", "number", "quoted", "revert", "idempotence", "mask", "other error")
README_NAMES = ("README*.md", "readme*.md", "README*.markdown", "CHANGELOG*.md")
MAX_README_CHARS = 100_000
SPEED_CHARS = 2_000
SPEED_PROMPTS = 300
SHOWN = 3
PART = 1_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--prompts", type=int, default=100_000)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--folder", type=Path, action="append", default=[], help="folder to look for READMEs in")
    arguments.add_argument("--part", choices=("all", "invariants", "speed"), default="all")
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument("--resume", action="store_true", help="go on after the random prompts that were tried")
    given = arguments.parse_args()
    values: dict[str, Any] = {}
    if given.part in ("all", "invariants"):
        values["readmes"] = tried(readmes(given.folder))
        print(f"readmes: {values['readmes']['prompts']:,}, violations: {_wrong(values['readmes'])}", flush=True)
        save(NAME, saved() | values)
        values["random"] = tried_in_parts(given, saved().get("random", {}) if given.resume else {})
    if given.part in ("all", "speed"):
        values["speed"] = speed(readmes(given.folder))
    values = saved() | values
    save(NAME, values)
    sys.exit(any(sum(values[part]["violations"].values()) for part in ("random", "readmes") if part in values))


def saved() -> dict[str, Any]:
    """What other parts have measured."""
    path = FOLDER / f"{NAME}.json"
    return {} if not path.exists() else {k: v for k, v in json.loads(path.read_text()).items() if k != "machine"}


def tried_in_parts(given: argparse.Namespace, total: dict[str, Any]) -> dict[str, Any]:
    """Random prompts in several processes, with the counts added up to those of earlier runs."""
    firsts = range(total.get("prompts", 0), given.prompts, PART)
    parts = [(given.seed, first, min(given.prompts, first + PART)) for first in firsts]
    with ProcessPoolExecutor(given.processes) as pool:
        for found in pool.map(tried_part, parts):
            total = _added(total, found)
            print(f"random: {total['prompts']:9,} prompts, violations: {_wrong(total)}", flush=True)
            save(NAME, saved() | {"random": total})
    return total


def tried_part(part: tuple[int, int, int]) -> dict[str, Any]:
    return tried(random_prompts(*part))


def _added(one: Any, other: Any) -> Any:
    """Numbers added up by key."""
    if isinstance(other, dict):
        return {key: _added(one.get(key, 0) if one else 0, value) for key, value in other.items()}
    return (one or 0) + other


def _wrong(found: dict[str, Any]) -> Any:
    return {name: count for name, count in found["violations"].items() if count} or "none"


def random_prompts(seed: int, first: int, after: int) -> Iterator[Prompt]:
    for number in range(first, after):
        rng = Random(f"{seed} {number}")
        yield random_chat(rng) if number % 10 == 0 else random_prompt(rng)


def readmes(folders: Sequence[Path]) -> list[str]:
    """Markdown descriptions of installed packages, and README files, each once."""
    found = [_description(each.read_text("METADATA") or "") for each in distributions()]
    for folder in (*folders, Path("/usr/share/doc"), Path(__file__).parents[1]):
        for name in README_NAMES:
            found += [path.read_text("utf-8", "replace") for path in folder.rglob(name) if path.is_file()]
    return sorted({text for text in found if text.strip() and len(text) <= MAX_README_CHARS})


def _description(metadata: str) -> str:
    message = message_from_string(metadata)
    is_markdown = "markdown" in str(message.get("Description-Content-Type", ""))
    return str(message.get_payload() or message.get("Description", "")) if is_markdown else ""


def tried(prompts: Iterable[Prompt]) -> dict[str, Any]:
    """Every mutation of every prompt, with the counts of what went wrong."""
    bad: Counter[str] = Counter(dict.fromkeys(CHECKS, 0))
    changed: Counter[str] = Counter(dict.fromkeys(MUTATIONS, 0))
    count = refused = characters = 0
    for count, prompt in enumerate(prompts, start=1):
        characters += len(str(prompt))
        try:
            masks = reasons(prompt)
        except PromptError:
            refused += 1  # a code fence that is not closed, half a surrogate pair, or an empty text
            continue
        for mutation in MUTATIONS:
            wrong = checked(prompt, mutation, count % 7, masks[mutation], changed)
            bad.update(wrong)
            if wrong and bad.total() <= SHOWN:
                print(f"{mutation} of {prompt!r}: {wrong}", flush=True)
    found = {"prompts": count, "refused": refused, "characters": characters, "mutations": (count - refused) * 5}
    return found | {"changed": dict(changed), "violations": dict(bad), "wrong": bad.total()}


def checked(prompt: Prompt, mutation: str, seed: int, mask: str | None, changed: Counter[str]) -> list[str]:
    """What a mutation breaks."""
    try:
        found = mutate(prompt, mutation, seed=seed)
        changed[mutation] += found.changed
        wrong = [] if found.revert() == prompt else ["revert"]
        wrong += [] if found.changed == (mask is None) else ["mask"]
        if found.changed:
            lost = " ".join(violations(prompt, found.prompt))
            wrong += [kind for kind in CHECKS[:5] if f"the {kind} " in lost]
            wrong += ["idempotence"] if mutate(found.prompt, mutation, seed=seed + 3).changed else []
    except Exception as error:
        print(f"{mutation}: {type(error).__name__}: {error}")
        return ["other error"]
    return wrong


def speed(found: Sequence[str]) -> dict[str, Any]:
    """Milliseconds per call for prompts of 2,000 characters: wall clock and processor time, median and p99."""
    prompts = {"readmes": list(cut(found)), "random": list(cut(_joined(Random(n)) for n in range(3 * SPEED_PROMPTS)))}
    return {name: {"prompts": len(texts)} | measured(texts) for name, texts in prompts.items()}


def _joined(rng: Random) -> str:
    text = ""
    while len(text) < SPEED_CHARS:
        text += random_prompt(rng) + "\n\n"
    return text


def cut(texts: Iterable[str]) -> Iterator[str]:
    """Beginnings of texts that are long enough, at the end of a line, as far as they can be parsed."""
    count = 0
    for text in texts:
        part = text[:SPEED_CHARS].rpartition("\n")[0]
        try:
            parse(part)
        except PromptError:
            continue
        if len(part) > 0.9 * SPEED_CHARS and count < SPEED_PROMPTS:
            count += 1
            yield part


def measured(texts: Sequence[str]) -> dict[str, Any]:
    calls: dict[str, Any] = {
        "parse": lambda text: (parse(text).names, parse(text).inventory),
        "kind": lambda text: kind_of(parse(text).prose),
        "features": features,
        "masks": reasons,
        **{mutation: lambda text, name=mutation: mutate(text, name) for mutation in MUTATIONS},
    }
    rows = {}
    for name, call in calls.items():
        rows[name] = {
            "first": quantiles([timed(call, text, forget=True) for text in texts]),
            "parsed": quantiles([timed(call, text, forget=False) for text in texts]),
        }
        first, parsed = rows[name]["first"], rows[name]["parsed"]
        print(
            f"  {name:20} first {first['median_ms']:.3f} ms, p99 {first['p99_ms']:.3f}, cpu {first['cpu_ms']:.3f}; "
            f"parsed {parsed['median_ms']:.3f}, p99 {parsed['p99_ms']:.3f}, cpu {parsed['cpu_ms']:.3f}"
        )
    return rows


def timed(call: Any, text: str, *, forget: bool) -> tuple[float, float]:
    """Wall and processor milliseconds of a call; `forget` begins without the parsed text and its kind."""
    _cached.cache_clear()
    _probabilities.cache_clear()
    if not forget:
        kind_of(parse(text).prose)
        parse(text).inventory  # noqa: B018 - reads what is in paragraphs
    wall, cpu = time.perf_counter(), time.process_time()
    call(text)
    return (time.perf_counter() - wall) * 1e3, (time.process_time() - cpu) * 1e3


def quantiles(taken: Sequence[tuple[float, float]]) -> dict[str, float]:
    wall, cpu = np.array(taken).T
    return {
        "median_ms": float(np.median(wall)),
        "p99_ms": float(np.quantile(wall, 0.99)),
        "cpu_ms": float(np.median(cpu)),
        "cpu_p99_ms": float(np.quantile(cpu, 0.99)),
    }


if __name__ == "__main__":
    main()
