"""Learning from experts: the losses by hand, and runs that learn, stop, resume and end as they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.imitation import (
    Epoch,
    Imitation,
    ImitationConfig,
    ImitationTraining,
    StopReason,
    dag_loss,
    imitation_loss,
)
from etude.learning.runs import RunFolder
from etude.learning.showcase import read_plans, various
from etude.problems.base import Obs
from etude.problems.workflow.catalogue import Catalogue
from etude.problems.workflow.decode import ask, plan_greedily
from etude.problems.workflow.encode import to_drafts
from etude.problems.workflow.examples import Example
from etude.problems.workflow.lesson import Lesson, Reader, make_course, make_lesson, split, to_plan
from etude.problems.workflow.metrics import PlanScores, score_plans
from etude.problems.workflow.network import PlannerConfig, PlanPolicy, Taught
from etude.problems.workflow.plan import Limits, Plan
from etude.text.ngrams import NGramEncoder
from tests.language import CATALOGUE, chain, examples

READER = Reader(encoder=NGramEncoder(32))
LIMITS = Limits(max_nodes=3)
COURSE = make_course([(CATALOGUE, examples(20))])
LEARN, ASIDE = split(COURSE, share=0.2, size=None, seed=0)
CONFIG = ImitationConfig(
    batch_size=8,
    learning_rate=1e-3,
    num_epochs=4,
    early_stop_patience=4,
    final_epochs=2,
    average=0.8,
    synthetic_augmentations=12,
)
STILL = replace(CONFIG, learning_rate=1e-12, num_epochs=50, final_epochs=0, plateau_patience=2, early_stop_patience=5)
"""Learns nothing, so that no epoch is better than the first."""


# Losses


@st.composite
def dags(draw: st.DrawFn) -> Tensor:
    """Soft adjacency of a DAG whose nodes stand in any order."""
    count = draw(st.integers(1, 6))
    weights = draw(st.lists(st.floats(0, 1), min_size=count**2, max_size=count**2))
    order = torch.tensor(draw(st.permutations(range(count))))
    return torch.tensor(weights).view(count, count).tril(-1)[order][:, order]


@given(dags())
def test_a_dag_costs_nothing(adjacency: Tensor) -> None:
    assert dag_loss(adjacency[None]).item() == pytest.approx(0, abs=1e-6)


@given(dags(), st.data())
def test_a_self_loop_or_a_cycle_costs_something(adjacency: Tensor, data: st.DataObject) -> None:
    count = len(adjacency)
    nodes = data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))]
    for i, j in zip(nodes, [*nodes[1:], nodes[0]], strict=True):
        adjacency[i, j] = 0.9
    least = 0.9 ** (2 * len(nodes)) / math.factorial(len(nodes)) * len(nodes) / count
    assert dag_loss(adjacency[None]).item() >= 0.99 * least > 0


def test_the_penalty_by_hand() -> None:
    assert dag_loss(torch.tensor([[[1.0]]])).item() == pytest.approx(math.e - 1)
    pair = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert dag_loss(pair[None]).item() == pytest.approx(math.cosh(1) - 1, abs=1e-6)
    both = torch.stack([pair, torch.zeros(2, 2)])
    assert dag_loss(both).item() == pytest.approx((math.cosh(1) - 1) / 2, abs=1e-6)
    assert dag_loss(0.5 * pair[None]).item() == pytest.approx(math.cosh(0.25) - 1, abs=1e-6)


def test_its_gradient_pushes_cycles_down_and_leaves_the_rest() -> None:
    adjacency = torch.tensor([[[0.0, 0.5, 0.0], [0.5, 0.3, 0.0], [0.8, 0.8, 0.0]]], requires_grad=True)
    loss = dag_loss(adjacency)
    loss.backward()
    assert adjacency.grad is not None
    cyclic = torch.tensor([[[False, True, False], [True, True, False], [False, False, False]]])
    assert (adjacency.grad[cyclic] > 0.01).all()
    assert (adjacency.grad[~cyclic] == 0).all()
    assert dag_loss((adjacency - 0.5 * adjacency.grad).detach()) < loss


def policy_of(catalogue: Catalogue = CATALOGUE, *, seed: int = 0, lesson: Lesson | None = None) -> PlanPolicy:
    torch.manual_seed(seed)
    config = PlannerConfig(width=32, layers=1, heads=2)
    policy = PlanPolicy(config, text_width=32, known_types=6, known_workers=2, nodes=LIMITS.max_nodes)
    around = (lesson or make()).surroundings
    if catalogue is not CATALOGUE:
        around = replace(around, rules=type(around.rules)(catalogue, LIMITS))
    return policy.within(around)


def make(learn: Sequence[int] = LEARN, aside: Sequence[int] = ASIDE) -> Lesson:
    augmentations = CONFIG.synthetic_augmentations
    return make_lesson(
        COURSE, learn, aside, reader=READER, limits=LIMITS, augmentations=augmentations, ridge=0.2, seed=0
    )


SMALL = CATALOGUE.withdrawn("summarise", "count", "draw", "mail")  # fetch and translate
POLICY = policy_of(SMALL)


def drafts_of(*found: Example) -> Obs:
    return to_drafts(POLICY.rules, found, range(len(found)))


def taught_for(n: int, seed: int = 0) -> Taught:
    g = torch.Generator().manual_seed(seed)
    return Taught(
        types=torch.randn((n, 4, 3), generator=g),
        links=torch.randn((n, 3, 3), generator=g),
        workers=torch.randn((n, 3, 2), generator=g),
    )


def test_the_loss_by_hand() -> None:
    drafts, taught = drafts_of(chain("a", [0, 1], [0, 1]), chain("b", [1])), taught_for(2)
    config = replace(CONFIG, label_smoothing=0.1, lambda_dag=0.7)

    def spread(scores: list[float], right: int) -> float:
        log_p = [score - math.log(sum(map(math.exp, scores))) for score in scores]
        return -0.9 * log_p[right] - 0.1 * sum(log_p) / len(log_p)

    stop = 2
    steps = [(0, 0, 0), (0, 1, 1), (0, 2, stop), (1, 0, 1), (1, 1, stop)]
    types = sum(spread(taught.types[n, t].tolist(), right) for n, t, right in steps) / 5
    # Fetch can be done by quick alone, which costs nothing to get right; the second plan names no worker.
    workers = (0.0 + spread(taught.workers[0, 1].tolist(), 1)) / 2
    # Of three dependencies in which an earlier node can be, one plan has one: the second node after the first.
    links = math.log(1 + math.exp(-float(taught.links[0, 1, 0])))
    soft = taught.links.sigmoid()
    soft = torch.stack([soft[0] * block(2), soft[1] * block(1)])
    cycles = sum((torch.trace(torch.matrix_exp(one**2)).item() - 3) / 3 for one in soft) / 2

    found = imitation_loss(taught, drafts, POLICY, config)
    expected = (types + links + workers + 0.7 * cycles, types, links, workers, cycles)
    assert [loss.item() for loss in found] == pytest.approx(expected, abs=1e-5)


def block(count: int) -> Tensor:
    """(3, 3): between the first `count` nodes."""
    there = (torch.arange(3) < count).float()
    return there[:, None] * there


def test_a_plan_of_one_node_has_no_link_to_learn() -> None:
    link_loss = imitation_loss(taught_for(1), drafts_of(chain("a", [0], [0])), POLICY, CONFIG)[2]
    assert link_loss.item() == 0


def test_smoothing_spreads_over_what_is_legal_alone() -> None:
    drafts, taught = drafts_of(chain("a", [1], [1])), taught_for(1)
    drafts["offered"][0] = torch.tensor([False, True])
    drafts["available"][0] = torch.tensor([True, False])
    taught.types.requires_grad_()
    taught.workers.requires_grad_()
    config = replace(CONFIG, label_smoothing=0.4)
    total, type_loss, _, worker_loss, _ = imitation_loss(taught, drafts, POLICY, config)
    two = taught.types[0, :2, 1:].log_softmax(1)  # translate or stop
    expected = [-0.6 * two[t, t] - 0.4 * two[t].mean() for t in range(2)]
    assert type_loss.item() == pytest.approx(sum(expected).item() / 2, abs=1e-6)
    assert worker_loss.item() == 0  # the expert's worker is not there now
    total.backward()
    assert taught.types.grad is not None
    assert not taught.types.grad[0, :, 0].any()
    assert taught.types.grad[0, :2, 1:].all()
    assert not taught.types.grad[0, 2:].any()  # what comes after the end of a plan


def test_a_node_that_nobody_can_do_now_spoils_nothing() -> None:
    drafts = drafts_of(chain("a", [0, 1], [0, 1]), chain("b", [1], [1]))
    nobody_fetches = drafts | {"available": torch.tensor([[False, True], [False, True]])}
    losses = imitation_loss(taught_for(2), nobody_fetches, POLICY, CONFIG)
    assert all(loss.isfinite() for loss in losses)
    alone = drafts_of(chain("b", [1], [1])) | {"available": torch.tensor([[False, True]])}
    assert all(loss.isfinite() for loss in imitation_loss(taught_for(1), alone, POLICY, CONFIG))


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf, 1e30])
def test_scores_gone_wrong_leave_the_choices_a_finite_loss(worst: float) -> None:
    taught = taught_for(1)
    taught.types[0, 0, 0] = worst
    taught.workers[0, 0, 1] = worst
    losses = imitation_loss(taught, drafts_of(chain("a", [0, 1], [0, 1])), POLICY, CONFIG)
    assert all(loss.isfinite() for loss in losses)


# Runs


def start(path: Path, config: ImitationConfig = CONFIG, *, seed: int = 0) -> ImitationTraining:
    lesson = make()
    settings = {"problem": "workflow"}
    return ImitationTraining(
        policy_of(seed=seed, lesson=lesson),
        lesson,
        lambda: make(sorted(LEARN + ASIDE), ASIDE[:1]),
        config,
        RunFolder(path),
        settings,
        seed=seed,
        threads=1,
    )


def finish(path: Path, config: ImitationConfig = CONFIG, *, seed: int = 0) -> list[Epoch]:
    return list(start(path, config, seed=seed).epochs())


def best(path: Path) -> dict[str, Tensor]:
    return RunFolder(path).best_policy("workflow")[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Epoch]]:
    """One uninterrupted run of CONFIG."""
    path = tmp_path_factory.mktemp("imitation") / "run"
    return path, finish(path)


def test_it_learns_what_it_is_taught(tmp_path: Path) -> None:
    longer = {"num_epochs": 40, "early_stop_patience": 40, "plateau_patience": 40, "final_epochs": 0}
    training = start(tmp_path / "run", replace(CONFIG, learning_rate=3e-4, **longer))
    untrained = scores_on_training(training)
    epochs = list(training.epochs())
    assert epochs[-1].metrics["loss"] < 0.6 * epochs[0].metrics["loss"]
    with training.learner.averaged():
        learned = scores_on_training(training)
    assert untrained.accuracy.mean() < 0.6
    assert learned.accuracy.mean() > 0.8
    assert learned.node_f1.mean() > 0.9
    linked = [len(COURSE.examples[i].targets.task_types) > 1 for i in LEARN]
    assert untrained.link_f1[linked].mean() < 0.5
    assert learned.link_f1[linked].mean() > 0.8


def scores_on_training(training: ImitationTraining) -> PlanScores:
    """On the examples it learns from."""
    lesson, found = training.lesson, [COURSE.examples[i] for i in LEARN]
    drafts = ask(training.policy, lesson.surroundings, lesson.surroundings.library)
    rows = {name: value[: len(found)] for name, value in drafts.items()}
    made = plan_greedily(training.policy, rows, [example.instruction for example in found])
    return score_plans(made, [to_plan(COURSE.catalogue, example) for example in found])


def test_the_same_seed_gives_the_same_weights(finished: tuple[Path, list[Epoch]], tmp_path: Path) -> None:
    path, epochs = finished
    again = finish(tmp_path / "again")
    assert [epoch.metrics for epoch in again] == [epoch.metrics for epoch in epochs]
    assert same(best(tmp_path / "again"), best(path))
    finish(tmp_path / "other", seed=1)
    assert not same(best(tmp_path / "other"), best(path))


def test_it_stops_when_the_epochs_are_used_up_and_then_learns_from_all(finished: tuple[Path, list[Epoch]]) -> None:
    path, epochs = finished
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert [epoch.stopped for epoch in epochs] == [None, None, None, StopReason.EPOCHS, None, None]
    assert [epoch.is_final for epoch in epochs] == [False] * 4 + [True] * 2
    scores = [epoch.metrics["validation_score"] for epoch in epochs[:4]]
    assert [epoch.is_best for epoch in epochs[:4]] == [
        score > max([-1.0, *scores[:i]]) for i, score in enumerate(scores)
    ]
    summary = RunFolder(path).summary()
    assert summary is not None
    assert (summary["stopped"], summary["epochs"]) == ("epochs", 6)
    assert summary["validation_score"] == max(scores)
    assert summary["best_epoch"] == scores.index(max(scores)) + 1
    logged = RunFolder(path).read_metrics()
    assert [row["loss"] for row in logged] == [epoch.metrics["loss"] for epoch in epochs]
    assert all(math.isfinite(value) for epoch in epochs for value in epoch.metrics.values())


def test_it_stops_early_when_nothing_improves_and_lowers_the_rate_on_the_way(tmp_path: Path) -> None:
    training = start(tmp_path / "run", STILL)
    rates, epochs = [], []
    for epoch in training.epochs():
        epochs.append(epoch)
        rates.append(training.learner.optimizer.param_groups[0]["lr"])
    assert [epoch.number for epoch in epochs] == [1, 2, 3, 4, 5, 6]
    assert epochs[-1].stopped is StopReason.EARLY
    assert [epoch.is_best for epoch in epochs] == [True] + [False] * 5
    f = STILL.plateau_factor
    scales = [1, 1, 1, f, f, f * f]
    assert [epoch.metrics["lr_scale"] for epoch in epochs] == pytest.approx(scales)
    assert rates == pytest.approx([1e-12 * STILL.fresh_scale * scale for scale in scales])
    summary = RunFolder(tmp_path / "run").summary()
    assert summary is not None
    assert (summary["stopped"], summary["best_epoch"]) == ("early stop", 1)


@pytest.mark.parametrize("after", [1, 2, 4, 5])
def test_left_after_an_epoch_and_begun_again_it_ends_with_the_same_weights(
    finished: tuple[Path, list[Epoch]], tmp_path: Path, after: int
) -> None:
    """4 is the last that is scored, 5 the first over all examples, which is made again."""
    path, epochs = finished
    training = start(tmp_path / "run")
    for epoch in training.epochs():
        if epoch.number == after:
            break
    resumed = start(tmp_path / "run")
    assert resumed.resumed
    assert resumed.number == min(after, 4)
    rest = list(resumed.epochs())
    assert [epoch.metrics for epoch in rest] == [epoch.metrics for epoch in epochs[min(after, 4) :]]
    assert same(best(tmp_path / "run"), best(path))
    assert same(latest(tmp_path / "run"), latest(path))
    assert shown(tmp_path / "run") == shown(path)
    rows = [{k: v for k, v in row.items() if k != "wall_s"} for row in RunFolder(tmp_path / "run").read_metrics()]
    assert rows == [{k: v for k, v in row.items() if k != "wall_s"} for row in RunFolder(path).read_metrics()]


def shown(path: Path) -> bytes:
    return RunFolder(path).plans.read_bytes()


def latest(path: Path) -> dict[str, Tensor]:
    return read_checkpoint(checkpoints(RunFolder(path).checkpoints)[-1])[0]


def test_left_within_an_epoch_too(finished: tuple[Path, list[Epoch]], tmp_path: Path) -> None:
    training = start(tmp_path / "run")

    def give_up(share: float) -> None:
        if training.number == 3 and share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(training.epochs(give_up))
    finish(tmp_path / "run")
    assert same(best(tmp_path / "run"), best(finished[0]))
    assert shown(tmp_path / "run") == shown(finished[0])


def test_left_between_the_plans_and_the_checkpoint_of_an_epoch_too(
    finished: tuple[Path, list[Epoch]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, save = start(tmp_path / "run"), ImitationTraining._save

    def give_up(training: ImitationTraining) -> None:
        if training.number == 2:
            raise KeyboardInterrupt
        save(training)

    monkeypatch.setattr(ImitationTraining, "_save", give_up)
    with pytest.raises(KeyboardInterrupt):
        list(training.epochs())
    monkeypatch.undo()
    finish(tmp_path / "run")
    assert shown(tmp_path / "run") == shown(finished[0])


def test_left_between_the_last_weights_and_the_summary_it_does_not_train_on(
    finished: tuple[Path, list[Epoch]], tmp_path: Path
) -> None:
    finish(tmp_path / "run")
    RunFolder(tmp_path / "run").reopen()
    finish(tmp_path / "run")
    assert same(best(tmp_path / "run"), best(finished[0]))
    before, after = RunFolder(finished[0]).summary(), RunFolder(tmp_path / "run").summary()
    assert before is not None
    assert after is not None
    assert {**after, "wall_s": 0} == {**before, "wall_s": 0}


def test_plans_of_the_first_and_of_the_best_epoch_are_kept_beside_the_experts(tmp_path: Path) -> None:
    training = start(tmp_path / "run", replace(CONFIG, num_epochs=8, early_stop_patience=8, plateau_patience=8))
    made: dict[int, list[Plan]] = {}
    best_epoch = 0
    for epoch in training.epochs():
        if not epoch.is_final:
            with training.learner.averaged():
                exam = [plan.instruction for plan in training.lesson.wanted]
                made[epoch.number] = plan_greedily(training.policy, training.lesson.exam, exam)
            best_epoch = epoch.number if epoch.is_best else best_epoch
            entries = read_plans(training.folder)
            rows = various(training.lesson.wanted)
            assert [list(entry.plans) for entry in entries] == [["after 1 epoch", "best", "expert"]] * len(rows)
            for i, entry in zip(rows, entries, strict=True):
                wanted = training.lesson.wanted[i]
                assert list(entry.plans.values()) == [made[1][i], made[best_epoch][i], wanted]
                assert entry.instruction == wanted.instruction
    assert best_epoch > 1
    assert len(made) == 8


def test_a_run_whose_plans_were_deleted_goes_on_without_the_first(tmp_path: Path) -> None:
    long = replace(CONFIG, num_epochs=12, early_stop_patience=12)
    training = start(tmp_path / "run", long)
    for epoch in training.epochs():
        if epoch.number == 1:
            break
    training.folder.plans.unlink()
    resumed = start(tmp_path / "run", long)
    epochs = list(resumed.epochs())
    assert any(epoch.is_best for epoch in epochs)
    assert {tuple(entry.plans) for entry in read_plans(resumed.folder)} == {("best", "expert")}


def test_a_finished_run_does_nothing_more(finished: tuple[Path, list[Epoch]]) -> None:
    path, _ = finished
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert finish(path) == []
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_the_last_epochs_and_the_last_memory_have_what_was_kept_aside(
    finished: tuple[Path, list[Epoch]], tmp_path: Path
) -> None:
    finish(tmp_path / "run", replace(CONFIG, final_epochs=0))
    without, with_all = best(tmp_path / "run"), best(finished[0])
    assert len(without["memory.grams.indptr"]) - 1 == len(LEARN) == 16
    assert len(with_all["memory.grams.indptr"]) - 1 == len(LEARN) + len(ASIDE) == 20
    assert with_all["memory.weights"].dtype == torch.float16
    assert not same(under("policy.", without), under("policy.", with_all))
    progress: list[float] = []
    training = start(tmp_path / "again", replace(CONFIG, num_epochs=1, final_epochs=1))
    steps = [(epoch.is_final, training.learner.steps) for epoch in training.epochs(progress.append)]
    assert steps == [(False, 4), (True, 4)]  # 16 + 12 and 20 + 12 examples in batches of 8
    assert progress == [0.25, 0.5, 0.75, 1.0] * 2


def test_the_best_weights_are_the_running_mean_of_their_epoch(tmp_path: Path) -> None:
    finish(tmp_path / "run", replace(CONFIG, num_epochs=1, final_epochs=0))
    saved = latest(tmp_path / "run")
    kept = under("policy.", best(tmp_path / "run"))
    assert torch.equal(kept["met"], under("policy.", saved)["met"])
    assert not same(kept, under("policy.", saved))
    del kept["met"]
    assert same(kept, under("mean.", saved))


def test_averaged_weights_are_given_back() -> None:
    policy = policy_of()
    learner = Imitation(policy, CONFIG)
    own = {name: value.clone() for name, value in policy.state_dict().items()}
    learner.mean = {name: torch.zeros_like(value) for name, value in learner.mean.items()}
    with learner.averaged():
        assert not any(value.any() for value in policy.parameters())
    assert same(dict(policy.state_dict()), own)


def test_begun_anew_it_forgets_its_gradients() -> None:
    lesson = make()
    learner = Imitation(policy_of(lesson=lesson), CONFIG)
    before = {name: value.clone() for name, value in learner.mean.items()}
    learner.epoch(lesson.drafts, lr_scale=1.0)
    assert learner.optimizer.state
    assert not same(learner.mean, before)
    learner.restart(before)
    assert not learner.optimizer.state
    assert learner.steps == 0
    assert same(learner.mean, before)
    assert same(dict(learner.policy.named_parameters()), before)


def test_the_last_weights_are_a_running_mean_too(tmp_path: Path) -> None:
    training = start(tmp_path / "run", replace(CONFIG, num_epochs=1, final_epochs=1))
    for _ in training.epochs():
        pass
    kept = under("policy.", best(tmp_path / "run"))
    assert torch.equal(kept.pop("met"), training.policy.met)
    assert same(kept, training.learner.mean)
    assert not same(kept, dict(training.policy.named_parameters()))


def test_a_lowered_rate_stays_low_when_it_is_begun_again(tmp_path: Path) -> None:
    for epoch in start(tmp_path / "run", STILL).epochs():
        if epoch.number == 3:
            break
    assert start(tmp_path / "run", STILL).lr_scale == pytest.approx(STILL.plateau_factor)
