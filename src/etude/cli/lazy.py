"""Command groups that import a command's module when the command is called, so that start-up is fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from etude.contracts.suggestions import closest
from etude.problems.spec import Reference, resolve


class Entry(NamedTuple):
    """A command: its location, and its line in the list of commands."""

    reference: Reference
    help: str


class LazyGroup(TyperGroup):
    """A group over a table of entries; a subclass names its table."""

    def entries(self) -> Mapping[str, Entry]:
        raise NotImplementedError

    def load(self, name: str) -> Any:
        """Import and return the command."""
        return to_command(name, resolve(self.entries()[name].reference))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A placeholder for the list of commands, with the help line but without the import."""
        entry = self.entries().get(cmd_name)
        return None if entry is None else TyperCommand(cmd_name, help=entry.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name in self.entries():
            return name, self.load(name), args[1:]
        close = closest(name, self.entries())
        if close is not None:
            ctx.fail(f"No such command {name!r}. Did you mean {close!r}?")
        return super().resolve_command(ctx, args)


def to_command(name: str, made: typer.Typer | Callable[..., None]) -> Any:
    """A group, or a function as a command."""
    if isinstance(made, typer.Typer):
        command = get_command(made)
    else:
        holder = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        holder.command(name)(made)
        command = get_command(holder)
    command.name = name
    return command


def group(table: Mapping[str, Entry], *, help: str) -> typer.Typer:
    """A group over a table."""

    class Group(LazyGroup):
        def entries(self) -> Mapping[str, Entry]:
            return table

    return empty_group(Group, help=help)


def empty_group(kind: type[LazyGroup], *, help: str) -> typer.Typer:
    made = typer.Typer(cls=kind, help=help, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    made.callback()(_nothing)
    return made


def _nothing() -> None:
    """Groups themselves do nothing."""
