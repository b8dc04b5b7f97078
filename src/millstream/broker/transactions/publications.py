"""All publishers of a coordinator, and the last publication of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from millstream.broker.state.state_clock import StateClock
from millstream.broker.transactions.publication import NO_SEQUENCE, Publication
from millstream.errors import LogOffline


class PublicationClock(Protocol):
    """The retention clock of a `Store`, or in a cluster a `StateClock`.

    Nobody can set it, and it continues over restarts and changes of the coordinator. A publication
    that is remembered is what prevents a repeated commit, so no wall clock may decide when it is
    forgotten.
    """

    def now_ms(self) -> int: ...

    def age_ms(self, date_ms: int) -> int:
        """Return how many milliseconds have passed since `date_ms`, at least."""
        ...


class Publisher:
    """One publisher: its last publication, and the lock for the next one."""

    def __init__(self, name: str, publication: Publication | None = None) -> None:
        self.name = name
        self.publication = publication
        """None before the first, and after it was forgotten."""
        self.lock = asyncio.Lock()
        self.users = 0
        """Callers that hold the lock or wait for it: a publisher with users is kept."""
        self.client_id = ""
        """The name that the last publisher gave itself; empty since the start."""
        self.is_uncertain = False
        """Whether the disk may have a different publication, until the next start."""

    @property
    def last_sequence(self) -> int:
        """The last published sequence."""
        return NO_SEQUENCE if self.publication is None else self.publication.sequence


class Publications:
    """All known publishers. One event loop owns it."""

    def __init__(self, clock: PublicationClock, *, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.published = 0
        """Publications that were committed since the start."""
        self.repeated = 0
        """Proposals since the start whose sequence had been committed before."""
        self._clock = clock
        self._publishers: dict[str, Publisher] = {}

    def __len__(self) -> int:
        """Return the number of publishers with a publication."""
        return sum(publisher.publication is not None for publisher in self._publishers.values())

    def all(self) -> list[Publisher]:
        """Return all publishers; some may have published nothing yet."""
        return list(self._publishers.values())

    def age_ms(self, publisher: Publisher) -> int:
        """Return how long ago a publisher published, at least."""
        publication = publisher.publication
        return 0 if publication is None else self._clock.age_ms(publication.update_ms)

    def age_of(self, date_ms: int) -> int:
        """Return how many milliseconds have passed since a date of this clock, at least."""
        return self._clock.age_ms(date_ms)

    def now_ms(self) -> int:
        """Return the `update_ms` of a publication that is made now."""
        return self._clock.now_ms()

    async def save_clock(self) -> None:
        """Store the time by which publications age, if the state log keeps it."""
        if isinstance(self._clock, StateClock):
            await self._clock.save()

    def load(self, publication: Publication) -> None:
        """Add a publication from the state log."""
        name = publication.publisher
        self._publishers[name] = Publisher(name, publication)

    @asynccontextmanager
    async def lock(self, name: str) -> AsyncIterator[Publisher]:
        """Hold the publisher of this name, so that nobody else publishes under it."""
        publisher = self._publishers.setdefault(name, Publisher(name))
        publisher.users += 1
        try:
            async with publisher.lock:
                if publisher.is_uncertain:
                    raise LogOffline(
                        f"publisher {name!r} could not be stored; its state on the disk is"
                        " unknown until the node restarts"
                    )
                yield publisher
        finally:
            publisher.users -= 1
            if not (publisher.users or publisher.publication or publisher.is_uncertain):
                del self._publishers[name]

    def expired(self) -> list[str]:
        """Return the names of publishers that may be forgotten."""
        return [name for name, publisher in self._publishers.items() if self.is_expired(publisher)]

    def is_expired(self, publisher: Publisher) -> bool:
        """Return whether a publisher has not published for so long that it may be forgotten."""
        publication = publisher.publication
        return (
            publication is not None
            and not publisher.is_uncertain
            and self._clock.age_ms(publication.update_ms) > self.expiration_ms
        )
