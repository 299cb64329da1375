"""Scenarios: many instructions, each of which determines its plan; and plans read from elsewhere."""

from __future__ import annotations

import re
from random import Random

import pytest

from etude.contracts.errors import ConfigError
from etude.problems.catalogue import Catalogue
from etude.problems.workflow.examples import to_examples
from etude.problems.workflow.office.phrases import PHRASES
from etude.problems.workflow.office.scenarios import (
    MIN_EXAMPLES,
    InstructionWriter,
    Scenarios,
    Steps,
    from_examples,
    generate,
    playable,
    sample_steps,
)
from etude.problems.workflow.plan import Limits, Node, Plan
from tests.language import CATALOGUE, chain, examples

NAMES = [t.name for t in PHRASES.catalogue.task_types]


def plan_of(scenarios: Scenarios, s: int) -> list[tuple[str, list[str]]]:
    """(task type, what it needs) of each node."""
    names = [scenarios.catalogue.task_types[t].name for t in scenarios.types[s].tolist() if t >= 0]
    return [(name, [names[j] for j in scenarios.links[s, i].nonzero()[:, 0].tolist()]) for i, name in enumerate(names)]


def meaning(steps: Steps) -> frozenset[tuple[str, frozenset[str]]]:
    return frozenset((name, frozenset(steps[j][0] for j in needs)) for name, needs in steps)


def test_thousands_of_distinct_instructions_with_valid_plans() -> None:
    made = generate(3, 3000)
    assert len(set(made.instructions)) == 3000
    for s in range(0, 3000, 7):
        length = int(made.length[s])
        types = made.types[s].tolist()
        assert len(set(types[:length])) == length
        assert set(types[length:]) <= {-1}
        nodes = tuple(
            Node(
                task_type=NAMES[types[i]],
                dependencies=tuple(made.links[s, i].nonzero()[:, 0].tolist()),
                worker="person",
            )
            for i in range(length)
        )
        Plan(instruction=made.instructions[s], nodes=nodes).check(made.catalogue, Limits())


def test_the_best_plan_of_a_row_is_that_of_its_instruction() -> None:
    made = generate(3, 200)
    for s in range(0, 200, 9):
        plan = made.plan(s)
        assert plan.instruction == made.instructions[s]
        nodes = [(node.task_type, [plan.nodes[j].task_type for j in node.dependencies]) for node in plan.nodes]
        assert nodes == plan_of(made, s)
        assert {node.worker for node in plan.nodes} == {None}


def test_a_seed_gives_the_same_instructions_and_another_seed_others() -> None:
    generate.cache_clear()
    first = generate(1, 200)
    generate.cache_clear()
    assert generate(1, 200).instructions == first.instructions
    assert len(set(generate(2, 200).instructions) & set(first.instructions)) < 20


def test_plans_come_in_all_sizes_and_shapes() -> None:
    made = generate(0, 2000)
    assert made.length.unique().tolist() == [1, 2, 3, 4, 5, 6]
    joins = (made.links.sum(2) > 1).any(1)
    forks = (made.links.sum(1) > 1).any(1)
    roots = ((made.links.sum(2) == 0) & (made.types >= 0)).sum(1) > 1
    for share in (joins, forks, roots):
        assert share.float().mean() > 0.08
    counts = made.types[made.types >= 0].bincount(minlength=len(NAMES))
    assert counts[: NAMES.index("transcribe_audio")].min() > 50
    assert counts[NAMES.index("transcribe_audio")] == 0


def test_the_same_words_always_mean_the_same_plan() -> None:
    random, meant = Random(0), {}
    for _ in range(6000):
        steps = sample_steps(random)
        text = InstructionWriter(random, steps, "seen").write()
        assert meant.setdefault(text, meaning(steps)) == meaning(steps), text


@pytest.mark.parametrize("name", NAMES)
def test_every_task_type_has_phrasings_to_learn_and_others_to_be_surprised_by(name: str) -> None:
    assert len(set(PHRASES.seen[name])) >= 8
    assert len(set(PHRASES.unseen[name])) >= 3
    assert not set(PHRASES.seen[name]) & set(PHRASES.unseen[name])
    slot = "{job}" if name == "write_code" else "{x}"
    assert all(slot in form for form in (*PHRASES.seen[name], *PHRASES.unseen[name]))


