"""`etude keys`: who may call the server."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from etude.bootstrap.serving import open_keys
from etude.cli.display import console, print_json, table
from etude.cli.options import ConfigFile
from etude.serving.keys import Role

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys of the server.")


@app.command()
def create(
    role: Annotated[Role, typer.Option(help="What the key may do; each role may do what those before it may.")],
    name: Annotated[str, typer.Option(help="Name, to tell keys apart.")] = "",
    tenant: Annotated[str | None, typer.Option(help="Tenant that the key belongs to: it sees no other.")] = None,
    rate: Annotated[float | None, typer.Option(help="Maximum requests per second.", min=0.01)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    config: ConfigFile = None,
) -> None:
    """Create a key and print it. It is shown once: only its hash is stored."""
    with open_keys(config) as keys:
        key, text = keys.create(role, name=name, tenant=tenant, requests_per_s=rate)
    if as_json:
        print_json({"id": key.id, "role": key.role, "tenant": key.tenant, "key": text})
        return
    typer.echo(text)


@app.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False, config: ConfigFile = None
) -> None:
    """All keys, without their secrets."""
    with open_keys(config) as keys:
        found = keys.all()
    if as_json:
        print_json([msgspec.to_builtins(msgspec.structs.replace(key, hash="")) for key in found])
        return
    if not found:
        typer.echo("no keys: `etude keys create --role decide` makes one")
        return
    rows = [[key.id, key.role, key.name, key.tenant or "", _day(key.created), _day(key.revoked)] for key in found]
    console().print(table("id", "role", "name", "tenant", "created", "revoked", rows=rows))


def _day(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M}"


@app.command()
def revoke(id: Annotated[str, typer.Argument(help="Id of the key.")], config: ConfigFile = None) -> None:
    """Revoke a key: servers refuse it after two seconds at most."""
    with open_keys(config) as keys:
        key = keys.revoke(id)
    typer.echo(f"{key.id} is revoked")
