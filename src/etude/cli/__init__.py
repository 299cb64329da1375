"""The command line. Importing it brings no torch: each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import etude
from etude.cli import (
    collect,
    config,
    dataset,
    demo,
    evaluate,
    experience,
    ingest,
    prepare,
    redact,
    reward,
    run,
    runs,
    schemas,
    train,
    workflow,
)
from etude.cli.display import fail
from etude.contracts.errors import EtudeError, MissingExtraError

app = typer.Typer(
    name="etude",
    help="Learns the decisions an AI-agent orchestrator makes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(train.app, name="train")
app.command("evaluate")(evaluate.evaluate_run)
app.command("plan")(workflow.plan)
app.command("run")(run.run)
app.command("collect")(collect.collect)
app.command("prepare")(prepare.prepare)
app.command("ingest")(ingest.ingest)
app.add_typer(experience.app, name="experience")
app.add_typer(reward.app, name="reward")
app.add_typer(dataset.app, name="dataset")
app.command("redact")(redact.redact)
app.add_typer(runs.app, name="runs")
app.add_typer(config.app, name="config")
app.add_typer(schemas.app, name="schemas")
app.command("demo")(demo.demo)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(etude.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Exit codes: 0 done, 1 our mistake, 2 something to correct, 130 and 143 interrupted."""
    # Threads that wait must not spin for long: on a busy machine two that do are several times slower than one alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        app(args=args, prog_name="etude")
        sys.exit(0)
    except EtudeError as error:
        fail(str(error))
        sys.exit(2)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("torch", "safetensors", "scipy"):
            _unexpected(error)
        fail(str(MissingExtraError(needs=error.name, extra="train")))
        sys.exit(2)
    except OSError as error:
        fail(f"{error.filename or 'input or output'}: {error.strerror or error}")
        sys.exit(2)
    except Exception as error:  # a traceback is for those who ask for it
        _unexpected(error)


def _unexpected(error: Exception) -> NoReturn:
    if os.environ.get("ETUDE_DEBUG"):
        raise error
    fail(f"{type(error).__name__}: {error} (unexpected: run with ETUDE_DEBUG=1 for the traceback)")
    sys.exit(1)
