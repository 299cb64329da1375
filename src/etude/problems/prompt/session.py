"""A policy of one caller that learns while it is used: it selects, stores rewards, and updates itself by PPO.

It begins as the source document's: networks of 256, 256 and 128 units over an embedding, with its settings of PPO. What
a session learns serves its caller alone; `save` makes an artefact of it, which others get through a release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from etude.contracts.errors import DataError
from etude.learning.artefact import Artefact, load_weights, write_artefact
from etude.learning.checkpoint import prefixed, under
from etude.learning.collect import Batch
from etude.learning.compute import one_thread
from etude.learning.ppo import PPO, PPOConfig
from etude.learning.settings import read_own
from etude.problems.base import Obs
from etude.problems.prompt.mutations import MUTATIONS, Prompt
from etude.problems.prompt.network import PromptPolicy, as_obs
from etude.problems.prompt.problem import make_problem
from etude.problems.prompt.reader import ACTIONS, KNOWN, SEEN, STOP, PromptReader, State
from etude.problems.prompt.settings import PromptConfig, PromptNetworkConfig, PromptSettings
from etude.problems.prompt.world import ACTION

METHOD = "session"


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """Settings of a session; the numbers are the source document's."""

    encoder: str = "ngrams-1536"
    """How prompts are read, and by its width which embeddings are taken."""
    network: PromptNetworkConfig = field(
        default_factory=lambda: PromptNetworkConfig(hidden=(256, 256, 128), norm="batch", dropout=0.1)
    )
    ppo: PPOConfig = field(
        default_factory=lambda: PPOConfig(
            lr=3e-4,
            lr_final=1.0,  # a session has no end that the step size could decay to
            gamma=0.99,
            gae_lambda=0.95,
            clip_coef=0.2,
            value_clip=0.2,
            value_coef=0.5,
            entropy_coef=0.01,
            epochs=4,
            minibatch=64,
        )
    )
    buffer_size: int = 2048
    """Experiences that are kept for the next update, the newest."""
    stop: bool = False
    """Whether *stop* may be selected, besides the five mutations."""
    max_mutations: int = 5
    """Maximum number of mutations of one prompt, where the done ones are given."""
    seed: int = 0
    """Seed of the first weights and of the minibatches."""


@dataclass(frozen=True, kw_only=True)
class Selected:
    """An action, and what a later update has to know of it."""

    action: int
    """Place in `actions`."""
    mutation: str
    propensity: float
    log_prob: float
    """Its logarithm."""
    value: float
    """What the value network expects from here."""
    probabilities: Mapping[str, float]


Embedding = Sequence[float] | NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class _Experience:
    obs: Obs  # (1, …)
    action: int
    reward: float
    log_prob: float
    value: float
    over: bool
    next_obs: Obs | None


