"""How often a canary decides wrongly, and how soon rightly: e-processes compared with common rules.

python benchmarks/canary_statistics.py            about a minute on one core; needs no data

Scores are Bernoulli of base rate .70 with drift d·sin over 6,000 units, errors 2 %. Every rule sees the same simulated
units. Runs advance in step, as arrays; `agreement` compares these with `Evidence`, unit by unit. The sample-ratio
check, whose false alarms are at most .001, is left out of the decisions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from results import save

from etude.evidence.eprocess import (
    BETS,
    FINE,
    FINE_WEIGHT,
    MAX_DETECTOR,
    ODDS,
    WORSE,
    Action,
    Evidence,
    EvidenceConfig,
    Unit,
    effects,
    harm_path,
    safe_path,
)

Array = NDArray[np.float64]
Ints = NDArray[np.int_]
Flags = NDArray[np.bool_]

BASE, PERIOD = 0.70, 6_000
SHARES = (0.10, 0.25, 0.50)
RUNS, FALSE_RUNS = 300, 1_500
CONTROL, CANDIDATE = 0, 1
DEFAULTS = EvidenceConfig()
ONE_GUARDRAIL = EvidenceConfig(alpha_rollback=0.05, alpha_promote=0.05, reward_weight=1.0, error_weight=0.0)
DOCUMENT: dict[str, dict[str, Any]] = {  # statistics.md, "To reproduce within ±20 %"
    "defaults, difference 0": {"promoted": 0.960, "units": 11_600, "rolled_back": 0.010},
    "defaults, difference 0, no drift": {"rolled_back": 0.023},
    "defaults, difference 0, drift .10": {"rolled_back": 0.010},
    "defaults, difference -.03": {"rolled_back": 0.97, "units": 12_200, "candidates": 2_300, "promoted": 0.010},
    "defaults, difference -.10": {"rolled_back": 1.0, "units": 2_380, "candidates": 238},
    "defaults, difference -.30": {"rolled_back": 1.0, "units": 323, "candidates": 33},
    "defaults, errors 2 to 6 %": {"rolled_back": 1.0, "units": 1_900, "candidates": 231},
    "one guardrail, difference 0": {"promoted": 0.963, "units": 8_700, "rolled_back": 0.033},
    "one guardrail, difference -.10": {"rolled_back": 1.0, "units": 1_715, "candidates": 168},
    "one guardrail, difference -.30": {"rolled_back": 1.0, "units": 271, "candidates": 28},
}


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true in a simulation."""

    difference: float = 0.0
    drift: float = 0.05
    candidate_errors: float = 0.02
    change_at: int = 0  # the candidate differs from this unit on

    def base(self, t: int) -> float:
        return BASE + self.drift * math.sin(2 * math.pi * t / PERIOD)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What decides, and how the share moves."""

    config: EvidenceConfig
    fine: bool = True  # the last stage also needs proof about errors
    rollback: bool = True
    promote: bool = True
    detector: bool = True
    stage_units: int | None = None  # None: a stage ends on proof; else after so many units
    start_stage: int = 0


@dataclass
class Outcome:
    """(runs,) each."""

    action: NDArray[np.str_]
    units: Ints
    candidates: Ints
    passed: Ints  # stages
    peers: dict[str, Flags] = field(default_factory=dict)  # whether a peer rolled back

    def share(self, action: Action) -> float:
        return float(np.mean(self.action == action))

    def median(self, values: Ints, action: Action) -> float | None:
        own = values[self.action == action]
        return float(np.median(own)) if len(own) else None


class Processes:
    """`Evidence` of many runs at once, as plain products: rows are harm and safe per margin."""

    def __init__(self, runs: int, config: EvidenceConfig) -> None:
        self.config = config
        self.counts, self.sums = np.zeros((2, runs)), np.zeros((2, runs))
        self.good = np.zeros((2, runs))  # units without an error
        self.products = np.ones((1 + len(config.margins), runs, len(BETS)))
        self.detector = np.zeros((runs, len(BETS)))
        self.errors, self.ratio, self.rare = (np.ones((runs, len(BETS))) for _ in range(3))
        self.mismatch = np.ones((runs, len(BETS)))
        self.ones = np.full(len(BETS), 1 / len(BETS))

    def keep(self, rows: Flags) -> None:
        for name in ("counts", "sums", "good", "products"):
            setattr(self, name, getattr(self, name).compress(rows, 1))
        for name in ("detector", "errors", "ratio", "rare", "mismatch"):
            setattr(self, name, getattr(self, name)[rows])

    def update(self, a: Flags, p: Array, y: Array, error: Flags) -> None:
        q = 1 - p
        x, above, below = self._effect(self.sums, a, p, y)
        fewer, _, least = self._effect(self.good, a, p, (~error).astype(float))
        margin, error_margin = self.config.harm_margin, self.config.error_margin
        self.rare *= 1 + ((fewer + error_margin) / (least - error_margin))[:, None] * BETS
        np.maximum(self.rare, 1e-250, out=self.rare)
        gains = [-(x + margin) / (above + margin), *((x + m_p) / (below - m_p) for m_p in self.config.margins)]
        factors = 1 + np.stack(gains)[:, :, None] * BETS  # (processes, runs, bets)
        self.products *= factors
        np.maximum(self.products, 1e-250, out=self.products)  # no denormal numbers: they are slow
        self.detector += 1
        self.detector *= factors[0]
        np.minimum(self.detector, MAX_DETECTOR, out=self.detector)
        self.mismatch *= np.where(a[:, None], ODDS, 1.0) / (q[:, None] + p[:, None] * ODDS)
        for row in np.nonzero(error)[0]:
            for products, kappas, null in ((self.errors, WORSE, 1.0), (self.ratio, FINE, self.config.fine_ratio)):
                chance, against = (p[row] * k / (p[row] * k + q[row]) for k in (kappas, null))
                products[row] *= chance / against if a[row] else (1 - chance) / (1 - against)
        for arm, own in ((CONTROL, ~a), (CANDIDATE, a)):
            self.counts[arm] += own
            self.sums[arm] += y * own
            self.good[arm] += ~error & own

    def _effect(self, sums: Array, a: Flags, p: Array, y: Array) -> tuple[Array, Array, Array]:
        """X_t with its bounds above and below."""
        q, m = 1 - p, (sums + 0.5) / (self.counts + 1)
        c = q * m[CANDIDATE] + p * m[CONTROL]
        x = np.where(a, (y - c) / p, (c - y) / q)
        return x, np.maximum((1 - c) / p, c / q), np.maximum(c / p, (1 - c) / q)

    def fine(self) -> Array:
        found: Array = FINE_WEIGHT * (self.ratio @ self.ones) + (1 - FINE_WEIGHT) * (self.rare @ self.ones)
        return found

    def rollback(self) -> Array:
        config = self.config
        rewards, errors = self.products[0] @ self.ones, self.errors @ self.ones
        found: Array = config.reward_weight * rewards + config.error_weight * errors
        return found


def simulate(world: World, rules: Rules, *, runs: int, seed: int, peers: bool = False, horizon: int = 0) -> Outcome:
    """Canaries until each is decided or at its horizon."""
    rng, config = np.random.default_rng(seed), rules.config
    horizon = horizon or config.horizon
    outcome = Outcome(
        action=np.full(runs, Action.HORIZON, dtype="<U12"),
        units=np.full(runs, horizon),
        candidates=np.zeros(runs, int),
        passed=np.zeros(runs, int),
    )
    processes, stage = Processes(runs, config), np.full(runs, rules.start_stage)
    alive, compare = np.arange(runs), Peers(runs) if peers else None
    for t in range(horizon):
        n = len(alive)
        if rules.stage_units is not None:
            stage[:] = min(t // rules.stage_units, len(SHARES) - 1)
        p = np.array(SHARES)[stage]
        a = rng.random(n) < p
        mean = world.base(t) + world.difference * (t >= world.change_at) * a
        y = (rng.random(n) < mean).astype(float)
        error = rng.random(n) < np.where(a, world.candidate_errors, 0.02)
        processes.update(a, p, y, error)
        if compare is not None:
            compare.update(a, y, stage, t + 1)
        harmed = np.zeros(n, bool)
        if rules.rollback:
            harmed = processes.rollback() >= 1 / config.alpha_rollback
            if rules.detector:
                harmed |= processes.detector @ processes.ones >= config.horizon / config.alpha_hard
        proof = processes.products[1 + stage, np.arange(n)] @ processes.ones >= 1 / config.alpha_promote
        last = stage == len(SHARES) - 1
        if rules.fine:
            proof &= ~last | (processes.fine() >= 1 / config.alpha_promote)
        proof &= ~harmed & rules.promote
        outcome.passed[alive] += proof
        done = harmed | (proof & last)
        stage[proof & ~last] += 1
        outcome.candidates[alive] = processes.counts[CANDIDATE]
        if done.any() and compare is None:
            ended = alive[done]
            outcome.action[ended] = np.where(harmed[done], Action.ROLL_BACK, Action.PASS_STAGE)
            outcome.units[ended] = t + 1
            alive, stage = alive[~done], stage[~done]
            processes.keep(~done)
            if not len(alive):
                break
        elif harmed.any():  # compared with peers, every run goes on; the first alarm counts
            first = harmed & (outcome.action != Action.ROLL_BACK)
            outcome.action[first], outcome.units[first] = Action.ROLL_BACK, t + 1
    outcome.peers = compare.rolled_back if compare is not None else {}
    return outcome


class Peers:
    """Rules in common use, one-sided at 5 %, looked at every 50 units once either arm has 30."""

    def __init__(self, runs: int) -> None:
        names = ("z-test", "z-test by stage", "z-test by stage, one look", "fixed threshold .05", "GLR stopping rule")
        self.rolled_back = {name: np.zeros(runs, bool) for name in names}
        self.counts, self.sums = (np.zeros((len(SHARES), 2, runs)) for _ in range(2))

    def update(self, a: Flags, y: Array, stage: Ints, t: int) -> None:
        j = int(stage[0])
        for arm, own in ((CONTROL, ~a), (CANDIDATE, a)):
            self.counts[j, arm] += own
            self.sums[j, arm] += y * own
        if t % 50 == 0:
            self._look(t)

    def _look(self, t: int) -> None:
        n, s = self.counts.sum(0), self.sums.sum(0)  # (arms, runs)
        enough = n.min(0) >= 30
        mean, pooled = s / n.clip(min=1), s.sum(0) / n.sum(0)
        loss = mean[CONTROL] - mean[CANDIDATE]
        with np.errstate(divide="ignore", invalid="ignore"):
            z = loss / np.sqrt(pooled * (1 - pooled) * (1 / n).sum(0))
        self.rolled_back["z-test"] |= enough & (z >= 1.645)
        self.rolled_back["z-test by stage"] |= enough & (self._stratified() >= 1.645)
        self.rolled_back["z-test by stage, one look"] = enough & (self._stratified() >= 1.645)
        self.rolled_back["fixed threshold .05"] |= enough & (loss >= 0.05)
        glr = (n * bernoulli_kl(mean, pooled)).sum(0)
        threshold = math.log((1 + math.log(t)) / 0.05)  # Garivier & Kaufmann (2016)
        self.rolled_back["GLR stopping rule"] |= enough & (loss > 0) & (glr >= threshold)

    def _stratified(self) -> Array:
        """Cochran–Mantel–Haenszel over stages: what a careful user does about the ramp."""
        n, s = self.counts, self.sums
        both = n.sum(1).clip(min=1)  # (stages, runs)
        rate = s.sum(1) / both
        expected, variance = n[:, CANDIDATE] * rate, n[:, 0] * n[:, 1] / both * rate * (1 - rate)
        found: Array = (expected - s[:, CANDIDATE]).sum(0) / np.sqrt(variance.sum(0).clip(min=1e-12))
        return found


def bernoulli_kl(a: Array, b: Array) -> Array:
    a, b = a.clip(1e-12, 1 - 1e-12), b.clip(1e-12, 1 - 1e-12)
    found: Array = a * np.log(a / b) + (1 - a) * np.log((1 - a) / (1 - b))
    return found


def main() -> None:
    started = time.perf_counter()
    values = {
        "agreement": agreement(),
        "false_rollback": false_rollbacks(),
        "wrong_promotion": wrong_promotions(),
        "reproduced": reproduced(),
        "rules": broken_rules(),
        "groups": groups(),
        "change": change_after_a_good_start(),
        "speed": speed(),
    }
    print(f"\n{time.perf_counter() - started:.0f} s in all")
    save("canary_statistics", {"runs": RUNS, "false_runs": FALSE_RUNS, **values})


def agreement() -> float:
    """Largest difference of log e-values between the arrays of this file and `Evidence`, over 3,000 units."""
    rng, evidence, arrays = np.random.default_rng(0), Evidence(DEFAULTS), Processes(1, DEFAULTS)
    worst = 0.0
    for t in range(3_000):
        p, base = SHARES[t // 1_000], World().base(t)
        a, y, error = bool(rng.random() < p), float(rng.random() < base), bool(rng.random() < 0.02)
        evidence.update(Unit(candidate=a, share=p, score=y, error=error))
        arrays.update(np.array([a]), np.array([p]), np.array([y]), np.array([error]))
        if t % 100 == 99:
            own = np.log([*(arrays.products @ arrays.ones)[:, 0], arrays.rollback()[0], arrays.fine()[0],
                          (arrays.detector @ arrays.ones)[0], (arrays.mismatch @ arrays.ones)[0]])  # fmt: skip
            names = ("harm", "safe_0", "safe_1", "safe_2", "rollback", "fine", "detector", "mismatch")
            found = evidence.e_values()
            worst = max(worst, *(abs(o - found[name]) for o, name in zip(own, names, strict=True)))
    if worst > 1e-6:
        raise RuntimeError(f"the arrays of this benchmark and Evidence differ by {worst:g}")
    print(f"arrays and Evidence agree to {worst:.1g}")
    return worst


def false_rollbacks() -> dict[str, dict[str, float]]:
    """Equal policies, 2,000 units per stage of 10, 25 and 50 %."""
    print(f"\n(1) false rollback of equal policies, {FALSE_RUNS:,} runs of 6,000 units (wanted <= 5 %)")
    found: dict[str, dict[str, float]] = {}
    for drift in (0.0, 0.05, 0.10):
        rules = Rules(config=DEFAULTS, promote=False, stage_units=2_000)
        outcome = simulate(World(drift=drift), rules, runs=FALSE_RUNS, seed=1, peers=True, horizon=6_000)
        row = {"ours": outcome.share(Action.ROLL_BACK)}
        row |= {name: float(flags.mean()) for name, flags in outcome.peers.items()}
        found[f"{drift:.2f}"] = row
        print(f"drift {drift:.2f}:  " + "  ".join(f"{name} {share:.1%}" for name, share in row.items()))
    return found


def wrong_promotions() -> dict[str, dict[str, float]]:
    """A candidate that loses just the margin of a stage, and no rollback that would save the rule."""
    print(f"\n(2) wrong promotion at the margin, {RUNS} runs, rollback switched off (wanted <= 5 % in all)")
    found = {}
    for number, margin in enumerate(DEFAULTS.margins):
        rules = Rules(config=DEFAULTS, rollback=False)
        outcome = simulate(World(difference=-margin), rules, runs=RUNS, seed=2)
        passed, promoted = float((outcome.passed > number).mean()), outcome.share(Action.PASS_STAGE)
        found[f"{margin:.2f}"] = {"passed": passed, "promoted": promoted}
        print(f"loss {margin:.2f}: stage {number} wrongly passed {passed:.1%} (<= 1.7 %), promoted {promoted:.1%}")
    return found


def reproduced() -> dict[str, dict[str, Any]]:
    """The tables of the specification."""
    print(f"\n(3) {RUNS} runs, ours / the document")
    one = Rules(config=ONE_GUARDRAIL, fine=False, detector=False)
    ours = Rules(config=DEFAULTS)
    cases = {
        "defaults, difference 0": (World(), ours),
        "defaults, difference 0, no drift": (World(drift=0.0), ours),
        "defaults, difference 0, drift .10": (World(drift=0.10), ours),
        "defaults, difference -.03": (World(difference=-0.03), ours),
        "defaults, difference -.10": (World(difference=-0.10), ours),
        "defaults, difference -.30": (World(difference=-0.30), ours),
        "defaults, errors 2 to 6 %": (World(candidate_errors=0.06), ours),
        "one guardrail, difference 0": (World(), one),
        "one guardrail, difference -.10": (World(difference=-0.10), one),
        "one guardrail, difference -.30": (World(difference=-0.30), one),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (world, rules) in cases.items():
        outcome, document = simulate(world, rules, runs=RUNS, seed=3), DOCUMENT[name]
        main_action = Action.PASS_STAGE if document.get("promoted", 0) > 0.5 else Action.ROLL_BACK
        row = {
            "promoted": outcome.share(Action.PASS_STAGE),
            "rolled_back": outcome.share(Action.ROLL_BACK),
            "undecided": outcome.share(Action.HORIZON),
            "units": outcome.median(outcome.units, main_action),
            "candidates": outcome.median(outcome.candidates, main_action),
        }
        found[name] = {"ours": row, "document": document}
        parts = [f"{key} {_number(row[key])} / {_number(value)}" for key, value in document.items()]
        print(f"{name:34} " + "   ".join(parts))
    return found


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value > 1 else f"{value:.1%}"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Units of equal policies on a fixed ramp, in the order in which they are counted."""

    candidate: Flags
    share: Array
    score: Array


