"""Etude learns the decisions an AI-agent orchestrator makes. Importing it brings no torch.

task, feedback     what your agent does becomes experience to learn from
choose             a task that is one choice, in one line
train, evaluate    a policy of any problem, from Python as by the commands of the same name
load               a trained policy, ready to decide
Orchestrator       plans carried out on workers
EtudeError         every error that is raised on purpose; DataError is about what you give
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from etude.contracts.errors import DataError, EtudeError
from etude.problems.table import register_environments

__all__ = [
    "DataError",
    "EtudeError",
    "Orchestrator",
    "__version__",
    "choose",
    "evaluate",
    "feedback",
    "load",
    "task",
    "train",
]

__version__ = "0.1.0"

with suppress(ImportError):  # Gymnasium is optional, and knows an environment only once it is registered
    register_environments()


def __getattr__(name: str) -> Any:
    """`etude.Orchestrator(policy, workers)` carries plans out; it is imported when it is asked for."""
    if name == "Orchestrator":
        from etude.orchestrator.executor import Orchestrator

        return Orchestrator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def task(task: str, **about: Any) -> Any:
    """A task of your agent, to be used in a `with` statement: what happens in it becomes a trajectory.

    `about`: user, group, tenant, agent, model, problem, conversation, metadata, id; collect=False keeps nothing. See
    `etude.experience.task.Collector.task`.

    With the environment variables ETUDE_URL and ETUDE_API_KEY, that server decides and stores.
    """
    from etude.bootstrap.experience import collector

    return collector().task(task, **about)


def choose(name: str, context: Any = None, *, options: Sequence[Any], task: str | None = None, **more: Any) -> Any:
    """One of `options`, in one line: a task with one choice of your own, as `task.decide` makes it.

    What it returns equals the chosen option, and has its `propensity`, `policy` and `task`: report what happened by
    `.task.outcome(success=…)`, or rate it, even days later, by `etude.feedback(….task.id, thumbs="up")`. `more` is
    what `etude.task` and `task.decide` take: user, default, max_cost_usd, …. `task` is what is to be done, in words; by
    default it is the text of the context.
    """
    from etude.bootstrap.experience import collector
    from etude.experience.one_choice import choose_once

    return choose_once(collector(), name, context, options=options, task=task, **more)


def feedback(trajectory_id: str, **rating: Any) -> bool:
    """A person's rating of a trajectory, now or days later: thumbs="up" or "down", stars=1…5, comment, user."""
    from etude.bootstrap.experience import collector

    return collector().feedback(trajectory_id, **rating)


def train(
    problem: str,
    *,
    out: str | Path | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Train to the end, or resume; returns the `Run`: its `scores`, `folder` and best `artefact()`.

    `options` are those of `etude train PROBLEM`: seed=1, max_steps=100_000, dataset="datasets/today". `settings` are
    any others by dotted key: {"ppo.lr": 1e-3}.
    """
    with _missing_extra():
        from etude.bootstrap import runs
    return runs.train(problem, out=out, preset=preset, settings=settings, options=options)


def evaluate(run: str | Path, **options: Any) -> Any:
    """How good a policy is, as `etude evaluate` measures it: `json`, a table as `columns` and `rows`, `sentences`."""
    with _missing_extra():
        from etude.bootstrap import runs
    return runs.evaluate_path(run, options)


def load(path: str | Path, **options: Any) -> Any:
    """The policy of a run or an artefact, ready to decide: `etude.load("runs/a").act(observation)`.

    A workflow run gives a planner: `etude.load("runs/p1").plan("Summarise the report and mail it")`. A problem's loader
    may take `options`: `seed=1` where a policy samples. A choice is loaded without torch. `llm:URL#MODEL` is a language
    model that plans, at an OpenAI-compatible URL; its options are prices and `api_key_env`.

    `etude.load("choice:model")` is the policy that serves this slot: it follows promotions and rollbacks at the next
    decision, and during a release the policy of a trajectory's arm decides: `.choose(…, trajectory=task.id)`. A
    registered version is loaded by its 16 digits.
    """
    from etude.bootstrap.policies import load_policy

    with _missing_extra():
        return load_policy(path, **options)


@contextmanager
def _missing_extra() -> Iterator[None]:
    """An import of torch and its kin that fails names the extra to install."""
    from etude.contracts.errors import MissingExtraError

    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("etude"):
            raise
        raise MissingExtraError(needs=error.name, extra="train") from error