class Session:
    """One caller at a time."""

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.config = c = config or SessionConfig()
        settings = PromptSettings(
            prompt=PromptConfig(encoder=c.encoder, inputs="embedding", max_mutations=c.max_mutations),
            prompt_network=c.network,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(c.seed)
            problem = make_problem(settings)
            network = problem.policy()
        self._open(settings, network, problem.reader)

    def _open(self, settings: PromptSettings, network: PromptPolicy, reader: PromptReader) -> None:
        c = self.config
        self.settings, self.network, self.reader = settings, network.train(False), reader
        self.ppo = PPO(network, c.ppo, seed=c.seed)
        self.updates, self.stored, self.selected = 0, 0, 0
        self.parent: str | None = None
        self._waiting: list[_Experience] = []

    @property
    def actions(self) -> tuple[str, ...]:
        """What can be selected, in the order of their numbers."""
        return ACTIONS if self.config.stop else MUTATIONS

    @property
    def width(self) -> int:
        """Length of the embeddings that it takes."""
        return self.reader.width

    @property
    def waiting(self) -> int:
        """Experiences for the next update."""
        return len(self._waiting)

    def select(
        self,
        *,
        embedding: Embedding | None = None,
        prompt: Prompt | None = None,
        done: Sequence[str] = (),
        greedy: bool = False,
        seed: int = 0,
    ) -> Selected:
        """An action for an embedding, for a prompt, or for both; of a prompt, masked mutations are never selected."""
        obs = self._observed(embedding, prompt, done)
        with torch.inference_mode(), one_thread(only=True):
            found = self.network.act(obs, greedy=greedy, generator=Generator().manual_seed(seed))
            probability = self.network.probabilities(obs)[0]
        at = int(found.action[ACTION])
        self.selected += 1
        return Selected(
            action=at,
            mutation=ACTIONS[at],
            propensity=1.0 if greedy else float(probability[at]),
            log_prob=float(found.log_prob),
            value=float(found.value),
            probabilities=self._named(probability),
        )

    def distribution(
        self, *, embedding: Embedding | None = None, prompt: Prompt | None = None, done: Sequence[str] = ()
    ) -> dict[str, float]:
        """The probability of each action."""
        with torch.inference_mode(), one_thread(only=True):
            return self._named(self.network.probabilities(self._observed(embedding, prompt, done))[0])

    def store(
        self,
        *,
        action: int | str,
        reward: float,
        over: bool,
        embedding: Embedding | None = None,
        prompt: Prompt | None = None,
        done: Sequence[str] = (),
        log_prob: float | None = None,
        value: float | None = None,
        next_embedding: Embedding | None = None,
        next_prompt: Prompt | None = None,
        next_done: Sequence[str] = (),
    ) -> int:
        """Keep the reward of an action, in the order in which it happened; returns how many are kept.

        `log_prob` and `value` are those of `select`; without them, those of the present policy. The next state is that
        of the next experience where none is given and the episode is not `over`.
        """
        obs, at = self._observed(embedding, prompt, done), self._number(action)
        if not bool(obs["legal"][0, at]):
            raise DataError(f"action is {ACTIONS[at]!r}, which is masked here: store what was selected")
        for name, number in (("reward", reward), ("log_prob", log_prob), ("value", value)):
            if number is not None and not np.isfinite(number):
                raise DataError(f"{name} is {number!r}: expected a finite number")
        if log_prob is None or value is None:
            with torch.inference_mode(), one_thread(only=True):
                now = self.network.evaluate(obs, {ACTION: torch.tensor([at])})
            log_prob = float(now.log_prob) if log_prob is None else log_prob
            value = float(now.value) if value is None else value
        has_next = next_embedding is not None or next_prompt is not None
        self._waiting.append(
            _Experience(
                obs=obs,
                action=at,
                reward=float(reward),
                log_prob=min(0.0, log_prob),
                value=value,
                over=over,
                next_obs=self._observed(next_embedding, next_prompt, next_done) if has_next and not over else None,
            )
        )
        del self._waiting[: -self.config.buffer_size]
        self.stored += 1
        return len(self._waiting)

    def update(self) -> dict[str, float] | None:
        """Learn from what is kept; its metrics, or None while there is less than one minibatch.

        What was learned from is dropped. A last experience whose next state is not known yet is kept.
        """
        last = self._waiting[-1] if self._waiting else None
        open_end = last is not None and not last.over and last.next_obs is None
        used = self._waiting[:-1] if open_end else self._waiting
        if len(used) < self.config.ppo.minibatch:
            return None
        with one_thread(only=True):
            metrics = self.ppo.update(self._batch(used, last if open_end else None), progress=0.0)
        self._waiting = self._waiting[len(used) :]
        self.updates += 1
        return {**metrics, "experiences": float(len(used)), "updates": float(self.updates)}

    def save(self, folder: Path) -> Artefact:
        """Write the policy as an artefact, with what the next update depends on."""
        state = {name: x.cpu() for name, x in self.ppo.state_dict().items()}
        return write_artefact(
            folder,
            tensors=prefixed("policy.", self.network.state_dict()) | prefixed("session.", state),
            files={},
            about={
                "problem": "prompt",
                "method": METHOD,
                "step": self.updates,
                "settings": asdict(self.settings),
                "details": {"known": list(SEEN)},
                "encoder": self.reader.name,
                "parent": self.parent,
                "code": version("etude"),
            },
        )

    @classmethod
    def load(cls, artefact: Artefact, config: SessionConfig | None = None) -> Session:
        """A session that continues with the policy of an artefact: one that a session saved, or any trained policy."""
        session, manifest = cls.__new__(cls), artefact.manifest
        session.config = config or SessionConfig()
        settings = read_own(PromptSettings, manifest.settings, source=artefact.path)
        problem = make_problem(settings)
        network = problem.policy()
        load_weights(network, artefact)
        session._open(settings, network, problem.reader)
        state = under("session.", artefact.tensors())
        if state:
            session.ppo.load_state_dict(state)
            session.updates = manifest.step
        session.parent = artefact.version
        return session

    def _named(self, probability: Tensor) -> dict[str, float]:
        return dict(zip(self.actions, probability.tolist(), strict=False))

    def _number(self, action: int | str) -> int:
        if isinstance(action, str) and action in self.actions:
            return self.actions.index(action)
        if isinstance(action, int) and not isinstance(action, bool) and 0 <= action < len(self.actions):
            return action
        raise DataError(
            f"action is {action!r:.60}: expected a number from 0 to {len(self.actions) - 1}, or one of "
            f"{', '.join(self.actions)}"
        )

    def _observed(self, embedding: Embedding | None, prompt: Prompt | None, done: Sequence[str]) -> Obs:
        """(1, …): of an embedding alone, features are not known and no mutation is masked but the done ones."""
        if embedding is None and prompt is None:
            raise DataError("there is neither an embedding nor a prompt: give one of them")
        wrong = [one for one in done if one not in MUTATIONS]
        if wrong:
            raise DataError(f"done has {wrong[0]!r:.60}: expected mutations, of {', '.join(MUTATIONS)}")
        if prompt is not None:
            obs = as_obs(self.reader.read([State(prompt=prompt, done=frozenset(done))]))
        else:
            obs = {
                "features": torch.full((1, len(KNOWN)), torch.nan),
                "done": torch.tensor([[float(mutation in done) for mutation in MUTATIONS]]),
                "legal": torch.tensor([[action not in done for action in ACTIONS]]),
            }
        if embedding is not None:
            obs["sentences"] = torch.from_numpy(self.reader.alone(self._vector(embedding)))[None, None]
        stopping = ACTIONS.index(STOP)
        if not self.config.stop and obs["legal"][0, :stopping].any():
            obs["legal"][0, stopping] = False
        elif not self.config.stop:
            raise DataError("every mutation is masked for this prompt: end the episode, or allow stop")
        return obs

    def _vector(self, embedding: Embedding) -> NDArray[np.float32]:
        try:
            with np.errstate(over="ignore"):  # infinite, which is refused below
                found = np.asarray(embedding, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"embedding is no list of numbers ({error})") from error
        if found.shape != (self.width,):
            raise DataError(
                f"embedding has shape {found.shape}: this session takes {self.width} numbers, as {self.reader.name} "
                "gives; open a session with the encoder that made it"
            )
        if not np.isfinite(found).all():
            raise DataError("embedding has a number that is not finite")
        length = float(np.linalg.norm(found.astype(np.float64)))
        scaled: NDArray[np.float32] = found * np.float32(self.width**0.5 / (length or 1.0))
        return scaled

    def _batch(self, used: Sequence[_Experience], following: _Experience | None) -> Batch:
        """(T, 1, …) in the order of time."""
        nexts = [one.next_obs or after.obs for one, after in zip(used, [*used[1:], following or used[-1]], strict=True)]
        obs, next_obs = _together([one.obs for one in used]), _together(nexts)
        with torch.inference_mode():
            value_after = self.network.value(next_obs)

        def column(values: Sequence[float | bool | int], dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.tensor(values, dtype=dtype)[:, None]

        over = column([one.over for one in used], torch.bool)
        # A given next state that is not the next experience's begins another sequence: advantages do not run on.
        separate = column(
            [one.next_obs is not None and not _same(one.next_obs, after.obs) for one, after in _pairs(used)], torch.bool
        )
        return Batch(
            obs={name: x[:, None] for name, x in obs.items()},
            action={ACTION: column([one.action for one in used], torch.long)},
            log_prob=column([one.log_prob for one in used]),
            value=column([one.value for one in used]),
            next_value=value_after.clone()[:, None],
            reward=column([one.reward for one in used]),
            terminated=over,
            ended=over | separate,
            last_obs={name: x[-1:] for name, x in next_obs.items()},
        )


def _pairs(used: Sequence[_Experience]) -> list[tuple[_Experience, _Experience]]:
    return list(zip(used, [*used[1:], used[-1]], strict=True))


def _same(a: Obs, b: Obs) -> bool:
    same = a["sentences"].shape == b["sentences"].shape and torch.equal(a["done"], b["done"])
    return same and torch.allclose(a["sentences"], b["sentences"], rtol=0, atol=0, equal_nan=True)


def _together(observed: Sequence[Obs]) -> Obs:
    """(n, …) from n of (1, …), with as many places for sentences as the longest has."""
    most = max(obs["sentences"].shape[1] for obs in observed)
    padded = [
        {**obs, "sentences": torch.nn.functional.pad(obs["sentences"], (0, 0, 0, most - obs["sentences"].shape[1]))}
        for obs in observed
    ]
    return {name: torch.cat([obs[name] for obs in padded]) for name in padded[0]}
