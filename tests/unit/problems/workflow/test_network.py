"""The planner's network with random and hostile weights: what it may see, what it may choose, and by what it knows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from etude.contracts.errors import ConfigError
from etude.problems.base import Action, Obs
from etude.problems.catalogue import Catalogue, TaskType, Worker
from etude.problems.workflow.encode import KnownNames, encode_instructions, make_policy_context, to_drafts
from etude.problems.workflow.examples import Example, Targets
from etude.problems.workflow.grammar import Correction, Rules, Status
from etude.problems.workflow.imitation import trimmed
from etude.problems.workflow.memory import fit_memory
from etude.problems.workflow.network import FAMILIAR, PlannerConfig, PlanPolicy
from etude.problems.workflow.plan import Limits
from etude.problems.workflow.similarity import SIMILARITIES, WHOLE, SimilarityEncoder
from etude.text.ngrams import NGramEncoder
from tests.language import CATALOGUE, WORDS, examples

ENCODER = NGramEncoder(16)
LIMITS = Limits(max_nodes=5)
KNOWN = KnownNames(task_types=tuple(WORDS), workers=("quick", "careful"))
DIAMOND = Targets(task_types=(0, 1, 2, 5), dependencies=((), (0,), (0,), (1, 2)), model_selections=(0, 1, 1, 0))
PAST = [*examples(10), Example(instruction="fetch, then do all", targets=DIAMOND)]
MEMORY = fit_memory(ENCODER, PAST, types=len(WORDS))[0]
TEXTS = ["fetch the novel, then mail it", "draw", "please summarise the report then count it and mail the lot to us"]


def make_policy(
    catalogue: Catalogue = CATALOGUE, *, limits: Limits = LIMITS, seed: int = 0, texts: Sequence[str] = TEXTS
) -> PlanPolicy:
    """Every weight random, those too that start at zero."""
    torch.manual_seed(seed)
    config = PlannerConfig(width=16, layers=2, heads=2)
    policy = PlanPolicy(config, text_width=16, known_types=6, known_workers=2, nodes=limits.max_nodes)
    with torch.no_grad():
        for value in policy.parameters():
            value.copy_(torch.randn_like(value) * (0.5 if value.dim() > 1 else 0.3))
    policy.type_counts.copy_(torch.tensor([0.0, 1, 5, 20, 100, 3]))
    similarity = SimilarityEncoder(ENCODER, catalogue.task_types)(texts)
    encoded = encode_instructions(ENCODER, texts, MEMORY.votes(ENCODER, texts), similarity)
    return policy.with_context(make_policy_context(ENCODER, catalogue, limits, KNOWN, MEMORY, encoded)).train(False)


POLICY = make_policy()


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def begin(policy: PlanPolicy, rows: Sequence[int]) -> Obs:
    return policy.rules.begin(len(rows)) | {"instruction": torch.tensor(rows)}


def grown(policy: PlanPolicy, drafts: Obs, count: int) -> Obs:
    """The first `count` nodes of drafts, or all they have, each added as a decision adds it."""
    d = begin(policy, drafts["instruction"].tolist())
    for t in range(count):
        there = t < drafts["length"]
        action = {
            "correction": torch.full_like(drafts["length"], Correction.ABORT),
            "type": torch.where(there, drafts["types"][:, t], policy.rules.types),
            "links": drafts["links"][:, t] & there[:, None],
            "worker": drafts["workers"][:, t].clamp(min=0),
        }
        d, _ = policy.rules.grow(d, action)
    return d


def scores(policy: PlanPolicy, d: Obs, task_type: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of one decision: types, links and workers once this type is chosen."""
    state = policy.encode_drafts(d, policy.read(d["instruction"]))
    token, _ = policy.add(d, state, task_type)
    return (
        policy.type_scores(d, state),
        policy.link_scores(d, state, token, task_type),
        policy.worker_scores(d, state, token, task_type),
    )


