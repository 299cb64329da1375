"""What is asked of the tools: kinds of instructions over documents, with the right plan and the answer to each.

A document is written from records, and an answer is computed from those records, never from the text by a tool.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "folder"
"""The tools, their verifiers and workers.yaml."""
PER_KIND, LEARNED_FROM = 14, 10
"""Instructions of each kind, and those of a seen kind that executions are collected on; the others are held out."""
UNSEEN = 16
"""Kinds that neither experts nor executions show."""
EXPERTS = 30

Steps = tuple[tuple[str, tuple[int, ...]], ...]
"""Task types, each with the steps it depends on."""


@dataclass(frozen=True)
class Kind:
    steps: Steps
    phrasings: tuple[str, ...]


def read_kinds() -> tuple[Kind, ...]:
    return tuple(
        Kind(
            steps=tuple(
                (name, tuple(kind["after"][i]) if "after" in kind else (i - 1,) if i else ())
                for i, name in enumerate(kind["steps"])
            ),
            phrasings=tuple(kind["ask"]),
        )
        for kind in yaml.safe_load((Path(__file__).parent / "kinds.yaml").read_text())
    )


KINDS = read_kinds()
CITIES = [
    "Lisbon",
    "Porto",
    "Bergen",
    "Graz",
    "Lyon",
    "Ghent",
    "Turin",
    "Aarhus",
    "Brno",
    "Split",
    "Riga",
    "Cork",
    "Bilbao",
    "Tartu",
    "Basel",
    "Gdansk",
]
PAPERS = ["ledger", "list", "journal", "register", "sheet", "record"]
MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
ITEMS = ["paint", "timber", "flour", "candles", "rope", "glass", "copper", "wool", "paper", "tiles"]
FIRST = ("Ana", "Ben", "Carla", "Dirk", "Emma", "Finn", "José", "Zoë", "Åsa", "Noël")
LAST = ("Silva", "Berg", "Moretti", "Novak", "Keller", "Dupont", "Lund", "Costa")
PLEASED = ("pleased", "delighted", "happy", "satisfied")
ANGRY = ("angry", "disappointed", "upset", "annoyed")


@dataclass(frozen=True)
class Record:
    line: str
    email: str = ""
    amount: Decimal | None = None
    day: date | None = None
    good: bool = False


@dataclass(frozen=True)
class Asked:
    """An instruction about a document, its right plan and its answers."""

    kind: int
    instruction: str
    document: str
    answers: tuple[str, ...]

    @property
    def steps(self) -> Steps:
        return KINDS[self.kind].steps


def ask_all(seed: int) -> list[list[Asked]]:
    """PER_KIND instructions of each kind, each about a document of its own."""
    rng = random.Random(seed)
    names = [f"the {city} {paper} of {month}" for city in CITIES for paper in PAPERS for month in MONTHS]
    rng.shuffle(names)
    titles = iter(names)
    return [[_asked(number, next(titles), rng) for _ in range(PER_KIND)] for number in range(len(KINDS))]


def _asked(number: int, title: str, rng: random.Random) -> Asked:
    records = _records(rng)
    text = "\n".join(record.line for record in records) + rng.choice(["", "\n"])
    phrasing = rng.choice(KINDS[number].phrasings)
    words = {word for word in [*ITEMS, *map(str.lower, CITIES)] if any(word in r.line.lower() for r in records)}
    word, count = rng.choice(sorted(words)), 1 if " 1 line" in phrasing else rng.randint(2, 4)
    instruction = phrasing.format(doc=title, word=word, count=count)
    answers = tuple(_answers(KINDS[number].steps, records, text, word, count))
    return Asked(kind=number, instruction=instruction, document=text, answers=answers)


def _records(rng: random.Random) -> list[Record]:
    found = [_record(rng, first=i == 0) for i in range(rng.randint(5, 9))]
    for _ in range(rng.choice([0, 0, 1, 2])):  # duplicates, next to their original or not
        place = rng.randrange(len(found))
        found.insert(place + 1 if rng.random() < 0.4 else rng.randint(0, len(found)), found[place])
    good = rng.random() < 0.5
    return [*found, Record(line=f"Everyone was {rng.choice(PLEASED if good else ANGRY)} with the work.", good=good)]


def _record(rng: random.Random, *, first: bool) -> Record:
    name, last, city, item = (rng.choice(names) for names in (FIRST, LAST, CITIES, ITEMS))
    title = rng.choice(["Dr. ", "Mrs. "]) if rng.random() < (0.5 if first else 0.2) else ""
    amount = Decimal(rng.randint(100_000, 990_000) if rng.random() < 0.2 else rng.randint(500, 99_999)) / 100
    day = date(2026, 1, 1) + timedelta(days=rng.randrange(365))
    month = f"{day:%b}." if rng.random() < 0.1 and day.month != 5 else f"{day:%B}"
    plain = name.translate(str.maketrans("éëÅ", "eeA")).lower()
    email = f"{plain}.{last.lower()}@{city.lower()}.example"
    line = (
        f"{title}{name} {last} of {city} ({email}) paid {amount:,.2f} EUR for {item} on {day.day} {month} {day.year}."
    )
    return Record(line=line, email=email, amount=amount, day=day)


def _answers(steps: Steps, records: Sequence[Record], text: str, word: str, count: int) -> Iterator[str]:
    """The output of each step that no other depends on, by what the records say."""
    made: list[Any] = []
    for name, needs in steps:
        made.append(_answer(name, made[needs[0]] if needs else list(records), text, word, count))
    used = {need for _, needs in steps for need in needs}
    for i, value in enumerate(made):
        if i not in used:
            yield value if isinstance(value, str) else "\n".join(map(_shown, value))


def _shown(value: Any) -> str:
    return value.line if isinstance(value, Record) else f"{value:.2f}" if isinstance(value, Decimal) else str(value)


def _answer(name: str, given: Any, text: str, word: str, count: int) -> Any:
    """One step on records, on lines or on numbers."""
    rows: Any = [given] if isinstance(given, str) else given
    match name:
        case "sort_lines":
            return sorted(map(_shown, rows))
        case "unique_lines":
            return list(dict.fromkeys(rows))
        case "search_lines":
            return [row for row in rows if word in row.line.lower()]
        case "first_lines":
            return rows[:count]
        case "last_lines":
            return rows[-count:]
        case "reverse_lines":
            return rows[::-1]
        case "upper_case":
            return "\n".join(_shown(row).upper() for row in rows)
        case "mask_emails":
            return [Record(line=r.line.replace(r.email, "***") if r.email else r.line) for r in rows]
        case "first_sentence":
            return rows[:1]
        case "tone":
            return "positive" if rows[-1].good else "negative"
        case "extract_amounts":
            return [row.amount for row in rows if row.amount is not None]
        case "extract_emails":
            return [row.email for row in rows if row.email]
        case "extract_dates":
            return [row.day.isoformat() for row in rows if row.day]
        case "sum_numbers":
            return [sum(rows, Decimal())]
        case "largest_number":
            return [max(rows, default=Decimal())]
        case "to_dollars":
            return [row * Decimal("1.08") for row in rows]
        case "count_lines":
            return str(len(rows))
        case "count_words":
            return str(sum(len(_shown(row).split()) for row in rows))
        case "fingerprint":
            return hashlib.sha256(text.encode()).hexdigest()
    raise ValueError(name)


@dataclass(frozen=True)
class Work:
    """The work of one seed: experts and instructions to learn from, and held-out ones of seen and unseen kinds."""

    experts: list[dict[str, Any]]
    learned: list[Asked]
    held_out: list[Asked]
    unseen: frozenset[int]  # kinds


def make_work(seed: int, able: dict[str, list[str]]) -> Work:
    """`able` has the workers of each task type, the cheapest first."""
    rng, asked = random.Random(1000 + seed), ask_all(seed)
    several = [i for i, kind in enumerate(KINDS) if len(kind.steps) > 1]
    unseen = frozenset(rng.sample(several, UNSEEN))
    while _types(range(len(KINDS))) - _types(set(range(len(KINDS))) - unseen):  # every task type is seen
        unseen = frozenset(rng.sample(several, UNSEEN))
    seen = [i for i in range(len(KINDS)) if i not in unseen]
    shown = (rng.sample(seen, len(seen)) * 2)[:EXPERTS]
    experts = [_expert(asked[kind].pop(), able, rng) for kind in shown]
    learned = [one for kind in seen for one in asked[kind][:LEARNED_FROM]]
    rng.shuffle(learned)
    held_out = [one for kind in seen for one in asked[kind][LEARNED_FROM:]]
    held_out += [one for kind in unseen for one in asked[kind][:8]]
    rng.shuffle(held_out)
    return Work(experts=experts, learned=learned, held_out=held_out, unseen=unseen)


def _types(kinds: Iterable[int]) -> set[str]:
    return {name for kind in kinds for name, _ in KINDS[kind].steps}


def _expert(asked: Asked, able: dict[str, list[str]], rng: random.Random) -> dict[str, Any]:
    """The right subtasks, each by the cheapest or the most expensive of its workers: people differ in their habits."""
    workers = [rng.choice([able[name][0], able[name][-1]]) for name, _ in asked.steps]
    return {
        "instruction": asked.instruction,
        "targets": {
            "task_types": [name for name, _ in asked.steps],
            "dependencies": [list(needs) for _, needs in asked.steps],
            "model_selections": workers,
        },
    }


def make_folder(folder: Path, work: Work, *, model_url: str) -> None:
    """The folder of a user of these tools: workers.yaml, the same without a verifier of the whole, experts, inputs."""
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    yaml = (folder / "workers.yaml").read_text().replace("MODEL_URL", model_url)
    (folder / "workers.yaml").write_text(yaml)
    (folder / "unverified.yaml").write_text(yaml.replace("\nverify: {callable: checks:is_right}", ""))
    (folder / "experts.json").write_text(json.dumps(work.experts, indent=1))
    (folder / "documents").mkdir(exist_ok=True)
    for name, asked in (("learned", work.learned), ("held_out", work.held_out)):
        lines = []
        for i, one in enumerate(asked):
            (folder / "documents" / f"{name}-{i}.txt").write_text(one.document)
            given = {"instruction": one.instruction, "inputs": {"document": f"@documents/{name}-{i}.txt"}}
            lines.append(json.dumps(given, ensure_ascii=False))
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    answers = {one.instruction: one.answers for one in (*work.learned, *work.held_out)}
    (folder / "answers.json").write_text(json.dumps(answers, ensure_ascii=False))
