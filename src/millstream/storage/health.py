"""Which logs of a store cannot be written at present: what a node tells of its health.

A log is noted when its writer meets trouble, so asking costs nothing where all is well, however
many logs there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.storage.log import Log
    from millstream.storage.store import LogName


class LogHealth:
    """The logs that are offline, or met a full disk. Asked on the event loop of the store."""

    def __init__(self) -> None:
        self._logs: dict[LogName, Log] = {}

    def note(self, name: LogName, log: Log) -> None:
        """Remember a log that went offline, or that the disk had no room for."""
        self._logs[name] = log

    def forget(self, name: LogName) -> None:
        """Forget a log that is closed or gone."""
        self._logs.pop(name, None)

    def offline(self) -> list[Log]:
        """Return the logs that take no appends until they are opened again."""
        return [log for log in self._present() if log.offline is not None]

    def full(self) -> list[Log]:
        """Return the logs whose last write the disk had no room for."""
        return [log for log in self._present() if log.offline is None and log.disk_full is not None]

    def _present(self) -> list[Log]:
        """Return the logs that are still in trouble, and forget the others."""
        for name, log in list(self._logs.items()):
            if log.offline is None and log.disk_full is None:
                del self._logs[name]
        return list(self._logs.values())