@st.composite
def drafts(draw: st.DrawFn, rows: int = 3) -> Obs:
    """Finished plans of any shape about the instructions of POLICY."""
    found = []
    for _ in range(rows):
        count = draw(st.integers(1, LIMITS.max_nodes))
        kinds = draw(st.lists(st.integers(0, 5), min_size=count, max_size=count))
        needs = [draw(st.sets(st.integers(0, i - 1))) if i else set() for i in range(count)]
        chosen = draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        targets = Targets(
            task_types=tuple(kinds),
            dependencies=tuple(tuple(sorted(earlier)) for earlier in needs),
            model_selections=tuple(chosen),
        )
        found.append(Example(instruction="", targets=targets))
    return to_drafts(POLICY.rules, found, draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)))


def test_undisturbed_nothing_is_left_to_chance() -> None:
    policy = make_policy()
    whole = by_name(policy, ["fetch", "draw", "mail"])
    policy.config = policy.config.without_dropout()
    for block in (*policy.readers, *policy.blocks):
        block.dropout.p = policy.config.dropout
    policy.train()
    one, two = policy.teacher_forced_scores(whole), policy.teacher_forced_scores(whole)
    close(one.types, two.types)
    close(one.links, two.links)


# Teacher-forced scores are those of decisions


@settings(max_examples=20, deadline=None)
@given(drafts())
def test_each_step_has_the_same_scores_with_teacher_forcing(whole: Obs) -> None:
    forced = POLICY.teacher_forced_scores(whole)
    for t in range(LIMITS.max_nodes + 1):
        here = t <= whole["length"]  # up to the decision to stop
        d = grown(POLICY, whole, t)
        assert torch.equal(d["length"][here], torch.full_like(d["length"][here], t))
        kind = whole["types"][:, t] if t < LIMITS.max_nodes else torch.full_like(d["length"], -1)
        types, links, workers = scores(POLICY, d, kind.clamp(min=0))
        close(forced.types[:, t][here], types[here])
        here = t < whole["length"]
        if t < LIMITS.max_nodes and here.any():
            close(forced.links[:, t, :t][here], links[:, :t][here])
            close(forced.workers[:, t][here], workers[here])


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@settings(max_examples=20, deadline=None)
@given(drafts(), drafts(), st.integers(0, LIMITS.max_nodes - 1))
def test_later_nodes_and_where_a_plan_ends_never_influence_an_earlier_step(one: Obs, other: Obs, t: int) -> None:
    # `other` with the first t nodes of `one`, where both have as many.
    other = other | {"instruction": one["instruction"]}
    for name in ("types", "workers", "links"):
        other[name] = torch.cat([one[name][:, :t], other[name][:, t:]], 1)
    both = (one["length"] >= t) & (other["length"] >= t)
    first, second = POLICY.teacher_forced_scores(one), POLICY.teacher_forced_scores(other)
    close(first.types[:, : t + 1][both], second.types[:, : t + 1][both])
    close(first.links[:, :t, :t][both], second.links[:, :t, :t][both])
    close(first.workers[:, :t][both], second.workers[:, :t][both])


@settings(max_examples=10, deadline=None)
@given(drafts())
def test_scores_are_the_same_without_unused_nodes(whole: Obs) -> None:
    few, all_ = POLICY.teacher_forced_scores(trimmed(whole)), POLICY.teacher_forced_scores(whole)
    N = int(whole["length"].max())
    assert few.types.shape[1] == N + 1
    close(few.types, all_.types[:, : N + 1])
    close(few.links, all_.links[:, :N, :N])
    close(few.workers, all_.workers[:, :N])


def test_a_step_does_see_what_came_before_it() -> None:
    """The laws above would hold of a network that sees nothing."""
    one = to_drafts(POLICY.rules, [Example(instruction="", targets=DIAMOND)], [0])
    forced = POLICY.teacher_forced_scores(one)
    for name, value in (("types", 4), ("instruction", 2)):
        changed = one[name].clone()
        changed.view(-1)[0] = value
        other = POLICY.teacher_forced_scores(one | {name: changed})
        for t in (1, 3):
            assert (other.types[0, t] - forced.types[0, t]).abs().max() > 1e-3, name
            assert (other.workers[0, t] - forced.workers[0, t]).abs().max() > 1e-3, name
        assert (other.links[0, 3, 0] - forced.links[0, 3, 0]).abs() > 1e-3, name


