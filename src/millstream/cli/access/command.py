"""`millstream access`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "acls": "millstream.cli.access.acls:acls",
    "certs": "millstream.cli.access.certs:certs",
    "init": "millstream.cli.access.init:init",
    "tokens": "millstream.cli.access.tokens:tokens",
    "users": "millstream.cli.access.users:users",
    "whoami": "millstream.cli.access.identity:whoami",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def access() -> None:
    """Administer logins and rights.

    `init` makes the first token. All other commands ask a running node, and log in with the token
    of `--token-file` or of the variable MILLSTREAM_TOKEN.

    \b
    Example:
        millstream access tokens create alice --scope read
    """
