"""`millstream access certs`."""

from __future__ import annotations

import click

from millstream.cli.support.options import one_line_errors
from millstream.errors import InvalidConfig

DAYS_MAX = 3_650


@click.command()
@click.option(
    "--out",
    "folder",
    metavar="DIR",
    default="./certs",
    show_default=True,
    help="Directory of the files. It is created if it does not exist.",
)
@click.option(
    "--host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="Name or address by which clients and other nodes reach the node. Can be repeated."
    "  [default: localhost, 127.0.0.1, ::1]",
)
@click.option(
    "--name",
    default="server",
    show_default=True,
    help="Name of the files of the node's certificate. An empty one makes no such files.",
)
@click.option(
    "--client",
    "clients",
    metavar="USER",
    multiple=True,
    help="Also make a certificate for this user. Can be repeated.",
)
@click.option(
    "--days",
    type=click.IntRange(1, DAYS_MAX),
    default=90,
    show_default=True,
    help="How long certificates of nodes and users are valid; that of the authority is valid for"
    " 10 years.",
)
def certs(
    folder: str, hosts: tuple[str, ...], name: str, clients: tuple[str, ...], days: int
) -> None:
    """Make a private certificate authority, and certificates for a node and for users.

    For trying and for tests: an authority of your own organization is better, because it can revoke
    and renew. If the directory has an authority already, it signs the new certificates. Files that
    exist are replaced, so that the same command renews certificates; nodes read them again.

    Needs the extra `access`: pip install 'millstream[access]'.

    \b
    Files:
        ca.pem, ca.key          the authority
        server.pem, server.key  the node, for clients and for other nodes
        USER.pem, USER.key      a user

    \b
    Exit status:
        0  made; the paths of the new certificates are printed
        1  not made; the message says why
        2  wrong usage

    \b
    Example:
        millstream access certs --out ./certs --host node-1.example --client alice
    """
    with one_line_errors():
        try:
            from millstream.cli.access.certificate_authority import (  # noqa: PLC0415
                CertificateAuthority,
            )
        except ModuleNotFoundError as error:
            raise InvalidConfig(
                f"{error.name} is not installed: install 'millstream[access]'"
            ) from error
        authority = CertificateAuthority.open(folder)
        made = [authority.certificate_file] if authority.is_new else []
        if name:
            made.append(authority.issue_server(name, hosts or DEFAULT_HOSTS, days=days))
        made += [authority.issue_client(user, days=days) for user in clients]
    for path in made:
        click.echo(path)


DEFAULT_HOSTS = ("localhost", "127.0.0.1", "::1")
