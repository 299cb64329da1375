"""A loaded policy: NumPy in and out, one or a batch, the same decisions as in training, and clear refusals."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import etude
from etude.contracts.decision import Decision, DecisionRequest
from etude.contracts.errors import CheckpointError, DataError, ObservationError, RunError
from etude.contracts.ports import Decider
from etude.learning.checkpoint import checkpoints
from etude.problems.allocation import arrays
from etude.problems.allocation.loaded import LoadedPolicy
from etude.problems.allocation.network import NetworkConfig
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import COLUMNS, AllocationConfig
from tests.tiny import etude as command
from tests.tiny import train_command

DOCUMENT = AllocationProblem()
MATCHED = AllocationProblem(config=AllocationConfig(variant="matched", agents=3, slots=5))
WIDTH = 7 * 4 + 5 * 10 + 4 * 4


def load(problem: AllocationProblem, *, seed: int = 0, **options: Any) -> LoadedPolicy:
    torch.manual_seed(1)
    network = problem.policy()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # decided enough for observations to matter
    return LoadedPolicy(network, problem, seed=seed, **options)


def observe(problem: AllocationProblem, n: int = 4, *, seed: int = 0) -> dict[str, np.ndarray]:
    """After some steps, so that agents hold tasks and slots are empty."""
    world = problem.world(n, device="cpu")
    obs = world.reset(seed)
    random = problem.baselines()["random"]
    for _ in range(7):
        obs = world.step(random(obs, torch.Generator().manual_seed(seed))).obs
    return {name: value.numpy() for name, value in obs.items()}


def flat(obs: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([obs[name].reshape(len(obs[name]), -1) for name in ("agents", "tasks", "matrix")], 1)


def expected(policy: LoadedPolicy, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = {name: torch.from_numpy(value) for name, value in obs.items()}
    with torch.no_grad():
        action = policy._policy.act(tensors, greedy=True).action
    return {name: value.numpy() for name, value in action.items()}


def test_document_takes_the_documents_vector_and_answers_its_box() -> None:
    policy, obs = load(DOCUMENT), observe(DOCUMENT)
    actions = policy.act(flat(obs))
    assert isinstance(actions, np.ndarray)
    assert actions.shape == (4, 4, 3)
    assert actions.min() >= 0
    assert actions.max() <= 1
    wanted = expected(policy, obs)
    assert np.array_equal(actions, np.stack([wanted[name] for name in COLUMNS], -1))
    assert not np.array_equal(actions[0], actions[1])


def test_one_observation_is_a_batch_of_one_without_its_axis() -> None:
    policy, obs = load(DOCUMENT), observe(DOCUMENT)
    batch = policy.act(flat(obs))
    for i in range(4):
        one = policy.act(flat(obs)[i])
        assert one.shape == (4, 3)
        assert np.allclose(one, batch[i])


def test_named_arrays_mean_the_same_as_the_vector() -> None:
    policy, obs = load(DOCUMENT), observe(DOCUMENT)
    assert np.array_equal(policy.act(obs), policy.act(flat(obs)))
    one = {name: value[2] for name, value in obs.items()}
    assert np.array_equal(policy.act(one), policy.act(flat(obs)[2]))


@pytest.mark.parametrize("convert", [np.float64, list, "readonly", "fortran", "strided"])
def test_any_array_of_numbers_will_do(convert: Any) -> None:
    policy, vector = load(DOCUMENT), flat(observe(DOCUMENT))
    given: Any = vector.copy()
    if convert == "readonly":
        given.setflags(write=False)
    elif convert == "fortran":
        given = np.asfortranarray(given)
    elif convert == "strided":
        given = np.repeat(given, 2, 1)[:, ::2]
    else:
        given = given.tolist() if convert is list else given.astype(convert)
    assert np.array_equal(policy.act(given), policy.act(vector))


def test_matched_takes_and_answers_named_arrays() -> None:
    policy, obs = load(MATCHED), observe(MATCHED)
    actions = policy.act(obs)
    wanted = expected(policy, obs)
    assert actions.keys() == wanted.keys() == set(COLUMNS)
    for name in COLUMNS:
        assert actions[name].shape == (4, 3)
        assert np.array_equal(actions[name], wanted[name])
    one = policy.act({name: value[1] for name, value in obs.items()})
    assert one["accept"].shape == (3,)
    assert np.array_equal(one["accept"], actions["accept"][1])


def test_a_mask_of_integers_is_a_mask() -> None:
    policy, obs = load(MATCHED), observe(MATCHED)
    as_integers = obs | {"legal": obs["legal"].astype(np.int8)}
    assert np.array_equal(policy.act(as_integers)["accept"], policy.act(obs)["accept"])


@pytest.mark.parametrize("deterministic", [True, False])
def test_nothing_illegal_is_chosen(deterministic: bool) -> None:
    policy = load(MATCHED)
    for seed in range(20):
        obs = observe(MATCHED, 16, seed=seed)
        accept = policy.act(obs, deterministic)["accept"]
        assert np.take_along_axis(obs["legal"], accept[..., None], 2).all()


def test_draws_follow_the_seed_given_at_loading() -> None:
    obs = flat(observe(DOCUMENT, 1))[0]

    def draws(seed: int) -> list[list[float]]:
        policy = load(DOCUMENT, seed=seed)
        return [policy.act(obs, deterministic=False).ravel().tolist() for _ in range(5)]

    assert draws(3) == draws(3) != draws(4)
    first, *rest = draws(3)
    assert any(draw != first for draw in rest)


def test_draws_follow_a_generator_of_the_caller() -> None:
    policy, obs = load(DOCUMENT), flat(observe(DOCUMENT, 1))[0]

    def draws(rng: Any, count: int = 5) -> list[list[float]]:
        return [policy.act(obs, False, rng=rng).ravel().tolist() for _ in range(count)]

    assert draws(np.random.default_rng(5)) == draws(np.random.default_rng(5)) != draws(np.random.default_rng(6))
    assert draws(7, 1) == draws(7, 1)


def test_a_normal_distribution_is_clipped_to_the_box() -> None:
    problem = AllocationProblem(network=NetworkConfig(distribution="gaussian"))
    policy, obs = load(problem), flat(observe(DOCUMENT, 64))
    drawn = np.stack([policy.act(obs, False) for _ in range(5)])
    assert (drawn.min(), drawn.max()) == (0, 1)


REFUSED: list[tuple[Any, str]] = [
    (np.zeros(WIDTH - 1), rf"shape \({WIDTH - 1},\): expected \({WIDTH},\) or \(batch, {WIDTH}\)"),
    (np.zeros((2, 2, WIDTH)), rf"shape \(2, 2, {WIDTH}\): expected"),
    (np.float32(3), "expected"),
    (np.full(WIDTH, np.nan), r"has nan at \(0,\): expected finite"),
    (np.r_[np.zeros(WIDTH - 1), np.inf], rf"has inf at \({WIDTH - 1},\)"),
    (["a"] * WIDTH, "not an array of numbers"),
    ([10**400] * WIDTH, "not an array of numbers"),
    ([1e300] * WIDTH, "expected finite numbers"),
    ([[1.0], [1.0, 2.0]], "not an array of numbers"),
    (None, "expected"),
    ({"agents": np.zeros((4, 7))}, r"has \['agents'\]: expected named arrays agents \(4, 7\), tasks \(10, 5\)"),
    (
        {"agents": np.zeros((5, 7)), "tasks": np.zeros((10, 5)), "matrix": np.zeros((4, 4))},
        r"observation\['agents'\] has shape \(5, 7\): expected \(4, 7\) or \(batch, 4, 7\)",
    ),
    (
        {"agents": np.zeros((2, 4, 7)), "tasks": np.zeros((10, 5)), "matrix": np.zeros((2, 4, 4))},
        r"batch axes \[\(\), \(2,\)\]: expected the same",
    ),
    (
        {"agents": np.zeros((4, 7)), "tasks": np.full((10, 5), np.nan), "matrix": np.zeros((4, 4))},
        r"observation\['tasks'\] has nan at \(0, 0\)",
    ),
]


@pytest.mark.parametrize(("observation", "message"), REFUSED)
def test_a_wrong_observation_is_refused_with_what_was_expected(observation: Any, message: str) -> None:
    with pytest.raises(ObservationError, match=message):
        load(DOCUMENT).act(observation)


def test_matched_refuses_a_vector() -> None:
    with pytest.raises(ObservationError, match=r"expected named arrays agents .* legal \(3, 6\)"):
        load(MATCHED).act(np.zeros(10))


def test_the_callers_threads_and_gradients_are_as_before() -> None:
    policy, obs = load(DOCUMENT), flat(observe(DOCUMENT))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        policy.act(obs)
        assert torch.get_num_threads() == 2
        with pytest.raises(ObservationError):
            policy.act(obs[:, 1:])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.is_grad_enabled()


def test_many_threads_may_ask_at_once() -> None:
    policy, obs = load(DOCUMENT), flat(observe(DOCUMENT))
    wanted, wrong = policy.act(obs), []

    def ask() -> None:
        for _ in range(50):
            if not np.array_equal(policy.act(obs), wanted):
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def one(problem: AllocationProblem, *, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: value[0] for name, value in observe(problem, 1, seed=seed).items()}


@pytest.mark.parametrize("problem", [DOCUMENT, MATCHED])
def test_a_greedy_decision_is_the_most_probable_action_with_propensity_one(problem: AllocationProblem) -> None:
    policy = load(problem, version="v1")
    decider: Decider = policy
    obs = one(problem)
    decision = decider.decide(DecisionRequest(context=obs, at_ms=7.0, seed=3))
    expected_action = policy.act(obs)
    if problem is MATCHED:
        assert decision.action == {name: value.tolist() for name, value in expected_action.items()}
    else:
        assert decision.action == expected_action.tolist()
    assert (decision.propensity, decision.policy, decider.problem) == (1.0, "v1", "allocation")
    (logged,) = decision.logged
    assert (logged.problem, logged.policy, logged.propensity, logged.at_ms) == ("allocation", "v1", 1.0, 7.0)
    assert logged.action == decision.action
    again = decider.decide(DecisionRequest(context=msgspec.json.decode(msgspec.json.encode(logged.context))))
    assert again.action == decision.action
    assert load(problem).decide(DecisionRequest(context=obs)).policy == "unknown"


def test_a_continuous_action_that_is_the_mode_has_propensity_one() -> None:
    problem = AllocationProblem(network=NetworkConfig(distribution="beta"))
    assert load(problem).decide(DecisionRequest(context=flat(observe(DOCUMENT, 1))[0])).propensity == 1.0


def test_any_thread_answers_a_request_alike() -> None:
    policy = load(MATCHED)
    requests = [DecisionRequest(context=one(MATCHED, seed=i % 3), seed=i) for i in range(40)]
    expected_decisions = [policy.decide(request) for request in requests]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(policy.decide, requests)) == expected_decisions


@pytest.mark.parametrize(
    ("context", "message"),
    [
        (np.zeros(WIDTH - 1), r"context: the observation has shape"),
        (np.zeros((2, WIDTH)), "one observation per request"),
        (None, "context: "),
    ],
)
def test_a_request_with_a_wrong_context_is_a_data_error(context: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(DOCUMENT).decide(DecisionRequest(context=context))


def test_one_decision_takes_less_than_a_millisecond() -> None:
    """In time of this thread: other programs on the machine do not count, threads woken for nothing do."""
    policy, obs = load(DOCUMENT), flat(observe(DOCUMENT))[0]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        times = []
        for _ in range(500):
            began = time.thread_time()
            policy.act(obs)
            times.append(time.thread_time() - began)
    finally:
        torch.set_num_threads(before)
    assert np.median(times) < 0.001


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a"
    assert command(*train_command(path, "--quiet")) == 0
    return path


def test_load_gives_the_best_policy_of_a_run(run: Path) -> None:
    policy = etude.load(str(run))
    best = checkpoints(run / "best")[-1]
    assert policy.step == int(best.name.removeprefix("step-"))
    assert policy.act(np.zeros(WIDTH)).shape == (4, 3)
    for same in (run / "best", best):
        assert np.array_equal(etude.load(same).act(np.ones(WIDTH)), policy.act(np.ones(WIDTH)))


def test_load_gives_any_checkpoint_of_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in checkpoints(run / "checkpoints"):
        assert etude.load(path).step == int(path.name.removeprefix("step-"))
    assert etude.load(run / "checkpoints").step == 960
    monkeypatch.chdir(run / "best")
    assert etude.load(".").act(np.zeros(WIDTH)).shape == (4, 3)


def test_load_seeds_the_draws(run: Path) -> None:
    drawn = [etude.load(run, seed=seed).act(np.zeros((9, WIDTH)), False) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_what_cannot_be_loaded_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        etude.load(tmp_path / "nope")
    with pytest.raises(RunError, match=r"not a run: config\.json is missing"):
        etude.load(tmp_path)
    (run / "checkpoints" / "step-none").mkdir()
    try:
        with pytest.raises(CheckpointError, match="holds no policy"):
            etude.load(run / "checkpoints" / "step-none")
    finally:
        (run / "checkpoints" / "step-none").rmdir()


NETWORKS = [
    {},
    {"activation": "relu", "distribution": "beta", "norm": "layer", "dropout": 0.2},
    {"distribution": "gaussian", "norm": "batch", "normalise": False, "hidden": (16, 8, 8)},
    {"shared": True},
]


@pytest.mark.parametrize("network", NETWORKS)
def test_numpy_decides_as_torch_would(network: dict[str, Any]) -> None:
    problem = AllocationProblem(network=NetworkConfig(**network))
    policy, obs = load(problem), observe(problem, 32)
    assert policy.quick
    found = policy.act(flat(obs))
    wanted = np.stack([expected(policy, obs)[name] for name in COLUMNS], -1).clip(0, 1)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_where_numpy_would_decide_otherwise_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays.np, "tanh", lambda x: x)
    policy = load(DOCUMENT)
    assert not policy.quick
    obs = observe(DOCUMENT)
    np.testing.assert_array_equal(policy.act(flat(obs))[..., 0], expected(policy, obs)["accept"])


def test_other_networks_are_left_to_torch() -> None:
    assert not load(MATCHED).quick
    assert not load(AllocationProblem(network=NetworkConfig(precision="bfloat16"))).quick


@pytest.mark.parametrize("problem", [DOCUMENT, MATCHED], ids=["document", "matched"])
def test_requests_that_arrive_together_are_decided_together(problem: AllocationProblem) -> None:
    policy, obs = load(problem), observe(problem, 3)
    rows: list[Any] = [{name: value[i].tolist() for name, value in obs.items()} for i in range(3)]
    requests = [DecisionRequest(context=context) for context in (rows[0], "no observation", rows[1], obs, rows[2])]
    found = policy.decide_many(requests)
    assert [isinstance(one, DataError) for one in found] == [False, True, False, True, False]
    for row, answer in zip(rows, (found[0], found[2], found[4]), strict=True):
        assert isinstance(answer, Decision)
        assert answer == policy.decide(DecisionRequest(context=row))
