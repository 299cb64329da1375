"""`etude demo allocation`: nothing in; a trained policy, its comparison with simpler ones, and a report out."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from etude.cli.display import console, duration, table
from etude.cli.evaluate import HELD_OUT_SEED
from etude.cli.progress import STOPPED, LiveDisplay, PlainDisplay, follow, interruptible
from etude.contracts.errors import RunError

if TYPE_CHECKING:
    from etude.bootstrap.allocation import TrainedPolicy
    from etude.learning.evaluate import Score
    from etude.learning.train import Training
    from etude.problems.allocation.behaviour import Tendency
    from etude.settings.tree import Settings

SHOWN = ("completion_rate", "utilisation", "collaboration", "load_balance")


def allocation_demo(out: Path, *, seed: int, max_steps: int, episodes: int, live: bool) -> None:
    """Train allocation, compare the policy with simpler ones and write a report, in less than a minute."""
    from etude.bootstrap.allocation import make_training, read_policy
    from etude.learning.report.allocation import write_allocation_report
    from etude.learning.runs import RunFolder
    from etude.learning.train import RunConfig
    from etude.settings.tree import Settings

    began, screen = time.perf_counter(), console()
    settings = Settings(run=RunConfig(seed=seed, max_steps=max_steps))
    folder = RunFolder(choose_folder(out, settings))
    with interruptible(screen) as begun, folder.locked():
        training = make_training(settings, folder.path)
        begun.append(training)
        _learn(training, screen, live=screen.is_terminal and live)
        scores, tendencies = _compare(read_policy(folder.path), screen, episodes=episodes)
        report = write_allocation_report(folder, comparison=scores, tendencies=tendencies)
    _print_scores(scores, screen)
    print_ending(report, report.parent, screen, seconds=time.perf_counter() - began)


def choose_folder(out: Path, settings: Settings) -> Path:
    """`out`, or the first numbered one after it, that is new or holds this very demo without its report."""
    from etude.bootstrap.allocation import to_config
    from etude.learning.runs import RunFolder

    def is_own(path: Path) -> bool:
        return RunFolder(path).config() == to_config(settings)

    return first_free(out, is_own)


def first_free(out: Path, is_own: Callable[[Path], bool]) -> Path:
    """As above; `is_own` says whether a folder holds this very demo, or raises RunError where it holds no run."""
    from etude.learning.runs import RunFolder

    def is_free(path: Path) -> bool:
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return True
        folder = RunFolder(path)
        try:
            return is_own(path) and not folder.report.exists() and not folder.in_use()
        except RunError:
            return False

    numbered = (out.with_name(f"{out.name}-{i}") for i in count(2))
    return out if is_free(out) else next(path for path in numbered if is_free(path))


def _learn(training: Training, screen: Console, *, live: bool) -> None:
    budget, doing = training.config.run.max_steps, f"training {training.problem.name} on {training.device}"
    if training.resumed:
        doing = f"going on from step {training.step:,}"
    screen.print(f"{training.folder.path}: {doing}, budget {budget:,} steps", markup=False, soft_wrap=True)
    follow(training, (LiveDisplay if live else PlainDisplay)(training, screen))
    pace, why = training.step / training.wall_s, STOPPED[str(training.reason_to_stop())]
    screen.print(f"trained {training.step:,} steps in {duration(training.wall_s)} ({pace:,.0f} a second): {why}")


def _compare(
    trained: TrainedPolicy, screen: Console, *, episodes: int
) -> tuple[dict[str, Score], dict[str, list[Tendency]]]:
    """Scores of all, and what the policy and random choice do in which state."""
    from etude.learning.comparison import POLICY, RANDOM, contenders
    from etude.learning.evaluate import evaluate
    from etude.problems.allocation.behaviour import Watched

    scores, tendencies = {}, {}
    with screen.status("") as status:
        for name, actor in contenders(trained.problem, trained.network, seed=trained.settings.run.seed).items():
            status.update(f"evaluating {name}: {episodes} episodes")
            watched = Watched(actor)
            scores[name] = evaluate(trained.problem, watched, episodes=episodes, seed=HELD_OUT_SEED)
            if name in (POLICY, RANDOM):
                tendencies[name] = watched.tendencies()
    return scores, tendencies


def _print_scores(scores: dict[str, Score], screen: Console) -> None:
    from etude.learning.comparison import METRICS, interpret
    from etude.learning.formats import percent, whole

    heads = ["return", *(METRICS[name][0].replace(" ", "\n") for name in SHOWN)]  # 80 columns are enough for it
    rows = [
        [
            name,
            f"{whole(score.mean)} ± {whole((score.high - score.low) / 2):>2}",
            *(percent(score.metrics[metric]) for metric in SHOWN),
        ]
        for name, score in scores.items()
    ]
    episodes = next(iter(scores.values())).episodes
    screen.print(
        f"\n{episodes} episodes each from the same seeds, unseen in training; ± is the 95 % interval of a mean\n"
    )
    screen.print(table("", *heads, rows=rows, right=heads))
    screen.print("\n" + " ".join(interpret(scores)), markup=False)


def print_ending(report: Path, policy: Path, screen: Console, *, seconds: float) -> None:
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    screen.print(f"\nreport: {report}", markup=False, soft_wrap=True)
    screen.print(f"policy: etude.load({str(policy)!r})", markup=False, soft_wrap=True)
    screen.print(f"The demo took {duration(seconds)} and at most {peak_mb:,.0f} MB of memory.", style="dim")