def test_links_and_worker_are_decided_by_the_node_that_is_added() -> None:
    """What the last token is compared with alone does not tell: the new node's own token has read the instruction."""
    d = grown(POLICY, to_drafts(POLICY.rules, [Example(instruction="", targets=DIAMOND)], [0]), 2)
    found = [scores(POLICY, d, torch.tensor([kind])) for kind in range(6)]
    for one, other in pairwise(found):
        close(other[0], one[0])
        assert (other[1] - one[1])[0, :2].abs().max() > 1e-3
        assert (other[2] - one[2]).abs().max() > 1e-3


def test_who_was_given_a_node_moves_the_value_at_once_and_no_score() -> None:
    d = grown(POLICY, to_drafts(POLICY.rules, [Example(instruction="", targets=DIAMOND)], [0]), 2)
    other = d | {"workers": torch.where(d["types"] == 0, 1, d["workers"])}
    assert (POLICY.value(other) - POLICY.value(d)).abs() > 1e-3
    for changed, before in zip(
        scores(POLICY, other, torch.tensor([3])), scores(POLICY, d, torch.tensor([3])), strict=True
    ):
        close(changed, before)
    # What is done is paid: only what is to come has a price.
    done = {"status": torch.where(d["types"] >= 0, Status.DONE, d["status"])}
    close(POLICY.value(other | done), POLICY.value(d | done))


def test_who_failed_is_seen_by_every_score() -> None:
    d = failed_drafts(POLICY)
    other = d | {"workers": 1 - d["workers"].clamp(min=0)}
    fails = d["failed"] >= 0
    kind = torch.full_like(d["length"], POLICY.rules.types)  # no node is added: the failed one is given to somebody
    for changed, before in zip(scores(POLICY, other, kind)[::2], scores(POLICY, d, kind)[::2], strict=True):
        assert ((changed - before)[fails].abs().amax(1) > 1e-3).all()
        close(changed[~fails], before[~fails])


# A decision


def failed_drafts(policy: PlanPolicy) -> Obs:
    """Two nodes each, one of which failed in all but the first draft."""
    d = grown(policy, to_drafts(policy.rules, [Example(instruction="", targets=DIAMOND)] * 4, [0, 1, 2, 0]), 2)
    d["failed"] = torch.tensor([-1, 0, 1, 0])
    d["error"] = torch.tensor([0, 1, 2, 7])
    d["status"] = torch.where(torch.arange(5) == d["failed"][:, None], Status.FAILED, d["status"])
    return d


@pytest.mark.parametrize("greedy", [False, True])
def test_a_decision_is_as_probable_when_it_is_looked_at_again(greedy: bool) -> None:
    for d in (begin(POLICY, [0, 1, 2]), failed_drafts(POLICY)):
        for seed in range(10):
            made = POLICY.act(d, greedy=greedy, generator=Generator().manual_seed(seed))
            again = POLICY.evaluate(d, made.action)
            close(again.log_prob, made.log_prob)
            close(again.value, made.value)
            close(POLICY.value(d), made.value)
            assert (again.entropy >= 0).all()
            assert (made.log_prob <= 1e-6).all()
            chosen = POLICY.choose(d, greedy=greedy, generator=Generator().manual_seed(seed))
            assert all(torch.equal(chosen[name], made.action[name]) for name in chosen)


def every_action(policy: PlanPolicy) -> Iterator[Action]:
    rules = policy.rules
    for parts in product(range(len(Correction)), range(rules.types + 1), range(2**rules.nodes), range(rules.workers)):
        correction, kind, linked, worker = parts
        yield {
            "correction": torch.tensor([correction]),
            "type": torch.tensor([kind]),
            "links": torch.tensor([[bool(linked >> i & 1) for i in range(rules.nodes)]]),
            "worker": torch.tensor([worker]),
        }


def is_legal(rules: Rules, d: Obs, a: Action) -> Tensor:
    """(n,) bool."""
    rows = torch.arange(len(d["length"]))
    correct = rules.corrections(d)[rows, a["correction"]]
    kind = rules.task_types(d, a["correction"])[rows, a["type"]]
    linked = ~(a["links"] & ~rules.dependencies(d, a["type"])).any(1)
    return correct & kind & linked & rules.workers_for(d, a["correction"], a["type"], a["links"])[rows, a["worker"]]


SMALL = CATALOGUE.withdrawn("summarise", "count", "draw", "mail")


