"""Caps: how many topics and partitions clients may have, in all and per user.

A topic belongs to the user who created it; its row says so. Caps are checked where topics are
created and extended, by what is stored in the metadata, so that they hold in a cluster too: each
such change also puts one key, and is applied only if nobody has put it since the topics were
counted. Topics that nodes create themselves are never refused. Changes and deletions are not
checked.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.topics.topic import TOPICS_PREFIX, TopicRow, decode_row
from millstream.config.schema import BrokerConfig
from millstream.errors import CapExceeded
from millstream.metadata.interface import ABSENT, Compare, Metadata

GUARD_KEY = "caps/topics"
"""Put by each change that caps were checked for."""


class TopicGrowth(NamedTuple):
    """What a client wants to create."""

    topics: int
    partitions: int
    owner: str | None
    """Who the topic belongs to: `User:alice`; None without logins."""


def owner_of(creator: Caller | None) -> str | None:
    """Return who a topic belongs to that a caller creates; nobody on a node without logins."""
    return None if creator is None or creator is NOBODY else str(creator.principal)


class TopicCaps:
    """The caps of one node, which are the same on all nodes of a cluster."""

    def __init__(self, config: BrokerConfig, metadata: Metadata) -> None:
        self._metadata = metadata
        self._node = (config.limit_topics, config.limit_partitions)
        self._user = (config.limit_topics_per_user, config.limit_partitions_per_user)

    def concern(self, growth: TopicGrowth | None) -> bool:
        """Return whether something limits this growth."""
        if growth is None:
            return False
        return any(self._node) or (growth.owner is not None and any(self._user))

    async def check(self, name: str, growth: TopicGrowth) -> Compare:
        """Raise `CapExceeded` if a topic cannot grow so much.

        Returns the condition under which that is still true when the topic is stored.
        """
        guard = await self._metadata.get(GUARD_KEY)
        rows = [
            row
            for entry in await self._metadata.list(TOPICS_PREFIX)
            if (row := decode_row(entry.key, entry.value)[1]).state == "live"
            and not row.is_internal
        ]
        _check(name, rows, growth, self._node, whose="in all")
        if growth.owner is not None:
            own = [row for row in rows if row.owner == growth.owner]
            whose = f"of {growth.owner}"
            _check(name, own, growth, self._user, whose=whose, suffix="_per_user")
        return Compare(GUARD_KEY, ABSENT if guard is None else guard.revision)


def _check(
    name: str,
    rows: list[TopicRow],
    growth: TopicGrowth,
    limits: tuple[int, int],
    *,
    whose: str,
    suffix: str = "",
) -> None:
    """Raise if rows and growth together are more than the limits, of which 0 is none."""
    counts = (len(rows), sum(row.partitions for row in rows))
    for noun, count, more, limit in zip(
        ("topics", "partitions"), counts, (growth.topics, growth.partitions), limits, strict=True
    ):
        check_cap(name, noun, (count, more, limit), whose=whose, suffix=suffix)


def check_cap(
    name: str, noun: str, numbers: tuple[int, int, int], *, whose: str, suffix: str = ""
) -> None:
    """Raise `CapExceeded` if what there is and what is added exceed a limit, of which 0 is none."""
    count, more, limit = numbers
    if limit and more and count + more > limit:
        raise CapExceeded(
            f"{more} more {noun} for {name} make {count + more} {whose}, limits.{noun}{suffix}"
            f" is {limit}"
        )
