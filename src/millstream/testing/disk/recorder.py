"""The power supply of a simulated machine, and the log of what its disk did."""

from __future__ import annotations

import errno
import threading

from millstream.storage.disk.memory_filesystem import os_error
from millstream.testing.disk.image import Image
from millstream.testing.disk.trace import Event, Note, Trace


class Recorder:
    """Keeps the trace of one machine from when it is switched on until it loses power.

    Used as a context it lets one call pass at a time, so that the order of the trace is the order
    in which the calls took effect, and refuses them all once the power is off.
    """

    def __init__(self, start: Image) -> None:
        self.trace = Trace(start)
        self._lock = threading.RLock()
        self._is_on = True

    def __enter__(self) -> None:
        self._lock.acquire()
        if not self._is_on:
            self._lock.release()
            raise os_error(errno.EBADF)

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def record(self, event: Event) -> None:
        """Add what a call did. Only within the context."""
        self.trace.events.append(event)

    def note(self, event: object) -> None:
        """Add what a test saw. A machine without power notes nothing."""
        with self._lock:
            if self._is_on:
                self.record(Note(event))

    def cut_power(self) -> None:
        """Refuse every call from now on."""
        with self._lock:
            self._is_on = False