@pytest.mark.parametrize("failed", [-1, 0])
def test_probabilities_of_all_legal_decisions_sum_to_one_and_give_the_entropy(failed: int) -> None:
    policy = make_policy(SMALL, limits=Limits(max_nodes=3))
    d = grown(policy, to_drafts(policy.rules, [Example(instruction="", targets=two_nodes())], [0]), 2)
    d["failed"] = torch.tensor([failed])
    d["status"] = torch.where((torch.arange(3) == failed)[None], Status.FAILED, d["status"])
    legal = [a for a in every_action(policy) if is_legal(policy.rules, d, a)]
    assert len(legal) > 5
    batch = {name: torch.cat([a[name] for a in legal]) for name in legal[0]}
    found = policy.evaluate(
        {name: value.repeat(len(legal), *[1] * (value.dim() - 1)) for name, value in d.items()}, batch
    )
    p = found.log_prob.double().exp()
    assert p.sum() == pytest.approx(1, abs=1e-5)
    # The entropy of the choices alone: what the links add, given the type, is left out.
    whole = -float((p * found.log_prob).sum())
    with_links = joint_entropy(p, [(*key, *a["links"][0].tolist()) for key, a in zip(keys(legal), legal, strict=True)])
    links = with_links - joint_entropy(p, keys(legal))
    assert links > 0.1 or failed >= 0
    assert (p * found.entropy).sum() == pytest.approx(whole - links, rel=1e-4)


def keys(actions: list[dict[str, Tensor]]) -> list[tuple[int, ...]]:
    return [(int(a["correction"]), int(a["type"])) for a in actions]


def joint_entropy(p: Tensor, names: Sequence[tuple[int, ...]]) -> float:
    """Of what is named, each name with all its probability."""
    total: dict[tuple[int, ...], float] = {}
    for name, share in zip(names, p.tolist(), strict=True):
        total[name] = total.get(name, 0.0) + share
    return -sum(share * math.log(share) for share in total.values())


def two_nodes() -> Targets:
    return Targets(task_types=(0, 1), dependencies=((), (0,)), model_selections=(0, 1))


def test_the_most_probable_decision_is_the_same_every_time() -> None:
    d = failed_drafts(POLICY)
    first = POLICY.act(d, greedy=True, generator=Generator().manual_seed(1))
    second = make_policy().act(d, greedy=True, generator=Generator().manual_seed(2))
    assert all(torch.equal(first.action[name], second.action[name]) for name in first.action)
    assert torch.equal(first.log_prob, second.log_prob)
    drawn = {tuple(POLICY.choose(d, generator=Generator().manual_seed(s))["type"].tolist()) for s in range(20)}
    assert len(drawn) > 1


HOSTILE = (math.nan, math.inf, -math.inf, 1e38, -1e38)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(HOSTILE), st.floats(0, 1), st.integers(0, 1000), st.booleans())
def test_whatever_the_weights_only_the_legal_is_chosen(worst: float, share: float, seed: int, greedy: bool) -> None:
    tight = Limits(max_nodes=3, max_cost_usd=0.07, max_time_ms=65.0)
    policy = make_policy(CATALOGUE.updated("quick", quota=2), limits=tight, seed=seed)
    draws = Generator().manual_seed(seed)
    for value in policy.parameters():
        value[torch.rand(value.shape, generator=draws) < share] = worst
    d, ended = begin(policy, [0, 1, 2]), torch.zeros(3, dtype=torch.bool)
    for _ in range(tight.max_nodes + 1):
        made = policy.act(d, greedy=greedy, generator=draws)
        assert is_legal(policy.rules, d, made.action).all()
        assert made.log_prob.isfinite().all()
        assert policy.evaluate(d, made.action).entropy.isfinite().all()
        d, stopped = policy.rules.grow(d, made.action)
        ended |= stopped
    assert ended.all()
    assert len(policy.rules.plans(d, TEXTS)) == 3  # checked there


@pytest.mark.parametrize("worst", HOSTILE)
def test_so_it_is_after_a_failure(worst: float) -> None:
    policy = make_policy()
    for value in policy.parameters():
        value.fill_(worst)
    d = failed_drafts(policy)
    for seed in range(5):
        made = policy.act(d, generator=Generator().manual_seed(seed))
        assert is_legal(policy.rules, d, made.action).all()


