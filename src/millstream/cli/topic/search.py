"""`millstream topic search`."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import click

from millstream.cli.support.completions import topic_argument
from millstream.cli.support.node_api import PATIENCE_S_LONG, connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, time_text, to_json
from millstream.cli.support.times import time_option

PAGE = 1_000
"""Records that one request may return."""


@click.command()
@topic_argument
@click.option("--key", metavar="KEY", help="The key, exactly.")
@click.option("--key-prefix", metavar="TEXT", help="The beginning of the key.")
@click.option("--text", metavar="TEXT", help="Text in the key, the value or a header.")
@click.option("--field", metavar="PATH", help="A field of the value, such as `customer.country`.")
@click.option("--value", metavar="VALUE", help="Value of the field. Default: it has to exist.")
@click.option(
    "--from",
    "from_ms",
    metavar="TIME",
    callback=time_option,
    help="Begin with the first record at or after this time (ISO 8601, UTC unless it has a zone).",
)
@click.option(
    "--to",
    "to_ms",
    metavar="TIME",
    callback=time_option,
    help="End before the first record at or after this time.",
)
@click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after this many records."
)
@server_option
@json_option
def search(
    *,
    name: str,
    key: str | None,
    key_prefix: str | None,
    text: str | None,
    field: str | None,
    value: str | None,
    from_ms: int | None,
    to_ms: int | None,
    partition: int | None,
    limit: int | None,
    server: str,
    as_json: bool,
) -> None:
    """Search the records of a topic: by key, text, field of the value, and time.

    The node searches and sends only what matches, one partition after the other. All conditions
    have to be met.

    \b
    Exit status:
        0  everything was searched, or the limit was reached
        1  the topic does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic search orders --field customer.country --value DE
    """
    conditions = {
        "key": key,
        "key_prefix": key_prefix,
        "text": text,
        "field": field,
        "value": value,
        "from": from_ms,
        "to": to_ms,
        "partition": partition,
    }
    query = {name: given for name, given in conditions.items() if given is not None}
    left = limit
    with connected(server, patience_s=PATIENCE_S_LONG) as node:
        after: str | None = ""
        while after is not None and left != 0:
            page = {**query, "after": after, "limit": PAGE if left is None else min(PAGE, left)}
            path = f"{path_of('topics', name)}/search?{urlencode(page)}"
            answer = node.ask("GET", path, field="records")
            for record in answer["records"]:
                click.echo(to_json(record) if as_json else _line(record))
            left = None if left is None else left - len(answer["records"])
            after = answer["next"]


def _line(record: dict[str, Any]) -> str:
    """Return a record as a line for people: position, time, key, value."""
    place = f"{record['partition']}:{record['offset']}"
    key = "-" if record["key"] is None else _text(record["key"])
    value = "(no value)" if record["value"] is None else _text(record["value"])
    return f"{place}  {time_text(record['timestamp'])}  {key}  {value}"


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else to_json(value))
