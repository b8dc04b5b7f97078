"""`millstream queue put`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.support.append_options import append_options
from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option


@click.command()
@queue_argument
@append_options
@server_option
@json_option
def put(*, name: str, server: str, as_json: bool, **options: Any) -> None:
    """Put jobs into a queue: one from --value, or one for each line of standard input.

    The same as `topic append`, save that there has to be a queue of that name.

    \b
    Exit status:
        0  all are in it
        1  not all are; it says how many are, and from which line on to go on
        2  wrong usage
        130  ended by Ctrl-C; it says how many are

    \b
    Example:
        millstream queue put mail --value '{"to": "a@example.org"}'
    """  # noqa: D301 - click's mark for lines to leave as they are.
    from millstream.cli.support.record_input import append_all, input_of  # noqa: PLC0415 - not for --help.

    source = input_of(**options)
    with connected(server) as node:
        node.client.queue(name).counts()  # A topic that is no queue would keep them for ever.
        append_all(node.client, name, source, as_json=as_json)
