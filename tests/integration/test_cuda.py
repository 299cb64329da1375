"""The same code on a GPU: worlds step there, and an interrupted run goes on. Skipped where there is none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Literal

import pytest
import torch

from etude.bootstrap.runs import start_run
from etude.learning.requests import LearnRequest
from etude.learning.run import Run
from etude.problems.allocation.problem import AllocationProblem
from etude.problems.allocation.world import AllocationConfig
from etude.settings.tree import resolve_settings
from tests.tiny import SETTINGS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def start(out: Path, variant: str) -> Run:
    changed = [f"{key}={value}" for key, value in SETTINGS.items()]
    changed += ["run.device=cuda", f"allocation.variant={variant}"]
    settings = resolve_settings("allocation", assignments=changed).settings
    request = LearnRequest(problem="allocation", method="practise", settings=settings, out=out)
    return start_run(request)


@pytest.mark.parametrize("variant", ["document", "matched"])
def test_a_run_left_and_started_again_ends_with_the_weights_of_one_never_left(variant: str, tmp_path: Path) -> None:
    whole = start(tmp_path / "whole", variant)
    assert [u.step for u in whole.updates()][-1] == 960
    for _ in islice(start(tmp_path / "left", variant).updates(), 3):
        pass
    again = start(tmp_path / "left", variant)
    assert again.resumed
    list(again.updates())
    trained, resumed = whole.artefact().tensors(), again.artefact().tensors()
    assert resumed.keys() == trained.keys()
    for name, weights in trained.items():
        torch.testing.assert_close(resumed[name], weights, rtol=1e-4, atol=1e-5)  # CUDA sums in any order


@pytest.mark.parametrize("variant", ["document", "matched"])
def test_a_world_makes_of_the_same_random_numbers_what_it_makes_on_the_cpu(
    variant: Literal["document", "matched"],
) -> None:
    problem = AllocationProblem(config=AllocationConfig(variant=variant, horizon=20))
    worlds = {device: problem.world(8, device=device, phases=1) for device in ("cpu", "cuda")}
    obs = worlds["cpu"].reset(0)
    worlds["cuda"].reset(0)
    state = worlds["cpu"].state_dict()
    worlds["cuda"].load_state_dict(state | {"generator": worlds["cuda"].state_dict()["generator"]})
    policy = problem.policy()
    for t in range(19):  # to before the reset, whose random numbers are a world's own
        action = policy.choose(obs)
        here, there = (
            world.apply({k: v.to(device) for k, v in action.items()}, _uniform(seed=t, device=device))
            for device, world in worlds.items()
        )
        torch.testing.assert_close(there.reward.cpu(), here.reward)
        torch.testing.assert_close({k: v.cpu() for k, v in there.obs.items()}, dict(here.obs))
        obs = here.obs


def _uniform(*, seed: int, device: str) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.rand(shape, generator=generator).to(device)
