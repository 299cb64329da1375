"""The outcome model: planted signals are found, sums are linear in rows, propensities are corrected for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from etude.learning import outcome_model
from etude.learning.outcome_model import (
    KEPT,
    MAX_WEIGHT,
    NONE,
    RIDGES,
    Fitted,
    Observed,
    OutcomeModel,
    Spectrum,
    Sums,
    add_up,
    choose_ridges,
    fit_outcomes,
    refit,
    well_known,
)

Floats = NDArray[np.float64]
D, K = 12, 3


def planted(n: int, *, seed: int = 0, noise: float = 0.3, signal: float = 0.4) -> tuple[Floats, Floats, Floats]:
    """Features (n, D), expectations (n, K) of options with their own linear tastes, and outcomes (n, K)."""
    fixed, rng = np.random.default_rng(99), np.random.default_rng(seed)
    own, common = signal * fixed.normal(size=(D, K)), signal * fixed.normal(size=D)
    x = rng.normal(size=(n, D))
    truth = np.array([0.1, 0.2, 0.3]) + (x @ common)[:, None] + x @ own
    return x, truth, truth + noise * rng.normal(size=truth.shape)


def all_known(*outcomes: Floats) -> Observed:
    """Every option of every row, of as many kinds."""
    n, options = outcomes[0].shape
    return Observed(
        rows=n,
        row=np.repeat(np.arange(n), options),
        option=np.tile(np.arange(options), n),
        value=np.stack([kind.ravel() for kind in outcomes], 1),
        weight=np.ones(n * options),
    )


def one_known(outcomes: Floats, probability: Floats, seed: int = 0) -> Observed:
    """One option of every row, sampled with these probabilities (n, K)."""
    n, rows = len(outcomes), np.arange(len(outcomes))
    u = np.random.default_rng(seed).random((n, 1))
    option = (u > probability.cumsum(1)).sum(1).clip(0, outcomes.shape[1] - 1)
    return Observed(
        rows=n,
        row=rows,
        option=option,
        value=outcomes[rows, option][:, None],
        weight=np.minimum(1 / probability[rows, option], MAX_WEIGHT),
    )


def fit(x: Floats, seen: Observed, kinds: tuple[str, ...] = ("score",), **more: object) -> Fitted:
    given = {"scales": (np.ones(x.shape[1]),), **more}
    return fit_outcomes(x, seen, K, kinds, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def known() -> tuple[Floats, Observed, Fitted]:
    x, _, y = planted(400)
    seen = all_known(y, np.where(np.arange(400)[:, None] % 2 == 0, 2 * y, np.nan))  # half of the second kind
    return x, seen, fit(x, seen, ("score", "cost_usd"))


# Signals


def test_a_planted_signal_is_found() -> None:
    x, _, y = planted(600)
    fitted = fit(x, all_known(y))
    new, truth, _ = planted(300, seed=1)
    expected = fitted.model.expect(new)[0]
    assert np.square(expected - truth).mean() < 0.03 * truth.var()
    assert (expected.argmax(1) == truth.argmax(1)).mean() > 0.9
    assert fitted.value > fitted.plain_value + 0.3
    assert fitted.z > 5
    assert fitted.model.parts[0].noise == pytest.approx(0.09, rel=0.15)
    assert fitted.model.parts[0].mean == pytest.approx(y.mean(0))
    assert fitted.model.parts[0].count == pytest.approx(np.full(K, 600))


def test_each_kind_of_outcome_is_learned_from_the_rows_that_report_it(known: tuple[Floats, Observed, Fitted]) -> None:
    _, _, fitted = known
    assert fitted.model.kinds == ("score", "cost_usd")
    assert fitted.model.parts[1].count == pytest.approx(np.full(K, 200))
    new, truth, _ = planted(300, seed=1)
    score, cost = fitted.model.expect(new)
    assert np.square(cost - 2 * truth).mean() < 0.1 * (2 * truth).var()
    assert score.shape == cost.shape == (300, K)


def test_expectations_of_rows_come_from_folds_without_them() -> None:
    x, _, y = planted(60, noise=3.0)
    fitted = fit(x, all_known(y))
    inside = fitted.model.expect(x)[0]
    assert np.square(fitted.expected[0] - y).mean() > np.square(inside - y).mean()
    assert fitted.model.parts[0].noise == pytest.approx(np.square(fitted.expected[0] - y).mean())


def test_without_a_signal_features_do_not_matter_and_the_best_single_option_is_chosen() -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(500, D)), np.array([0.0, 0.5, 0.1]) + rng.normal(size=(500, K))
    fitted = fit(x, all_known(y))
    expected = fitted.model.expect(rng.normal(size=(200, D)))[0]
    assert fitted.model.parts[0].ridge >= RIDGES[-2]
    assert (expected.argmax(1) == 1).mean() > 0.98
    assert fitted.value == pytest.approx(fitted.plain_value, abs=0.05)


def test_the_best_single_option_is_one_option_even_if_two_are_equally_good() -> None:
    """The sign of the first feature decides which of two options is right, so that both have the same mean."""
    x = np.random.default_rng(0).normal(size=(200, D))
    x[1::2, 0] = -x[::2, 0]
    right = x[:, 0] > 0
    found = fit_outcomes(x, all_known(np.stack([right, ~right], 1).astype(float)), 2, ("score",), scales=(np.ones(D),))
    assert found.value > 0.9
    assert found.plain_value == 0.5


def test_an_option_with_few_outcomes_is_not_chosen_for_them() -> None:
    """One outcome of the last option, the best of all, in rows in which only the others are known."""
    x, _, y = planted(200, signal=0)
    whole, one_good = all_known(y[:, :2]), 100.0
    seen = Observed(
        rows=200,
        row=np.append(whole.row, 7),
        option=np.append(whole.option, 2),
        value=np.append(whole.value, [[one_good]], 0),
        weight=np.append(whole.weight, 10.0),
    )
    for limit in (64, 1):  # each option by itself, or completed sums
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(outcome_model, "MAX_OBSERVED", limit)
            found = fit(x, seen)
        assert found.plain_value == pytest.approx(y[:, 1].mean(), abs=0.01)
        assert found.value == pytest.approx(y[:, 1].mean(), abs=0.05)


def test_options_are_well_known_from_ten_outcomes_or_as_far_as_any_is() -> None:
    assert well_known(np.array([9.9, 10.0, 300.0])).tolist() == [False, True, True]
    assert well_known(np.array([3.0, 3.0, 1.0])).tolist() == [True, True, False]
    assert well_known(np.array([0.0, 0.0])).tolist() == [True, True]


def test_what_all_options_find_easy_or_hard_is_no_taste_of_any() -> None:
    x, _, _ = planted(200)
    y = (x @ np.linspace(0, 1, D))[:, None] + np.zeros((200, K))
    part = fit(x, all_known(y)).model.parts[0]
    assert part.ridge_common == RIDGES[0]
    assert np.ptp(part.own, axis=1).max() < 1e-9
    assert np.abs(part.own).max() < 0.02 * np.abs(part.common).max()


def test_the_scale_of_least_error_is_taken() -> None:
    x, _, y = planted(300)
    junk = np.random.default_rng(5).normal(size=(300, 40))
    wide = np.concatenate([x, junk], 1)
    good, bad = np.repeat([1.0, 0.0], [D, 40]), np.repeat([0.0, 1.0], [D, 40])
    fitted = fit(wide, all_known(y), scales=(bad, good))
    assert (fitted.model.scale == good).all()
    assert np.abs(fitted.model.parts[0].own[D:]).max() == 0


def test_only_eligible_options_are_chosen_among() -> None:
    x, _, y = planted(300)
    y[:, 2] += 10
    without = np.tile([True, True, False], (300, 1))
    assert fit(x, all_known(y)).value > 9
    assert fit(x, all_known(y), eligible=without).value < 2


def test_rows_with_more_importance_count_more() -> None:
    x, _, y = planted(400)
    y[:200] += 5  # the past was better
    weights = np.where(np.arange(400) < 200, 1e-6, 1.0)
    seen = all_known(y)
    assert fit(x, seen).model.parts[0].mean == pytest.approx(y.mean(0))
    recent = fit(x, seen, importance=weights).model
    assert recent.parts[0].mean == pytest.approx(y[200:].mean(0), abs=1e-3)
    assert recent.sums.rows == pytest.approx(200, abs=1)
    alone = fit(x[200:], all_known(y[200:])).model
    assert recent.expect(x[:50])[0] == pytest.approx(alone.expect(x[:50])[0], abs=0.15)


@pytest.mark.parametrize("partly", [False, True])
def test_a_fit_is_judged_by_the_rows_that_count(partly: bool) -> None:
    """The tastes of the past were the opposite: judged by all rows, features would not matter."""
    x, _, y = planted(1200)
    y[:1000] = -y[:1000]
    weights = np.where(np.arange(1200) < 1000, 1e-9, 1.0)

    def seen(y: Floats) -> Observed:
        return one_known(y, np.full(y.shape, 1 / K)) if partly else all_known(y)

    recent, alone = fit(x, seen(y), importance=weights), fit(x[1000:], seen(y[1000:]))
    part, own = recent.model.parts[0], alone.model.parts[0]
    assert part.ridge <= 4 * own.ridge < RIDGES[-1]
    assert part.ridge_common <= 4 * own.ridge_common < RIDGES[-1]
    assert part.noise == pytest.approx(own.noise, rel=0.5)
    assert recent.value == pytest.approx(alone.value, abs=0.25)
    assert recent.z == pytest.approx(alone.z, rel=0.5)
    assert recent.value > recent.plain_value + 0.3


# Folds


def test_rows_of_a_group_stay_in_one_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[NDArray[np.int64]]()
    whole = outcome_model._Folds.__init__

    def spied(self: object, features: Floats, scale: Floats, fold: NDArray[np.int64], root: Floats) -> None:
        seen.append(fold)
        whole(self, features, scale, fold, root)  # type: ignore[arg-type]

    monkeypatch.setattr(outcome_model._Folds, "__init__", spied)
    x, _, y = planted(120)
    groups = np.random.default_rng(0).integers(0, 20, 120)
    fit(x, all_known(y), groups=groups)
    (fold,) = seen
    assert len(np.unique(fold)) == outcome_model.FOLDS
    for group in np.unique(groups):
        assert len(np.unique(fold[groups == group])) == 1


def test_copies_of_a_row_do_not_vouch_for_each_other() -> None:
    """With copies in other folds, noise looks like a signal."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 40)), rng.normal(size=(60, K))
    group, copies, outcomes = np.tile(np.arange(60), 4), np.tile(x, (4, 1)), np.tile(y, (4, 1))
    separate, together = (fit(copies, all_known(outcomes), groups=g) for g in (None, group))
    assert separate.model.parts[0].noise < 0.8
    assert together.model.parts[0].noise > 0.9


