from __future__ import annotations

from itertools import permutations

import pytest
import torch

from etude.problems.prompt.generated.gains import COST, MENDS, NOT_NEEDED, KnownGains
from etude.problems.prompt.generated.prompts import needs
from etude.problems.prompt.growth import NOT_MADE, OVER, grow
from etude.problems.prompt.mutations import MUTATIONS
from etude.problems.prompt.reader import ACTIONS, STOP
from etude.problems.prompt.states import STOPPING, make_states
from tests.unit.problems.prompt.tiny import READER, prompts, states


def test_a_state_leads_to_one_with_one_more_mutation() -> None:
    found = states()
    rows, actions = (found.next >= 0).nonzero(as_tuple=True)
    assert len(rows)
    done = torch.cat([found.done, torch.zeros(len(found.done), 1)], 1)
    after = found.done[found.next[rows, actions]]
    assert torch.equal(after, (done[rows] + torch.nn.functional.one_hot(actions, len(ACTIONS)))[:, :-1])


def test_only_what_is_legal_leads_on_and_stop_always_ends() -> None:
    found = states()
    assert bool(found.legal[:, STOPPING].all())
    assert bool((found.next[:, STOPPING] == OVER).all())
    assert bool(((found.next >= 0) == (found.legal & (torch.arange(len(ACTIONS)) != STOPPING))).all())
    assert bool((found.reward[~found.legal] == 0).all())


def test_masks_are_those_of_the_rules() -> None:
    found = states()
    for number, prompt in enumerate(prompts()):
        own = grow(number, prompt.text, KnownGains(prompts()), READER.rules, paths=None, seed=0)
        first = int(found.start[number])
        for row, state in enumerate(own.states):
            masked = READER.rules.masked(state)
            assert found.legal[first + row].tolist() == [action not in masked for action in ACTIONS]


def test_the_optimum_is_that_of_every_order_tried() -> None:
    found = states()
    for start in found.start.tolist():
        best = 0.0
        for order in permutations(range(len(MUTATIONS)), READER.rules.max_mutations):
            row, earned = start, 0.0
            for action in order:
                if not found.legal[row, action]:
                    break
                earned += float(found.reward[row, action])
                best, row = max(best, earned), int(found.next[row, action])
        assert float(found.optimum[start]) == pytest.approx(best, abs=1e-5)


def test_gains_are_those_of_the_defects() -> None:
    found, made = states(), prompts()
    for number, row in enumerate(found.start.tolist()):
        for place, mutation in enumerate(MUTATIONS):
            defect, wanted = MENDS[mutation], needs(made[number].kind)[MENDS[mutation]]
            if not found.legal[row, place]:
                continue
            reward = float(found.reward[row, place])
            if defect not in made[number].defects:
                assert reward == pytest.approx(-COST - (NOT_NEEDED if wanted > 0 else -wanted))
            else:
                assert reward <= wanted - COST + 1e-6


def test_random_sequences_are_some_of_all_states() -> None:
    made = prompts()[:8]
    texts, gains = [one.text for one in made], KnownGains(made)
    whole, some = make_states(texts, gains, READER), make_states(texts, gains, READER, paths=1)
    assert len(some.done) < len(whole.done)
    assert bool((some.next == NOT_MADE).any())
    assert not bool((whole.next == NOT_MADE).any())
    first, other = whole.start, some.start
    # Legal mutations of a start have their reward whether the state after them was made or not.
    assert torch.equal(whole.reward[first], some.reward[other])
    assert torch.equal(whole.legal[first], some.legal[other])


def test_states_of_some_prompts_are_the_same() -> None:
    whole = states()
    some = whole.of(range(5, 9))
    rows = torch.arange(len(some.done)) + int(whole.start[5])
    assert torch.equal(some.observe(torch.arange(len(rows)))["sentences"], whole.observe(rows)["sentences"])
    assert torch.equal(torch.where(some.next < 0, some.next, some.next + rows[0]), whole.next[rows])
    assert torch.equal(some.prompt_of(some.start), torch.arange(4))


def test_actions_end_with_stop() -> None:
    assert (*MUTATIONS, STOP) == ACTIONS