# By what task types are known


def type_scores(policy: PlanPolicy, whole: Obs, t: int = 2) -> Tensor:
    d = grown(policy, whole, t)
    return scores(policy, d, torch.zeros_like(d["length"]))[0]


def by_name(policy: PlanPolicy, names: Sequence[str]) -> Obs:
    """Drafts of the same plan in the ids of a policy's catalogue, about every instruction."""
    place = {t.name: i for i, t in enumerate(policy.rules.catalogue.task_types)}
    needs: list[tuple[int, ...]] = [()] + [(i,) for i in range(len(names) - 1)]
    targets = Targets(task_types=tuple(place[name] for name in names), dependencies=tuple(needs))
    drafts = to_drafts(policy.rules, [Example(instruction="", targets=targets)] * len(TEXTS), range(len(TEXTS)))
    return drafts | {"workers": torch.where(drafts["types"] >= 0, 0, -1)}


@given(st.permutations(range(6)))
@settings(max_examples=15, deadline=None)
def test_in_another_order_task_types_have_the_same_scores(order: list[int]) -> None:
    types = tuple(CATALOGUE.task_types[i] for i in order)
    other = make_policy(Catalogue(task_types=types, workers=CATALOGUE.workers))
    before = type_scores(POLICY, by_name(POLICY, ["fetch", "draw", "mail"]))
    after = type_scores(other, by_name(other, ["fetch", "draw", "mail"]))
    close(after, before[:, [*order, 6]])
    one, two = (policy.teacher_forced_scores(by_name(policy, ["fetch", "draw", "mail"])) for policy in (POLICY, other))
    close(two.links[:, :3, :3], one.links[:, :3, :3])
    close(two.workers[:, :3], one.workers[:, :3])


def test_in_another_order_workers_have_the_same_scores() -> None:
    other = make_policy(Catalogue(task_types=CATALOGUE.task_types, workers=CATALOGUE.workers[::-1]))
    d, e = begin(POLICY, [0, 1, 2]), begin(other, [0, 1, 2])
    kind = torch.tensor([0, 1, 2])
    close(scores(other, e, kind)[2], scores(POLICY, d, kind)[2].flip(1))


def test_an_added_task_type_leaves_the_others_scores_and_a_withdrawn_one_too() -> None:
    """But for their similarity to the instruction, which counts from the mean of those there are."""

    def without_similarity(catalogue: Catalogue) -> Tensor:
        policy = make_policy(catalogue)
        policy.similarity_gate.weight.zero_()
        policy.similarity_gate.bias.zero_()
        policy.context.encoded.similarity.zero_()
        return type_scores(policy, by_name(policy, ["fetch", "draw"]))

    before = without_similarity(CATALOGUE)
    after = without_similarity(CATALOGUE.added(TaskType(name="sing", description="sing a song")))
    close(after[:, [0, 1, 2, 3, 4, 5, 7]], before)
    close(without_similarity(CATALOGUE.withdrawn("count")), before[:, [0, 1, 2, 4, 5, 6]])


def weigh_similarity(policy: PlanPolicy, *, familiar: float, unfamiliar: float) -> PlanPolicy:
    """Similarity as a whole counts so much, whatever the draft."""
    policy.similarity_gate.weight.zero_()
    policy.similarity_gate.bias.zero_()
    policy.similarity_gate.bias[WHOLE], policy.similarity_gate.bias[SIMILARITIES + 1 + WHOLE] = familiar, unfamiliar
    return policy


def test_similarity_weighs_by_how_often_a_type_was_in_the_training_data() -> None:
    new = CATALOGUE.added(TaskType(name="new", description="sing a song"))

    def gained(*, familiar: float, unfamiliar: float) -> Tensor:
        """What similarity adds to the scores, for each standard deviation of it."""
        one, none = (
            weigh_similarity(make_policy(new), familiar=a, unfamiliar=b) for a, b in ((familiar, unfamiliar), (0, 0))
        )
        d = begin(one, [0, 1, 2])
        added = type_scores(one, d, t=0) - type_scores(none, d, t=0)
        assert not added[:, -1].any()  # stop resembles nothing
        return (added[:, :-1] / one.context.encoded.similarity[..., WHOLE]).mean(0)

    type_counts = torch.cat([POLICY.type_counts, torch.zeros(1)])  # the new one never
    close(gained(familiar=1, unfamiliar=0), type_counts / (type_counts + FAMILIAR))
    close(gained(familiar=0, unfamiliar=1), FAMILIAR / (type_counts + FAMILIAR))


