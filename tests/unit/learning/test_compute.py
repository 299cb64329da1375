"""Where torch computes, and with how many threads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from etude.contracts.errors import ConfigError
from etude.learning.compute import choose_threads, one_thread, resolve_device


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.device is 'cuda', but torch sees no GPU"):
        resolve_device("cuda")
    assert resolve_device("auto") == resolve_device("cpu") == torch.device("cpu")


def test_small_minibatches_are_computed_by_one_thread() -> None:
    assert choose_threads(nn.Linear(10, 10), 64) == 1
    assert choose_threads(nn.Linear(1000, 1000), 1024) >= 1


def test_one_thread_holds_inside_the_block_alone() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with one_thread(only=True):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
        with one_thread(only=False):
            assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), one_thread(only=True):
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
