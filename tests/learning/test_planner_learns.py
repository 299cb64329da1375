"""A planner learns a small synthetic language, and plans with tools that were added after it was trained."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from etude.learning.run import About, Run
from etude.learning.run_folder import RunFolder
from etude.problems.catalogue import Catalogue, TaskType
from etude.problems.workflow.encode import TextReader
from etude.problems.workflow.examples import Example
from etude.problems.workflow.imitation import ImitationConfig, ImitationLearner
from etude.problems.workflow.network import PlannerConfig, PlanPolicy
from etude.problems.workflow.plan import Limits, Plan
from etude.problems.workflow.planner import Planner
from etude.problems.workflow.training_set import make_training_set, merge_sets, split
from etude.text.ngrams import NGramEncoder
from tests.language import chain

SIZE = 9
"""Verbs and nouns of the language; a tool is one of each, so that no word of a new tool tells it from all others."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    name: str
    verb: str
    noun: str

    @property
    def entry(self) -> TaskType:
        return TaskType(name=self.name, description=f"{self.verb} {self.noun}")


def make_tools() -> tuple[list[Tool], list[Tool]]:
    """Those known in training, and those added later: each of their words is known, never the two together."""
    rng = random.Random(0)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    words = ["".join(rng.sample(syllables, 3)) for _ in range(2 * SIZE)]
    known, added = [], []
    for i, verb in enumerate(words[:SIZE]):
        for j, noun in enumerate(words[SIZE:]):
            tool = Tool(name=f"tool {i}{j}", verb=verb, noun=noun)
            (added if j == (i + 1) % SIZE else known).append(tool)
    return known, added


KNOWN, ADDED = make_tools()
LEARNED = Catalogue(task_types=tuple(tool.entry for tool in KNOWN))


def say(tools: Sequence[Tool]) -> str:
    return "please " + " then ".join(f"{tool.verb} the {tool.noun}" for tool in tools)


def make_examples(count: int, rng: random.Random) -> list[Example]:
    chosen = [rng.sample(range(len(KNOWN)), rng.randint(1, 3)) for _ in range(count)]
    return [chain(say([KNOWN[i] for i in ids]), ids) for ids in chosen]


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Planner]:
    """Makes planners of what was learned, each with its catalogue."""
    sets = merge_sets([(LEARNED, make_examples(200, random.Random(1)))])
    reader, limits = TextReader(encoder=NGramEncoder(64)), Limits(max_nodes=4)
    config = ImitationConfig(
        learning_rate=5e-4,
        num_epochs=15,
        plateau_patience=15,
        early_stop_patience=15,
        final_epochs=0,
        average=0.9,
        synthetic_augmentations=600,
    )
    learn, held_out = split(sets, share=0.1, size=None, seed=0)
    training_set = make_training_set(
        sets, learn, held_out, reader=reader, limits=limits, augmentations=600, ridge=config.ridge, seed=0
    )
    torch.manual_seed(0)
    network = PlannerConfig(
        width=48, layers=1, heads=4, dropout=0.0, word_dropout=0.0, vote_dropout=0.9, name_dropout=0.4
    )
    policy = PlanPolicy(network, text_width=64, known_types=len(KNOWN), known_workers=0, nodes=limits.max_nodes)
    folder = RunFolder(tmp_path_factory.mktemp("planner") / "run")
    about = About(
        problem="workflow",
        method="imitate",
        title="a language",
        unit="epochs",
        budget="15",
        score="validation score",
        settings={},
        policy_sections=(),
    )
    learner = ImitationLearner(
        about, policy, training_set, lambda: training_set, config, folder, seed=0, device=torch.device("cpu"), threads=1
    )
    for _ in Run(learner, folder).updates():
        pass
    policy.load_state_dict(learner.algorithm.mean, strict=False)
    return partial(Planner, policy, reader=reader, known=sets.known, memory=training_set.memory, limits=limits)


def kinds(plan: Plan) -> set[str]:
    return {node.task_type for node in plan.nodes}


def test_it_learns_the_language(planner: Callable[..., Planner]) -> None:
    plan = planner(catalogue=LEARNED).plan
    rng = random.Random(2)
    asked = [rng.sample(KNOWN, rng.randint(1, 3)) for _ in range(30)]
    right = [kinds(plan(say(tools))) == {tool.name for tool in tools} for tools in asked]
    assert sum(right) / len(right) > 0.35


def test_a_tool_added_after_training_is_chosen_from_its_description(planner: Callable[..., Planner]) -> None:
    """A plan of at most 4 of 81 tools holds a given one by chance in 1 of 20."""
    plan = planner(catalogue=LEARNED.added(*(tool.entry for tool in ADDED))).plan
    rng = random.Random(3)
    chosen = []
    for tool in ADDED * 4:
        asked = [tool, *rng.sample(KNOWN, rng.randint(0, 2))]
        rng.shuffle(asked)
        chosen.append(tool.name in kinds(plan(say(asked))))
    assert sum(chosen) / len(chosen) > 0.25


def test_it_is_the_description_that_counts(planner: Callable[..., Planner]) -> None:
    """The same tools under each other's descriptions are chosen for what these say."""
    others = ADDED[1:] + ADDED[:1]
    turned = [Tool(name=tool.name, verb=other.verb, noun=other.noun) for tool, other in zip(ADDED, others, strict=True)]
    catalogue = Catalogue(task_types=tuple(tool.entry for tool in (*KNOWN, *turned)))
    plans = [kinds(planner(catalogue=catalogue).plan(say([tool]))) for tool in turned]
    now = sum(tool.name in plan for tool, plan in zip(turned, plans, strict=True))
    before = sum(tool.name in plan for tool, plan in zip(others, plans, strict=True))
    assert now > 0.25 * len(plans)
    assert before < now / 2
