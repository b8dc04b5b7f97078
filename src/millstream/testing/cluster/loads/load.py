"""What all loads have in common: a thread, a count of successes, the first failure."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from millstream.testing.cluster.checker import check_history
from millstream.testing.cluster.history import History
from millstream.testing.cluster.reading import WAIT_SECONDS


class HistoryBroken(AssertionError):
    """A load was told one thing, and readers see another. The message says which rule is broken."""


class LoadStalled(AssertionError):
    """A load did not succeed within the time that it was given."""


class Load(ABC):
    """A client that works in a thread until it is stopped, over all failures of nodes."""

    wait_seconds = WAIT_SECONDS
    """How long a success may take."""

    def __init__(self) -> None:
        self.count = 0
        """How often it succeeded so far."""
        self.is_stopping = False
        self._last = time.monotonic()
        self._longest_pause_s = 0.0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(
            target=self._run_safely, name=type(self).__name__, daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    @abstractmethod
    def run(self) -> None:
        """Work until `is_stopping`, and call `succeeded` again and again."""

    @abstractmethod
    def history(self) -> History:
        """Return what the load was told, and what readers see now. Called after `stop`."""

    def check(self) -> None:
        """Raise `HistoryBroken` if a rule of the checker is broken. Called after `stop`."""
        if broken := check_history(self.history()):
            raise HistoryBroken("\n".join(broken))

    def take_pause(self) -> float:
        """Return the longest time between two successes since the last call, in seconds."""
        with self._changed:
            pause_s, self._longest_pause_s = self._longest_pause_s, 0.0
            return pause_s

    def succeeded(self) -> None:
        with self._changed:
            now = time.monotonic()
            self._longest_pause_s = max(self._longest_pause_s, now - self._last)
            self._last = now
            self.count += 1
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    @property
    def has_failed(self) -> bool:
        """Whether an error ended the load, or part of it. `stop` raises it."""
        return self._failure is not None

    def wait_for_count(self, count: int) -> None:
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self.count >= count or self._failure is not None, self.wait_seconds
            )
        self.raise_failure()
        if not is_there:
            raise LoadStalled(
                f"{self} succeeded {self.count} times, {count} were expected within"
                f" {self.wait_seconds:g} s"
            )

    def stop(self) -> None:
        self.is_stopping = True
        self._thread.join()
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def __str__(self) -> str:
        return type(self).__name__

    def _run_safely(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001 - raised by `stop`.
            self.failed(error)


def wait_for_more(loads: Sequence[Load], count: int = 3) -> None:
    """Return when each load succeeded so many more times: everything goes on."""
    ends = [load.count + count for load in loads]
    for load, end in zip(loads, ends, strict=True):
        load.wait_for_count(end)
