"""What the planner reads once and uses often: the same as if it had been read each time, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from etude.learning.collect import Batch, Collector
from etude.learning.ppo import PPO, PPOConfig
from etude.problems.base import Action, Evaluation, Obs
from etude.problems.workflow.attention import Block, Packing, rotary_angles, rotate
from etude.problems.workflow.encode import TextReader
from etude.problems.workflow.examples import Example
from etude.problems.workflow.experts import expert_examples
from etude.problems.workflow.grammar import Correction, Status
from etude.problems.workflow.memory import fit_memory
from etude.problems.workflow.network import PlannerConfig, PlanPolicy, Reading, _continued
from etude.problems.workflow.office.problem import PretrainedPlanner, WorkflowProblem, known_names
from etude.problems.workflow.office.world import WorkflowConfig
from etude.problems.workflow.plan import Limits
from etude.text.ngrams import NGramEncoder

torch.set_num_threads(1)
ENVS, STEPS = 48, 24
ENCODER = NGramEncoder(32)


def make_problem() -> WorkflowProblem:
    """Instructions of 6 to 70 words, with the experts' plans for them in its memory."""
    bare = WorkflowProblem(
        reader=TextReader(encoder=ENCODER),
        config=WorkflowConfig(scenarios=60, held_out=0, limits=Limits(max_nodes=8, max_corrections=5)),
        planner=PlannerConfig(width=16, heads=2, layers=2),
    )
    past = [msgspec.convert(record, Example) for record in expert_examples(bare.scenarios)]
    known = known_names(bare.scenarios)
    memory, _ = fit_memory(ENCODER, past, types=len(known.task_types))
    return replace(bare, pretrained=PretrainedPlanner(known=known, weights=bare.policy().state_dict(), memory=memory))


PROBLEM = make_problem()
LENGTHS = PROBLEM.policy_context.encoded.mask.sum(1)
BY_LENGTH = LENGTHS.argsort()


def make_policy(seed: int = 0) -> PlanPolicy:
    """Every weight random, those too that start at zero; it stops often enough to have much to correct."""
    policy = PROBLEM.policy().train(False)
    draws = Generator().manual_seed(seed)
    with torch.no_grad():
        for value in policy.parameters():
            value.copy_(0.3 * torch.randn(value.shape, generator=draws))
        policy.stop.bias.fill_(2.0)
    return policy


@pytest.fixture(scope="module")
def batch() -> Batch:
    return Collector(PROBLEM.world(ENVS, device="cpu"), steps=STEPS, seed=0).collect(make_policy())


def flat(values: Obs, order: Tensor) -> Obs:
    return {name: value.flatten(0, 1)[order] for name, value in values.items()}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


IN_TIME = torch.arange(STEPS * ENVS)
BY_ENVIRONMENT = IN_TIME.view(STEPS, ENVS).T.flatten()
SHUFFLED = torch.randperm(STEPS * ENVS, generator=Generator().manual_seed(0))
BACKWARDS = BY_ENVIRONMENT.flip(0)


# Decisions looked at again


def test_experience_has_every_kind_of_decision(batch: Batch) -> None:
    """Else the tests below would say little."""
    failed = batch.obs["failed"] >= 0
    taken = {c: int((failed & (batch.action["correction"] == c)).sum()) for c in Correction}
    assert min(taken.values()) >= 5
    replanned = (batch.obs["replans"] > 0) & ~failed
    assert (batch.action["type"][replanned] < PROBLEM.policy_context.rules.types).any()
    assert (batch.obs["status"][replanned] == Status.DONE).any()
    assert batch.ended.sum() > ENVS
    assert batch.obs["length"].max() == 8


@pytest.mark.parametrize("order", [BY_ENVIRONMENT, IN_TIME, SHUFFLED, BACKWARDS], ids=["env", "time", "any", "back"])
@torch.no_grad()
def test_what_was_decided_is_evaluated_as_it_was_in_whatever_order_it_stands(batch: Batch, order: Tensor) -> None:
    found = make_policy().evaluate(flat(batch.obs, order), flat(batch.action, order))
    close(found.log_prob, batch.log_prob.flatten()[order])
    close(found.value, batch.value.flatten()[order])