def test_similarity_adds_to_a_type_once() -> None:
    one, none = (weigh_similarity(make_policy(), familiar=a, unfamiliar=a) for a in (1.0, 0.0))
    whole = by_name(one, ["fetch", "draw"])
    added = type_scores(one, whole) - type_scores(none, whole)
    used = whole["types"][0, :2]
    assert not added[:, used].any()
    assert (added[:, :-1].count_nonzero(1) == 4).all()


def test_types_are_met_as_often_as_they_stand_in_plans() -> None:
    policy = make_policy()
    policy.count_types(torch.tensor([[0, 2, -1], [2, 5, 2]]))
    assert policy.type_counts.tolist() == [1, 0, 3, 0, 0, 1]


def test_a_task_type_never_seen_is_known_by_its_description_alone() -> None:
    def score(description: str, *, forget: bool = False) -> Tensor:
        policy = make_policy(CATALOGUE.added(TaskType(name="new", description=description)))
        if forget:
            for table in (policy.type_names, policy.type_class, policy.type_bias):
                table.fill_(100.0)
        return type_scores(policy, begin(policy, [0, 1, 2]), t=0)[:, 6]

    song = score("sing a song of sixpence")
    close(score("sing a song of sixpence", forget=True), song)
    assert (score("bake a pie of blackbirds") - song).abs().min() > 1e-3


def test_a_task_type_never_seen_can_be_chosen() -> None:
    catalogue = CATALOGUE.added(TaskType(name="new", description="sing a song of sixpence"))
    chosen = {
        kind
        for seed in range(30)
        for kind in make_policy(catalogue, seed=seed)
        .choose(begin(make_policy(catalogue), [0, 1, 2]), greedy=True)["type"]
        .tolist()
    }
    assert 6 in chosen


def test_a_worker_never_seen_is_known_by_its_description_and_live_numbers() -> None:
    def score(**fields: object) -> Tensor:
        policy = make_policy(CATALOGUE.added(Worker(name="new", **fields)))  # type: ignore[arg-type]
        d = begin(policy, [0, 1, 2])
        return scores(policy, d, torch.zeros_like(d["length"]))[2]

    plain = score(description="a poet")
    for other in (
        score(description="a plumber"),
        score(description="a poet", usd_per_call=2.0),
        score(description="a poet", latency_ms=900.0),
        score(description="a poet", success_rate=0.9),
        score(description="a poet", available=False),
        score(description="a poet", quota=3),
    ):
        close(other[:, :2], plain[:, :2])
        assert (other[:, 2] - plain[:, 2]).abs().min() > 1e-4
    d = begin(POLICY, [0, 1, 2])
    tried = d | {"tried": torch.tensor([False, True]).expand(3, -1)}
    before, after = (scores(POLICY, x, torch.zeros_like(d["length"]))[2] for x in (d, tried))
    close(after[:, 0], before[:, 0])
    assert (after[:, 1] - before[:, 1]).abs().min() > 1e-4


def test_votes_of_similar_past_queries_speak_for_types_and_links() -> None:
    policy = make_policy()
    policy.vote_gate.weight.zero_()
    policy.vote_gate.bias.zero_()
    policy.vote_weight.copy_(torch.tensor([1.0, 1.0, 0.0, 0.0]))
    policy.link_vote.fill_(1.0)
    whole = by_name(policy, ["fetch", "translate"])
    before = policy.teacher_forced_scores(whole)
    votes = policy.context.encoded.votes
    pair = policy.context.pairs.tolist().index([0, 1])  # translate after fetch
    votes[:, 6 + pair] += 1
    link = MEMORY.links.tolist().index([0, 1])
    votes[:, 6 + len(policy.context.pairs) + link] += 1
    after = policy.teacher_forced_scores(whole)
    change = (after.types - before.types)[0]
    assert change[1].tolist() == pytest.approx([0, 5, 0, 0, 0, 0, 0], abs=1e-3)
    assert change[0].abs().max() < 1e-3
    assert (after.links - before.links)[0, 1, 0] == pytest.approx(5, abs=1e-3)
    assert (after.links - before.links)[0, 0, 0].abs() < 1e-3
    votes[:, 4] += 1  # draw
    change = (policy.teacher_forced_scores(whole).types - after.types)[0, :3]
    assert change[:, 4].tolist() == pytest.approx([5, 5, 5], abs=1e-3)
    assert change[:, [0, 1, 2, 3, 5, 6]].abs().max() < 1e-3


