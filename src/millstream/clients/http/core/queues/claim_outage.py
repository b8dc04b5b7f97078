"""Claims of a worker that fail in a row: how long it pauses, and what it logs. Does no I/O.

A claim that may have been executed is not repeated by the call itself, so its error reaches the
worker at once. A worker that claimed again at once would do so as fast as it can while connections
are reset.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from millstream.clients.http.core.attempts import Pauses
from millstream.clients.http.core.config import ClientConfig
from millstream.errors import MillstreamError

logger = logging.getLogger(__name__)


class ClaimOutage:
    """The failed claims of a worker since the last one that succeeded."""

    def __init__(self, queue: str, config: ClientConfig, *, jitter: Callable[[], float]) -> None:
        self._queue = queue
        self._config = config
        self._jitter = jitter
        self._pauses = Pauses(config, jitter=jitter)
        self._failures = 0

    def failed(self, error: MillstreamError) -> float:
        """Note that a claim failed; return how long to wait before the next one, in seconds."""
        self._failures += 1
        # One warning per outage: all others would say the same.
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        logger.log(level, "claim from queue %s failed: %s", self._queue, error)
        pause_s = self._pauses.draw_s()
        self._pauses.grow()
        return pause_s

    def succeeded(self) -> None:
        """Note that a claim succeeded: the outage is over if there was one."""
        if self._failures:
            logger.info(
                "claims from queue %s succeed again after %d that failed",
                self._queue,
                self._failures,
            )
            self._failures = 0
            self._pauses = Pauses(self._config, jitter=self._jitter)
