"""All changes of the cluster's keys, in order and without a gap, over any number of connections.

One watch of etcd covers all keys of the cluster. When it ends, for whatever reason, it continues at
the next endpoint with the revision after the last one delivered. If etcd has compacted that
revision, all keys are listed, and the differences to what was delivered are delivered as changes:
for this the feed remembers the revisions of every key, without values.

A watch can be open and silent: its member hangs, or a device on the way forgot the connection. So
the feed is told of every revision of a key that a call has seen (`expect`), and if one is not
delivered in time, or if the member does not answer a read, the watch is opened elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from millstream.clock import Clock
from millstream.errors import MalformedAnswer, MillstreamError, NodeUnreachable
from millstream.metadata.counters import MetadataCounters
from millstream.metadata.etcd.endpoint import EtcdEndpoint
from millstream.metadata.etcd.gateway import (
    PAUSE_S,
    EtcdGateway,
    EtcdRefused,
    EtcdStream,
    stream_error,
)
from millstream.metadata.etcd.messages import (
    WatchMessage,
    WatchResult,
    changes_of,
    decoded,
    watch_request,
)
from millstream.metadata.interface import MetadataChange, MetadataList

logger = logging.getLogger(__name__)

_PAUSE_S_MAX = 1.0
"""Between two attempts to open a watch."""


class KeyRevisions(NamedTuple):
    """The revisions of a key that was delivered."""

    revision: int
    created: int


class ChangeFeed:
    """Follows the keys below a prefix, beginning after a list of them."""

    def __init__(
        self,
        gateway: EtcdGateway,
        prefix: bytes,
        listed: MetadataList,
        *,
        list_all: Callable[[], Awaitable[MetadataList]],
        probe: Callable[[], Awaitable[object]],
        on_change: Callable[[MetadataChange], None],
        on_revision: Callable[[int], None],
        clock: Clock,
        counters: MetadataCounters,
    ) -> None:
        """`probe` is a read that fails if the current endpoint does not respond."""
        self.delivered = listed.revision
        """All changes up to this revision were delivered."""
        self._gateway = gateway
        self._prefix = prefix
        self._list_all = list_all
        self._probe = probe
        self._on_change = on_change
        self._on_revision = on_revision
        self._clock = clock
        self._counters = counters
        self._known = {entry.key: KeyRevisions(*entry[2:]) for entry in listed}
        self._expected = 0
        self._expected_at: float | None = None
        self._stream: EtcdStream | None = None
        self._is_compacted = False
        self._lines = 0
        self._is_reported = False

    def expect(self, revision: int) -> None:
        """Note that a key has this revision, so a change with it has to arrive."""
        if revision > self._expected:
            self._expected = revision
            if revision > self.delivered and self._expected_at is None:
                self._expected_at = self._clock.monotonic()

    @property
    def lag_seconds(self) -> float:
        """How long a change that is known to exist has not arrived; 0 if there is none."""
        if self._expected_at is None:
            return 0.0
        return self._clock.monotonic() - self._expected_at

    def leave(self, endpoint: EtcdEndpoint) -> None:
        """Open the watch elsewhere: calls to this endpoint fail."""
        if self._stream is not None and self._stream.endpoint is endpoint:
            self._stream.close()

    async def run(self) -> None:
        """Deliver changes until this is cancelled."""
        pause = PAUSE_S
        while True:
            before = self.delivered, self._lines
            try:
                await self._follow()
            except MillstreamError as error:
                self._report(error)
            self._counters.watch_restarts += 1
            await asyncio.sleep(pause)
            has_worked = (self.delivered, self._lines) != before
            pause = PAUSE_S if has_worked else min(2 * pause, _PAUSE_S_MAX)

    def _report(self, error: MillstreamError) -> None:
        """Log why the watch ended: once, however often it cannot be opened again."""
        if not self._is_reported:
            self._is_reported = True
            logger.warning("the watch of etcd ended and is opened again: %s", error)

    async def _follow(self) -> None:
        """Deliver changes until the watch ends."""
        if self._is_compacted:
            await self._relist()
        request = watch_request(self._prefix, self.delivered + 1)
        stream = await self._gateway.stream("/v3/watch", request)
        self._stream = stream
        try:
            while not self._is_compacted:
                line = await stream.line(self._gateway.timeout_s)
                if line is None:
                    await self._check_silence(stream)
                else:
                    self._take(line, stream)
        except MillstreamError:
            self._gateway.move_on(stream.endpoint)
            raise
        finally:
            self._stream = None
            stream.close()

    async def _check_silence(self, stream: EtcdStream) -> None:
        """Raise if a watch that is silent should not be."""
        if self.lag_seconds > self._gateway.timeout_s:
            raise NodeUnreachable(
                stream.endpoint.url,
                f"revision {self._expected} did not arrive, only {self.delivered}",
            )
        await self._probe()

    def _take(self, line: bytes, stream: EtcdStream) -> None:
        message = decoded(line, WatchMessage)
        self._lines += 1
        if message.error is not None:
            error = stream_error(stream.endpoint.url, message.error)
            if isinstance(error, EtcdRefused) and error.is_stale_token:
                self._gateway.forget_token()
            raise error
        result = message.result
        if result is None:
            raise MalformedAnswer(f"watch has the line {line[:100]!r}")
        if result.compact_revision:
            self._is_compacted = True
            return
        if result.canceled:
            reason = result.cancel_reason or "the watch was cancelled"
            raise NodeUnreachable(stream.endpoint.url, reason)
        if self._is_reported:
            self._is_reported = False
            logger.info("the watch of etcd continues at %s", stream.endpoint)
        self._deliver(result)

    def _deliver(self, result: WatchResult) -> None:
        for change, created in changes_of(result, self._prefix):
            if change.revision <= self.delivered:
                raise MalformedAnswer(
                    f"watch has revision {change.revision} after revision {self.delivered}"
                )
            self._deliver_change(change, created)
        if result.events:
            # All changes of a revision are in one message.
            self._advance(result.events[-1].kv.mod_revision)
        # A message without events proves nothing: some versions of etcd (before 3.4.25 and 3.5.8)
        # report progress up to a revision before they have sent all changes up to it.

    def _deliver_change(self, change: MetadataChange, created: int) -> None:
        if change.value is None:
            self._known.pop(change.key, None)
        else:
            self._known[change.key] = KeyRevisions(change.revision, created)
        self._on_revision(change.revision)
        self._on_change(change)

    def _advance(self, revision: int) -> None:
        self.delivered = max(self.delivered, revision)
        self._on_revision(revision)
        if self._expected <= self.delivered:
            self._expected_at = None

    async def _relist(self) -> None:
        """Deliver the differences between what was delivered and what there is."""
        listed = await self._list_all()
        self._counters.relists += 1
        changes = differences(self._known, listed)
        logger.warning(
            "etcd compacted changes after revision %d before they were seen; delivering %d"
            " differences up to revision %d",
            self.delivered,
            len(changes),
            listed.revision,
        )
        self._known = {entry.key: KeyRevisions(*entry[2:]) for entry in listed}
        for change in changes:
            self._on_change(change)
        self._advance(listed.revision)
        self._is_compacted = False


def differences(
    known: Mapping[str, KeyRevisions], listed: MetadataList
) -> Sequence[MetadataChange]:
    """Return the changes that lead from the known keys to the listed ones, in order.

    When a key was deleted is not known any more. If it was created again, its deletion comes
    directly before its creation could have been; otherwise it has the revision of the list.
    """
    changes = []
    for entry in listed:
        old = known.get(entry.key)
        if old is not None and old.created != entry.created:
            changes.append(MetadataChange(entry.key, None, entry.created - 1))
        if old is None or old.revision != entry.revision:
            changes.append(MetadataChange(entry.key, entry.value, entry.revision))
    gone = known.keys() - {entry.key for entry in listed}
    changes += [MetadataChange(key, None, listed.revision) for key in sorted(gone)]
    return sorted(changes, key=lambda change: change.revision)
