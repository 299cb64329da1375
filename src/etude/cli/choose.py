"""`etude choose`: chooses among options by a trained policy, and explains the choice."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args

import msgspec
import typer
from rich.markup import escape

from etude.cli.display import console, print_json, table
from etude.contracts.decision import Decision, DecisionRequest, Expected, Preferences
from etude.contracts.errors import ConfigError
from etude.contracts.formats import fixed, percent, signed, usd, whole
from etude.contracts.option import option_name
from etude.contracts.suggestions import nearest
from etude.learning.explore import Explore
from etude.learning.run_folder import find_policy
from etude.problems.choice.contexts import TEXT
from etude.problems.choice.explain import Explanation, Past, Words, explain
from etude.problems.choice.policy import ChoicePolicy, load
from etude.problems.choice.rows import COST, LATENCY, QUALITY, SCORE, SUCCESS, read_offered

DIGITS = 3
"""Of scores and utilities after the point."""
COLUMNS = {SUCCESS: ("success", percent), QUALITY: ("quality", percent), COST: ("USD", usd), LATENCY: ("ms", whole)}
"""Kinds of outcome that are shown where they are known."""


def choose(
    run: Annotated[Path, typer.Argument(help="Folder of a run of `etude train choice`.", show_default=False)],
    text: Annotated[
        str | None, typer.Argument(help="Text to choose for; - reads it from stdin.", show_default=False)
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Context as JSON, such as \'{"task_type": "math"}\'; TEXT is added to it.'),
    ] = None,
    options: Annotated[
        Path | None,
        typer.Option(help="JSON file of options to choose among, new ones included.", show_default="the known ones"),
    ] = None,
    max_cost: Annotated[float | None, typer.Option(metavar="USD", help="Maximum expected cost in USD.")] = None,
    max_latency: Annotated[
        float | None, typer.Option(metavar="MS", help="Maximum expected latency in milliseconds.")
    ] = None,
    quality_weight: Annotated[
        float | None,
        typer.Option(
            metavar="0..1",
            help="Weight of the score against cost: 1 is the score alone.",
            show_default="as it was trained",
        ),
    ] = None,
    region: Annotated[str | None, typer.Option(help="Region that the option must be in.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Name of an option that may be chosen. May be repeated.")
    ] = None,
    explore: Annotated[
        str, typer.Option(metavar="|".join(get_args(Explore)), help="How to sample other options than the best.")
    ] = "none",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling, with --explore.")] = 0,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show words and past decisions that speak for the choice.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Choose an option for a text, a context, or both, and show what is expected of each option."""
    if explore not in get_args(Explore):
        raise ConfigError(f"--explore is {explore!r}: expected one of {', '.join(get_args(Explore))}")
    request = DecisionRequest(
        context=_context(text, context),
        options=None if options is None else tuple(_offered(options)),
        preferences=_preferences(quality_weight, max_cost, max_latency, region, allow),
        seed=seed,
    )
    policy = load(find_policy(run), explore=explore)  # type: ignore[arg-type]  # checked above
    _check_allowed(policy, request)
    decision = policy.decide(request)
    chosen = option_name(decision.action)
    why = explain(policy, request, chosen) if explained else None
    if as_json:
        print_json(_json(decision, why, explained=explained))
        return
    screen = console()
    screen.print(f"[bold]{escape(chosen)}[/]  with probability {percent(decision.propensity or 0)}\n", soft_wrap=True)
    screen.print(_options(decision.expected))
    if why is not None:
        _show(why)
    elif explained:
        screen.print(f"\nno other option may be chosen than {chosen}", markup=False)


def _context(text: str | None, context: str | None) -> Any:
    """The text, the context, or the context with the text in it."""
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", errors="replace")
    if context is None:
        if text is None:
            raise ConfigError("there is nothing to choose for: give a TEXT, or --context JSON")
        return text
    try:
        found = msgspec.json.decode(context)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigError(f"--context is {context!r:.80}: {error}; expected JSON") from error
    if text is None:
        return found
    if not isinstance(found, dict) or TEXT in found:
        raise ConfigError(f"--context is {context!r:.80}: expected a JSON object without {TEXT!r}, or leave TEXT out")
    return {TEXT: text, **found}


def _offered(path: Path) -> list[Any]:
    found = read_offered(path)
    if not isinstance(found, list):
        raise ConfigError(f"{path} holds {found!r:.60}: expected a JSON list of options, each with a name")
    return found


