"""`millstream transactions list`."""

from __future__ import annotations

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json

_COLUMNS = {
    "id": "TRANSACTIONAL ID",
    "state": "STATE",
    "producer_id": "PRODUCER",
    "open_ms": "OPEN MS",
    "timeout_ms": "TIMEOUT MS",
    "partitions": "PARTITIONS",
}


@click.command("list")
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="Only transactions that hold back readers of committed records.",
)
@server_option
@json_option
def list_transactions(*, is_open: bool, server: str, as_json: bool) -> None:
    """List transactional ids, each with its open or last transaction.

    OPEN MS is how long a transaction has been open, `-` if it is not. PARTITIONS is the number of
    partitions whose readers it holds back.

    \b
    Exit status:
        0  listed
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream transactions list --open
    """
    with connected(server) as node:
        query = {"open": "true"} if is_open else None
        listed = node.pages("/v1/transactions", "transactions", query)
    if as_json:
        click.echo(to_json({"transactions": listed}, indent=2))
    elif listed:
        rows = [["-" if each[name] is None else each[name] for name in _COLUMNS] for each in listed]
        print_table(list(_COLUMNS.values()), rows)
    else:
        kind = "open transactions" if is_open else "transactional ids"
        click.echo(f"There are no {kind}.", err=True)
