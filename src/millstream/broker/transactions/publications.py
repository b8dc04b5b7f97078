"""All publishers of a node, and the last publication of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from millstream.broker.transactions.publication import NO_SEQUENCE, Publication
from millstream.errors import LogOffline


class PublicationClock(Protocol):
    """Time that nobody can set, over restarts. A `Store` has it.

    That a publication is remembered is what keeps its repetition from being committed, so no wall
    clock may say when it is forgotten.
    """

    def now_ms(self) -> int:
        """Milliseconds."""
        ...

    def age_ms(self, date_ms: int) -> int:
        """For how many milliseconds a moment of this time has passed, at the least."""
        ...


class Publisher:
    """One publisher: what it has published last, and whose turn it is."""

    def __init__(self, name: str, publication: Publication | None = None) -> None:
        self.name = name
        self.publication = publication
        """`None` before the first, and when it was forgotten."""
        self.turn = asyncio.Lock()
        self.users = 0
        """Who have their turn, or wait for it: a publisher with users stays."""
        self.client_id = ""
        """What who published last calls itself; of no one since the start, empty."""
        self.is_uncertain = False
        """Whether the disk may hold another publication, until the next start."""

    @property
    def last_sequence(self) -> int:
        """The last sequence that was published."""
        return NO_SEQUENCE if self.publication is None else self.publication.sequence


class Publications:
    """All publishers that are known. Lives on one event loop."""

    def __init__(self, steady: PublicationClock, *, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.published = 0
        """How many publications were committed since the start."""
        self.repeated = 0
        """How many were asked for since the start that had been committed before."""
        self._steady = steady
        self._publishers: dict[str, Publisher] = {}

    def __len__(self) -> int:
        """How many publishers are remembered."""
        return sum(one.publication is not None for one in self._publishers.values())

    def all(self) -> list[Publisher]:
        """Return all publishers, to look at; some may have published nothing yet."""
        return list(self._publishers.values())

    def age_ms(self, publisher: Publisher) -> int:
        """Return how long ago a publisher has published, at the least."""
        publication = publisher.publication
        return 0 if publication is None else self._steady.age_ms(publication.update_ms)

    def now_ms(self) -> int:
        """Return what a publication that is made now has as `update_ms`."""
        return self._steady.now_ms()

    def adopt(self, publication: Publication) -> None:
        """Take up what the state log holds."""
        name = publication.publisher
        self._publishers[name] = Publisher(name, publication)

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncIterator[Publisher]:
        """Wait until nobody else publishes under this name."""
        publisher = self._publishers.setdefault(name, Publisher(name))
        publisher.users += 1
        try:
            async with publisher.turn:
                if publisher.is_uncertain:
                    raise LogOffline(
                        f"publisher {name!r}: storing a publication failed, and what the disk"
                        " holds shows only when the node is started again"
                    )
                yield publisher
        finally:
            publisher.users -= 1
            if not (publisher.users or publisher.publication or publisher.is_uncertain):
                del self._publishers[name]

    def expired(self) -> list[str]:
        """Return who has not published for so long that it may be forgotten."""
        return [name for name, one in self._publishers.items() if self.is_expired(one)]

    def is_expired(self, publisher: Publisher) -> bool:
        """Tell whether a publisher may be forgotten."""
        publication = publisher.publication
        return (
            publication is not None
            and not publisher.is_uncertain
            and self._steady.age_ms(publication.update_ms) > self.expiration_ms
        )
