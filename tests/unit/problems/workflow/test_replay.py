"""Recorded outcomes: what a file may hold, what is made of gaps, what choices give, and the laws of the world."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from etude.contracts.errors import ConfigError, DataError
from etude.problems.base import Action, Obs
from etude.problems.workflow.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.encode import Known, make_library, surround
from etude.problems.workflow.experts import random_choice
from etude.problems.workflow.likeness import Likeness
from etude.problems.workflow.network import PlannerConfig, PlanPolicy
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.problem import no_memory
from etude.problems.workflow.replay import (
    UNKNOWN,
    WEIGHTS,
    Curve,
    Query,
    Replay,
    ReplayConfig,
    ReplayWorld,
    choose,
    curve,
    read_outcomes,
    references,
    type_means,
)
from etude.text.ngrams import NGramEncoder

torch.set_num_threads(1)
CATALOGUE = Catalogue(
    task_types=(TaskType(name="summarise"), TaskType(name="translate")),
    workers=(
        Worker(name="cheap", usd_per_call=0.01),
        Worker(name="dear", usd_per_call=0.1),
        Worker(name="linguist", usd_per_call=0.05, task_types=("translate",)),
    ),
)
CHEAP, DEAR, LINGUIST = range(3)
SUMMARISE, TRANSLATE = range(2)


def line(instruction: str = "Sum it up", task_type: str | None = "summarise", **outcomes: tuple[Any, Any]) -> str:
    """Outcomes are (score, cost)."""
    given = {name: {"score": score, "cost_usd": cost} for name, (score, cost) in outcomes.items()}
    return json.dumps({"instruction": instruction, "task_type": task_type, "outcomes": given})


LINES = (
    line("Sum it up", cheap=(0.5, 0.01), dear=(1.0, 0.1)),
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
    found = read(tmp_path, line(cheap=(0.5, 0.01)), "", line("other", cheap=(1, 1)), line(dear=(0.7, 0.1)))
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
    (LINES[0], "outcome of 'cheap' for this instruction stands in line 1 already"),
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
    # The log asks the cheap worker where it is good, the dear one where that is bad.
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
    assert made(score, score, types, mask).best_single() == DEAR


def test_untried_workers_can_be_left_out(replay: Replay) -> None:
    only = replay.take(torch.tensor([0, 2])).tried()
    assert [w.name for w in only.catalogue.workers] == ["cheap", "dear"]
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


def test_a_weight_of_cost_never_makes_choices_dearer() -> None:
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


# The world


def world(replay: Replay, n: int = 64, **config: Any) -> ReplayWorld:
    return ReplayWorld(ReplayConfig(**config), replay, n=n)


def pick(worker: int | Tensor, obs: Obs) -> Action:
    n = len(obs["instruction"])
    types = obs["offered"].int().argmax(1)
    links = torch.zeros((n, obs["types"].shape[1]), dtype=torch.bool)
    return {
        "correction": torch.full((n,), 5),
        "type": types,
        "links": links,
        "worker": torch.as_tensor(worker).expand(n),
    }


def test_only_recorded_outcomes_of_the_queries_type_can_be_chosen(replay: Replay) -> None:
    w = world(replay, limits=Limits(max_nodes=3))
    obs = w.reset(0)
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(20):
        rows, action = obs["instruction"], random_choice(w.rules)(obs, generator)
        known = replay.types[rows]
        assert ((action["type"] == known) | (known == UNKNOWN)).all()
        assert (action["type"] < len(CATALOGUE.task_types)).all()
        assert not action["links"].any()
        assert replay.mask[rows, action["worker"]].all()
        seen |= set(zip(rows.tolist(), action["worker"].tolist(), strict=True))
        obs = w.step(action).obs
    assert seen == {(row, worker) for row, worker in replay.mask.nonzero().tolist()}


def test_the_reward_is_score_less_weighed_cost(replay: Replay) -> None:
    w = world(replay, weight=0.3, unit_usd=0.2)
    rows = w.reset(1)["instruction"]
    worker = replay.mask[rows].int().argmax(1)
    step = w.step(pick(worker, w.observe()))
    score, cost = replay.score[rows, worker], replay.cost_usd[rows, worker]
    assert step.reward.double().tolist() == pytest.approx((score - 0.3 * cost / 0.2).tolist(), abs=1e-6)
    assert step.metrics["score"].double().tolist() == pytest.approx(score.tolist())
    assert step.metrics["cost_usd"].double().tolist() == pytest.approx(cost.tolist())
    assert step.metrics["return"].equal(step.reward)
    assert step.terminated.all()
    assert not step.truncated.any()
    assert step.final_obs is not None
    assert step.final_obs["instruction"].equal(rows)
    assert (step.final_obs["length"] == 1).all()
    assert (step.obs["length"] == 0).all()
    rewards, known = w.rewards(rows)
    assert rewards[torch.arange(64), worker].equal(step.reward)
    assert known.equal(replay.mask[rows])


def test_the_unit_of_cost_is_the_best_single_workers_mean() -> None:
    replay = made(torch.tensor([[0.1, 0.9, 0.2]] * 4), torch.tensor([[1.0, 3, 2]] * 4), torch.full((4,), TRANSLATE))
    assert world(replay, weight=0.5).rewards(torch.tensor([0]))[0][0].tolist() == pytest.approx(
        [0.1 - 0.5 / 3, 0.9 - 0.5, 0.2 - 1 / 3]
    )
    free = made(torch.ones((2, 3)), torch.zeros((2, 3)), torch.full((2,), TRANSLATE))
    assert free.unit_usd() == 1


def test_estimates_open_what_is_not_recorded(replay: Replay) -> None:
    w = world(replay, estimated=True)
    rows = torch.arange(3)
    assert w.queries(rows)["available"].equal(replay.able)
    assert w.rewards(rows)[0].double().tolist() == [pytest.approx(x) for x in replay.completed()[0].tolist()]


def test_the_same_seed_gives_the_same_queries_and_a_state_goes_on(replay: Replay) -> None:
    def play(w: ReplayWorld, steps: int) -> list[list[int]]:
        generator, found = torch.Generator().manual_seed(3), []
        for _ in range(steps):
            step = w.step(random_choice(w.rules)(w.observe(), generator))
            found.append([*step.obs["instruction"].tolist(), *step.reward.tolist()])
        return found

    first, second, other = world(replay), world(replay), world(replay)
    assert first.reset(7)["instruction"].equal(second.reset(7)["instruction"])
    assert not first.observe()["instruction"].equal(other.reset(8)["instruction"])
    assert play(first, 5) == play(second, 5)
    other.load_state_dict(first.state_dict())
    assert other.observe()["instruction"].equal(first.observe()["instruction"])
    assert play(first, 5) == play(other, 5)


def test_queries_that_nobody_may_do_now_are_passed_over(replay: Replay) -> None:
    catalogue = CATALOGUE.updated("cheap", quota=0).updated("linguist", available=False)
    left = world(replace(replay, catalogue=catalogue))
    assert set(left.reset(0)["instruction"].tolist()) == {0}
    nobody = catalogue.updated("dear", available=False)
    with pytest.raises(ConfigError, match="no query can be decided"):
        world(replace(replay, catalogue=nobody))


def test_a_planner_decides_in_it(replay: Replay) -> None:
    encoder, limits = NGramEncoder(32), Limits(max_nodes=4)
    known = Known(task_types=("summarise", "translate"), workers=("cheap", "dear", "linguist"))
    memory = no_memory(2, encoder.width)
    alike = Likeness(encoder, CATALOGUE.task_types)(replay.texts)
    library = make_library(encoder, replay.texts, memory.votes(encoder, replay.texts), alike)
    torch.manual_seed(0)
    policy = PlanPolicy(
        PlannerConfig(width=16, layers=1, heads=2), text_width=32, known_types=2, known_workers=3, nodes=4
    ).within(surround(encoder, CATALOGUE, limits, known, memory, library))
    w = world(replay, limits=limits)
    obs = w.reset(0)
    decision = policy.eval().act(obs, generator=torch.Generator().manual_seed(0))
    assert replay.mask[obs["instruction"], decision.action["worker"]].all()
    one_choice = replay.mask[obs["instruction"]].sum(1) == 1
    sure = one_choice & (obs["offered"].sum(1) == 1)
    assert decision.log_prob[sure].abs().max() < 1e-6
    assert decision.log_prob[~one_choice].max() < 0


def test_a_query_is_written_as_it_is_read() -> None:
    query = msgspec.json.decode(LINES[0], type=Query)
    assert msgspec.json.decode(msgspec.json.encode(query), type=Query) == query
