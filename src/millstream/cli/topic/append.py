"""`millstream topic append`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.support.append_options import append_options
from millstream.cli.support.completions import topic_argument
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option


@click.command()
@topic_argument
@append_options
@server_option
@json_option
def append(*, name: str, server: str, as_json: bool, **options: Any) -> None:
    """Append records: one from --value, or all of standard input.

    Without --value, each line of standard input is the value of a record. Records are appended in
    order and exactly once, even if a connection is lost. Prints partition and offsets when the
    records are durable.

    With --format json, each line is an object with `value` (any JSON) or `text`, and optionally
    `key`, `headers` and `timestamp`, as printed by `topic tail --json`. With --format raw, all of
    standard input is one value.

    \b
    Exit status:
        0  all records were appended
        1  not all; the message says how many, and at which line to continue
        2  wrong usage
        130  interrupted by Ctrl-C; the message says how many were appended

    \b
    Example:
        millstream topic append orders --key customer-7 --value '{"n": 1}'
        millstream topic append orders --format json < orders.ndjson
    """
    from millstream.cli.support.record_input import append_all, input_of  # noqa: PLC0415 - not for --help.

    source = input_of(**options)
    with connected(server) as node:
        append_all(node.client, name, source, as_json=as_json)
