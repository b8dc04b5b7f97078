"""`millstream access users`: passwords of users, for logins by SASL."""

from __future__ import annotations

import secrets
import sys
from typing import Any

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json

USERS_PATH = "/v1/access/users"

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS_DEFAULT = 15_000
PASSWORD_SIZE_MAX = 1_024
SALT_DRAWN_BYTES = 32


@click.group()
def users() -> None:
    """Set, delete and list passwords of users, for logins of Kafka clients.

    \b
    Example:
        millstream access users set alice --password-file alice.password
    """


@users.command("set")
@click.argument("user")
@click.option(
    "--password-file",
    type=click.File("rb", lazy=True),
    metavar="FILE",
    help="File whose first line is the password; - for standard input. Without it, the command"
    " asks for the password.",
)
@click.option(
    "--mechanism",
    "mechanisms",
    type=click.Choice(MECHANISMS),
    multiple=True,
    default=MECHANISMS,
    show_default=True,
    help="How the user can log in. Can be repeated.",
)
@click.option(
    "--iterations",
    type=click.IntRange(4_096, 1_000_000),
    default=ITERATIONS_DEFAULT,
    show_default=True,
    help="Rounds of hashing. Give all users as many as access.scram_iterations says.",
)
@server_option
@json_option
def set_user(
    *,
    user: str,
    password_file: Any,
    mechanisms: tuple[str, ...],
    iterations: int,
    server: str,
    as_json: bool,
) -> None:
    """Set the password of a user, who is made by that if it is new.

    The password is hashed by this command and is not sent. Connections that used another one are
    closed within a second. There is no option for the password itself, because all users of a
    machine can see command lines.

    \b
    Exit status:
        0  set
        1  not set
        2  wrong usage

    \b
    Example:
        millstream access users set alice --password-file alice.password
    """
    password = _password(password_file)
    body = {
        "user": user,
        "credentials": [
            _credential(mechanism, password, iterations) for mechanism in dict.fromkeys(mechanisms)
        ],
    }
    with connected(server) as node:
        answer = node.ask("PUT", USERS_PATH, body, field="credentials")
    if as_json:
        click.echo(to_json(answer))
        return
    click.echo(printable(f"set the password of {user} ({', '.join(answer['mechanisms'])})"))


@users.command("delete")
@click.argument("user")
@server_option
@json_option
def delete_user(user: str, server: str, *, as_json: bool) -> None:
    """Delete the password of a user. Connections that used it are closed within a second.

    Rules about the user, and its tokens, are kept.

    \b
    Exit status:
        0  deleted
        1  the user has no password, or it could not be deleted
        2  wrong usage

    \b
    Example:
        millstream access users delete alice
    """
    with connected(server) as node:
        node.ask("DELETE", USERS_PATH, {"user": user})
    click.echo(
        to_json({"deleted": user}) if as_json else printable(f"deleted the password of {user}")
    )


@users.command("list")
@server_option
@json_option
def list_users(server: str, *, as_json: bool) -> None:
    """List the users that have a password, and how they can log in.

    \b
    Exit status:
        0  listed
        1  you may not list them, or no node answers
        2  wrong usage

    \b
    Example:
        millstream access users list
    """
    with connected(server) as node:
        answer = node.ask("GET", USERS_PATH, field="users")
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    rows = [[item["user"], ", ".join(item["mechanisms"])] for item in answer["users"]]
    print_table(["USER", "MECHANISMS"], rows)


@users.command("describe")
@click.argument("user")
@server_option
@json_option
def describe_user(user: str, server: str, *, as_json: bool) -> None:
    """Show how a user can log in, and how often its password is hashed.

    \b
    Exit status:
        0  shown
        1  the user has no password, you may not see it, or no node answers
        2  wrong usage

    \b
    Example:
        millstream access users describe alice
    """
    with connected(server) as node:
        answer = node.ask("GET", USERS_PATH, field="users")
    found = [item for item in answer["users"] if item["user"] == user]
    if not found:
        raise click.ClickException(f"user {user!r} has no password")
    if as_json:
        click.echo(to_json(found[0]))
        return
    rows = [[item["mechanism"], str(item["iterations"])] for item in found[0]["credentials"]]
    print_table(["MECHANISM", "ITERATIONS"], rows)


def _password(file: Any) -> str:
    """Return the password of a file, of standard input or of a prompt."""
    if file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("there is no terminal to ask for the password: give it with"
                                   " --password-file, which is - for standard input")  # fmt: skip
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        data = file.readline(4 * PASSWORD_SIZE_MAX + 2)
        try:
            password = data.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise click.ClickException("the password must be UTF-8") from None
    if not 1 <= len(password) <= PASSWORD_SIZE_MAX or "\0" in password:
        raise click.ClickException(
            f"the password must have 1 to {PASSWORD_SIZE_MAX} characters, got {len(password)}"
        )
    return password


def _credential(mechanism: str, password: str, iterations: int) -> dict[str, object]:
    """Return what nodes store of a password."""
    from base64 import b64encode  # noqa: PLC0415

    from millstream.broker.access.credentials import ScramMechanism  # noqa: PLC0415
    from millstream.broker.access.sasl.scram import make_credential, make_salt  # noqa: PLC0415

    made = make_credential(
        ScramMechanism(mechanism),
        password,
        salt=make_salt(secrets.token_bytes(SALT_DRAWN_BYTES)),
        iterations=iterations,
    )
    return {
        "mechanism": mechanism,
        "iterations": made.iterations,
        "salt": b64encode(made.salt).decode(),
        "stored_key": b64encode(made.stored_key).decode(),
        "server_key": b64encode(made.server_key).decode(),
    }
