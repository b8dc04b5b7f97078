"""The keys of an issuer as a node has them: read from a file or an address, and again.

Keys are replaced at the issuer without notice. So they are read again from time to time, and when
a JWT was signed by a key that is not known; the latter not more often than every ten seconds,
because anyone can send a JWT with an unknown key. If they cannot be read, the former ones stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from millstream.broker.access.counters import AccessCounters
from millstream.broker.access.jwt.key_set import KeySet, read_key_set
from millstream.clock import Clock, Timer, Timers
from millstream.config.schema import OAuthConfig
from millstream.errors import InvalidConfig, MillstreamError, Unavailable
from millstream.http1.outbound import OutboundClient

logger = logging.getLogger(__name__)

SIZE_MAX = 512 * 1024
FETCH_SECONDS_MAX = 10.0
READ_SECONDS_MIN = 10.0
"""Least time between two attempts to read the keys."""


class IssuerKeys:
    """The present keys of an issuer. Used on one event loop."""

    def __init__(
        self,
        config: OAuthConfig,
        outbound: OutboundClient,
        *,
        clock: Clock,
        timers: Timers,
        counters: AccessCounters,
    ) -> None:
        """Check the settings; read nothing yet."""
        self._config = config
        self._outbound = outbound
        self._clock = clock
        self._timers = timers
        self._counters = counters
        self._tried_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self.keys = KeySet()
        self.on_change: Callable[[], None] = lambda: None
        """Called when there are other keys than before."""
        if config.jwks_url is not None:
            outbound.check(config.jwks_url)

    async def open(self) -> None:
        """Read the keys. A file must be readable; an address may be tried again later."""
        if self._config.jwks_file is not None:
            await self._read()
        else:
            self.refresh()
        self._set_timer()

    def close(self) -> None:
        """Read no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reading is not None:
            self._reading.cancel()

    def refresh(self) -> asyncio.Task[None] | None:
        """Begin to read the keys again, unless that was tried a moment ago; return the task."""
        if self._reading is None:
            now = self._clock.monotonic()
            if self._tried_at is not None and now - self._tried_at < READ_SECONDS_MIN:
                return None
            self._tried_at = now
            self._reading = asyncio.get_running_loop().create_task(self._try())
        return self._reading

    async def refreshed(self) -> None:
        """Return when the keys were read again, or could not be."""
        if (reading := self.refresh()) is not None:
            await asyncio.shield(reading)

    async def _try(self) -> None:
        try:
            await self._read()
        except MillstreamError as error:
            logger.warning("keys of the issuer cannot be read: %s", error)
        finally:
            self._reading = None

    async def _read(self) -> None:
        try:
            keys = read_key_set(await self._load())
        except MillstreamError:
            self._counters.key_reads["failed"] += 1
            raise
        self._counters.key_reads["read"] += 1
        if [key.id for key in keys.keys] != [key.id for key in self.keys.keys]:
            logger.info("the issuer has %d keys", len(keys.keys))
        self.keys = keys
        self.on_change()

    async def _load(self) -> bytes:
        config = self._config
        if config.jwks_file is not None:
            return await asyncio.to_thread(_read_file, config.jwks_file)
        assert config.jwks_url is not None
        return await self._outbound.get(
            config.jwks_url, size_max=SIZE_MAX, seconds_max=FETCH_SECONDS_MAX
        )

    def _set_timer(self) -> None:
        self._timer = self._timers.call_later(self._config.refresh_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self.refresh()
        self._set_timer()


def _read_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"oauth.jwks_file cannot be read: {path}: {error.strerror}") from error
    if len(data) > SIZE_MAX:
        raise Unavailable(f"{path} has more than {SIZE_MAX} bytes")
    return data
