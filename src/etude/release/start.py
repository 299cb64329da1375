"""Begins a release: settings, a candidate, what serves and the traffic in, an entry of the slot's ledger out."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt, MinLen

from etude.contracts.errors import ConfigError, ReleaseError
from etude.contracts.release import Entry, Mode, ReleaseSpec
from etude.evidence.eprocess import EvidenceConfig
from etude.release.canary import Controller
from etude.release.strategy import DEFAULT_RULES, Risk, Strategy, StrategyRule, choose_strategy, duration, forecast


@dataclass(frozen=True, kw_only=True)
class CanaryConfig:
    """How candidates are released. The defaults are safe: shadow first, then four stages, promotion only on proof."""

    stages: Annotated[tuple[Annotated[float, Gt(0), Le(100)], ...], MinLen(1)] = (10.0, 25.0, 50.0, 100.0)
    """The candidate's share of the traffic in each stage, in percent; the last stage is 100, its promotion."""
    over_minutes: Annotated[float, Ge(0)] = 240.0
    """Minimum duration of all stages before the promotion together."""
    deadline_minutes: Annotated[float, Gt(0)] | None = None
    """Duration after which an undecided canary is held; null waits until the evidence decides or its horizon."""
    window_s: Annotated[float, Gt(0)] = 3600.0
    """Seconds after its assignment at which a unit is judged, by the reward it has then; without one it counts as 0."""
    early_window_s: Annotated[float, Gt(0)] | None = 60.0
    """Seconds after which errors count, where that is sooner than window_s: errors roll back by what is known then.
    Where tasks take longer, it is as long as 99 % of the recent ones took. null waits for window_s."""
    latency_limit_ms: Annotated[float, Gt(0)] | None = None
    """Latency in milliseconds that scores 0 in the guardrail `latency`."""
    cost_limit_usd: Annotated[float, Gt(0)] | None = None
    """Cost in USD that scores 0 in the guardrail `cost`."""
    latency_objective_ms: Annotated[float, Gt(0)] | None = None
    """Latency in milliseconds that at most 5 % of the candidate's tasks may exceed; more end the release at once."""
    unit: Literal["trajectory", "conversation"] = "trajectory"
    """What is assigned to a policy as a whole."""
    shadow_answers: Annotated[int, Ge(0)] = 100
    """Answers in shadow mode before the first stage; 0 begins with the first stage."""
    holdback_percent: Annotated[float, Ge(0), Lt(100)] = 5.0
    """Share of the traffic that the previous policy keeps after a promotion, in percent."""
    holdback_days: Annotated[float, Ge(0)] = 7.0
    """Days of the holdback."""
    when_undecided: Literal["hold", "roll_back"] = "hold"
    """What happens to a canary that is undecided at its deadline or horizon."""
    risk: Risk = "low"
    """Risk of the decisions, as the rules below read it."""
    strategies: tuple[StrategyRule, ...] = DEFAULT_RULES
    """Rules that choose how a candidate is released; the first that fits is taken."""
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    """Error probabilities, margins and guardrail weights."""


def shares(stages: Sequence[float]) -> tuple[float, ...]:
    """Shares before the promotion, from percent; ConfigError unless they grow and end with 100."""
    grows = list(stages) == sorted(set(stages)) and all(0 < stage <= 100 for stage in stages)
    if not stages or not grows or stages[-1] != 100:
        raise ConfigError(
            f"the stages are {', '.join(f'{stage:g}' for stage in stages)}: expected percentages that grow and end "
            "with 100, such as 10,25,50,100"
        )
    return tuple(stage / 100 for stage in stages[:-1])


