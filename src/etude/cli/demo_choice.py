"""`etude demo choice`: learns which language model answers which query; then a new model appears.

The queries and all outcomes are made up. Every stage writes to the folder of the demo: queries/ what it learns from,
policy/ the run, later/ the queries of the day on which the new model appears, policy-2/ the run that continues with
their outcomes, and report.html.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from etude.bootstrap.policies import load_policy
from etude.bootstrap.runs import evaluate, finish_run, make_request, start_run
from etude.cli.demo import OUT, first_free, print_ending
from etude.cli.display import console, table
from etude.cli.evaluate import show
from etude.cli.progress import Display, follow, interruptible
from etude.contracts.decision import Decision
from etude.contracts.formats import percent, signed, usd, whole
from etude.files.durable import write_json
from etude.learning.requests import EvaluateRequest
from etude.learning.run_folder import RunFolder, find_policy
from etude.problems.choice.demo_data import Query, described, described_new, kinds, make_rows
from etude.problems.choice.evaluate import find
from etude.problems.choice.policy import ChoicePolicy
from etude.problems.choice.report import DIGITS, POLICY, Findings, Group, score, sections, tiles, verdict
from etude.problems.choice.rows import ReplayFile, find_options
from etude.problems.choice.state import read_model
from etude.reports import blocks
from etude.reports.blocks import Section, Tile, code
from etude.reports.page import Page

QUERIES, LATER, FIRST, SECOND = "queries", "later", "policy", "policy-2"
PAST, HELD_OUT, LOGGED = "past.jsonl", "held_out.jsonl", "logged.jsonl"
SIMULATED = "Queries, models and all outcomes are made up: the numbers show how choices learn, not how good a model is."
EXAMPLES = (
    "Solve 4x + 7 = 31 for x and show your work.",
    "Good morning! Any plans for the weekend?",
    "Can my landlord keep the deposit under Irish law?",
)


@dataclass(frozen=True, kw_only=True)
class Example:
    """The choices for one query: for the best score, and for the best single model's score at the lowest cost."""

    text: str
    best: Decision
    frugal: Decision


@dataclass(frozen=True, kw_only=True)
class NewModel:
    """What a new model changes, on the same held-out queries."""

    name: str
    outcomes: int  # of its answers on the first day
    logged: int  # queries of that day
    first_day: Mapping[str, float]  # by kind, how often it is chosen while exploring
    before: Findings
    after: Findings


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the demo.")] = OUT,
    seed: Annotated[int, typer.Option(min=0, help="Seed; the same seed gives the same policy.")] = 0,
    queries: Annotated[int, typer.Option(min=200, help="Number of queries with outcomes.")] = 3_000,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Print plain lines, no live display.")] = False,
) -> None:
    """Show in a minute how routing of queries to language models is learned from outcomes.

    Makes up queries with the outcomes of six models, learns, compares on held-out queries, then adds a new model.

    A finished demo stays as it is: the next one goes to runs/demo-2, then runs/demo-3, …
    """
    began, screen = time.perf_counter(), console()
    if no_progress and screen.is_terminal:
        screen = Console(highlight=False, force_terminal=False)
    root = first_free(out, lambda path: False)
    with interruptible(screen), RunFolder(root).locked():
        held_out, day = _make_queries(root, queries, seed, screen)
        before = _learn_and_measure(root, held_out, seed, screen)
        examples = _choose(root, before, screen)
        new = _add_model(root, held_out, day, seed, before, screen)
        report = write_demo_report(RunFolder(root).report, before, examples, new)
    screen.print(f"\n{verdict(before)}\n{summary(new)}\n{SIMULATED}", markup=False, soft_wrap=True)
    print_ending(report, root / SECOND, screen, seconds=time.perf_counter() - began)


# Stages


def _stage(number: int, title: str, about: str, screen: Console) -> None:
    screen.print(f"\n[bold]{number} of 4: {title}[/]\n[dim]{escape(about)}[/]", soft_wrap=True)


