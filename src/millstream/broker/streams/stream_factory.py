"""Makes the objects of streams: those of a lone node, or those of a cluster."""

from __future__ import annotations

from collections.abc import Callable

from millstream.broker.partition.partition import Partition
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.row import StoredStream, StreamRow
from millstream.broker.streams.shared_stream import SharedStream
from millstream.broker.streams.stream import DurableStream
from millstream.broker.topics.record_appender import RecordAppender
from millstream.clock import Clock


class StreamFactory:
    """Makes the streams of one coordinator."""

    def __init__(
        self,
        state: StateLog,
        *,
        clock: Clock,
        appends: RecordAppender,
        check_leading: Callable[[], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._appends = appends
        self._check_leading = check_leading

    def make(
        self, path: str, row: StreamRow, partition: Partition, stored: StoredStream | None = None
    ) -> DurableStream:
        """Return a stream that is not open yet."""
        if partition.replica is None:
            return DurableStream(
                path, row, partition, self._state, clock=self._clock, stored=stored
            )
        return SharedStream(
            path,
            row,
            partition,
            self._state,
            clock=self._clock,
            appends=self._appends,
            check_leading=self._check_leading,
            stored=stored,
        )
