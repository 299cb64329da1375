"""Rows that options are typically chosen for, with what speaks for the options there."""

from __future__ import annotations

import numpy as np
import pytest

from etude.problems.choice.fit import fit_choice
from etude.problems.choice.model import ChoiceModel
from etude.problems.choice.settings import ChoiceConfig
from etude.problems.choice.typical import MAX_OPTIONS, PER_OPTION, find_typical
from etude.text.ngrams import NGramEncoder
from tests.unit.problems.choice.test_explain import FORMS, SUBJECTS, make_rows

ROWS = make_rows(400)
KINDS = ["formal" if any(word in row.context["text"] for word in SUBJECTS) else "poetic" for row in ROWS]


@pytest.fixture(scope="module")
def model() -> ChoiceModel:
    return fit_choice(lambda: iter([ROWS]), NGramEncoder(), ChoiceConfig()).model


def test_each_option_is_explained_where_it_is_chosen_most(model: ChoiceModel) -> None:
    right = [model.table.names.index("solver" if kind == "formal" else "poet") for kind in KINDS]
    found = find_typical(model, ROWS, KINDS, np.array(right), np.ones((len(ROWS), 3), bool))
    assert {(one.why.chosen, one.group) for one in found} == {("solver", "formal"), ("poet", "poetic")}
    for one in found:
        row = ROWS[int(one.source.removeprefix("line ")) - 1]
        words = SUBJECTS if one.why.chosen == "solver" else FORMS
        assert set(one.why.words_for.effects) & set(words) & set(row.context["text"].split())
        assert one.why.difference > 0


def test_options_that_the_policy_does_not_choose_are_not_explained(model: ChoiceModel) -> None:
    clerk = model.table.names.index("clerk")
    assert find_typical(model, ROWS, KINDS, np.full(len(ROWS), clerk), np.ones((len(ROWS), 3), bool)) == []


def test_only_what_was_offered_is_compared(model: ChoiceModel) -> None:
    solver, clerk = (model.table.names.index(name) for name in ("solver", "clerk"))
    allowed = np.isin(np.arange(3), [solver, clerk])[None].repeat(len(ROWS), 0)
    found = find_typical(model, ROWS, KINDS, np.full(len(ROWS), solver), allowed)
    assert 0 < len(found) <= MAX_OPTIONS * PER_OPTION
    assert {one.why.runner_up for one in found} == {"clerk"}
