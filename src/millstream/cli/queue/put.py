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
    """Add jobs to a queue: one from --value, or one per line of standard input.

    The same as `topic append`, except that the queue must exist.

    \b
    Exit status:
        0  all jobs were added
        1  not all; the message says how many, and at which line to continue
        2  wrong usage
        130  interrupted by Ctrl-C; the message says how many were added

    \b
    Example:
        millstream queue put mail --value '{"to": "a@example.org"}'
    """
    from millstream.cli.support.record_input import append_all, input_of  # noqa: PLC0415 - not for --help.

    source = input_of(**options)
    with connected(server) as node:
        node.client.queue(name).counts()  # A topic that is not a queue would never hand them out.
        append_all(node.client, name, source, as_json=as_json)
