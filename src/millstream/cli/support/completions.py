"""Shell completion of topic, group and queue names.

Completion runs while the user types: it asks the node once with a short timeout, and offers nothing
if no node answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import click
from click.shell_completion import CompletionItem

from millstream.errors import MillstreamError

PATIENCE_S = 0.5
"""Timeout of a completion."""

NAMES_MAX = 1_000
"""Maximum number of names offered as completions."""


def _completes(kind: str, key: str) -> Callable[..., list[CompletionItem]]:
    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # Names that a terminal would obey, or that would not be one line, are not for typing.
        names = [name for name in _names(context, kind, key) if name.isprintable()]
        return [CompletionItem(name) for name in names if name.startswith(incomplete)][:NAMES_MAX]

    return complete


def _names(context: click.Context, kind: str, key: str) -> list[str]:
    from millstream.clients.http.core.config import ClientConfig  # noqa: PLC0415
    from millstream.clients.http.core.node_addresses import parse_node_urls  # noqa: PLC0415
    from millstream.clients.http.core.request import Request  # noqa: PLC0415
    from millstream.clients.http.transport.connection_pool import ConnectionPool  # noqa: PLC0415
    from millstream.clock import SystemClock  # noqa: PLC0415

    query = "" if kind == "queues" else f"?limit={NAMES_MAX}"
    try:
        address = parse_node_urls(_server(context)).current
        connections = ConnectionPool(address, ClientConfig(), clock=SystemClock())
        with closing(connections):
            answer = connections.send(Request("GET", f"/v1/{kind}{query}"), PATIENCE_S)
        return [str(item[key]) for item in json.loads(answer.body)[kind]]
    except (MillstreamError, ValueError, LookupError, TypeError):
        return []


def _server(context: click.Context) -> str:
    """Return the node to ask: from an option before the cursor, the environment, or the default."""
    if server := context.params.get("server"):
        return str(server)
    for parameter in context.command.params:
        if parameter.name == "server":
            default = parameter.value_from_envvar(context) or parameter.get_default(context)
            return str(default)
    return ""


complete_topics = _completes("topics", "name")
complete_groups = _completes("groups", "group")
complete_queues = _completes("queues", "name")

topic_argument = click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
new_topic_argument = click.argument("name", metavar="TOPIC")
group_argument = click.argument("name", metavar="GROUP", shell_complete=complete_groups)
queue_argument = click.argument("name", metavar="QUEUE", shell_complete=complete_queues)
new_queue_argument = click.argument("name", metavar="QUEUE")
