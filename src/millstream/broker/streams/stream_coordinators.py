"""All streams, at the node that coordinates them.

What streams keep is stored in one internal partition, because forks tie streams of any paths
together: a row is removed together with those that were kept only for its forks, in one put. Its
leader is the coordinator of all streams. It checks every append, and sends it to the leader of the
stream's partition (`shared_stream.py`).
"""

from __future__ import annotations

from millstream.broker.state.coordinators import CoordinatorContext, Coordinators
from millstream.broker.state.internal_partitions import STREAMS, InternalPartition
from millstream.broker.state.state_clock import StateClock
from millstream.broker.state.state_log import StateLog
from millstream.broker.streams.counters import StreamCounters
from millstream.broker.streams.expiry import ExpiryClock
from millstream.broker.streams.row import stored_dates
from millstream.broker.streams.streams import DurableStreams
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topics import Topics


class StreamCoordinators:
    """The coordinator of streams, if this node is that. Owned by one event loop."""

    def __init__(
        self,
        context: CoordinatorContext,
        topics: Topics,
        *,
        retention_clock: ExpiryClock | None,
        appends: RecordAppender | None = None,
    ) -> None:
        """Make it; without the `retention_clock` of a lone node, ages are counted in the state."""
        self._partitions = context.partitions
        self._appends = appends
        self._topics = topics
        self._clock = context.clock
        self._timers = context.timers
        self._retention_clock = retention_clock
        self.counters = StreamCounters()
        self.coordinators = Coordinators(
            STREAMS, context, self._make, index_of=lambda _path, _count: 0
        )
        self.of = self.coordinators.of
        """Returns the coordinator of a path; raises if that is not this node."""

    async def open(self) -> None:
        """Load the streams if this node coordinates them, now and after each election."""
        await self.coordinators.open()

    async def close(self) -> None:
        """Finish changes in progress, and store checkpoints, so that the next start is fast."""
        self.end_waits()
        await self.coordinators.close()

    def _make(self, state: StateLog, epoch: int) -> DurableStreams:  # noqa: ARG002
        clock = self._retention_clock or StateClock(state, self._clock, stored_dates(state.entries))
        return DurableStreams(
            state,
            self._topics,
            clock=self._clock,
            timers=self._timers,
            retention_clock=clock,
            counters=self.counters,
            appends=self._appends,
            check_leading=lambda: self._partitions.check_leading(InternalPartition(STREAMS)),
        )

    def end_waits(self) -> None:
        """Wake all waiting readers: the node is stopping."""
        for streams in self.coordinators.ready():
            streams.end_waits()

    @property
    def count(self) -> int:
        """The number of streams, on the node that coordinates them."""
        return sum(streams.count for streams in self.coordinators.ready())

    @property
    def waiting_count(self) -> int:
        """Number of readers that wait for new records."""
        return sum(streams.waiting_count for streams in self.coordinators.ready())
