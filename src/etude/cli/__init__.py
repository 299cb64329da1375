"""The command line. Importing it brings no torch: a command's module is imported when the command is called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, NoReturn

import typer

import etude
from etude.cli.display import fail
from etude.cli.lazy import Entry, LazyGroup
from etude.contracts.errors import EtudeError, MissingExtraError, StoreError

TRY_AGAIN = 75
"""Exit code where a store or a disk cannot be reached or has no room now: EX_TEMPFAIL of sysexits.h."""
PASSING = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE})
COMMANDS = {
    "init": Entry("etude.cli.orchestrator.init:init", "Make a folder of tools and workflows to begin with."),
    "train": Entry("etude.cli.train:app", "Train a policy; an interrupted run resumes where it stopped."),
    "evaluate": Entry("etude.cli.evaluate:evaluate_run", "Measure a policy, with intervals and baselines."),
    "choose": Entry("etude.cli.choose:choose", "Choose among options by a trained policy, and explain the choice."),
    "prompt": Entry("etude.cli.prompt:app", "Mutate a prompt, and show which mutations make sense for it."),
    "plan": Entry("etude.cli.orchestrator.plan:plan", "Make a plan for an instruction."),
    "run": Entry("etude.cli.orchestrator.run:run", "Plan an instruction, carry out the plan, correct failures."),
    "collect": Entry("etude.cli.orchestrator.collect:collect", "Carry out many workflows and log them."),
    "label": Entry("etude.cli.orchestrator.label:label", "Say which logged workflows really succeeded."),
    "prepare": Entry("etude.cli.orchestrator.prepare:prepare", "Turn execution logs into a training file."),
    "catalogue": Entry("etude.cli.orchestrator.catalogue:app", "Write the catalogue of a workers file."),
    "ingest": Entry("etude.cli.ingest:ingest", "Store trajectories and feedback from JSON Lines files."),
    "experience": Entry("etude.cli.experience:app", "Show stored experience, forget users, handle dead letters."),
    "reward": Entry("etude.cli.reward:app", "List, add and explain reward definitions; re-score history."),
    "dataset": Entry("etude.cli.dataset:app", "Freeze trajectories into datasets to learn from."),
    "redact": Entry("etude.cli.redact:redact", "Show what would be redacted in a text."),
    "runs": Entry("etude.cli.runs:app", "List runs, show one, plot it."),
    "serve": Entry("etude.cli.serve:serve", "Decide over HTTP, and run the loop in the background."),
    "keys": Entry("etude.cli.keys:app", "Create, list and revoke API keys of the server."),
    "loop": Entry("etude.cli.loop:app", "Run the whole loop: collect, train when due, gate, release."),
    "jobs": Entry("etude.cli.jobs:app", "List training jobs, show, submit, cancel and retry them."),
    "models": Entry("etude.cli.models:app", "Register policies, approve them, roll back."),
    "canary": Entry("etude.cli.canary:app", "Release a candidate step by step, on proof."),
    "experiment": Entry("etude.cli.experiment:app", "Compare two versions on fixed shares of the traffic."),
    "shadow": Entry("etude.cli.shadow:app", "Let a candidate answer without effect."),
    "gates": Entry("etude.cli.gates:app", "Judge a policy before it makes decisions."),
    "audit": Entry("etude.cli.audit:app", "Show and verify every step of every release; recompute a decision."),
    "config": Entry("etude.cli.config:app", "Show and explain settings."),
    "schemas": Entry("etude.cli.schemas:app", "Write the events' JSON Schemas."),
    "demo": Entry("etude.cli.demo:demo", "Show in minutes how Etude learns."),
}


class Commands(LazyGroup):
    def entries(self) -> Mapping[str, Entry]:
        return COMMANDS


app = typer.Typer(
    name="etude",
    cls=Commands,
    help="Learns the decisions an AI-agent orchestrator makes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(etude.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _may_pass(error: StoreError) -> bool:
    from etude.adapters.connections import may_pass  # not before it is needed: commands start fast

    return may_pass(error)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command. Exit codes: 0 success, 1 unexpected error, 2 error to correct, 75 something cannot be reached or
    written now, 130 and 143 interrupted."""
    # Waiting threads must not spin for long: on a busy machine two spinning threads are several times slower than one.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        app(args=args, prog_name="etude")
        sys.exit(0)
    except EtudeError as error:
        fail(str(error))
        sys.exit(TRY_AGAIN if isinstance(error, StoreError) and _may_pass(error) else 2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "safetensors", "scipy"):
            _unexpected(error)
        fail(str(MissingExtraError(needs=error.name, extra="train")))
        sys.exit(2)
    except OSError as error:
        fail(f"{error.filename or 'a file or stream that is not named'}: {error.strerror or error}")
        sys.exit(TRY_AGAIN if error.errno in PASSING else 2)
    except Exception as error:  # a traceback is shown on request
        _unexpected(error)


def _unexpected(error: Exception) -> NoReturn:
    if os.environ.get("ETUDE_DEBUG"):
        raise error
    fail(f"{type(error).__name__}: {error} (unexpected: run with ETUDE_DEBUG=1 for the traceback)")
    sys.exit(1)
