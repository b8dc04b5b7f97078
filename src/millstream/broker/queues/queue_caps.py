"""Caps: how many queues clients may have, in all and per user.

As those of topics (`topic_caps.py`): checked against the metadata, with a key that each creation
puts, so that they hold in a cluster too. Changes and deletions are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.queues.row import QUEUES_PREFIX, decode_row
from millstream.broker.topics.topic_caps import check_cap
from millstream.config.schema import BrokerConfig
from millstream.metadata.interface import ABSENT, Compare, Metadata

QUEUES_GUARD_KEY = "caps/queues"
"""Put by each creation that caps were checked for."""


class QueueCaps:
    """The caps of one node, which are the same on all nodes of a cluster."""

    def __init__(self, config: BrokerConfig, metadata: Metadata) -> None:
        self._metadata = metadata
        self._node = config.limit_queues
        self._user = config.limit_queues_per_user

    def concern(self, owner: str | None) -> bool:
        """Return whether something limits a new queue of this owner."""
        return bool(self._node or (owner is not None and self._user))

    async def check(self, name: str, owner: str | None) -> Sequence[Compare]:
        """Raise `CapExceeded` if there may be no queue more.

        Returns the conditions under which that is still true when the queue is stored.
        """
        if not self.concern(owner):
            return ()
        guard = await self._metadata.get(QUEUES_GUARD_KEY)
        owners = [
            decode_row(entry.key, entry.value).owner
            for entry in await self._metadata.list(QUEUES_PREFIX)
        ]
        check_cap(name, "queues", (len(owners), 1, self._node), whose="in all")
        if owner is not None:
            count = (owners.count(owner), 1, self._user)
            check_cap(name, "queues", count, whose=f"of {owner}", suffix="_per_user")
        return (Compare(QUEUES_GUARD_KEY, ABSENT if guard is None else guard.revision),)
