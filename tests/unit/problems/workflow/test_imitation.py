"""Learning from experts: the losses by hand, and runs that learn, stop, resume and end as they say."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from etude.learning.checkpoint import checkpoints, read_checkpoint, under
from etude.learning.run import About, Run, StopReason, Update
from etude.learning.run_folder import RunFolder
from etude.problems.base import Obs
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.decode import empty_drafts, plan_greedily
from etude.problems.workflow.encode import TextReader, to_drafts
from etude.problems.workflow.examples import Example
from etude.problems.workflow.imitation import (
    Imitation,
    ImitationConfig,
    ImitationLearner,
    dag_loss,
    imitation_loss,
)
from etude.problems.workflow.metrics import PlanScores, score_plans
from etude.problems.workflow.network import PlannerConfig, PlanPolicy, TeacherForcedScores
from etude.problems.workflow.plan import Limits, Plan
from etude.problems.workflow.showcase import PLANS, read_plans, various
from etude.problems.workflow.training_set import TrainingSet, make_training_set, merge_sets, split, to_plan
from etude.text.ngrams import NGramEncoder
from tests.language import CATALOGUE, chain, examples

READER = TextReader(encoder=NGramEncoder(32))
LIMITS = Limits(max_nodes=3)
SETS = merge_sets([(CATALOGUE, examples(20))])
LEARN, HELD_OUT = split(SETS, share=0.2, size=None, seed=0)
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


def policy_of(
    catalogue: Catalogue = CATALOGUE, *, seed: int = 0, training_set: TrainingSet | None = None
) -> PlanPolicy:
    torch.manual_seed(seed)
    config = PlannerConfig(width=32, layers=1, heads=2)
    policy = PlanPolicy(config, text_width=32, known_types=6, known_workers=2, nodes=LIMITS.max_nodes)
    context = (training_set or make()).policy_context
    if catalogue is not CATALOGUE:
        context = replace(context, rules=type(context.rules)(catalogue, LIMITS))
    return policy.with_context(context)


def make(learn: Sequence[int] = LEARN, held_out: Sequence[int] = HELD_OUT) -> TrainingSet:
    augmentations = CONFIG.synthetic_augmentations
    return make_training_set(
        SETS, learn, held_out, reader=READER, limits=LIMITS, augmentations=augmentations, ridge=0.2, seed=0
    )


SMALL = CATALOGUE.withdrawn("summarise", "count", "draw", "mail")  # fetch and translate
POLICY = policy_of(SMALL)


def drafts_of(*found: Example) -> Obs:
    return to_drafts(POLICY.rules, found, range(len(found)))


def taught_for(n: int, seed: int = 0) -> TeacherForcedScores:
    g = torch.Generator().manual_seed(seed)
    return TeacherForcedScores(
        types=torch.randn((n, 4, 3), generator=g),
        links=torch.randn((n, 3, 3), generator=g),
        workers=torch.randn((n, 3, 2), generator=g),
    )


def test_the_loss_by_hand() -> None:
    drafts, forced = drafts_of(chain("a", [0, 1], [0, 1]), chain("b", [1])), taught_for(2)
    config = replace(CONFIG, label_smoothing=0.1, lambda_dag=0.7)

    def spread(scores: list[float], right: int) -> float:
        log_p = [score - math.log(sum(map(math.exp, scores))) for score in scores]
        return -0.9 * log_p[right] - 0.1 * sum(log_p) / len(log_p)

    stop = 2
    steps = [(0, 0, 0), (0, 1, 1), (0, 2, stop), (1, 0, 1), (1, 1, stop)]
    types = sum(spread(forced.types[n, t].tolist(), right) for n, t, right in steps) / 5
    # Fetch can be done by quick alone, which costs nothing to get right; the second plan names no worker.
    workers = (0.0 + spread(forced.workers[0, 1].tolist(), 1)) / 2
    # Of three dependencies in which an earlier node can be, one plan has one: the second node after the first.
    links = math.log(1 + math.exp(-float(forced.links[0, 1, 0])))
    soft = forced.links.sigmoid()
    soft = torch.stack([soft[0] * block(2), soft[1] * block(1)])
    cycles = sum((torch.trace(torch.matrix_exp(one**2)).item() - 3) / 3 for one in soft) / 2

    found = imitation_loss(forced, drafts, POLICY, config)
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
    drafts, forced = drafts_of(chain("a", [1], [1])), taught_for(1)
    drafts["offered"][0] = torch.tensor([False, True])
    drafts["available"][0] = torch.tensor([True, False])
    forced.types.requires_grad_()
    forced.workers.requires_grad_()
    config = replace(CONFIG, label_smoothing=0.4)
    total, type_loss, _, worker_loss, _ = imitation_loss(forced, drafts, POLICY, config)
    two = forced.types[0, :2, 1:].log_softmax(1)  # translate or stop
    expected = [-0.6 * two[t, t] - 0.4 * two[t].mean() for t in range(2)]
    assert type_loss.item() == pytest.approx(sum(expected).item() / 2, abs=1e-6)
    assert worker_loss.item() == 0  # the expert's worker is not there now
    total.backward()
    assert forced.types.grad is not None
    assert not forced.types.grad[0, :, 0].any()
    assert forced.types.grad[0, :2, 1:].all()
    assert not forced.types.grad[0, 2:].any()  # what comes after the end of a plan


def test_a_node_that_no_worker_can_do_now_spoils_nothing() -> None:
    drafts = drafts_of(chain("a", [0, 1], [0, 1]), chain("b", [1], [1]))
    none_fetches = drafts | {"available": torch.tensor([[False, True], [False, True]])}
    losses = imitation_loss(taught_for(2), none_fetches, POLICY, CONFIG)
    assert all(loss.isfinite() for loss in losses)
    alone = drafts_of(chain("b", [1], [1])) | {"available": torch.tensor([[False, True]])}
    assert all(loss.isfinite() for loss in imitation_loss(taught_for(1), alone, POLICY, CONFIG))


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf, 1e30])
def test_scores_gone_wrong_leave_the_choices_a_finite_loss(worst: float) -> None:
    forced = taught_for(1)
    forced.types[0, 0, 0] = worst
    forced.workers[0, 0, 1] = worst
    losses = imitation_loss(forced, drafts_of(chain("a", [0, 1], [0, 1])), POLICY, CONFIG)
    assert all(loss.isfinite() for loss in losses)


# Runs


ABOUT = About(
    problem="workflow",
    method="imitate",
    title="a test",
    unit="epochs",
    budget="6",
    score="validation score",
    settings={},
    policy_sections=(),
)


def start(path: Path, config: ImitationConfig = CONFIG, *, seed: int = 0) -> Run:
    training_set = make()
    learner = ImitationLearner(
        ABOUT,
        policy_of(seed=seed, training_set=training_set),
        training_set,
        lambda: make(sorted(LEARN + HELD_OUT), HELD_OUT[:1]),
        config,
        RunFolder(path),
        seed=seed,
        device=torch.device("cpu"),
        threads=1,
    )
    return Run(learner, RunFolder(path), keep_checkpoints=2)


def learner_of(run: Run) -> ImitationLearner:
    assert isinstance(run.learner, ImitationLearner)
    return run.learner


def finish(path: Path, config: ImitationConfig = CONFIG, *, seed: int = 0) -> list[Update]:
    return list(start(path, config, seed=seed).updates())


def best(path: Path) -> dict[str, Tensor]:
    return RunFolder(path).policy().tensors()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Update]]:
    """One uninterrupted run of CONFIG."""
    path = tmp_path_factory.mktemp("imitation") / "run"
    return path, finish(path)


def test_it_learns_what_it_is_taught(tmp_path: Path) -> None:
    longer = {"num_epochs": 40, "early_stop_patience": 40, "plateau_patience": 40, "final_epochs": 0}
    run = start(tmp_path / "run", replace(CONFIG, learning_rate=3e-4, **longer))
    learner = learner_of(run)
    untrained = scores_on_training(learner)
    updates = list(run.updates())
    assert updates[-1].metrics["loss"] < 0.6 * updates[0].metrics["loss"]
    with learner.algorithm.averaged():
        learned = scores_on_training(learner)
    assert untrained.accuracy.mean() < 0.6
    assert learned.accuracy.mean() > 0.8
    assert learned.node_f1.mean() > 0.9
    linked = [len(SETS.examples[i].targets.task_types) > 1 for i in LEARN]
    assert untrained.link_f1[linked].mean() < 0.5
    assert learned.link_f1[linked].mean() > 0.8


def scores_on_training(learner: ImitationLearner) -> PlanScores:
    """On the examples it learns from."""
    training_set, found = learner.training_set, [SETS.examples[i] for i in LEARN]
    drafts = empty_drafts(training_set.policy_context)
    rows = {name: value[: len(found)] for name, value in drafts.items()}
    made = plan_greedily(learner.net, rows, [example.instruction for example in found])
    return score_plans(made, [to_plan(SETS.catalogue, example) for example in found])


def test_the_same_seed_gives_the_same_weights(finished: tuple[Path, list[Update]], tmp_path: Path) -> None:
    path, updates = finished
    again = finish(tmp_path / "again")
    assert [update.metrics for update in again] == [update.metrics for update in updates]
    assert RunFolder(tmp_path / "again").policy().version == RunFolder(path).policy().version
    finish(tmp_path / "other", seed=1)
    assert not same(best(tmp_path / "other"), best(path))


def test_it_stops_when_the_epochs_are_used_up_and_then_learns_from_all(finished: tuple[Path, list[Update]]) -> None:
    path, updates = finished
    assert [update.step for update in updates] == [1, 2, 3, 4, 5, 6]
    assert [update.stopped for update in updates] == [None] * 5 + [StopReason.BUDGET]
    scores = [update.metrics["validation_score"] for update in updates[:4]]
    assert [update.score for update in updates] == [*scores, None, None]  # nothing is held out from the final epochs
    assert [update.is_best for update in updates[:4]] == [
        score > max([-1.0, *scores[:i]]) for i, score in enumerate(scores)
    ]
    summary = RunFolder(path).summary()
    assert summary is not None
    assert (summary["stopped"], summary["epochs"], summary["step"]) == ("budget", 6, 6)
    assert summary["validation_score"] == summary["best_score"] == max(scores)
    assert summary["best_epoch"] == scores.index(max(scores)) + 1
    kept = RunFolder(path).policy()
    assert (kept.manifest.step, kept.manifest.score, kept.version) == (6, None, summary["policy"])
    logged = RunFolder(path).read_metrics()
    assert [row["loss"] for row in logged] == [update.metrics["loss"] for update in updates]
    assert all(math.isfinite(value) for update in updates for value in update.metrics.values())


def test_losses_have_the_names_of_the_source_document(finished: tuple[Path, list[Update]], tmp_path: Path) -> None:
    """And the one on held-out examples is that of the running mean of the weights, smaller than of a fresh network."""
    path, _ = finished
    logged = RunFolder(path).read_metrics()
    assert [row["train_loss"] for row in logged] == [row["loss"] for row in logged]
    validation = [row["val_loss"] for row in logged if "val_loss" in row]
    assert len(validation) == 4
    assert validation == sorted(validation, reverse=True)
    learner = learner_of(start(tmp_path))
    drafts = learner.training_set.validation_drafts
    with torch.no_grad():
        fresh = imitation_loss(learner.net.teacher_forced_scores(drafts), drafts, learner.net, CONFIG)[0]
    assert validation[0] < float(fresh)


def test_it_stops_early_when_nothing_improves_and_lowers_the_rate_on_the_way(tmp_path: Path) -> None:
    run = start(tmp_path / "run", STILL)
    rates, updates = [], []
    for update in run.updates():
        updates.append(update)
        rates.append(learner_of(run).algorithm.optimizer.param_groups[0]["lr"])
    assert [update.step for update in updates] == [1, 2, 3, 4, 5, 6]
    assert updates[-1].stopped is StopReason.PLATEAU
    assert [update.is_best for update in updates] == [True] + [False] * 5
    f = STILL.plateau_factor
    scales = [1, 1, 1, f, f, f * f]
    assert [update.metrics["lr_scale"] for update in updates] == pytest.approx(scales)
    assert rates == pytest.approx([1e-12 * STILL.fresh_scale * scale for scale in scales])
    summary = RunFolder(tmp_path / "run").summary()
    assert summary is not None
    assert (summary["stopped"], summary["best_epoch"]) == ("plateau", 1)
    assert RunFolder(tmp_path / "run").policy().manifest.step == 1


@pytest.mark.parametrize("after", [1, 2, 4, 5])
def test_left_after_an_epoch_and_started_again_it_ends_with_the_same_weights(
    finished: tuple[Path, list[Update]], tmp_path: Path, after: int
) -> None:
    """4 is the last that is scored, 5 the first over all examples."""
    path, updates = finished
    for update in start(tmp_path / "run").updates():
        if update.step == after:
            break
    resumed = start(tmp_path / "run")
    assert resumed.resumed
    assert resumed.step == after
    rest = list(resumed.updates())
    assert [update.metrics for update in rest] == [update.metrics for update in updates[after:]]
    assert_same_end(tmp_path / "run", path)


def assert_same_end(path: Path, other: Path) -> None:
    assert RunFolder(path).policy().version == RunFolder(other).policy().version
    assert same(latest(path), latest(other))
    assert shown(path) == shown(other)
    rows = [{k: v for k, v in row.items() if k != "wall_s"} for row in RunFolder(path).read_metrics()]
    assert rows == [{k: v for k, v in row.items() if k != "wall_s"} for row in RunFolder(other).read_metrics()]
    before, after = RunFolder(other).summary(), RunFolder(path).summary()
    assert before is not None
    assert after is not None
    assert {**after, "wall_s": 0} == {**before, "wall_s": 0}


def shown(path: Path) -> bytes:
    return (path / PLANS).read_bytes()


def latest(path: Path) -> dict[str, Tensor]:
    return read_checkpoint(checkpoints(RunFolder(path).checkpoints)[-1])[0]


@pytest.mark.parametrize("during", [3, 5])
def test_left_within_an_epoch_too(finished: tuple[Path, list[Update]], tmp_path: Path, during: int) -> None:
    run = start(tmp_path / "run")

    def give_up(share: float) -> None:
        if run.step == during and share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run.updates(give_up))
    finish(tmp_path / "run")
    assert_same_end(tmp_path / "run", finished[0])


@pytest.mark.parametrize("at", [1, 2, 6])
def test_left_between_the_policy_and_the_checkpoint_of_an_epoch_too(
    finished: tuple[Path, list[Update]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    run, save = start(tmp_path / "run"), Run._save

    def give_up(run: Run) -> None:
        if run.step == at:
            raise KeyboardInterrupt
        save(run)

    monkeypatch.setattr(Run, "_save", give_up)
    with pytest.raises(KeyboardInterrupt):
        list(run.updates())
    monkeypatch.undo()
    finish(tmp_path / "run")
    assert_same_end(tmp_path / "run", finished[0])


def test_left_between_the_last_weights_and_the_summary_it_does_not_train_on(
    finished: tuple[Path, list[Update]], tmp_path: Path
) -> None:
    finish(tmp_path / "run")
    RunFolder(tmp_path / "run").reopen()
    assert finish(tmp_path / "run") == []
    assert_same_end(tmp_path / "run", finished[0])


@pytest.mark.parametrize("final_epochs", [0, 2])
def test_a_deleted_best_policy_is_made_again_as_it_was(tmp_path: Path, final_epochs: int) -> None:
    """Also where the last epoch was not the best."""
    config = replace(STILL, final_epochs=final_epochs)
    finish(tmp_path, config)
    before = best(tmp_path)
    shutil.rmtree(tmp_path / "best")
    assert finish(tmp_path, config) == []
    assert same(best(tmp_path), before)
    summary = RunFolder(tmp_path).summary()
    assert summary is not None
    assert summary["best_epoch"] == 1


def test_plans_of_the_first_and_of_the_best_epoch_are_kept_next_to_the_experts(tmp_path: Path) -> None:
    run = start(tmp_path / "run", replace(CONFIG, num_epochs=8, early_stop_patience=8, plateau_patience=8))
    learner = learner_of(run)
    made: dict[int, list[Plan]] = {}
    best_epoch = 0
    for update in run.updates():
        if update.score is not None:
            with learner.algorithm.averaged():
                validation = [plan.instruction for plan in learner.training_set.expected]
                made[update.step] = plan_greedily(learner.net, learner.training_set.validation, validation)
            best_epoch = update.step if update.is_best else best_epoch
            entries = read_plans(run.folder)
            rows = various(learner.training_set.expected)
            assert [list(entry.plans) for entry in entries] == [["after 1 epoch", "best", "expert"]] * len(rows)
            for i, entry in zip(rows, entries, strict=True):
                wanted = learner.training_set.expected[i]
                assert list(entry.plans.values()) == [made[1][i], made[best_epoch][i], wanted]
                assert entry.instruction == wanted.instruction
    assert best_epoch > 1
    assert len(made) == 8


def test_a_run_whose_plans_were_deleted_continues_without_the_first(tmp_path: Path) -> None:
    long = replace(CONFIG, num_epochs=12, early_stop_patience=12)
    for update in start(tmp_path / "run", long).updates():
        if update.step == 1:
            break
    (tmp_path / "run" / PLANS).unlink()
    resumed = start(tmp_path / "run", long)
    updates = list(resumed.updates())
    assert any(update.is_best for update in updates)
    assert {tuple(entry.plans) for entry in read_plans(resumed.folder)} == {("best", "expert")}


def test_a_finished_run_does_nothing_more(finished: tuple[Path, list[Update]]) -> None:
    path, _ = finished
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert finish(path) == []
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_the_last_epochs_and_the_last_memory_have_what_was_held_out(
    finished: tuple[Path, list[Update]], tmp_path: Path
) -> None:
    finish(tmp_path / "run", replace(CONFIG, final_epochs=0))
    without, with_all = best(tmp_path / "run"), best(finished[0])
    assert len(without["memory.grams.indptr"]) - 1 == len(LEARN) == 16
    assert len(with_all["memory.grams.indptr"]) - 1 == len(LEARN) + len(HELD_OUT) == 20
    assert with_all["memory.weights"].dtype == torch.float16
    assert not same(under("policy.", without), under("policy.", with_all))
    progress: list[float] = []
    run = start(tmp_path / "again", replace(CONFIG, num_epochs=1, final_epochs=1))
    steps = [(update.score is None, learner_of(run).algorithm.steps) for update in run.updates(progress.append)]
    assert steps == [(False, 4), (True, 4)]  # 16 + 12 and 20 + 12 examples in batches of 8
    assert progress == [0.25, 0.5, 0.75, 1.0] * 2


def test_the_best_weights_are_the_running_mean_of_their_epoch(tmp_path: Path) -> None:
    finish(tmp_path / "run", replace(CONFIG, num_epochs=1, final_epochs=0))
    saved = under("learner.", latest(tmp_path / "run"))
    kept = under("policy.", best(tmp_path / "run"))
    assert torch.equal(kept["type_counts"], under("policy.", saved)["type_counts"])
    assert not same(kept, under("policy.", saved))
    del kept["type_counts"]
    assert same(kept, under("mean.", saved))
    assert same(kept, under("best.", saved))


def test_averaged_weights_are_given_back() -> None:
    policy = policy_of()
    algorithm = Imitation(policy, CONFIG)
    own = {name: value.clone() for name, value in policy.state_dict().items()}
    algorithm.mean = {name: torch.zeros_like(value) for name, value in algorithm.mean.items()}
    with algorithm.averaged():
        assert not any(value.any() for value in policy.parameters())
    assert same(dict(policy.state_dict()), own)


def test_started_again_it_forgets_its_gradients() -> None:
    training_set = make()
    algorithm = Imitation(policy_of(training_set=training_set), CONFIG)
    before = {name: value.clone() for name, value in algorithm.mean.items()}
    algorithm.epoch(training_set.drafts, lr_scale=1.0)
    assert algorithm.optimizer.state
    assert not same(algorithm.mean, before)
    algorithm.restart(before)
    assert not algorithm.optimizer.state
    assert algorithm.steps == 0
    assert same(algorithm.mean, before)
    assert same(dict(algorithm.policy.named_parameters()), before)


def test_the_last_weights_are_a_running_mean_too(tmp_path: Path) -> None:
    run = start(tmp_path / "run", replace(CONFIG, num_epochs=1, final_epochs=1))
    for _ in run.updates():
        pass
    learner, kept = learner_of(run), under("policy.", best(tmp_path / "run"))
    assert torch.equal(kept.pop("type_counts"), learner.net.type_counts)
    assert same(kept, learner.algorithm.mean)
    assert not same(kept, dict(learner.net.named_parameters()))


def test_a_lowered_rate_stays_low_when_it_is_started_again(tmp_path: Path) -> None:
    for update in start(tmp_path / "run", STILL).updates():
        if update.step == 3:
            break
    assert learner_of(start(tmp_path / "run", STILL)).lr_scale == pytest.approx(STILL.plateau_factor)
