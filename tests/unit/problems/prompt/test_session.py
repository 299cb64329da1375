from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import DataError
from etude.learning.ppo import PPOConfig
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.policy import load
from etude.problems.prompt.reader import State
from etude.problems.prompt.session import Session, SessionConfig
from etude.problems.prompt.settings import PromptNetworkConfig
from tests.unit.problems.prompt.tiny import prompts

SMALL = SessionConfig(
    encoder="ngrams-16",
    network=PromptNetworkConfig(hidden=(32,), norm="batch", dropout=0.1),
    ppo=PPOConfig(lr=0.01, lr_final=1.0, minibatch=16, epochs=4),
    buffer_size=128,
)


def vector(seed: int) -> list[float]:
    return np.random.default_rng(seed).normal(size=16).tolist()  # type: ignore[no-any-return]


def collect(session: Session, episodes: int, *, steps: int = 3, seed: int = 0) -> float:
    """Episodes in which the mutation of the number 2 pays 1 and others nothing; the mean reward."""
    total, rng = 0.0, np.random.default_rng(seed)
    for _ in range(episodes):
        for step in range(steps):
            state, number = vector(int(rng.integers(1000))), int(rng.integers(2**31))
            chosen = session.select(embedding=state, seed=number)
            reward = float(chosen.action == 2)
            session.store(
                embedding=state,
                action=chosen.action,
                reward=reward,
                over=step == steps - 1,
                log_prob=chosen.log_prob,
                value=chosen.value,
            )
            total += reward
    return total / (episodes * steps)


def test_the_default_has_the_documents_numbers() -> None:
    config = SessionConfig()
    assert (config.ppo.lr, config.ppo.gamma, config.ppo.gae_lambda, config.ppo.clip_coef) == (3e-4, 0.99, 0.95, 0.2)
    assert (config.ppo.entropy_coef, config.ppo.value_coef, config.ppo.epochs) == (0.01, 0.5, 4)
    assert (config.ppo.minibatch, config.buffer_size, config.network.hidden) == (64, 2048, (256, 256, 128))
    session = Session()
    assert session.width == 1536
    assert session.actions == MUTATIONS


def test_an_action_has_its_probability_and_is_the_same_for_the_same_seed() -> None:
    session = Session(SMALL)
    chosen = session.select(embedding=vector(1), seed=4)
    assert chosen == session.select(embedding=vector(1), seed=4)
    assert chosen.mutation == MUTATIONS[chosen.action]
    assert chosen.propensity == pytest.approx(chosen.probabilities[chosen.mutation])
    assert chosen.log_prob == pytest.approx(np.log(chosen.propensity), abs=1e-5)
    assert sum(chosen.probabilities.values()) == pytest.approx(1)
    assert session.distribution(embedding=vector(1)) == pytest.approx(dict(chosen.probabilities))
    greedy = session.select(embedding=vector(1), greedy=True)
    assert greedy.probabilities[greedy.mutation] == max(greedy.probabilities.values())


def test_it_learns_what_pays() -> None:
    session = Session(SMALL)
    first = collect(session, 12)
    for number in range(25):
        collect(session, 12, seed=number)
        assert session.update() is not None
    assert collect(session, 20, seed=99) > max(0.7, 2 * first)


def test_too_few_experiences_are_kept_for_later() -> None:
    session = Session(SMALL)
    collect(session, 5)
    assert session.update() is None
    assert session.waiting == 15
    collect(session, 1)
    metrics = session.update()
    assert metrics is not None
    assert metrics["experiences"] == 18
    assert np.isfinite(metrics["policy_loss"])
    assert session.waiting == 0


def test_the_last_experience_of_an_open_episode_waits_for_its_next_state() -> None:
    session = Session(SMALL)
    collect(session, 6)
    session.store(embedding=vector(0), action="expansion", reward=1.0, over=False)
    assert session.update() is not None
    assert session.waiting == 1
    session.store(embedding=vector(0), action=0, reward=1.0, over=False, next_embedding=vector(1))
    assert session.waiting == 2


def test_only_the_newest_experiences_are_kept() -> None:
    session = Session(SMALL)
    collect(session, 60)
    assert session.waiting == 128
    assert session.stored == 180


def test_of_a_prompt_masked_mutations_are_never_selected() -> None:
    session = Session(SMALL)
    for number, prompt in enumerate(prompts()[:8]):
        found = session.select(prompt=prompt.text, seed=number)
        masked = session.reader.rules.masked
        assert found.mutation not in masked(State(prompt=prompt.text))
        assert all(found.probabilities[m] == 0 for m in masked(State(prompt=prompt.text)))
    done = list(MUTATIONS[:4])
    assert session.select(embedding=vector(0), done=done).mutation == MUTATIONS[4]
    with pytest.raises(DataError, match="every mutation is masked"):
        session.select(embedding=vector(0), done=MUTATIONS)
    with pytest.raises(DataError, match="which is masked here"):
        session.store(embedding=vector(0), done=done, action=0, reward=0.0, over=True)


def test_a_saved_session_continues_where_it_was(tmp_path: Path) -> None:
    session = Session(SMALL)
    collect(session, 12)
    session.update()
    artefact = session.save(tmp_path / "one")
    again = Session.load(artefact, SMALL)
    assert again.distribution(embedding=vector(3)) == pytest.approx(session.distribution(embedding=vector(3)))
    assert again.updates == 1
    for one in (session, again):
        torch.manual_seed(0)  # dropout
        collect(one, 12, seed=5)
        one.update()
    assert again.distribution(embedding=vector(3)) == pytest.approx(session.distribution(embedding=vector(3)))
    assert again.save(tmp_path / "two").manifest.parent == artefact.version


def test_a_saved_session_is_a_policy_that_others_can_load(tmp_path: Path) -> None:
    artefact = Session(SMALL).save(tmp_path / "saved")
    decision = load(artefact).decide(DecisionRequest(context=prompts()[0].text))
    assert decision.policy == artefact.version


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither an embedding nor a prompt"),
        ({"embedding": [1.0, 2.0]}, "takes 16 numbers"),
        ({"embedding": [float("nan")] * 16}, "not finite"),
        ({"embedding": "abc"}, "no list of numbers"),
        ({"embedding": [0.0] * 16, "done": ["sing"]}, "expected mutations"),
    ],
)
def test_what_is_no_state_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Session(SMALL).select(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"action": 5}, "from 0 to 4"),
        ({"action": "stop"}, "expected a number"),
        ({"action": True}, "expected a number"),
        ({"reward": float("inf")}, "reward is inf"),
        ({"log_prob": float("nan")}, "log_prob is nan"),
    ],
)
def test_what_is_no_experience_is_refused(given: dict[str, object], message: str) -> None:
    session = Session(SMALL)
    with pytest.raises(DataError, match=message):
        session.store(**({"embedding": [0.0] * 16, "action": 0, "reward": 1.0, "over": True} | given))  # type: ignore[arg-type]
    assert session.waiting == 0