def _preferences(
    quality_weight: float | None,
    max_cost: float | None,
    max_latency: float | None,
    region: str | None,
    allow: list[str] | None,
) -> Preferences:
    if quality_weight is not None and not 0 <= quality_weight <= 1:
        raise ConfigError(f"--quality-weight is {quality_weight}: expected a number from 0 to 1")
    for flag, limit in (("--max-cost", max_cost), ("--max-latency", max_latency)):
        if limit is not None and not 0 <= limit < math.inf:
            raise ConfigError(f"{flag} is {limit}: expected 0 or more")
    return Preferences(
        quality_weight=quality_weight,
        max_cost_usd=max_cost,
        max_latency_ms=max_latency,
        region=region,
        allowed=tuple(allow) if allow else None,
    )


def _check_allowed(policy: ChoicePolicy, request: DecisionRequest) -> None:
    names = policy.model.table.names if request.options is None else [option_name(one) for one in request.options]
    for name in request.preferences.allowed or ():
        if name not in names:
            raise ConfigError(f"--allow {name!r} names none of the options{nearest(name, names)}")


def _json(decision: Decision, why: Explanation | None, *, explained: bool) -> dict[str, Any]:
    found = {
        "chosen": option_name(decision.action),
        "probability": decision.propensity,
        "policy": decision.policy,
        "options": msgspec.to_builtins(decision.expected),
    }
    return found | ({"explanation": msgspec.to_builtins(why)} if explained else {})


# For people


def _options(expected: Mapping[str, Expected]) -> Any:
    """Eligible options first, the best at the top; columns of what is known."""
    kinds = [kind for kind in COLUMNS if any(getattr(e, kind) is not None for e in expected.values())]
    masked = any(e.masked for e in expected.values())
    ranked = sorted(expected.items(), key=lambda item: (item[1].masked is not None, -(item[1].utility or 0)))
    rows = [
        [
            escape(name),
            f"{fixed(e.score, DIGITS)} ± {fixed(e.score_se, DIGITS)}",
            *(_cell(getattr(e, kind), kind) for kind in kinds),
            fixed(e.utility or 0, DIGITS),
            percent(e.probability),
            whole(e.decisions),
            *([escape(e.masked or "")] if masked else []),
        ]
        for name, e in ranked
    ]
    right = ("score", *(COLUMNS[kind][0] for kind in kinds), "utility", "probability", "effective outcomes")
    return table("option", *right, *(["not eligible because"] if masked else []), rows=rows, right=right)


def _cell(value: float | None, kind: str) -> str:
    return "–" if value is None else COLUMNS[kind][1](value)


def _show(why: Explanation) -> None:
    screen = console()
    screen.print(
        f"\n[bold]{escape(why.chosen)}[/] and not [bold]{escape(why.runner_up)}[/]: the difference between their "
        f"utilities is {signed(why.difference, DIGITS)}",
        soft_wrap=True,
    )
    screen.print(f"  categories and numbers: {escape(_entries(why))}", soft_wrap=True)
    for title, words in (("words for it", why.words_for), ("words against it", why.words_against)):
        screen.print(f"  {title}: {escape(_effects(words))}", soft_wrap=True)
    if why.mean is None:
        screen.print("  neither of the two has past outcomes")
        return
    rows = [_past(past, why) for past in (*why.similar, why.mean)]
    right = ("similarity", escape(why.chosen), escape(why.runner_up))
    screen.print()
    screen.print(table("past decision", *right, rows=rows, right=right))


def _entries(why: Explanation) -> str:
    """The effects of categories and numbers; those without which the other option would be chosen say so."""
    return (
        ", ".join(
            f"{entry} ({signed(effect, 4)}{f', without it {why.runner_up}' if effect > why.difference >= 0 else ''})"
            for entry, effect in why.entries.items()
        )
        or "none"
    )


def _effects(words: Words) -> str:
    if not words.effects:
        return "none"
    named = ", ".join(f"{word} ({signed(effect, 4)})" for word, effect in words.effects.items())
    return f"{named}; all together {signed(words.together, 4)}"


def _past(past: Past, why: Explanation) -> list[str]:
    scores = [past.outcomes.get(name, {}).get(SCORE) for name in (why.chosen, why.runner_up)]
    shown = ["–" if score is None else fixed(score, DIGITS) for score in scores]
    return [escape(past.source), percent(past.similarity), *shown]
