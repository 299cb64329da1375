"""Recorded outcomes: what a file may hold, what is made of gaps, what choices give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from etude.contracts.errors import DataError
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.routing.replay import (
    UNKNOWN,
    WEIGHTS,
    Curve,
    Query,
    Replay,
    choose,
    curve,
    read_outcomes,
    references,
    type_means,
)

torch.set_num_threads(1)
CATALOGUE = Catalogue(
    task_types=(TaskType(name="summarise"), TaskType(name="translate")),
    workers=(
        Worker(name="cheap", usd_per_call=0.01),
        Worker(name="costly", usd_per_call=0.1),
        Worker(name="linguist", usd_per_call=0.05, task_types=("translate",)),
    ),
)
CHEAP, COSTLY, LINGUIST = range(3)
SUMMARISE, TRANSLATE = range(2)


def line(instruction: str = "Sum it up", task_type: str | None = "summarise", **outcomes: tuple[Any, Any]) -> str:
    """Outcomes are (score, cost)."""
    given = {name: {"score": score, "cost_usd": cost} for name, (score, cost) in outcomes.items()}
    return json.dumps({"instruction": instruction, "task_type": task_type, "outcomes": given})


LINES = (
    line("Sum it up", cheap=(0.5, 0.01), costly=(1.0, 0.1)),
    line("Into French", "translate", linguist=(0.9, 0.05)),
    line("Do something", None, cheap=(0.1, 0.02)),
)


def read(folder: Path, *lines: str) -> Replay:
    (folder / "outcomes.jsonl").write_text("\n".join(lines))
    return read_outcomes(folder / "outcomes.jsonl", CATALOGUE)


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    return read(tmp_path, *LINES)


def made(score: Tensor, cost: Tensor, types: Tensor, mask: Tensor | None = None) -> Replay:
    able = ~((types[:, None] == SUMMARISE) & (torch.arange(3) == LINGUIST))
    mask = able if mask is None else mask & able
    return Replay(
        catalogue=CATALOGUE,
        texts=tuple(f"query {i}" for i in range(len(score))),
        types=types,
        score=score.double() * mask,
        cost_usd=cost.double() * mask,
        mask=mask,
    )


def test_a_file_is_read_as_it_is(replay: Replay) -> None:
    assert replay.texts == ("Sum it up", "Into French", "Do something")
    assert replay.types.tolist() == [SUMMARISE, TRANSLATE, UNKNOWN]
    assert replay.mask.tolist() == [[True, True, False], [False, False, True], [True, False, False]]
    assert replay.score[0].tolist() == [0.5, 1.0, 0.0]
    assert replay.cost_usd[:, CHEAP].tolist() == [0.01, 0.0, 0.02]
    assert replay.able.tolist() == [[True, True, False], [True] * 3, [True] * 3]


def test_lines_about_the_same_query_are_one(tmp_path: Path) -> None:
    found = read(tmp_path, line(cheap=(0.5, 0.01)), "", line("other", cheap=(1, 1)), line(costly=(0.7, 0.1)))
    assert found.texts == ("Sum it up", "other")
    assert found.score[0].tolist() == [0.5, 0.7, 0]
    assert len(read(tmp_path, line(cheap=(0, 0)), line(task_type="translate", cheap=(0, 0)))) == 2


BAD = [
    ("{", "line 2"),
    ("[]", "line 2"),
    ("\xff", "line 2"),
    ('{"instruction": "x", "outcomes": {"cheap": {"score": NaN, "cost_usd": 1}}}', "line 2"),
    ('{"instruction": "x", "outcomes": {"cheap": {"score": 1}}}', "missing required field `cost_usd`"),
    ('{"instruction": "x", "outcomes": {"cheap": {"score": "good", "cost_usd": 1}}}', r"score"),
    (line("  ", cheap=(1, 1)), "line 2: the instruction is empty"),
    (line("x"), "has no outcomes"),
    (line("x", "summarize", cheap=(1, 1)), "'summarize' is no task type.*did you mean 'summarise'"),
    (line("x", chaep=(1, 1)), "'chaep' is no worker.*did you mean 'cheap'"),
    (line("x", linguist=(1, 1)), "'linguist' is not able to do 'summarise'"),
    (line("x", cheap=(1, -0.1)), "cost_usd of 'cheap' is -0.1"),
    (line("x", cheap=(1e300, 1)), "score of 'cheap' is 1e\\+300"),
    (line("x", cheap=(None, 1)), "line 2"),
    (LINES[0], "outcome of 'cheap' for this instruction is on line 1 too"),
    ("[" * 100_000, "line 2"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, LINES[0], bad, LINES[1])


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is empty"):
        read(tmp_path, "", "  ")
    with pytest.raises(DataError, match="cannot be read"):
        read_outcomes(tmp_path / "nowhere", CATALOGUE)
    with pytest.raises(DataError, match="has none"):
        read_outcomes(tmp_path / "outcomes.jsonl", Catalogue(task_types=CATALOGUE.task_types))


def test_gaps_are_filled_without_bias() -> None:
    generator = torch.Generator().manual_seed(0)
    n = 20_000
    types = torch.randint(2, (n,), generator=generator)
    skill = torch.tensor([[0.9, 0.5, 0.0], [0.1, 0.5, 0.8]])[types]
    score = (torch.rand((n, 3), generator=generator) < skill).float()
    # The log asks the cheap worker where it is good, the costly one where that is bad.
    odds = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.6, 0.3]])[types]
    asked = torch.multinomial(odds, 1, generator=generator)
    logged = made(score, score, types, torch.zeros((n, 3), dtype=torch.bool).scatter(1, asked, True))
    raw = (logged.score.sum(0) / logged.mask.sum(0))[:2]
    estimated = logged.completed()[0].mean(0)[:2]
    truth = skill.mean(0)[:2]
    assert (raw - truth).abs().max() > 0.2
    assert (estimated - truth).abs().max() < 0.03
    whole = made(score, score, torch.full_like(types, TRANSLATE))
    assert whole.completed()[0] is whole.score


def test_the_best_single_worker_is_best_over_types_not_where_it_was_asked() -> None:
    types = torch.tensor([SUMMARISE] * 50 + [TRANSLATE] * 50)
    score = torch.tensor([[0.9, 0.8, 0]] * 50 + [[0.0, 0.6, 0]] * 50)
    mask = torch.ones((100, 3), dtype=torch.bool)
    mask[:, LINGUIST] = False
    mask[55:, CHEAP] = False  # hardly ever asked where it fails
    assert made(score, score, types, mask).best_single() == COSTLY


def test_untried_workers_can_be_left_out(replay: Replay) -> None:
    only = replay.take(torch.tensor([0, 2])).tried()
    assert [w.name for w in only.catalogue.workers] == ["cheap", "costly"]
    assert only.score.tolist() == [[0.5, 1.0], [0.1, 0.0]]


def test_type_means_leave_the_query_itself_out() -> None:
    types = torch.tensor([TRANSLATE] * 3 + [UNKNOWN])
    replay = made(torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1]]), torch.ones(4, 3), types)
    past, asked = type_means(replay, replay)
    mean = 0.5  # of the cheap worker over all
    assert past[:, CHEAP].tolist() == pytest.approx([(mean + 2) / 3, (mean + 1) / 3, (mean + 1) / 3, mean])
    assert asked[:, CHEAP].tolist() == pytest.approx([*[(mean + 2) / 4] * 3, mean / 2])


def test_references_choose_only_who_is_able() -> None:
    generator = torch.Generator().manual_seed(1)
    replay = made(
        torch.rand((500, 3), generator=generator),
        torch.rand((500, 3), generator=generator),
        torch.randint(-1, 2, (500,), generator=generator),
    )
    found = references(replay, best_single=LINGUIST)
    rows = torch.arange(500)
    assert all(replay.able[rows, picks].all() for picks in found.values())
    assert (found["best_single"] == LINGUIST).equal(replay.types != SUMMARISE)
    assert replay.score[rows, found["oracle"]].equal(torch.where(replay.able, replay.score, -1).amax(1))
    cheapest = torch.where(replay.able, replay.cost_usd, torch.inf).amin(1)
    assert replay.cost_usd[rows, found["cheapest"]].equal(cheapest)


def test_a_weight_of_cost_never_makes_choices_more_expensive() -> None:
    generator = torch.Generator().manual_seed(2)
    score, cost = (torch.rand((400, 3), generator=generator) for _ in range(2))
    replay = made(score, cost, torch.full((400,), TRANSLATE))
    found = curve(replay.score, replay.cost_usd, replay, unit_usd=0.5)
    assert (found.cost_usd.diff() <= 1e-12).all()
    assert (found.score.diff() <= 1e-12).all()  # what is expected is what happens
    assert found.score[0] == replay.score.amax(1).mean()
    assert found.cost_usd[-1].item() == pytest.approx(replay.cost_usd.amin(1).mean().item(), abs=1e-3)
    everyone = torch.ones_like(replay.able)
    by_hand = (score - 0.3 * cost / 0.5).argmax(1)
    assert choose(score, cost, everyone, weight=0.3, unit_usd=0.5).equal(by_hand)


def test_area_and_weight_of_a_curve_by_hand() -> None:
    points = Curve(weight=WEIGHTS[:3], score=torch.tensor([0.9, 0.7, 0.5]), cost_usd=torch.tensor([1.0, 0.5, 0.25]))
    # 0.5 up to a cost of 0.5, 0.7 from there, 0.9 at 1 alone
    assert points.area(0.0, 1.0) == pytest.approx(0.5 * 0.5 + 0.5 * 0.7, abs=1e-3)
    assert points.area(2.0, 1.0) == pytest.approx(0.9)
    assert points.weight_for(0.6) == points.weight[1]
    assert points.weight_for(0.0) == points.weight[2]
    assert points.weight_for(7.0) == points.weight[0]


def test_the_unit_of_cost_of_free_workers_is_one_dollar() -> None:
    replay = made(torch.tensor([[0.1, 0.9, 0.2]] * 4), torch.tensor([[1.0, 3, 2]] * 4), torch.full((4,), TRANSLATE))
    assert replay.unit_usd() == 3
    free = made(torch.ones((2, 3)), torch.zeros((2, 3)), torch.full((2,), TRANSLATE))
    assert free.unit_usd() == 1


def test_a_query_is_written_as_it_is_read() -> None:
    query = msgspec.json.decode(LINES[0], type=Query)
    assert msgspec.json.decode(msgspec.json.encode(query), type=Query) == query