def make_spec(
    config: CanaryConfig,
    *,
    slot: str,
    candidate: str,
    incumbent: str | None,
    mode: Mode,
    reward_version: int,
    bounds: tuple[float, float] | None,
    now: datetime,
    duration_s: float = 0.0,
    split: float | None = None,
) -> ReleaseSpec:
    """`bounds` are those of the reward definition; 99 % of the tasks end within `duration_s`; `split` is the
    candidate's share of an experiment."""
    if incumbent is None:
        raise ReleaseError(
            f"{slot}: no policy serves yet, so there is nothing to compare with: approve {candidate} and it is "
            "promoted directly"
        )
    if candidate == incumbent:
        raise ReleaseError(f"{slot}: {candidate} serves already")
    if bounds is None:
        raise ReleaseError(
            f"reward definition {reward_version} has no bounds, so no release can rest on it: add one with `bounds: "
            "[low, high]` (`etude reward add FILE`), or set experience.reward_version to one from 0 to 1"
        )
    _check_guardrails(config)
    before = {Mode.CANARY: shares(config.stages), Mode.EXPERIMENT: (0.5 if split is None else split,)}.get(mode, ())
    if mode is Mode.CANARY and len(before) != len(config.evidence.margins):
        raise ConfigError(
            f"there are {len(before)} stages before 100 % and {len(config.evidence.margins)} margins "
            "(release.canary.evidence.margins): give each stage one"
        )
    is_canary = mode is Mode.CANARY
    return ReleaseSpec(
        id=f"r-{int(now.timestamp() * 1e3):012x}-{secrets.token_hex(4)}",
        slot=slot,
        candidate=candidate,
        incumbent=incumbent,
        mode=mode,
        stages=before,
        stage_minutes=config.over_minutes / len(before) if is_canary else 0.0,
        deadline_minutes=config.deadline_minutes if is_canary else None,
        unit=config.unit,
        window_s=config.window_s,
        early_window_s=_early_window_s(config, duration_s),
        latency_limit_ms=config.latency_limit_ms,
        cost_limit_usd=config.cost_limit_usd,
        latency_objective_ms=config.latency_objective_ms,
        reward_version=reward_version,
        low=bounds[0],
        high=bounds[1],
        shadow_answers=config.shadow_answers if is_canary else 0,
        holdback_share=config.holdback_percent / 100 if is_canary else 0.0,
        holdback_days=config.holdback_days if is_canary else 0.0,
        evidence=asdict(config.evidence),
        when_undecided=config.when_undecided,
    )


def _early_window_s(config: CanaryConfig, duration_s: float) -> float | None:
    """Long enough for both policies' tasks to end: the one whose tasks end sooner would have more errors by then."""
    early_s = None if config.early_window_s is None else max(config.early_window_s, duration_s)
    return early_s if early_s is not None and early_s < config.window_s else None


def _check_guardrails(config: CanaryConfig) -> None:
    """A guardrail is a score that a unit has: of its latency or its cost."""
    limits = {"latency": config.latency_limit_ms, "cost": config.cost_limit_usd}
    for name in config.evidence.guardrails:
        if limits.get(name) is None:
            fields = {"latency": "latency_limit_ms", "cost": "cost_limit_usd"}
            needs = f"set release.canary.{fields[name]}" if name in fields else "expected latency or cost"
            raise ConfigError(f"release.canary.evidence.guardrails has {name!r}: {needs}")


@dataclass(frozen=True, kw_only=True)
class Started:
    """How a release began."""

    entry: Entry
    strategy: Strategy
    sentence: str


def start_release(
    controller: Controller,
    config: CanaryConfig,
    *,
    slot: str,
    candidate: str,
    units_per_day: float,
    duration_s: float = 0.0,
    reward_version: int,
    bounds: tuple[float, float] | None,
    by: str,
    strategy: Strategy | None = None,
    split: float | None = None,
) -> Started:
    """Release a candidate by the strategy that the rules choose, or by the given one."""
    registry = controller.registry
    incumbent = registry.serving(slot).incumbent
    why = "as asked"
    if strategy is None:
        strategy, why = choose_strategy(
            config.strategies, incumbent=incumbent is not None, units_per_day=units_per_day, risk=config.risk
        )
    if strategy == "direct":
        entry = registry.promote_directly(slot, candidate, by=by, reason=f"promoted directly: {why}")
        return Started(entry=entry, strategy=strategy, sentence=f"{candidate} serves ({why})")
    spec = make_spec(
        config,
        slot=slot,
        candidate=candidate,
        incumbent=incumbent,
        mode=Mode(strategy),
        reward_version=reward_version,
        bounds=bounds,
        now=controller.clock(),
        duration_s=duration_s,
        split=split,
    )
    entry = controller.start(spec, by=by, reason=f"{strategy}: {why}")
    return Started(entry=entry, strategy=strategy, sentence=_sentence(spec, config, strategy, why, units_per_day))


def _sentence(spec: ReleaseSpec, config: CanaryConfig, strategy: Strategy, why: str, units_per_day: float) -> str:
    begins = f"{spec.candidate} begins in {strategy} ({why})"
    if strategy != "canary":
        return begins
    shares_shown = ", ".join(f"{share:.0%}" for share in (*spec.stages, 1.0))
    shadow = f"{spec.shadow_answers:,} answers in shadow, then " if spec.shadow_answers else ""
    late = config.deadline_minutes
    expected = forecast(units_per_day, late or config.over_minutes, is_deadline=late is not None).sentence
    return f"{begins}: {shadow}{shares_shown} of the traffic{_slow(spec, config)}; {expected}"


def _slow(spec: ReleaseSpec, config: CanaryConfig) -> str:
    """Why errors count later than is configured, if they do."""
    after_s = spec.early_window_s or spec.window_s
    if after_s == min(config.early_window_s or config.window_s, config.window_s):
        return ""
    return f"; errors count after {duration(after_s / 86400)}, since tasks take so long"
