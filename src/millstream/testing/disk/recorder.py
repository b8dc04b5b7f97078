"""Recorder of a simulated machine: its trace, and its power supply."""

from __future__ import annotations

import errno
import threading

from millstream.storage.disk.memory_filesystem import os_error
from millstream.testing.disk.image import Image
from millstream.testing.disk.trace import Event, Note, Trace


class Recorder:
    """Keeps the trace of one machine until it loses power.

    As a context manager it admits one call at a time, so that the order of the trace is the order
    in which the calls took effect, and refuses all calls once the power is off.
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
        """Add the effect of a call. Only within the context."""
        self.trace.events.append(event)

    def note(self, event: object) -> None:
        """Add a note of the test. Does nothing without power."""
        with self._lock:
            if self._is_on:
                self.record(Note(event))

    def cut_power(self) -> None:
        """Refuse every call from now on."""
        with self._lock:
            self._is_on = False
