"""Known values and laws of the metrics of an episode."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from etude.problems.allocation.metrics import jain, specialisation, summarise

without_deadline = settings(deadline=None)  # the first call of a torch function may take long
counts = st.integers(0, 200)
loads = st.lists(counts, min_size=2, max_size=16).filter(any)
tables = st.integers(2, 8).flatmap(
    lambda agents: st.lists(st.lists(counts, min_size=4, max_size=4), min_size=agents, max_size=agents)
)


def jain_of(load: list[int] | list[float]) -> float:
    return jain(torch.tensor([load], dtype=torch.float32)).item()


def specialisation_of(taken: list[list[int]]) -> float:
    return specialisation(torch.tensor([taken], dtype=torch.float32)).item()


@pytest.mark.parametrize(
    ("load", "index"),
    [([5, 5, 5, 5], 1), ([7, 0, 0, 0], 1 / 4), ([1, 1, 0, 0], 1 / 2), ([3, 1], 16 / 20), ([1, 2, 3], 36 / 42)],
)
def test_jain_of_known_loads(load: list[int], index: float) -> None:
    assert jain_of(load) == pytest.approx(index, rel=1e-6)


@without_deadline
@given(loads, st.integers(1, 9))
def test_jain_is_bounded_and_blind_to_scale_and_order(load: list[int], scale: int) -> None:
    index = jain_of(load)
    assert 1 / len(load) - 1e-6 <= index <= 1 + 1e-6
    assert jain_of([scale * x for x in load]) == pytest.approx(index, rel=1e-5)
    assert jain_of(sorted(load)) == pytest.approx(index, rel=1e-5)


@without_deadline
@given(loads)
def test_jain_of_a_team_with_as_many_idle_again_is_half(load: list[int]) -> None:
    assert jain_of(load + [0] * len(load)) == pytest.approx(jain_of(load) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("taken", "share"),
    [
        ([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9]], 1),  # a type each
        ([[3, 0, 0, 0], [0, 5, 0, 0], [2, 0, 0, 0]], 1),  # two may share a type: the agent still tells it
        ([[4, 4, 4, 4], [2, 2, 2, 2]], 0),  # everyone takes every type alike
        ([[4, 0, 0, 0], [2, 2, 0, 0]], 1 - 0.5 / 0.8112781),  # H(type) .811 bits, H(type | agent) ½
        ([[0, 0, 0, 0], [0, 0, 0, 0]], 0),  # nothing taken
    ],
)
def test_specialisation_of_known_tables(taken: list[list[int]], share: float) -> None:
    assert specialisation_of(taken) == pytest.approx(share, abs=1e-5)


@without_deadline
@given(tables, st.integers(2, 9))
def test_specialisation_is_bounded_and_blind_to_scale_and_order(taken: list[list[int]], scale: int) -> None:
    share = specialisation_of(taken)
    assert 0 <= share <= 1
    assert specialisation_of([[scale * x for x in row] for row in taken]) == pytest.approx(share, abs=1e-3)
    assert specialisation_of(taken[::-1]) == pytest.approx(share, abs=1e-3)
    assert specialisation_of([row[::-1] for row in taken]) == pytest.approx(share, abs=1e-3)


@without_deadline
@given(st.lists(st.integers(0, 9), min_size=2, max_size=8), st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_agents_with_the_same_mix_do_not_specialise(sizes: list[int], mix: list[int]) -> None:
    assert specialisation_of([[size * share for share in mix] for size in sizes]) == pytest.approx(0, abs=1e-3)


def test_a_batch_is_its_rows() -> None:
    taken = torch.randint(0, 20, (5, 4, 4), generator=torch.Generator().manual_seed(0)).float()
    together = specialisation(taken)
    torch.testing.assert_close(together, torch.cat([specialisation(row[None]) for row in taken]))
    load = taken.sum(2)
    torch.testing.assert_close(jain(load), torch.cat([jain(row[None]) for row in load]))


def test_the_summary_of_counted_episodes() -> None:
    def column(*values: float) -> Tensor:
        return torch.tensor(values)

    state = {
        "return": column(12.5, -3.0),
        "step": column(10, 5),
        "arrived": column(8, 0),
        "collaborations": column(20, 0),
        "completed": torch.tensor([[2.0, 2.0], [0.0, 0.0]]),
        "busy": torch.tensor([[10.0, 5.0], [0.0, 0.0]]),
        "taken": torch.tensor([[[3.0, 0, 0, 0], [0, 3.0, 0, 0]], [[0.0] * 4] * 2]),
    }
    summary = summarise(state, horizon=10)
    assert summary["return"].tolist() == [12.5, -3.0]
    assert summary["whole"].tolist() == [True, False]
    assert summary["completion_rate"].tolist() == [0.5, 0.0]
    assert summary["utilisation"].tolist() == [0.75, 0.0]
    assert summary["collaboration"].tolist() == [1.0, 0.0]
    assert summary["specialisation"].tolist() == pytest.approx([1.0, 0.0])
    assert summary["load_balance"][0].item() == pytest.approx(1.0)
    state["return"].zero_()
    state["taken"].zero_()
    assert summary["return"].tolist() == [12.5, -3.0]
    assert summary["taken"].any()