# Sums


def sums_of(x: Floats, seen: Observed, model: OutcomeModel) -> Sums:
    scaled = x * model.scale
    deviations = np.stack([scaled @ part.own for part in model.parts])
    common = np.stack([scaled @ part.common for part in model.parts])
    means = np.stack([part.mean for part in model.parts])
    return add_up(x, seen, K, means, deviations, common, np.zeros_like(deviations))


def explained(x: Floats, model: OutcomeModel) -> Floats:
    """(n, K) what the features explain."""
    return np.asarray((x @ model.parts[0].common)[:, None] + x @ model.parts[0].own)


def assert_same(a: Sums, b: Sums) -> None:
    for name in Sums.__dataclass_fields__:
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-9, atol=1e-9, err_msg=name)


def test_sums_of_two_parts_are_the_sums_of_all(known: tuple[Floats, Observed, Fitted]) -> None:
    _, _, fitted = known
    x, _, y = planted(90, seed=4)
    seen = all_known(y, y)
    first, second = np.arange(40), np.arange(40, 90)
    whole = sums_of(x, seen, fitted.model)
    parts = [sums_of(x[rows], seen.take(rows), fitted.model) for rows in (first, second)]
    assert_same(parts[0].plus(parts[1]), whole)
    assert whole.rows == 90
    part, usual = fitted.model.parts[0], explained(x, fitted.model)
    assert whole.mean[0] == pytest.approx((y - usual).mean(0))  # less what the context explains
    assert whole.common[0] == pytest.approx(x.T @ (y - part.mean).mean(1))
    assert_same(parts[0].faded(0.5).plus(parts[1].faded(0.5)), whole.faded(0.5))
    assert whole.faded(0.5).count == pytest.approx(0.5 * whole.count)  # what fades is less evidence
    assert parts[0].faded(0.25).plus(parts[1]).mean[0] == pytest.approx(
        (0.25 * (y - usual)[:40].sum(0) + (y - usual)[40:].sum(0)) / (10 + 50)
    )
    assert whole.faded(1.0) is whole


