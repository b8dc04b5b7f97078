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

    Without --value, each line of standard input is the value of a record. They are appended as they
    come, in the order of their lines, each once, also where a connection is lost on the way. It
    prints where they went once they are as safe as their topic promises.

    With --format json, each line is an object with `value` (any JSON) or `text`, and perhaps `key`,
    `headers`, `timestamp`: what `topic tail --json` prints. With --format raw, all of standard
    input is one value, to the last byte.

    \b
    Exit status:
        0  all are appended
        1  not all are; it says how many are, and from which line on to go on
        2  wrong usage
        130  ended by Ctrl-C; it says how many are

    \b
    Example:
        millstream topic append orders --key customer-7 --value '{"n": 1}'
        millstream topic append orders --format json < orders.ndjson
    """  # noqa: D301 - click's mark for lines to leave as they are.
    from millstream.cli.support.record_input import append_all, input_of  # noqa: PLC0415 - not for --help.

    source = input_of(**options)
    with connected(server) as node:
        append_all(node.client, name, source, as_json=as_json)
