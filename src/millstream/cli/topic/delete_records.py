"""`millstream topic delete-records`."""

from __future__ import annotations

import base64
import binascii
import os
from typing import Any

import click

from millstream.cli.support.completions import topic_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import PATIENCE_S_LONG, connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command("delete-records")
@topic_argument
@click.option("--key", metavar="KEY", help="Delete the records with this key.")
@click.option(
    "--key-prefix",
    "prefix",
    metavar="TEXT",
    help="Delete the records whose key starts with this prefix.",
)
@click.option(
    "--base64",
    "is_base64",
    is_flag=True,
    help="The key or prefix is base64, for keys that are not text.",
)
@click.option(
    "--before",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Delete the records before this offset; with a key or a prefix, only those that match.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Delete in this partition only. Required with --before if the topic has several"
    " partitions.",
)
@yes_option
@server_option
@json_option
def delete_records(
    *,
    name: str,
    key: str | None,
    prefix: str | None,
    is_base64: bool,
    before: int | None,
    partition: int | None,
    is_sure: bool,
    server: str,
    as_json: bool,
) -> None:
    """Permanently delete records of a topic: by key, by key prefix, or before an offset.

    When the command returns, the records are invisible at every server and cannot be restored. The
    disk space is freed when the node has rewritten the segments.

    \b
    Exit status:
        0  deleted
        1  not deleted, or not in all partitions; the command can be repeated
        2  wrong usage

    \b
    Example:
        millstream topic delete-records orders --key customer-7 --yes
    """
    body = _body(key, prefix, before, partition, is_base64=is_base64)
    question = f"Permanently delete {_words(key, prefix, before, partition)} of {name}?"
    confirm_or_exit(question, is_sure=is_sure)
    with connected(server, patience_s=PATIENCE_S_LONG) as node:
        path = f"{path_of('topics', name)}/records"
        answer = node.ask("DELETE", path, body, field="deleted")
    click.echo(to_json(answer) if as_json else f"{answer['deleted']} records deleted")


def _body(
    key: str | None,
    prefix: str | None,
    before: int | None,
    partition: int | None,
    *,
    is_base64: bool,
) -> dict[str, Any]:
    """Return the request body; raises if the options select no records."""
    if key is not None and prefix is not None:
        raise click.UsageError("--key and --key-prefix cannot be combined")
    if key is None and prefix is None and before is None:
        raise click.UsageError("Nothing to delete: give --key, --key-prefix or --before")
    wanted = {
        "key": _as_json(key, is_base64=is_base64),
        "key_prefix": _as_json(prefix, is_base64=is_base64),
        "before": before,
        "partition": partition,
    }
    return {field: value for field, value in wanted.items() if value is not None}


def _as_json(text: str | None, *, is_base64: bool) -> str | dict[str, str] | None:
    """Return a key in the form of the HTTP API: text, or base64 if it is not text."""
    if text is None:
        return None
    try:
        data = base64.b64decode(text, validate=True) if is_base64 else os.fsencode(text)
    except (ValueError, binascii.Error):
        raise click.UsageError(printable(f"must be base64, got {text!r}")) from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _words(key: str | None, prefix: str | None, before: int | None, partition: int | None) -> str:
    """Describe the records that will be deleted."""
    if key is not None:
        what = f"every record with the key {key!r}"
    elif prefix is not None:
        what = f"every record whose key starts with {prefix!r}"
    else:
        what = "every record"
    if before is not None:
        what += f" before offset {before}"
    return what if partition is None else f"{what} in partition {partition}"