def _make_queries(root: Path, n: int, seed: int, screen: Console) -> tuple[list[Query], list[Query]]:
    """Writes past queries; returns those that are held out, and those of a later day."""
    _stage(1, "make up queries", f"{', '.join(kinds())}; six models with simulated scores and costs: {root}", screen)
    made, names = make_rows(n + n // 5, seed), [model["name"] for model in described()]
    past, held_out, day = made[: n - n // 5], made[n - n // 5 : n], made[n:]
    _write(
        root / QUERIES, described(), {PAST: (q.row(*names) for q in past), HELD_OUT: (q.row(*names) for q in held_out)}
    )
    rows = [(model["name"], _price(model), model["description"]) for model in described()]
    screen.print(table("model", "USD per million tokens", "description", rows=rows))
    return held_out, day


def _price(model: Mapping[str, Any]) -> str:
    return f"{model['usd_per_mtok_in']:.2f} in, {model['usd_per_mtok_out']:.2f} out"


def _write(folder: Path, options: list[dict[str, Any]], files: Mapping[str, Iterable[dict[str, Any]]]) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "options.json", {"options": options})
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def _learn_and_measure(root: Path, held_out: Sequence[Query], seed: int, screen: Console) -> Findings:
    replay, test = root / QUERIES / PAST, root / QUERIES / HELD_OUT
    _stage(2, "learn", f"etude train choice --replay {replay} --out {root / FIRST}", screen)
    _learn(root / FIRST, screen, replay=replay, seed=seed)
    screen.print("")
    show(evaluate(EvaluateRequest(run=root / FIRST, inputs={"replay": test})))
    return _measure(root / FIRST, test, held_out)


def _learn(out: Path, screen: Console, **inputs: Any) -> None:
    run = start_run(make_request("choice", out=out, inputs=inputs, isolated=True))
    with screen.status("learning"):
        follow(run, Display(run, screen, live=False))
        finish_run(run)


def _measure(run: Path, replay: Path, queries: Sequence[Query]) -> Findings:
    model = read_model(find_policy(run))
    rows = [row for part in ReplayFile(replay, find_options(replay, None))() for row in part]
    return find(model, rows, model.expect([row.context for row in rows]), [query.kind for query in queries])


def _choose(root: Path, found: Findings, screen: Console) -> list[Example]:
    _stage(3, "choose", f'etude.load("{root / FIRST}").choose("…")', screen)
    policy: ChoicePolicy = load_policy(root / FIRST)
    examples = [
        Example(text=text, best=policy.choose(text), frugal=policy.choose(text, quality_weight=found.quality_weight))
        for text in EXAMPLES
    ]
    cells = [[escape(example.text), _shown(example.best), _shown(example.frugal)] for example in examples]
    screen.print(table("query", *_heads(found), rows=cells))
    return examples


def _heads(found: Findings) -> list[str]:
    return ["for the best score", f"for {found.best_single}’s score, cheaper"]


def _shown(decision: Decision) -> str:
    assert decision.expected is not None
    expected = decision.expected[str(decision.action)]
    return f"{decision.action}: {score(expected.score)} for {usd(expected.cost_usd or 0.0)}"


def _add_model(
    root: Path, held_out: Sequence[Query], day: Sequence[Query], seed: int, before: Findings, screen: Console
) -> NewModel:
    new = described_new()
    about = f"{new['name']}, {_price(new)}: {new['description']} It is chosen by its description, then by its outcomes."
    _stage(4, "a new model", about, screen)
    with screen.status(f"choosing for {len(day):,} queries"):
        first_day, rows = _explore(root / FIRST, day, new)
    options, names = [*described(), new], [model["name"] for model in [*described(), new]]
    _write(root / LATER, options, {LOGGED: rows, HELD_OUT: (query.row(*names) for query in held_out)})
    _learn(root / SECOND, screen, replay=root / LATER / LOGGED, checkpoint=root / FIRST, seed=seed)
    found = NewModel(
        name=new["name"],
        outcomes=sum(new["name"] in row["outcomes"] for row in rows),
        logged=len(rows),
        first_day=first_day,
        before=before,
        after=_measure(root / SECOND, root / LATER / HELD_OUT, held_out),
    )
    heads, cells = new_model_table(found)
    screen.print(table("", *heads, rows=cells, right=heads))
    return found


def _explore(run: Path, day: Sequence[Query], new: Mapping[str, Any]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """One day with all models on offer: how often the new one is chosen, by kind, and what was logged."""
    policy: ChoicePolicy = load_policy(run, explore="thompson")
    offered, chances, rows = [*described(), new], dict[str, list[float]](), []
    for i, query in enumerate(day):
        decision = policy.choose(query.text, options=offered, seed=i)
        assert decision.expected is not None
        chances.setdefault(query.kind, []).append(decision.expected[new["name"]].probability or 0.0)
        rows.append(query.row(decision.action["name"]) | {"propensity": decision.propensity})
    return {kind: sum(found) / len(found) for kind, found in chances.items()}, rows


# The report


def write_demo_report(path: Path, found: Findings, examples: Sequence[Example], new: NewModel) -> Path:
    page = Page(
        title="Which model answers which query · demo",
        facts=[
            "simulated queries and outcomes",
            f"compared on {whole(found.rows)} held-out queries",
            "6 models, then 7",
        ],
        tiles=[*tiles(found)[:3], _new_tile(new)],
        lead=f"{verdict(found)} {SIMULATED}",
        sections=[*sections(found), _new_model(new), _examples(examples, found)],
        footer=code(
            f"The queries are lines of JSON in `{QUERIES}/`: replace them with yours, then `etude train choice "
            f'--replay {QUERIES}/{PAST}`. The policy chooses: `etude.load("{FIRST}").choose("…")`'
        ),
    )
    return page.write(path)


def summary(new: NewModel) -> str:
    """What the new model changes, in words."""
    before, after = (found.choices[POLICY] for found in (new.before, new.after))
    return (
        f"With {new.name}, after {whole(new.outcomes)} of its answers to {whole(new.logged)} queries, choices score "
        f"{score(after.score)} instead of {score(before.score)} and cost {usd(after.cost_usd)} instead of "
        f"{usd(before.cost_usd)} per query."
    )


def new_model_table(new: NewModel) -> tuple[list[str], list[list[str]]]:
    """By kind of query, how often the new model is chosen, and what that changes."""
    heads = ["chosen on its first day", "after learning", "score", "change", "cost per query", "before"]
    before, after = ({group.name: group for group in found.groups} for found in (new.before, new.after))
    order = sorted(after, key=lambda kind: -after[kind].options[new.name].share)
    return heads, [_changes(kind, new, before[kind], after[kind]) for kind in order]


def _changes(kind: str, new: NewModel, before: Group, after: Group) -> list[str]:
    return [
        kind,
        percent(new.first_day.get(kind, 0.0)),
        percent(after.options[new.name].share),
        score(after.score),
        signed(after.score - before.score, DIGITS),
        usd(after.cost_usd),
        usd(before.cost_usd),
    ]


def _new_tile(new: NewModel) -> Tile:
    before, after = (found.choices[POLICY] for found in (new.before, new.after))
    change = signed(after.score - before.score, DIGITS)
    return Tile("with a new model", change, f"and {usd(after.cost_usd)} instead of {usd(before.cost_usd)} per query")


def _new_model(new: NewModel) -> Section:
    heads, rows = new_model_table(new)
    note = (
        f"{new.name} has a description and a price, and no past. On its first day the policy explores: it samples it "
        "where its description promises most. Then the policy continues with the outcomes of that day alone. "
        f"{summary(new)}"
    )
    return Section(title="A new model appears", name="new", note=note, body=[blocks.table(heads, rows)])


def _examples(examples: Sequence[Example], found: Findings) -> Section:
    rows = [[example.text, _shown(example.best), _shown(example.frugal)] for example in examples]
    note = "The model that is chosen, with its expected score and cost."
    return Section(title="Three queries", name="examples", note=note, body=[blocks.table(_heads(found), rows)])
