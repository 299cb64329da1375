"""The router: closed forms against refits, text where it pays and only there, gaps, newcomers, and its state."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from etude.contracts.errors import CatalogueError, CheckpointError, DataError
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.routing.kernels import MIX, _surface, make_kernel, read_texts
from etude.problems.routing.replay import UNKNOWN, Replay, type_means
from etude.problems.routing.router import Router, _tensor, fit_router, neighbours, ridge_regression
from etude.text.ngrams import NGramEncoder
from etude.text.tfidf import inverse_document_frequency

torch.set_num_threads(1)
ENCODER = NGramEncoder(64)
CATALOGUE = Catalogue(
    task_types=(TaskType(name="maths"), TaskType(name="poems"), TaskType(name="unheard of")),
    workers=(
        Worker(name="small", usd_per_mtok_in=1, size="7B", description="a small model"),
        Worker(name="middle", usd_per_mtok_in=3, size="30B", description="a middling model"),
        Worker(name="large", usd_per_mtok_in=9, size="70B", description="a large model"),
    ),
)
SMALL, MIDDLE, LARGE = range(3)
MATHS, POEMS, UNHEARD = range(3)
FILLER = (
    "please",
    "kindly",
    "now",
    "then",
    "also",
    "maybe",
    "for",
    "us",
    "and",
    "them",
    "here",
    "one",
    "more",
    "thing",
)
TOPICS = {MATHS: ("algebra", "geometry"), POEMS: ("sonnet", "haiku")}


def made(n: int, seed: int, *, decides: bool, recorded: float = 1.0) -> Replay:
    """Small and middle are good at one topic of each type each, if text `decides`, else at half of anything."""
    rng = np.random.default_rng(seed)
    types = rng.integers(2, size=n)
    topic = rng.integers(2, size=n)
    texts = [
        f"{TOPICS[t][k]} {' '.join(rng.choice(FILLER, rng.integers(3, 12)))} {i}"
        for i, (t, k) in enumerate(zip(types, topic, strict=True))
    ]
    skill = np.stack([topic, 1 - topic, np.full(n, 0.5)], 1) * 0.6 + 0.2 if decides else np.full((n, 3), 0.5)
    skill = skill + 0.05 * np.stack([types, 1 - types, np.zeros(n)], 1)
    score = torch.from_numpy((rng.random((n, 3)) < skill).astype(np.float64))
    length = torch.tensor([len(text) for text in texts])
    cost = (100 + length[:, None]) * torch.tensor([1.0, 3, 9]) / 1e6
    mask = torch.from_numpy(rng.random((n, 3)) < recorded)
    mask[torch.arange(n), torch.from_numpy(rng.integers(3, size=n))] = True
    return Replay(
        catalogue=CATALOGUE,
        texts=tuple(texts),
        types=torch.from_numpy(types),
        score=score * mask,
        cost_usd=cost * mask,
        mask=mask,
    )


@pytest.fixture(scope="module")
def fitted() -> tuple[Router, Tensor, Replay]:
    replay = made(400, 0, decides=True)
    return *fit_router(replay, ENCODER), replay


def earned(replay: Replay, picks: Tensor) -> Tensor:
    return replay.score[torch.arange(len(replay)), picks]


# Closed forms


def similar(m: int, rng: np.random.Generator) -> NDArray[np.float64]:
    x = rng.normal(size=(m, 4))
    kernel: NDArray[np.float64] = x @ x.T
    return kernel


@pytest.mark.parametrize("recorded", [1.0, 0.5])
@pytest.mark.parametrize("r", [0.5, 8.0])
def test_left_out_predictions_are_those_of_refits(recorded: float, r: float) -> None:
    rng = np.random.default_rng(0)
    m, W = 14, 3
    kernel, y, mask = similar(m, rng), rng.normal(size=(m, W)), rng.random((m, W)) < recorded
    alpha, left_out = ridge_regression(kernel, y, mask, r)
    for i in range(m):
        for w in range(W):
            rows = [j for j in range(m) if mask[j, w] and j != i]
            a = kernel[np.ix_(rows, rows)] + r + r * np.eye(len(rows))
            refit = (kernel[i, rows] + r) @ np.linalg.solve(a, y[rows, w])
            assert left_out[i, w] == pytest.approx(refit, abs=1e-9)
    assert (alpha[~mask] == 0).all()


def test_without_a_kernel_it_is_the_mean_drawn_in_by_one() -> None:
    rng = np.random.default_rng(1)
    y, mask = rng.normal(size=(9, 2)), rng.random((9, 2)) < 0.7
    _, left_out = ridge_regression(np.zeros((9, 9)), y, mask, 5.0)
    total, count = (y * mask).sum(0), mask.sum(0)
    assert left_out == pytest.approx((total - y * mask) / (1 + count - mask))


def test_the_kernel_is_centred_and_the_same_for_texts_it_knows() -> None:
    texts = read_texts(ENCODER, [*made(60, 3, decides=True).texts, "", "¿Qué? def f(x):\n    return x"])
    idf = inverse_document_frequency(texts.counts)
    kernel, matrix = make_kernel(texts, idf)
    assert matrix == pytest.approx(matrix.T, abs=1e-6)
    assert matrix.mean(0) == pytest.approx(0, abs=1e-6)
    assert matrix.diagonal().mean() == pytest.approx(sum(MIX), abs=1e-6)
    assert np.linalg.eigvalsh((matrix + matrix.T) / 2).min() > -1e-5
    rows = np.array([3, 61])
    assert kernel.of(texts.take(rows), idf) == pytest.approx(matrix[rows], abs=1e-6)


def test_texts_that_are_all_the_same_say_nothing() -> None:
    texts = read_texts(ENCODER, ["the same"] * 5)
    _, matrix = make_kernel(texts, inverse_document_frequency(texts.counts))
    assert matrix == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("text", ["", " ", "\x00\ud800", "9" * 100_000, "क" * 50, "a\nb"])
def test_any_text_can_be_read(text: str) -> None:
    assert np.isfinite(_surface(text)).all()
    router, _ = fit_router(made(30, 0, decides=False), ENCODER)
    p = router.predict([text], torch.tensor([UNKNOWN]))
    assert p.score.isfinite().all()
    assert p.cost_usd.isfinite().all()


# Text where it pays


def test_text_that_decides_is_used(fitted: tuple[Router, Tensor, Replay]) -> None:
    router, left_out, past = fitted
    asked = made(400, 99, decides=True)
    _, plain = type_means(past, asked)
    gain = earned(asked, router.choose(asked.texts, asked.types)) - earned(asked, plain.argmax(1))
    assert gain.mean() > 0.15
    assert (earned(past, left_out.argmax(1)) - earned(past, plain.argmax(1))).mean() > 0.15
    assert all(branch.kernel is not None for branch in router.learned.branches.values())


def test_text_that_is_noise_costs_nothing() -> None:
    used, gains = 0, []
    for seed in range(12):
        past, asked = made(160, seed, decides=False), made(300, 1000 + seed, decides=False)
        router, _ = fit_router(past, ENCODER)
        _, plain = type_means(past, asked)
        used += sum(branch.kernel is not None for branch in router.learned.branches.values())
        gains.append((earned(asked, router.choose(asked.texts, asked.types)) - earned(asked, plain.argmax(1))).mean())
    assert used <= 6  # of 24
    gain = torch.stack(gains)
    assert gain.mean() > -2 * gain.std() / len(gain) ** 0.5 - 0.005


@pytest.mark.parametrize("recorded", [0.5, 0.0])
def test_a_log_with_gaps_is_learned_from(recorded: float) -> None:
    """With 0 every query has one outcome, of a worker drawn at random."""
    past, asked = made(800, 5, decides=True, recorded=recorded), made(400, 98, decides=True)
    router, left_out = fit_router(past, ENCODER)
    _, plain = type_means(past, asked)
    gain = earned(asked, router.choose(asked.texts, asked.types)) - earned(asked, plain.argmax(1))
    assert gain.mean() > 0.1
    assert left_out.shape == past.score.shape


def test_a_log_that_seldom_asked_the_right_worker_is_learned_from() -> None:
    past, asked = made(1000, 7, decides=True), made(400, 94, decides=True)
    drawn = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), 1000, True, generator=torch.Generator().manual_seed(0))
    mask = torch.nn.functional.one_hot(drawn, 3).bool()
    seen = {"mask": mask, "score": past.score * mask, "cost_usd": past.cost_usd * mask}
    router, _ = fit_router(Replay(**{**vars(past), **seen}), ENCODER)
    assert earned(asked, router.choose(asked.texts, asked.types)).mean() > 0.65  # small alone has 0.53


# Cost


def test_cost_is_expected_by_length(fitted: tuple[Router, Tensor, Replay]) -> None:
    router, _, _ = fitted
    asked = made(50, 97, decides=True)
    expected = router.predict(asked.texts, asked.types).cost_usd
    assert (expected / asked.cost_usd - 1).abs().max() < 0.02


def test_task_types_may_differ_in_cost() -> None:
    past = made(200, 6, decides=False)
    more_expensive = past.cost_usd * (1 + (past.types == POEMS).double())[:, None]
    router, _ = fit_router(Replay(**{**vars(past), "cost_usd": more_expensive}), ENCODER)
    maths, poems = (router.predict([past.texts[0]], torch.tensor([t])).cost_usd for t in (MATHS, POEMS))
    assert (poems / maths).tolist() == [pytest.approx([2.0] * 3, rel=0.05)]


def test_the_more_cost_weighs_the_cheaper_and_a_wanted_score_is_reached(fitted: tuple[Router, Tensor, Replay]) -> None:
    router, left_out, past = fitted
    p = router.predict(past.texts, past.types)
    spent = [
        p.cost_usd.gather(1, router.choose(past.texts, past.types, weight=w)[:, None]).sum().item()
        for w in (0.0, 0.05, 0.3, 1.0, 50.0)
    ]
    assert spent == sorted(spent, reverse=True)
    assert spent[-1] < spent[0]
    weights = [router.weight_for(score) for score in (0.0, 0.5, 0.6, 0.7, 2.0)]
    assert weights == sorted(weights, reverse=True)
    frontier = router.learned.frontier
    at = frontier.weight == router.weight_for(0.6)
    assert frontier.score[at] >= 0.6
    assert frontier.score[0] == earned(past, left_out.argmax(1)).mean()
    assert router.best_single in {w.name for w in CATALOGUE.workers}


# Another catalogue


def test_a_newcomer_is_expected_to_do_as_its_nearest_at_its_own_price(fitted: tuple[Router, Tensor, Replay]) -> None:
    router, _, past = fitted
    new = Worker(name="new", usd_per_mtok_in=8, size="65B", description="a large model")
    wider = router.under(CATALOGUE.added(new))
    p, before = (r.predict(past.texts[:5], past.types[:5]) for r in (wider, router))
    assert p.score[:, 3].equal(before.score[:, LARGE])
    assert p.cost_usd[:, 3].tolist() == pytest.approx((before.cost_usd[:, LARGE] * 8 / 9).tolist())
    assert p.score[:, :3].equal(before.score)


def test_a_worker_without_outcomes_is_a_newcomer_too() -> None:
    replay = made(60, 0, decides=False)
    replay.mask[:, MIDDLE] = False
    replay = Replay(**{**vars(replay), "score": replay.score * replay.mask, "cost_usd": replay.cost_usd * replay.mask})
    replay = replay.take(replay.mask.any(1).nonzero()[:, 0])
    router, left_out = fit_router(replay, ENCODER)
    p = router.predict(replay.texts, replay.types)
    assert [w.name for w in router.learned.workers] == ["small", "large"]
    assert p.score[:, MIDDLE].equal(p.score[:, LARGE])  # nearer in price and size
    assert left_out[:, MIDDLE].equal(left_out[:, LARGE])


def test_who_is_gone_down_or_not_able_is_not_chosen(fitted: tuple[Router, Tensor, Replay]) -> None:
    router, _, past = fitted
    gone = router.under(CATALOGUE.withdrawn("small"))
    assert gone.predict(past.texts[:3], past.types[:3]).score.shape == (3, 2)
    down = router.under(CATALOGUE.updated("small", available=False).updated("large", task_types=("maths",)))
    picks = down.choose(past.texts, past.types)
    assert (picks != SMALL).all()
    assert (picks[past.types == POEMS] == MIDDLE).all()
    without_workers = router.under(CATALOGUE.updated("small", quota=0).withdrawn("middle", "large"))
    with pytest.raises(CatalogueError, match="no worker is able to do 'maths' now"):
        without_workers.choose(["x"], torch.tensor([MATHS]))
    with pytest.raises(CatalogueError, match="no worker is able to do anything now"):
        without_workers.choose(["x"], torch.tensor([UNKNOWN]))
    with pytest.raises(CatalogueError, match="no workers"):
        router.under(Catalogue(task_types=CATALOGUE.task_types))


def test_an_unknown_task_type_is_found_by_the_text(fitted: tuple[Router, Tensor, Replay]) -> None:
    router, _, _ = fitted
    asked = made(200, 96, decides=True)
    known = router.choose(asked.texts, asked.types)
    for missing in (UNKNOWN, UNHEARD):
        assert (router.choose(asked.texts, torch.full_like(asked.types, missing)) == known).double().mean() > 0.9


def test_past_queries_without_a_type_go_where_their_text_belongs(fitted: tuple[Router, Tensor, Replay]) -> None:
    whole, _, past = fitted
    hidden = Replay(**{**vars(past), "types": torch.where(torch.arange(400) % 2 == 0, past.types, UNKNOWN)})
    router, _ = fit_router(hidden, ENCODER)
    learned_from = [[len(b.alpha) for b in r.learned.branches.values() if b.alpha is not None] for r in (router, whole)]
    assert learned_from[0] == pytest.approx(learned_from[1], abs=10)


def test_of_many_queries_the_last_ones_count(
    fitted: tuple[Router, Tensor, Replay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etude.problems.routing.router.MAX_QUERIES_PER_TYPE", 100)
    router, left_out = fit_router(fitted[2], ENCODER)
    assert [len(b.alpha) for b in router.learned.branches.values() if b.alpha is not None] == [100, 100]
    assert left_out.isfinite().all()
    assert (left_out[0] == _tensor(list(router.learned.branches.values())[fitted[2].types[0]].score)).all()


def test_without_any_task_type_all_queries_are_one_kind() -> None:
    replay = made(300, 4, decides=True)
    pooled = Replay(**{**vars(replay), "types": torch.full_like(replay.types, UNKNOWN)})
    router, _ = fit_router(pooled, ENCODER)
    asked = made(300, 95, decides=True)
    assert list(router.learned.branches) == [""]
    assert earned(asked, router.choose(asked.texts, asked.types)).mean() > 0.65  # the best worker alone has 0.52


def test_one_query_is_enough_to_begin_with() -> None:
    one = made(1, 0, decides=False)
    router, left_out = fit_router(one, ENCODER)
    assert left_out.isfinite().all()
    assert router.choose(["anything"], torch.tensor([UNKNOWN])).shape == (1,)


# State


def test_a_router_comes_back_from_its_state(fitted: tuple[Router, Tensor, Replay], tmp_path: Path) -> None:
    router, _, past = fitted
    save_file(router.state_dict(), tmp_path / "router.safetensors")
    meta = json.loads(json.dumps(router.to_json()))
    back = Router.from_state(load_file(tmp_path / "router.safetensors"), meta, ENCODER)
    p, q = (r.predict(past.texts, past.types) for r in (router, back))
    assert p.score.equal(q.score)
    assert p.cost_usd.equal(q.cost_usd)
    assert back.weight_for(0.6) == router.weight_for(0.6)
    assert (back.unit_usd, back.best_single, back.catalogue) == (router.unit_usd, router.best_single, CATALOGUE)
    with pytest.raises(CheckpointError, match="fitted with the encoder"):
        Router.from_state(router.state_dict(), meta, NGramEncoder(32))


def test_neighbours_leave_themselves_out() -> None:
    replay = made(40, 0, decides=True)
    texts = read_texts(ENCODER, replay.texts)
    past, asked = neighbours(replay, texts, texts, k=1)
    mean = replay.score.mean(0)
    assert asked.tolist() == pytest.approx(((mean + replay.score) / 2).numpy())
    near = texts.vectors @ texts.vectors.T
    np.fill_diagonal(near, -1)
    assert past.numpy() == pytest.approx(((mean + replay.score[near.argmax(1)]) / 2).numpy())
    with pytest.raises(DataError, match="two past queries"):
        neighbours(replay.take(torch.tensor([0])), texts, texts)