def broken_rules() -> dict[str, dict[str, Any]]:
    """What each of the four rules of the setting prevents: harm alone at 1/.05, 6,000 units."""
    print(f"\n(4) the four rules, {RUNS} runs; harm at 1/.05, wanted <= 5 % except where harm is true")
    harmless, harmful = "rolled back, no harm", "passed as safe, loses .20"
    cases: dict[str, tuple[Callable[[np.random.Generator, bool], Stream], str, str]] = {
        "unit": (by_user, "1. the unit is the trajectory; broken: arms by user", harmless),
        "order": (by_arrival, "2. order of assignment; broken: order of arrival", harmless),
        "first": (redrawn, "3. arm and p_t of the first assignment; broken: open units redrawn per stage", harmless),
        "bounds": (unscaled, "4a. Y in [0, 1]; broken: unscaled, factors cut at 0", harmless),
        "missing": (dropped, "4b. missing reward is 0; broken: dropped", harmful),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, (draw, about, meaning) in cases.items():
        row = {}
        for kept in (True, False):
            rng = np.random.default_rng(4)
            row["kept" if kept else "broken"] = float(
                np.mean([_wrong(draw(rng, kept), safe=draw is dropped) for _ in range(RUNS)])
            )
        found[name] = {"about": about, "meaning": meaning, **row}
        print(f"{about:78} kept {row['kept']:6.1%}  broken {row['broken']:6.1%}  ({meaning})")
    return found


def _wrong(stream: Stream, *, safe: bool) -> bool:
    e = effects(stream.candidate, stream.share, stream.score)
    if safe:
        return bool((safe_path(e, margin=0.03) >= math.log(20)).any())
    if stream.score.max() > 1:  # a bet that loses more than its stake ends at 0, as a careless implementation has it
        factors = (1 - np.multiply.outer(e.x / e.above, BETS)).clip(min=0)
        return bool((np.cumprod(factors, 0).mean(1) >= 20).any())
    return bool((harm_path(e) >= math.log(20)).any())


def ramp(n: int = 6_000) -> Array:
    return np.repeat(np.array(SHARES), n // len(SHARES))


def by_user(rng: np.random.Generator, kept: bool) -> Stream:
    """1,000 users with Zipf activity and rates of their own around .7."""
    users = 1_000
    activity = 1 / np.arange(1, users + 1)
    rate, place = rng.beta(1.4, 0.6, users), rng.random(users)
    user = rng.choice(users, 6_000, p=activity / activity.sum())
    share = ramp()
    candidate = (rng.random(6_000) if kept else place[user]) < share
    return Stream(candidate=candidate, share=share, score=(rng.random(6_000) < rate[user]).astype(float))


def by_arrival(rng: np.random.Generator, kept: bool) -> Stream:
    """The candidate's successes take up to 1,000 units longer, all within the attribution window."""
    share, n = ramp(), 6_000
    candidate, success = rng.random(n) < share, rng.random(n) < BASE
    delay = rng.random(n) * np.where(candidate & success, 1_000, 50)
    order = np.arange(n) if kept else np.argsort(np.arange(n) + delay, kind="stable")
    return Stream(candidate=candidate[order], share=share[order], score=success[order].astype(float))


def redrawn(rng: np.random.Generator, kept: bool) -> Stream:
    """A third of conversations is long, open for 1,000 units, and succeeds less often."""
    share, n = ramp(), 6_000
    long = rng.random(n) < 1 / 3
    candidate = rng.random(n) < share
    later = share[np.minimum(np.arange(n) + 1_000, n - 1)]
    if not kept:
        candidate = np.where(long & (later != share), rng.random(n) < later, candidate)
    return Stream(candidate=candidate, share=share, score=(rng.random(n) < np.where(long, 0.4, 0.85)).astype(float))


def unscaled(rng: np.random.Generator, kept: bool) -> Stream:
    """A purchase of 20 in one of 29 units: mean .7."""
    share, n = ramp(), 6_000
    score = np.where(rng.random(n) < BASE / 20, 20.0, 0.0)
    return Stream(candidate=rng.random(n) < share, share=share, score=np.asarray(score / (20 if kept else 1), float))


def dropped(rng: np.random.Generator, kept: bool) -> Stream:
    """The candidate succeeds in .5 of units instead of .7, and four of five of its failures report no reward."""
    share, n = ramp(), 6_000
    candidate = rng.random(n) < share
    success = rng.random(n) < np.where(candidate, BASE - 0.2, BASE)
    seen = ~candidate | success | (rng.random(n) < 0.2) | kept
    return Stream(candidate=candidate[seen], share=share[seen], score=success[seen].astype(float))


def groups() -> dict[str, dict[str, float]]:
    """Equal policies in G groups, 1,000 units each at a share of .5."""
    print(f"\n(6) false alarms of any group, {RUNS} runs at alpha .04: threshold G/.04 compared with 1/.04")
    found, rng = {}, np.random.default_rng(5)
    for number in (5, 20):
        top = np.zeros(RUNS)
        for run in range(RUNS):
            paths = []
            for _ in range(number):
                a, y = rng.random(1_000) < 0.5, (rng.random(1_000) < BASE).astype(float)
                paths.append(harm_path(effects(a, np.full(1_000, 0.5), y)).max())
            top[run] = max(paths)
        row = {"ours": float((top >= math.log(number / 0.04)).mean()), "worst": float((top >= math.log(25)).mean())}
        found[str(number)] = row
        print(f"{number:3} groups: ours {row['ours']:.1%}, the worst group at 1/.04 {row['worst']:.1%}")
    return found


def change_after_a_good_start() -> dict[str, float | None]:
    """A loss of .30 after 8,000 good units at a share of .5: units until the rollback."""
    found: dict[str, float | None] = {}
    cases = {"with the detector": (True, 8_000), "without": (False, 8_000), "from the start": (False, 0)}
    for name, (detector, change_at) in cases.items():
        rules = Rules(config=DEFAULTS, promote=False, detector=detector, start_stage=len(SHARES) - 1)
        world = World(difference=-0.30, change_at=change_at)
        outcome = simulate(world, rules, runs=RUNS, seed=6, horizon=12_000)
        late = outcome.units[(outcome.action == Action.ROLL_BACK) & (outcome.units > change_at)]
        found[name] = float(np.median(late) - change_at) if len(late) else None
    print("\n(7) median units until a loss of .30 after 8,000 good units is rolled back (document: without 912, 129)")
    print(", ".join(f"{name} {_number(value)}" for name, value in found.items()))
    return found


def speed() -> dict[str, float]:
    """Microseconds per update of everything in `Evidence`, per verdict, and per update in plain Python."""
    rng = np.random.default_rng(0)
    n = 20_000
    a, y, error = rng.random(n) < 0.1, rng.random(n) < BASE, rng.random(n) < 0.02
    units = [
        Unit(candidate=bool(a[i]), share=0.1, score=float(y[i]), error=bool(error[i]), group="ab"[i % 2])
        for i in range(n)
    ]
    found = {
        "update_us": best(lambda: replay(Evidence(DEFAULTS), units)) / n,
        "update_with_groups_us": best(lambda: replay(Evidence(replace(DEFAULTS, groups=("a", "b"))), units)) / n,
        "plain_python_us": best(lambda: plain_python(units)) / n,
    }
    evidence = Evidence(DEFAULTS)
    replay(evidence, units)
    found["verdict_us"] = best(lambda: [evidence.verdict(2, last=True) for _ in range(1_000)]) / 1_000
    print(
        "\n(5) " + ", ".join(f"{name.removesuffix('_us').replace('_', ' ')} {us:.1f} µs" for name, us in found.items())
    )
    return found


def best(work: Callable[[], object]) -> float:
    """Microseconds, the best of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def replay(evidence: Evidence, units: list[Unit]) -> None:
    for unit in units:
        evidence.update(unit)


def plain_python(units: list[Unit]) -> list[list[float]]:
    """Harm, three margins and superiority as lists of floats: what `Evidence` would be without NumPy."""
    bets, margins = BETS.tolist(), (0.10, 0.05, 0.03, 0.0)
    logs = [[0.0] * len(bets) for _ in range(5)]
    counts, sums = [0, 0], [0.0, 0.0]
    for unit in units:
        p, q = unit.share, 1 - unit.share
        c = q * (sums[1] + 0.5) / (counts[1] + 1) + p * (sums[0] + 0.5) / (counts[0] + 1)
        x = (unit.score - c) / p if unit.candidate else (c - unit.score) / q
        above, below = max((1 - c) / p, c / q), max(c / p, (1 - c) / q)
        gains = [-x / above, *((x + m) / (below - m) for m in margins)]
        for row, gain in zip(logs, gains, strict=True):
            for k, bet in enumerate(bets):
                row[k] += math.log1p(bet * gain)
        counts[unit.candidate] += 1
        sums[unit.candidate] += unit.score
    return logs


if __name__ == "__main__":
    main()