def test_widened_sums_have_room_for_options_of_which_nothing_is_known(known: tuple[Floats, Observed, Fitted]) -> None:
    _, _, fitted = known
    x, _, y = planted(30, seed=4)
    narrow = sums_of(x, all_known(y, y), fitted.model)
    wide = narrow.widened(K + 2)
    assert (wide.total.shape, wide.own.shape) == ((2, K + 2), (2, D, K + 2))
    assert wide.own[..., :K] == pytest.approx(narrow.own)
    assert (wide.weight[:, K:] == 0).all()
    assert np.isnan(wide.mean[:, K:]).all()
    assert (wide.count[:, K:] == 0).all()
    assert wide.gram is narrow.gram
    assert narrow.widened(K) is narrow
    mix = np.concatenate([np.eye(K), [[0.5, 0.5, 0.0]]])
    again = refit(fitted.model, fitted.model.sums.widened(K + 1), mix).expect(x)[0]
    before = fitted.model.expect(x)[0]
    assert again[:, :K] == pytest.approx(before, abs=1e-6)
    assert again[:, K] == pytest.approx(before[:, :2].mean(1), abs=1e-6)  # it starts as what it is like


def test_a_refit_of_its_own_sums_is_the_same_model(known: tuple[Floats, Observed, Fitted]) -> None:
    x, _, fitted = known
    again = refit(fitted.model, fitted.model.sums)
    assert again.expect(x) == pytest.approx(fitted.model.expect(x), abs=1e-6)
    assert again.standard_error(x) == pytest.approx(fitted.model.standard_error(x), rel=1e-3)
    assert again.values == pytest.approx(fitted.model.values[:KEPT])


