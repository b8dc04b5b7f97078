"""Health of the logs of a store: those that cannot be written at present.

A log is added when its writer fails, so a check costs nothing while all is well, regardless of the
number of logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.storage.files.names import LogName
    from millstream.storage.log import Log


class LogHealth:
    """The logs that are offline, or found the disk full. Used on the event loop of the store."""

    def __init__(self) -> None:
        self._logs: dict[LogName, Log] = {}

    def add(self, name: LogName, log: Log) -> None:
        """Add a log that went offline, or whose disk was full."""
        self._logs[name] = log

    def remove(self, name: LogName) -> None:
        """Remove a log that was closed or deleted."""
        self._logs.pop(name, None)

    def offline(self) -> list[Log]:
        """Return the logs that accept no appends until they are reopened."""
        return [log for log in self._current() if log.offline is not None]

    def full(self) -> list[Log]:
        """Return the logs whose last write failed because the disk was full."""
        return [log for log in self._current() if log.offline is None and log.disk_full is not None]

    def _current(self) -> list[Log]:
        """Return the logs that are still unhealthy, and remove the others."""
        for name, log in list(self._logs.items()):
            if log.offline is None and log.disk_full is None:
                del self._logs[name]
        return list(self._logs.values())
