"""A policy of prompts earns most of the known optimum on new prompts, and more than the simple ones."""

from __future__ import annotations

import torch

from etude.learning.evaluate import evaluate, greedy
from etude.learning.run import About
from etude.problems.prompt.generated.gains import KnownGains
from etude.problems.prompt.generated.prompts import make_prompts
from etude.problems.prompt.learn import parts
from etude.problems.prompt.outcomes import OutcomeLearner
from etude.problems.prompt.problem import PromptProblem
from etude.problems.prompt.settings import OutcomesConfig, PromptConfig
from etude.problems.prompt.states import make_states

CONFIG = PromptConfig(max_mutations=2)
ABOUT = About(
    problem="prompt",
    method="outcomes",
    title="",
    unit="passes",
    budget="",
    score="gain",
    settings={},
    policy_sections=(),
)


def test_outcomes_of_mutations_teach_which_one_helps() -> None:
    problem, learned_from, new = PromptProblem(config=CONFIG), make_prompts(300, 0), make_prompts(60, 1)
    states = make_states([one.text for one in learned_from], KnownGains(learned_from), problem.reader, paths=1)
    torch.manual_seed(0)
    network = PromptProblem(config=CONFIG, states=states).policy()
    learner = OutcomeLearner(
        ABOUT,
        network,
        states.of(range(250)),
        states.of(range(250, 300)),
        OutcomesConfig(epochs=16, minibatch=64),
        noise=0.1,
        seed=0,
        parts=parts(),
    )
    for _ in range(16):
        learner.advance(lambda share: None)
    tried = PromptProblem(config=CONFIG, states=make_states([one.text for one in new], KnownGains(new), problem.reader))
    assert tried.states is not None
    optimum = float(tried.states.optimum[tried.states.start].mean())
    own = evaluate(tried, greedy(network), episodes=60).mean
    simple = {name: evaluate(tried, actor, episodes=60).mean for name, actor in tried.baselines().items()}
    assert own > 0.4 * optimum
    assert own > max(simple.values()) + 0.15 * optimum, simple