def test_later_rows_move_a_refit_toward_themselves(known: tuple[Floats, Observed, Fitted]) -> None:
    _, _, fitted = known
    x, _, y = planted(4000, seed=7)
    later = y + np.array([3.0, 0.0, 0.0])
    model = refit(fitted.model, fitted.model.sums.plus(sums_of(x, all_known(later, later), fitted.model)))
    total = 400 * fitted.model.parts[0].mean + (later - explained(x, fitted.model)).sum(0)
    assert model.parts[0].mean == pytest.approx(total / 4400)
    assert np.abs(model.expect(x)[0] - later).mean() < np.abs(fitted.model.expect(x)[0] - later).mean()
    assert model.sums.rows == 4400


def test_held_out_sums_choose_ridges() -> None:
    x, _, y = planted(800)
    fitted = fit(x[:100], all_known(y[:100])).model
    rows = np.arange(100, 500), np.arange(500, 800)
    parts = [sums_of(x[r], all_known(y).take(r), fitted) for r in rows]
    assert choose_ridges(fitted, parts[0], parts[1]).parts[0].ridge < RIDGES[4]
    junk = np.random.default_rng(0).normal(size=y.shape)
    noise = [sums_of(x[r], all_known(junk).take(r), replace(fitted, parts=(bland(fitted),))) for r in rows]
    assert choose_ridges(fitted, noise[0], noise[1]).parts[0].ridge >= RIDGES[-2]


def bland(model: OutcomeModel) -> outcome_model.Part:
    part = model.parts[0]
    return replace(part, own=0 * part.own, common=0 * part.common, mean=0 * part.mean)


# Propensities


def test_doubly_robust_means_are_unbiased_where_naive_ones_are_not() -> None:
    """The logging policy gives option 0 the easy rows, where all options do well."""
    estimates, naive = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(1500, D))
        easy = x[:, 0] > 0
        y = np.array([0.2, 0.4, 0.3]) + 1.0 * easy[:, None] + 0.2 * rng.normal(size=(1500, K))
        p0 = np.where(easy, 0.8, 0.1)  # at least 1 / MAX_WEIGHT
        seen = one_known(y, np.stack([p0, (1 - p0) / 2, (1 - p0) / 2], 1), seed)
        model = fit(x, seen).model
        estimates.append(model.expect(x)[0].mean(0))
        naive.append([seen.value[seen.option == k].mean() for k in range(K)])
    truth = np.array([0.7, 0.9, 0.8])
    assert np.mean(naive, 0)[0] > truth[0] + 0.3
    assert np.mean(naive, 0).argmax() == 0
    assert np.mean(estimates, 0) == pytest.approx(truth, abs=0.06)
    assert np.mean(estimates, 0).argmax() == 1


def test_a_taste_is_found_although_the_logging_policy_prefers_an_option() -> None:
    x, truth, y = planted(2500)
    p0 = np.where(x[:, 0] > 0, 0.8, 0.1)
    seen = one_known(y, np.stack([p0, (1 - p0) / 2, (1 - p0) / 2], 1))
    fitted = fit(x, seen)
    expected = fitted.model.expect(x)[0]
    assert truth[np.arange(2500), expected.argmax(1)].mean() > 0.9 * truth.max(1).mean()
    assert fitted.value == pytest.approx(truth[np.arange(2500), expected.argmax(1)].mean(), abs=0.1)
    assert (fitted.model.parts[0].count < 2500).all()  # effective numbers, fewer than rows


