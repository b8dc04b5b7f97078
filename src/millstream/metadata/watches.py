"""The subscriptions to changes of one store of metadata."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from millstream.metadata.interface import MetadataChange

logger = logging.getLogger(__name__)


class PrefixWatch:
    """A subscription to the changes of keys with a prefix that are later than a revision."""

    def __init__(self, prefix: str, since: int, callback: Callable[[MetadataChange], None]) -> None:
        self.is_cancelled = False
        self._prefix = prefix
        self._since = since
        self._callback = callback

    def cancel(self) -> None:
        self.is_cancelled = True

    def notify(self, change: MetadataChange) -> None:
        is_later = change.revision > self._since
        if not self.is_cancelled and is_later and change.key.startswith(self._prefix):
            self._callback(change)


class Watches:
    """All subscriptions. Used on the event loop only."""

    def __init__(self) -> None:
        self._watches: list[PrefixWatch] = []

    def add(
        self, prefix: str, callback: Callable[[MetadataChange], None], *, since: int = 0
    ) -> PrefixWatch:
        """Call back for each change whose key starts with `prefix`."""
        watch = PrefixWatch(prefix, since, callback)
        self._watches.append(watch)
        return watch

    def notify(self, changes: Iterable[MetadataChange]) -> None:
        """Call back for changes, in their order."""
        self._watches = [watch for watch in self._watches if not watch.is_cancelled]
        for change in changes:
            for watch in tuple(self._watches):
                try:
                    watch.notify(change)
                except Exception:  # It must not keep others from hearing of changes.
                    logger.exception("a watch of metadata failed at %s", change.key)

    def clear(self) -> None:
        """End all subscriptions."""
        self._watches.clear()
