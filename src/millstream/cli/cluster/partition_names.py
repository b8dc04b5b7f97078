"""Partitions on the command line: TOPIC or TOPIC/PARTITION."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import click

from millstream.cli.cluster.move_progress import MoveProgress, bytes_left_of
from millstream.cli.support.completions import complete_topics
from millstream.cli.support.node_api import NodeApi

F = TypeVar("F", bound=Callable[..., Any])

INTERNAL_PREFIX = "__"
"""Names of topics in which a cluster keeps its own state start with this."""

PARTITIONS_PATH = "/v1/cluster/partitions"


class PartitionArgument(NamedTuple):
    """One partition of a topic, or all of them."""

    topic: str
    partition: int | None


def _parse(
    _context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[PartitionArgument, ...]:
    return tuple(_parse_one(text) for text in texts)


def _parse_one(text: str) -> PartitionArgument:
    topic, slash, index = text.partition("/")
    if not topic or (slash and not (index.isascii() and index.isdigit())):
        raise click.BadParameter(f"must be TOPIC or TOPIC/PARTITION, got {text!r}")
    return PartitionArgument(topic, int(index) if slash else None)


def partitions_argument(*, is_required: bool = True) -> Callable[[F], F]:
    """Add the argument `chosen`: topics and partitions."""
    return click.argument(
        "chosen",
        metavar="TOPIC[/PARTITION]..." if is_required else "[TOPIC[/PARTITION]]...",
        nargs=-1,
        required=is_required,
        callback=_parse,
        shell_complete=complete_topics,
    )


def described_partitions(node: NodeApi, chosen: tuple[PartitionArgument, ...]) -> list[Any]:
    """Return the partitions that were named, as `GET /v1/cluster/partitions` describes them."""
    found = []
    for argument in chosen:
        listed = partitions_of(node, argument.topic)
        named = [item for item in listed if argument.partition in (None, item["partition"])]
        if not named:
            raise click.ClickException(
                f"partition of {argument.topic} must be between 0 and {len(listed) - 1},"
                f" got {argument.partition}"
            )
        found += named
    return found


def partitions_of(node: NodeApi, topic: str = "") -> list[Any]:
    """Return all partitions, of one topic if it is named."""
    return node.pages(PARTITIONS_PATH, "partitions", {"topic": topic} if topic else None)


def is_moving(partition: Any) -> bool:
    return bool(partition["adding"] or partition["removing"])


def moving(partitions: Iterable[Any]) -> MoveProgress:
    """Return how many of these partitions are being moved, and what is left to copy for them."""
    found = [partition for partition in partitions if is_moving(partition)]
    return MoveProgress(len(found), bytes_left_of(found))


def names_query(**limits: object) -> str:
    """Return a query string with the values that are set; booleans in lower case."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in limits.items()
        if value
    }
    return f"?{urlencode(given)}" if given else ""
