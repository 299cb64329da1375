"""`etude prompt`: mutates a prompt, and shows which mutations make sense for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from etude.cli.display import console, print_json, print_warning, table
from etude.contracts.decision import DecisionRequest
from etude.contracts.errors import ConfigError, PromptError
from etude.contracts.formats import percent
from etude.problems.prompt.kinds import kind_probabilities
from etude.problems.prompt.masks import reasons
from etude.problems.prompt.mutations import MUTATIONS, Message, Mutated, Prompt, mutate, mutate_by_model
from etude.problems.prompt.mutations.task import task_of

app = typer.Typer(no_args_is_help=True, help="Prompts and their mutations.")
MAX_BYTES = 1 << 25
"""What is read of standard input at most: more than any prompt that can be mutated."""


@app.callback()
def prompt() -> None:
    """Prompts and their mutations."""  # a group of one command stays a group


@app.command("mutate")
def mutate_prompt(
    text: Annotated[
        str, typer.Argument(metavar="PROMPT", help="Prompt to mutate; - reads it from stdin.", show_default=False)
    ],
    mutation: Annotated[
        str | None, typer.Option(metavar="|".join(MUTATIONS), help="Mutation to carry out.", show_default=False)
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run of `etude train prompt`, whose policy chooses the mutation.", show_default=False
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Read PROMPT as a JSON list of messages with role and content.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="URL#MODEL",
            help="Language model that carries the mutation out, at an OpenAI-compatible URL; rules check its answer.",
            show_default="rules alone",
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the API key of --model.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed that chooses among phrasings.")] = 0,
    diff: Annotated[bool, typer.Option("--diff", help="Print a unified diff instead of the new prompt.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the prompt, the edits and the reason as JSON.")
    ] = False,
) -> None:
    """Mutate a prompt without losing a placeholder, code, link or number of it.

    With neither --mutation nor --policy, show which mutations make sense for the prompt and why others do not.
    """
    if mutation is not None and policy is not None:
        raise ConfigError("--mutation and --policy are both given: give the one that decides")
    if diff and as_json:
        raise ConfigError("--diff and --json are both given: give the one that is to be printed")
    if mutation is None and policy is None and (diff or model is not None):
        name = "--diff" if diff else "--model"
        raise ConfigError(f"{name} is given without a mutation: give --mutation, or --policy to choose one")
    given = _prompt(text, chat=chat)
    if mutation is None and policy is None:
        _show_masks(given, as_json=as_json)
        return
    chosen, propensity = (mutation, None) if policy is None else _chosen(policy, given, seed)
    if chosen not in MUTATIONS and policy is not None:
        found = Mutated(prompt=given, mutation=str(chosen), reason=f"the policy chose {chosen}")
    elif model is None:
        found = mutate(given, str(chosen), seed=seed)
    else:
        from etude.bootstrap.prompts import mutating_model  # brings the client of language models

        found = mutate_by_model(given, str(chosen), mutating_model(model, api_key_env=api_key_env), seed=seed)
    if as_json:
        print_json(_json(found, propensity))
        return
    _print(found, diff=diff)


def _prompt(text: str, *, chat: bool) -> Prompt:
    if text == "-":
        try:
            text = sys.stdin.buffer.read(MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise PromptError(f"standard input is not UTF-8 (byte {error.start}): convert it first") from error
    if not chat:
        return text
    try:
        found: Prompt = msgspec.json.decode(text, type=list[Message])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise PromptError(
            f"with --chat, the prompt is {text!r:.60}: {error}; expected a JSON list of messages"
        ) from error
    return found


def _chosen(policy: Path, given: Prompt, seed: int) -> tuple[str, float | None]:
    """The action of a policy, and its probability."""
    from etude.bootstrap.policies import load_policy

    loaded = load_policy(policy)
    if not hasattr(loaded, "decide"):
        raise ConfigError(
            f"--policy {policy} holds a policy that does not mutate prompts: give a run of `etude train prompt`"
        )
    decision = loaded.decide(DecisionRequest(context=given, seed=seed))
    return str(decision.action), decision.propensity


def _json(found: Mutated, propensity: float | None) -> dict[str, Any]:
    return {
        "mutation": found.mutation,
        "changed": found.changed,
        "prompt": found.prompt,
        "by": found.by,
        "reason": found.reason,
        "propensity": propensity,
        "edits": [vars(edit) for edit in found.edits],
    }


# For people


def _show_masks(given: Prompt, *, as_json: bool) -> None:
    found = reasons(given)
    text = "\n".join(document.prose for document in task_of(given).documents)
    kinds = sorted(kind_probabilities(text).items(), key=lambda each: -each[1])
    if as_json:
        print_json({"kind": kinds[0][0], "probabilities": dict(kinds), "masks": found})
        return
    screen = console()
    screen.print(f"kind: [bold]{kinds[0][0]}[/] ({percent(kinds[0][1])})\n")
    screen.print(
        table(
            "mutation",
            "makes sense",
            rows=[[name, "yes" if reason is None else f"no: {escape(reason)}"] for name, reason in found.items()],
        )
    )


def _print(found: Mutated, *, diff: bool) -> None:
    if found.reason is not None:
        print_warning(escape(found.reason), console(stderr=True))
    if diff:
        sys.stdout.write(found.diff())
    elif isinstance(found.prompt, str):
        sys.stdout.write(found.prompt if found.prompt.endswith("\n") else found.prompt + "\n")
    else:
        print_json(found.prompt)
