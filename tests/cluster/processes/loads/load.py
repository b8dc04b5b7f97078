"""What all loads have in common: a thread, a count of what succeeded, the first failure."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

from tests.cluster.processes.reading import WAIT_SECONDS


class Load(ABC):
    """A client that works in a thread until it is stopped, over all failures of nodes."""

    def __init__(self) -> None:
        self.count = 0
        """How often it succeeded so far."""
        self.is_stopping = False
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
    def check(self) -> None:
        """Compare what the load was told with what a reader sees. Called after `stop`."""

    def succeeded(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def wait_for_count(self, count: int) -> None:
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: self.count >= count or self._failure is not None, WAIT_SECONDS
            )
        self.raise_failure()
        assert is_there, f"{self} succeeded {self.count} times, {count} were expected"

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
        except Exception as error:  # noqa: BLE001 - told to the test.
            self.failed(error)


def wait_for_more(loads: Sequence[Load], count: int = 3) -> None:
    """Return when each load succeeded so many more times: everything goes on."""
    ends = [load.count + count for load in loads]
    for load, end in zip(loads, ends, strict=True):
        load.wait_for_count(end)
