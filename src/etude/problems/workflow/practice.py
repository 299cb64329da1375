"""Phase 2: a planner that imitates experts continues to learn from the outcomes of its own plans, by PPO.

The settings have the source document's names. The other PPO settings were chosen by experiment
(decision 14): a short credit horizon, since the value network sees the chosen workers at once, and an entropy bonus,
since the experts never showed which other workers they might have chosen.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from etude.contracts.errors import ConfigError
from etude.learning.ppo import PPOConfig
from etude.learning.run import RunConfig
from etude.problems.workflow.office.world import OfficeConfig, Rewards, WorkflowConfig
from etude.problems.workflow.plan import Limits


@dataclass(frozen=True, kw_only=True)
class OutcomesConfig(Rewards):
    """Phase 2: learning from outcomes."""

    algorithm: Literal["PPO"] = "PPO"
    """How it learns."""
    learning_rate: Annotated[float, Gt(0)] = 1e-3
    """Adam's step size at the start."""
    num_episodes: Annotated[int, Ge(1)] = 140_000
    """Workflows to learn from."""
    max_steps_per_episode: Annotated[int, Ge(1)] = 50
    """Decisions of one workflow; limits that allow more are refused."""
    gamma: Annotated[float, Gt(0), Le(1)] = 0.99
    """Discount of the future."""
    epsilon: Annotated[float, Gt(0)] = 0.2
    """How far the probability ratio may move before its gain stops counting."""
    potential: Annotated[float, Ge(0)] = 5.0
    """Weight of the potential-based shaping; the best policy is the same with and without it. 0 turns it off."""
    kl_coef: Annotated[float, Ge(0)] = 0.01
    """Reward taken per nat by which a decision is likelier than in phase 1; 0 turns it off."""
    entropy_coef: Annotated[float, Ge(0)] = 0.01
    """Weight of the entropy bonus, which keeps the policy exploring."""
    gae_lambda: Annotated[float, Ge(0), Le(1)] = 0.5
    """Bias (0) against variance (1) of the advantages."""
    envs: Annotated[int, Ge(1)] = 512
    """Workflows under way at the same time."""
    steps: Annotated[int, Ge(1)] = 16
    """Decisions of each between two updates."""
    epochs: Annotated[int, Ge(1)] = 1
    """Passes over a batch."""
    minibatch: Annotated[int, Ge(2)] = 1024
    """Decisions per gradient step."""
    eval_every: Annotated[int, Gt(0)] = 50_000
    """Decisions between evaluations."""
    eval_episodes: Annotated[int, Gt(0)] = 1000
    """Workflows of each evaluation, on held-out instructions."""

    def ppo(self) -> PPOConfig:
        """Steps of a workflow stay together: its instruction is then read once."""
        return PPOConfig(
            envs=self.envs,
            steps=self.steps,
            epochs=self.epochs,
            minibatch=self.minibatch,
            lr=self.learning_rate,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            clip_coef=self.epsilon,
            entropy_coef=self.entropy_coef,
            reference_coef=self.kl_coef,
            together=True,
        )

    def run(self, run: RunConfig) -> RunConfig:
        budget = self.num_episodes * self.max_steps_per_episode
        return replace(
            run,
            max_steps=budget,
            max_episodes=self.num_episodes,
            eval_every=self.eval_every,
            eval_episodes=self.eval_episodes,
        )

    def world(self, office: OfficeConfig, limits: Limits) -> WorkflowConfig:
        most = (limits.max_nodes + 1) * (limits.max_replans + 1) + limits.max_corrections + 1  # the last to give up
        if most > self.max_steps_per_episode:
            raise ConfigError(
                f"training.phase2_rl.max_steps_per_episode is {self.max_steps_per_episode}, but the limits allow a "
                f"workflow {most} decisions: raise it, or lower limits.max_nodes, max_replans or max_corrections"
            )
        paid = {name: value for name, value in asdict(self).items() if name in Rewards.__dataclass_fields__}
        return WorkflowConfig(**asdict(office), **paid, limits=limits, discount=self.gamma)
