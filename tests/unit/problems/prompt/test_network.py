from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from etude.problems.prompt.network import PromptPolicy
from etude.problems.prompt.reader import ACTIONS, KNOWN
from etude.problems.prompt.settings import PromptNetworkConfig
from etude.problems.prompt.states import STOPPING
from etude.problems.prompt.world import ACTION
from tests.unit.problems.prompt.tiny import READER, policy, states


@settings(deadline=None, max_examples=50)  # the first example makes the states
@given(st.lists(st.booleans(), min_size=5, max_size=5), st.integers(0, 2**31))
def test_a_masked_action_is_never_sampled(legal: list[bool], seed: int) -> None:
    obs = states().observe(torch.arange(16))
    obs["legal"] = torch.tensor([[*legal, True]] * 16)
    network, generator = policy(), Generator().manual_seed(seed)
    found = network.act(obs, generator=generator)
    assert bool(obs["legal"].gather(1, found.action[ACTION][:, None]).all())
    assert bool(found.log_prob.isfinite().all())
    assert bool((network.probabilities(obs)[~obs["legal"]] == 0).all())


def test_evaluate_agrees_with_act() -> None:
    obs, network = states().observe(torch.arange(40)), policy()
    acted = network.act(obs, generator=Generator().manual_seed(1))
    again = network.evaluate(obs, acted.action)
    assert torch.allclose(acted.log_prob, again.log_prob, atol=1e-5)
    assert torch.allclose(acted.value, again.value, atol=1e-5)
    assert torch.equal(acted.action[ACTION], network.choose(obs, generator=Generator().manual_seed(1))[ACTION])


def test_more_places_for_sentences_change_nothing() -> None:
    obs, network = states().observe(torch.arange(10)), policy()
    wider = {**obs, "sentences": torch.nn.functional.pad(obs["sentences"], (0, 0, 0, 7))}
    assert torch.allclose(network.scores(obs), network.scores(wider), atol=1e-5)


def test_the_order_of_sentences_does_not_count_and_the_sentences_do() -> None:
    obs, network = states().observe(torch.arange(10)), policy()
    turned = {**obs, "sentences": obs["sentences"].flip(1)}
    assert torch.allclose(network.scores(obs), network.scores(turned), atol=1e-5)
    without = {**obs, "sentences": torch.zeros_like(obs["sentences"])}
    assert not torch.allclose(network.scores(obs), network.scores(without), atol=1e-4)


def test_what_a_sentence_does_counts_without_its_embedding() -> None:
    obs, network = states().observe(torch.arange(10)), policy()
    quiet, unknown = obs["sentences"].clone(), obs["sentences"].clone()
    quiet[..., : READER.width] = 0
    unknown[..., READER.width :] = torch.nan
    for other in (quiet, unknown):
        found = network.scores({**obs, "sentences": other})
        assert bool(found.isfinite().all())
        assert not torch.allclose(network.scores(obs), found, atol=1e-4)


def test_a_feature_that_is_not_known_counts_as_usual() -> None:
    obs, network = states().observe(torch.arange(4)), policy()
    unknown = {**obs, "features": torch.full_like(obs["features"], torch.nan)}
    usual = {**obs, "features": states().features.mean(0).expand(4, -1)}
    assert torch.allclose(network.scores(unknown), network.scores(usual), atol=1e-5)


def test_the_documents_network_has_its_layers() -> None:
    network = PromptPolicy(
        1536, PromptNetworkConfig(hidden=(256, 256, 128), norm="batch", dropout=0.1), embedding_only=True
    )
    linear = [tuple(layer.weight.shape) for layer in network.actor if isinstance(layer, torch.nn.Linear)]
    assert linear == [(256, 1536), (256, 256), (128, 256), (len(ACTIONS), 128)]
    assert [layer.p for layer in network.critic if isinstance(layer, torch.nn.Dropout)] == [0.1] * 3
    assert sum(isinstance(layer, torch.nn.BatchNorm1d) for layer in network.actor) == 3
    ends = [layer for layer in network.critic if isinstance(layer, torch.nn.Linear)]
    assert ends[-1].out_features == 1
    first = next(network.actor.parameters())
    assert float(first.detach().abs().max()) <= (6 / (1536 + 256)) ** 0.5  # Xavier


@pytest.mark.parametrize("norm", ["none", "layer", "batch"])
def test_every_norm_learns(norm: str) -> None:
    network = PromptPolicy(READER.width, PromptNetworkConfig(hidden=(16,), norm=norm, dropout=0.1, sentence_units=8))  # type: ignore[arg-type]
    obs = states().observe(torch.arange(32))
    optimizer, losses = torch.optim.Adam(network.parameters(), lr=0.02), []
    for _ in range(30):
        loss = -network.evaluate(obs, {ACTION: torch.full((32,), STOPPING)}).log_prob.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    assert obs["features"].shape[1] == len(KNOWN)
