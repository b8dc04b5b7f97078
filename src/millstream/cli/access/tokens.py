"""`millstream access tokens`: create, list and revoke tokens."""

from __future__ import annotations

import time
from typing import Any, get_args

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json
from millstream.config.units import TIME_UNITS, quantity
from millstream.protocols.http.access import ScopeName

TOKENS_PATH = "/v1/access/tokens"

SCOPES: tuple[str, ...] = get_args(ScopeName)


class Lifetime(click.ParamType):
    """A time with a unit."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            lifetime_ms = quantity(str(value), TIME_UNITS)
        except ValueError:
            lifetime_ms = 0
        if lifetime_ms < 1:
            units = ", ".join(TIME_UNITS)
            self.fail(f"must be a number with a unit ({units}), got {value!r}", param, ctx)
        return lifetime_ms


@click.group()
def tokens() -> None:
    """Create, list and revoke tokens.

    \b
    Example:
        millstream access tokens create alice --scope read --expires-in "30 d"
    """


@tokens.command("create")
@click.argument("user")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    help="What the token may be used for; without it, for all that the user may do. Can be"
    " repeated.",
)
@click.option(
    "--prefix",
    "prefixes",
    metavar="TEXT",
    multiple=True,
    help="Names that it may be used for begin so; without it, all names. Can be repeated.",
)
@click.option("--expires-in", "lifetime_ms", type=Lifetime(), help="How long it is valid.")
@click.option("--note", metavar="TEXT", default="", help="What it is for, shown in the list.")
@server_option
@json_option
def create_token(
    *,
    user: str,
    scopes: tuple[str, ...],
    prefixes: tuple[str, ...],
    lifetime_ms: int | None,
    note: str,
    server: str,
    as_json: bool,
) -> None:
    """Create a token of a user, and print it.

    The token is printed to standard output this one time; a node stores only a digest of it.

    \b
    Exit status:
        0  created
        1  not created
        2  wrong usage

    \b
    Example:
        millstream access tokens create alice --scope read --prefix team- > alice.token
    """
    body = {
        "user": user,
        "lifetime_ms": lifetime_ms,
        "scopes": list(scopes),
        "prefixes": list(prefixes),
        "note": note,
    }
    with connected(server) as node:
        answer = node.ask("POST", TOKENS_PATH, body, field="token")
    click.echo(to_json(answer) if as_json else answer["token"])


@tokens.command("list")
@server_option
@json_option
def list_tokens(server: str, *, as_json: bool) -> None:
    """List all tokens, without their secrets.

    \b
    Exit status:
        0  listed
        1  you may not list them, or no node answers
        2  wrong usage

    \b
    Example:
        millstream access tokens list
    """
    with connected(server) as node:
        answer = node.ask("GET", TOKENS_PATH, field="tokens")
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    rows = [
        [
            item["id"],
            item["user"],
            _time(item["created_ms"]),
            _time(item["expires_ms"]),
            ", ".join(item["scopes"]) or "-",
            ", ".join(item["prefixes"]) or "-",
            item["note"],
        ]
        for item in answer["tokens"]
    ]
    print_table(["ID", "USER", "CREATED", "EXPIRES", "SCOPES", "PREFIXES", "NOTE"], rows)


def _time(time_ms: int | None) -> str:
    if time_ms is None:
        return "never"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_ms / 1000))


@tokens.command("revoke")
@click.argument("token_id", metavar="ID")
@server_option
@json_option
def revoke_token(token_id: str, server: str, *, as_json: bool) -> None:
    """Revoke a token by its id. Connections that use it are closed within a second.

    \b
    Exit status:
        0  revoked
        1  there is no such token, or it could not be revoked
        2  wrong usage

    \b
    Example:
        millstream access tokens revoke 4f1d0c9a2b7e
    """
    if not (token_id.isascii() and token_id.isalnum()):
        raise click.ClickException("the id of a token has 12 digits and letters")
    with connected(server) as node:
        node.ask("DELETE", f"{TOKENS_PATH}/{token_id}")
    click.echo(to_json({"revoked": token_id}) if as_json else printable(f"revoked {token_id}"))