def test_sums_complete_what_was_not_tried(known: tuple[Floats, Observed, Fitted]) -> None:
    """Over all ways to sample one option, the completed sums are on average those of all outcomes."""
    _, _, fitted = known
    model = replace(fitted.model, kinds=("score",), parts=fitted.model.parts[:1])
    x, _, y = planted(40, seed=6)
    p = np.tile([0.6, 0.3, 0.1], (40, 1))
    rows = np.arange(40)
    average = np.zeros((D, K))
    for k in range(K):  # each option in turn, weighed by its probability: the exact expectation
        seen = Observed(rows=40, row=rows, option=np.full(40, k), value=y[:, [k]], weight=np.full(40, 1 / p[0, k]))
        average += p[0, k] * sums_of(x, seen, model).own[0]
    assert average == pytest.approx(sums_of(x, all_known(y), model).own[0])


# Uncertainty


def test_standard_errors_shrink_with_data_and_cover_the_truth() -> None:
    new, truth, _ = planted(200, seed=11)
    errors = []
    for n in (60, 240, 960):
        x, _, y = planted(n, noise=1.0)
        model = fit(x, all_known(y)).model
        errors.append(model.standard_error(new).mean())
        covered = np.abs(model.expect(new)[0] - truth) < 2.5 * model.standard_error(new)
        assert covered.mean() > 0.75, n
    assert errors[0] > 1.5 * errors[1] > 2 * errors[2]


def test_far_contexts_and_rare_options_are_less_certain() -> None:
    x, _, y = planted(400, noise=1.0)
    probability = np.tile([0.6, 0.35, 0.05], (400, 1))
    model = fit(x, one_known(y, probability)).model
    near, far = model.standard_error(0.1 * x[:50]).mean(0), model.standard_error(3 * x[:50]).mean(0)
    assert (far >= near).all()
    assert near[2] > 1.5 * near[0]


def test_the_error_of_a_model_without_features_is_that_of_the_mean() -> None:
    x, _, y = planted(100)
    model = fit(x, all_known(y)).model
    plain = replace(model, parts=(replace(model.parts[0], ridge=NONE, noise=4.0, count=np.array([0, 3.0, 399.0])),))
    assert plain.standard_error(x[:2]) == pytest.approx(np.tile([2.0, 1.0, 0.1], (2, 1)))


# States and small things


def test_tensors_and_json_give_the_model_back(known: tuple[Floats, Observed, Fitted]) -> None:
    x, _, fitted = known
    model = fitted.model
    back = OutcomeModel.from_state(model.tensors(), model.to_json())
    assert back.kinds == model.kinds
    assert back.expect(x) == pytest.approx(model.expect(x), abs=1e-4)
    assert back.standard_error(x) == pytest.approx(model.standard_error(x), rel=1e-4)
    assert [(p.ridge, p.ridge_common, p.noise) for p in back.parts] == [
        (p.ridge, p.ridge_common, p.noise) for p in model.parts
    ]
    assert back.sums.rows == 400
    assert refit(back, back.sums).expect(x) == pytest.approx(model.expect(x), abs=1e-4)
    assert {x.dtype for x in model.tensors().values()} <= {np.dtype(np.float32), np.dtype(np.float64)}


def test_few_rows_and_an_option_without_outcomes() -> None:
    x, _, y = planted(2)
    assert np.isfinite(fit(x, all_known(y)).model.expect(x)).all()
    seen = all_known(y[:, :2])
    model = fit(x, seen).model
    assert model.parts[0].count[2] == 0
    assert model.parts[0].mean[2] == pytest.approx(y[:, :2].mean())  # what is usual
    assert np.isfinite(model.expect(x)).all()
    assert (model.standard_error(x)[:, 2] > model.standard_error(x)[:, 0]).all()


def test_observed_rows_are_taken_in_order() -> None:
    _, _, y = planted(5)
    seen = all_known(y)
    some = seen.take(np.array([3, 1]))
    assert some.rows == 2
    table = np.zeros((2, K))
    table[some.row, some.option] = some.value[:, 0]
    assert table == pytest.approx(y[[3, 1]])


def test_a_spectrum_of_few_rows_solves_as_one_of_the_gram_matrix() -> None:
    x = np.random.default_rng(0).normal(size=(6, 15))
    cross = x.T @ np.arange(12.0).reshape(6, 2)
    direct = np.linalg.solve(x.T @ x + 2 * np.eye(15), cross)
    assert Spectrum.of_rows(x).solve(cross, 2.0) == pytest.approx(direct)
    assert Spectrum.of(x.T @ x).solve(cross, 2.0) == pytest.approx(direct)
    assert Spectrum.of_rows(x).values.shape == (6,)
    leading = Spectrum.of(x.T @ x).leading(2)
    assert leading.values == pytest.approx(np.sort(Spectrum.of_rows(x).values)[::-1][:2])