@torch.no_grad()
def test_without_company_too(batch: Batch) -> None:
    """One row at a time; entropies, which acting does not tell, are compared as well."""
    policy, some = make_policy(), BY_ENVIRONMENT[: 5 * STEPS]
    together = policy.evaluate(flat(batch.obs, some), flat(batch.action, some))
    alone = [policy.evaluate(flat(batch.obs, row), flat(batch.action, row)) for row in some[:, None]]
    for name in ("log_prob", "entropy", "value"):
        close(getattr(together, name), torch.cat([getattr(one, name) for one in alone]))


def test_steps_in_their_order_are_beginnings_of_few_plans(batch: Batch) -> None:
    obs = flat(batch.obs, BY_ENVIRONMENT)
    last, which = _continued(obs)
    assert len(last) < 0.5 * len(which)
    assert last[which].sub(torch.arange(len(which))).min() >= 0
    assert len(_continued(flat(batch.obs, BACKWARDS))[0]) > 0.9 * len(which)


def two_steps(policy: PlanPolicy) -> tuple[Obs, Action]:
    """Drafts of the same plan, of two nodes and of three, each about to be given one more."""
    rules = policy.rules
    d = rules.begin(2) | {"instruction": torch.tensor([3, 3])}
    kinds = torch.tensor([[0, 1, -1], [0, 1, 2]])
    d["types"][:, :3] = kinds
    d["workers"][:, :3] = torch.where(kinds < 0, -1, 0)
    d["length"] = torch.tensor([2, 3])
    action = {
        "correction": torch.full((2,), Correction.ABORT),
        "type": torch.tensor([2, 3]),
        "links": torch.zeros((2, rules.nodes), dtype=torch.bool),
        "worker": rules.capable[torch.tensor([2, 3])].int().argmax(1),
    }
    return d, action


DIFFERENT: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("instruction", lambda x: x + 1),
    ("error", lambda x: x + 1),
    ("corrections", lambda x: x + 4),
    ("replans", lambda x: x + 1),
    ("status", lambda x: torch.where(torch.arange(x.shape[1]) == 0, Status.DONE, x)),
    ("types", lambda x: torch.where(torch.arange(x.shape[1]) == 0, 4, x)),
]


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize(("name", "change"), DIFFERENT, ids=[name for name, _ in DIFFERENT])
@torch.no_grad()
def test_only_what_a_plan_really_begins_with_is_shared(
    name: str, change: Callable[[Tensor], Tensor], where: int
) -> None:
    policy = make_policy()
    same, action = two_steps(policy)
    assert len(_continued(same)[0]) == 1
    d = same | {name: torch.where(rows_of(same[name]) == where, change(same[name]), same[name])}
    assert len(_continued(d)[0]) == 2
    together = policy.evaluate(d, action)
    for row in range(2):
        alone = policy.evaluate(*({key: x[row : row + 1] for key, x in part.items()} for part in (d, action)))
        close(together.log_prob[row : row + 1], alone.log_prob)
        close(together.value[row : row + 1], alone.value)
    before = policy.evaluate(same, action)
    moved = (together.value - before.value).abs() + (together.log_prob - before.log_prob).abs()
    assert moved[where] > 3e-4  # it does matter
    assert moved[1 - where] < 1e-4


@pytest.mark.parametrize("name", ["workers", "attempts", "success"])
@torch.no_grad()
def test_drafts_in_which_something_failed_share_nothing(name: str) -> None:
    """Who failed, how often and how well that worker has done is seen from the start."""
    policy = make_policy()
    planned, _ = two_steps(policy)
    d = {key: x[1:].expand(2, *x.shape[1:]).clone() for key, x in planned.items()}
    d["failed"], d["error"] = torch.zeros_like(d["length"]), torch.full_like(d["length"], 2)
    d["status"][:, 0] = Status.FAILED
    d[name][0, 0] += 1 if name == "workers" else 20
    action = {
        "correction": torch.full((2,), Correction.ABORT),
        "type": torch.full((2,), policy.rules.types),
        "links": torch.zeros((2, policy.rules.nodes), dtype=torch.bool),
        "worker": torch.zeros(2, dtype=torch.long),
    }
    together = policy.evaluate(d, action)
    for row in range(2):
        alone = policy.evaluate(*({key: x[row : row + 1] for key, x in part.items()} for part in (d, action)))
        close(together.log_prob[row : row + 1], alone.log_prob)
        close(together.value[row : row + 1], alone.value)
    assert together.log_prob.diff().abs() + together.value.diff().abs() > 1e-3