def test_unseen_phrasings_say_the_same_plans_in_other_words() -> None:
    steps: Steps = [("summarise", ()), ("send_email", (0,))]
    seen = {InstructionWriter(Random(i), steps, "seen").write().lower() for i in range(60)}
    unseen = {InstructionWriter(Random(i), steps, "unseen").write().lower() for i in range(60)}
    stems = ("condense", "essentials", "sum ", "summary", "gist", "digest")
    assert all(any(stem in text for stem in stems) for text in unseen)
    assert not seen & unseen
    assert not any("condense" in text for text in seen)


def test_what_a_step_works_on_may_imply_the_steps_before_it() -> None:
    steps: Steps = [("read_document", ()), ("summarise", (0,)), ("translate", (1,)), ("send_email", (2,))]
    unsaid: dict[frozenset[int], str] = {}
    for seed in range(300):
        writer = InstructionWriter(Random(seed), steps, "seen")
        unsaid.setdefault(frozenset(writer.implicit), writer.write())
    assert len(unsaid) == 2**3  # any but the last may be left unsaid
    scan = r"scanned|PDF|archive|paper copy"
    assert all(re.search(scan, text) for text in unsaid.values())
    assert re.search(rf"a [A-Z]\w+ summary of the .*({scan})", unsaid[frozenset({0, 1, 2})])


def test_later_steps_are_sometimes_named_first_and_unwanted_ones_too() -> None:
    texts = generate(0, 3000).instructions
    assert sum(text.startswith("Before you") for text in texts) > 30
    assert sum(" first" in text for text in texts) > 30
    assert sum("needed" in text or "do not want" in text or "no need" in text for text in texts) > 200


def test_the_new_tool_is_asked_for_only_when_it_has_come() -> None:
    new = NAMES.index("transcribe_audio")
    assert not (generate(0, 500).types == new).any()
    share = (generate(0, 500, new_entries=True).types == new).any(1).float().mean()
    assert 0.35 < share < 0.65


def test_examples_become_padded_plans() -> None:
    made = from_examples([("chain", [1, 4], [[], [0]]), ("one", [7], [[]])], PHRASES.catalogue)
    assert made.instructions == ("chain", "one")
    assert made.types.tolist() == [[1, 4], [7, -1]]
    assert plan_of(made, 0) == [("read_document", []), ("summarise", ["read_document"])]


# Expert workflows of a user


def test_what_a_world_cannot_play_is_left_out_and_counted() -> None:
    idle = CATALOGUE.updated("quick", available=False)  # the other one translates and summarises alone
    good = [chain(f"translate letter {i}, then summarise it", [1, 2]) for i in range(MIN_EXAMPLES)]
    spoilt = [
        chain("translate it twice", [1, 1]),
        chain("and again", [2, 2]),
        chain("translate, summarise, count", [1, 2, 3]),
        chain("mail it", [5]),
        chain(" translate letter 0, then summarise it", [2]),
    ]
    made = playable([*spoilt[:4], *good, spoilt[4]], idle, max_nodes=2)
    assert made.instructions == tuple(example.instruction for example in good)
    assert made.left_out == {
        "a task type twice": 2,
        "more than 2 subtasks": 1,
        "a subtask that no worker can do": 1,
        "an instruction that came before": 1,
    }
    without_workers = Catalogue(task_types=CATALOGUE.task_types)
    assert playable([*good, spoilt[3]], without_workers, max_nodes=2).left_out == {}


def test_too_few_are_refused_with_what_was_left_out() -> None:
    given = [*(chain(f"mail letter {i}", [5]) for i in range(MIN_EXAMPLES - 1)), chain("mail it twice", [5, 5])]
    with pytest.raises(ConfigError) as refused:
        playable(given, CATALOGUE, max_nodes=4)
    message = str(refused.value)
    assert message.startswith("there are 4 examples to practise on; 1 left out with a task type twice: at least 5")
    assert message.endswith("give more examples")


def test_scenarios_are_written_as_a_training_file_and_read_back() -> None:
    for scenarios in (generate(0, 50), playable(examples(60), CATALOGUE, max_nodes=4)):
        catalogue = scenarios.catalogue
        read = to_examples(scenarios.records(), catalogue, max_nodes=10, source="here")
        again = playable(read, catalogue, max_nodes=10)
        assert [again.plan(row) for row in range(len(again))] == [scenarios.plan(row) for row in range(len(scenarios))]
        assert again.left_out == {}