# Batches


def test_the_company_of_longer_instructions_and_plans_changes_no_score() -> None:
    whole = by_name(POLICY, ["fetch", "draw", "mail", "count"])
    whole["length"] = torch.tensor([4, 2, 3])  # as they grow, shorter and longer ones are in one batch
    d = grown(POLICY, whole, 4)
    assert d["length"].tolist() == [4, 2, 3]
    kind = torch.tensor([0, 1, 2])
    together, forced, values = scores(POLICY, d, kind), POLICY.teacher_forced_scores(whole), POLICY.value(d)
    for row, text in enumerate(TEXTS):
        alone = make_policy(texts=[text])
        own, mine = (only(x, row) | {"instruction": torch.tensor([0])} for x in (d, whole))
        for found, expected in zip(scores(alone, own, kind[row : row + 1]), together, strict=True):
            there = slice(None) if found.shape[1] != LIMITS.max_nodes else slice(int(own["length"]))  # earlier nodes
            close(found[:, there], expected[row : row + 1, there])
        close(alone.value(own), values[row : row + 1])
        close(alone.teacher_forced_scores(mine).links, forced.links[row : row + 1])
        close(alone.teacher_forced_scores(mine).workers, forced.workers[row : row + 1])


def only(obs: Obs, row: int) -> Obs:
    return {name: value[row : row + 1] for name, value in obs.items()}


def test_imitating_hides_words_but_never_all_of_them() -> None:
    policy = make_policy()
    policy.train()
    for seed in range(5):
        torch.manual_seed(seed)
        assert policy.teacher_forced_scores(by_name(policy, ["fetch"])).types.isfinite().all()
    one, two = (policy.teacher_forced_scores(by_name(policy, ["fetch"])).types for _ in range(2))
    assert not torch.equal(one, two)
    policy.train(False)
    one, two = (policy.teacher_forced_scores(by_name(policy, ["fetch"])).types for _ in range(2))
    assert torch.equal(one, two)


def test_heads_divide_the_width_into_even_parts() -> None:
    with pytest.raises(ConfigError, match=r"planner.width is 12.*use a multiple of 8"):
        PlannerConfig(width=12, heads=4)


@torch.no_grad()
def test_past_queries_speak_only_for_what_is_known_by_name() -> None:
    policy = make_policy()
    obs = policy.rules.begin(1) | {"instruction": torch.tensor([0])}

    def heard(named: Tensor) -> Tensor:
        """(T + 1,) which scores the votes move."""
        reading = replace(policy.read(obs["instruction"]), named=named)
        silent = replace(reading, votes=torch.zeros_like(reading.votes))
        found = [policy.type_scores(obs, policy.encode_drafts(obs, some))[0] for some in (reading, silent)]
        return (found[0] - found[1]).abs() > 1e-6

    every = torch.ones(policy.rules.types, dtype=torch.bool)
    moved = heard(every)[:-1].nonzero()[:, 0]
    assert len(moved) > 1
    one = every.index_fill(0, moved[:1], False)
    assert not heard(one)[moved[0]]
    assert heard(one)[moved[1:]].all()


def test_a_type_whose_name_is_dropped_loses_its_votes_with_it() -> None:
    policy = make_policy()
    policy.config = replace(policy.config, name_dropout=0.5)
    reading = policy.train().read(torch.tensor([0, 1]))
    by_name = reading.pointers[:, policy.config.width :].abs().sum(1) > 0
    assert torch.equal(reading.named, by_name)
    assert 0 < by_name.sum() < len(by_name)


def test_a_policy_that_moves_takes_its_context_along() -> None:
    policy = make_policy()
    assert policy.to("meta").context.encoded.mask.device.type == "meta"