def rows_of(x: Tensor) -> Tensor:
    return torch.arange(len(x)).view(-1, *[1] * (x.dim() - 1))


def unshared(policy: PlanPolicy, obs: Obs, action: Action) -> Evaluation:
    """As decisions are made: each row reads its instruction and its draft for itself, then adds its node."""
    state = policy.encode_drafts(obs, policy.read(obs["instruction"]))
    _, log_prob, entropy = policy.decide(obs, state, taken=action)
    return Evaluation(log_prob=log_prob, entropy=entropy, value=policy._value(obs, state))


def gradients(policy: PlanPolicy, found: list[Evaluation]) -> dict[str, Tensor]:
    """Of a sum in which no two rows and no two parts weigh the same."""
    parts = [torch.cat([getattr(one, name) for one in found]) for name in ("log_prob", "entropy", "value")]
    weight = torch.randn((3, len(parts[0])), generator=Generator().manual_seed(0))
    policy.zero_grad()
    (weight * torch.stack(parts)).sum().backward()
    return {name: value.grad.clone() for name, value in policy.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("order", [BY_ENVIRONMENT, SHUFFLED], ids=["env", "any"])
def test_gradients_are_those_of_rows_that_share_nothing(batch: Batch, order: Tensor) -> None:
    policy, some = make_policy(), order[: 4 * STEPS]
    obs, action = flat(batch.obs, some), flat(batch.action, some)
    shared = gradients(policy, [policy.evaluate(obs, action)])
    rows = [{name: x[i : i + 1] for name, x in part.items()} for i in range(len(some)) for part in (obs, action)]
    plain = gradients(policy, [unshared(policy, *pair) for pair in zip(rows[::2], rows[1::2], strict=True)])
    assert shared.keys() == plain.keys() == dict(policy.named_parameters()).keys()
    for name, value in plain.items():
        scale = max(1.0, float(value.abs().max()))
        torch.testing.assert_close(
            shared[name] / scale, value / scale, atol=1e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


# What was read before


def same_reading(found: Reading, expected: Reading) -> None:
    """Rows may be filled up to different lengths: what fills them is not there."""
    width = min(found.mask.shape[1], expected.mask.shape[1])
    assert torch.equal(found.mask[:, :width], expected.mask[:, :width])
    assert not found.mask[:, width:].any()
    assert not expected.mask[:, width:].any()
    for name in ("votes", "similarity", "types", "pointers", "bias", "familiar", "mentioned", "places"):
        close(getattr(found, name), getattr(expected, name))
    there = found.mask[:, :width]
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            close(one[:, :, :width].transpose(1, 2)[there], other[:, :, :width].transpose(1, 2)[there])


@torch.no_grad()
def test_instructions_that_changed_are_read_and_the_others_remembered() -> None:
    policy, draws = make_policy(), Generator().manual_seed(1)
    rows = BY_LENGTH[torch.randint(0, 10, (16,), generator=draws)]  # short ones at first
    read: list[int] = []
    reads = policy.read
    policy.read = lambda rows: (read.append(len(rows)), reads(rows))[1]  # type: ignore[method-assign]
    for longest in (10, 30, 60, 60, 20):  # longer ones than before, then shorter ones again
        same_reading(policy.read_cached(rows), reads(rows))
        changes = torch.rand(16, generator=draws) < 0.3
        rows = torch.where(changes, BY_LENGTH[torch.randint(0, longest, (16,), generator=draws)], rows)
    same_reading(policy.read_cached(rows), reads(rows))
    same_reading(policy.read_cached(rows), reads(rows))
    fewer = rows[:7]
    same_reading(policy.read_cached(fewer), reads(fewer))
    assert all(count < 16 for count in read)
    assert len(read) <= 7  # not when nothing changed


@torch.no_grad()
def test_what_is_remembered_of_one_row_is_not_moved_by_another() -> None:
    policy = make_policy()
    rows = BY_LENGTH[[0, 0, 59, 0]]
    policy.read_cached(rows)
    rows = BY_LENGTH[[0, 59, 59, 1]]
    same_reading(policy.read_cached(rows), policy.read(rows))
    assert policy.read_cached(rows).mask.sum(1).tolist() == LENGTHS[rows].tolist()


ROWS = BY_LENGTH[[0, 20, 40, 59]]


@torch.no_grad()
def test_changed_weights_are_read_again() -> None:
    policy, other = make_policy(), make_policy(seed=1)
    policy.read_cached(ROWS)
    policy.load_state_dict(other.state_dict())
    same_reading(policy.read_cached(ROWS), other.read(ROWS))
    policy.text.bias[0].add_(2.0)
    same_reading(policy.read_cached(ROWS), policy.read(ROWS))
    assert not torch.allclose(policy.read_cached(ROWS).mentioned, other.read_cached(ROWS).mentioned, atol=1e-2)


def test_experience_after_an_update_is_evaluated_as_it_was_decided() -> None:
    policy = make_policy()
    collector = Collector(PROBLEM.world(16, device="cpu"), steps=4, seed=0)
    learner = PPO(policy, PPOConfig(envs=16, steps=4, epochs=1, minibatch=64, lr=0.01))
    learner.update(collector.collect(policy), progress=0)
    after = collector.collect(policy)
    everything = torch.arange(64)
    with torch.no_grad():
        found = policy.evaluate(flat(after.obs, everything), flat(after.action, everything))
    close(found.log_prob, after.log_prob.flatten())
    close(found.value, after.value.flatten())


@torch.no_grad()
def test_with_another_context_it_reads_again() -> None:
    policy, context = make_policy(), PROBLEM.policy_context
    policy.read_cached(ROWS)
    encoded = context.encoded
    rotate = replace(
        encoded, **{name: getattr(encoded, name).flip(0) for name in ("tokens", "mask", "votes", "similarity")}
    )
    policy.with_context(replace(context, encoded=rotate))
    same_reading(policy.read_cached(ROWS), policy.read(ROWS))
    assert policy.read_cached(ROWS).mask.sum(1).tolist() == LENGTHS.flip(0)[ROWS].tolist()
    policy.with_context(context)
    same_reading(policy.read_cached(ROWS), policy.read(ROWS))


@torch.no_grad()
def test_with_contexts_that_come_and_go_too() -> None:
    policy, context = make_policy(), PROBLEM.policy_context

    def voting(extra: int) -> None:
        policy.with_context(replace(context, encoded=replace(context.encoded, votes=context.encoded.votes + extra)))

    voting(0)
    first = id(policy.context)
    policy.read_cached(ROWS)
    for extra in range(1, 100):  # one of them is likely to stand where the first stood
        voting(extra)
        if id(policy.context) == first:
            break
    assert torch.equal(policy.read_cached(ROWS).votes, policy.context.encoded.votes[ROWS])


@torch.no_grad()
def test_what_was_read_with_words_left_out_is_not_remembered() -> None:
    policy = make_policy()
    policy.config = replace(policy.config, word_dropout=0.5)
    policy.train()
    policy.read_cached(ROWS)
    policy.train(False)
    same_reading(policy.read_cached(ROWS), policy.read(ROWS))


def test_what_was_read_in_inference_mode_may_be_read_on_outside() -> None:
    policy = make_policy()
    with torch.inference_mode():
        policy.read_cached(ROWS)
    with torch.no_grad():
        other = ROWS.roll(1)
        same_reading(policy.read_cached(other), policy.read(other))


def test_with_gradients_nothing_is_remembered() -> None:
    policy = make_policy()
    with torch.no_grad():
        policy.read_cached(ROWS)
    twice = torch.cat([ROWS, ROWS])
    found = policy.read_cached(twice)
    same_reading(found, policy.read(twice))
    found.mentioned.sum().backward()
    assert policy.text.weight.grad is not None


@torch.no_grad()
def test_a_copy_shares_its_context_and_has_its_own_cache() -> None:
    policy = make_policy()
    policy.read_cached(ROWS)
    copy = deepcopy(policy)
    assert copy.context is policy.context
    copy.text.weight.mul_(2)
    same_reading(copy.read_cached(ROWS), copy.read(ROWS))
    same_reading(policy.read_cached(ROWS), make_policy().read(ROWS))


def test_a_policy_that_moves_moves_its_context() -> None:
    policy = make_policy()
    assert policy.to("cpu").context is PROBLEM.policy_context
    moved = policy.to("meta").context
    assert {x.device.type for x in (moved.type_text, moved.encoded.mask, moved.rules.capable)} == {"meta"}
    assert PROBLEM.policy_context.type_text.device.type == "cpu"


# Words without what fills them up


@st.composite
def ragged(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A mask (n, L) of words at the front of each row, and numbers (n, L, 3)."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    longest = max(lengths) + draw(st.integers(0, 2))
    mask = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return mask, torch.randn((*mask.shape, 3), generator=Generator().manual_seed(draw(st.integers(0, 99))))


@settings(deadline=None)
@given(ragged())
def test_packing_keeps_the_words_in_their_order_and_unpacking_puts_them_back(given: tuple[Tensor, Tensor]) -> None:
    mask, x = given
    words = Packing(mask)
    assert torch.equal(words.pack(x), x[mask])
    assert torch.equal(words.unpack(x[mask]), x * mask[..., None])
    assert torch.equal(words.place, torch.arange(mask.shape[1]).expand_as(mask)[mask])
    assert torch.equal(words.pack(x[..., 0]), x[..., 0][mask])


@settings(deadline=None)
@given(ragged())
def test_neighbours_stand_in_the_same_row_or_are_nothing(given: tuple[Tensor, Tensor]) -> None:
    mask, x = given
    padded = torch.nn.functional.pad(x * mask[..., None], (0, 0, 1, 1))
    expected = torch.cat([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], 2)[mask]
    assert torch.equal(Packing(mask).neighbours(x[mask]), expected)


@settings(deadline=None, max_examples=20)
@given(ragged(), st.integers(1, 50))
@torch.no_grad()
def test_words_attend_by_their_distance_wherever_they_stand(given: tuple[Tensor, Tensor], shift: int) -> None:
    mask, _ = given
    torch.manual_seed(0)
    block, words = Block(16, 2, 0.0), Packing(mask)
    for value in block.parameters():
        value.copy_(torch.randn_like(value))
    x = torch.randn(len(words.place), 16)

    def read(place: Tensor) -> Tensor:
        return block.read(x, words, mask[:, None, None], rotary_angles(place, 8))

    close(read(words.place + shift), read(words.place))
    # A padded row alone gives its own part.
    for row, length in enumerate(mask.sum(1).tolist()):
        own, alone = words.index // mask.shape[1] == row, torch.ones((1, length), dtype=torch.bool)
        packed = Packing(alone)
        close(block.read(x[own], packed, alone[:, None, None], rotary_angles(packed.place, 8)), read(words.place)[own])


@torch.no_grad()
def test_distance_does_matter() -> None:
    torch.manual_seed(0)
    x, place = torch.randn(1, 1, 8), torch.arange(20)
    near = (rotate(x, rotary_angles(torch.tensor([0]), 8)) * rotate(x.expand(20, -1, -1), rotary_angles(place, 8))).sum(
        (1, 2)
    )
    far = (
        rotate(x, rotary_angles(torch.tensor([7]), 8)) * rotate(x.expand(20, -1, -1), rotary_angles(place + 7, 8))
    ).sum((1, 2))
    close(near, far)
    assert near[0] == pytest.approx(float((x * x).sum()), rel=1e-5)
    assert near.diff().abs().min() > 1e-3
    assert near[0] > near[1:].max()
