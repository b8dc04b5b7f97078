"""The coordinators of one kind that run on this node: one for each internal partition it leads.

    elected ──► loading ──────────────► coordinating ──────► deposed: forgotten
                open the log, replay     requests of its      everything that waits fails, and
                it, build the state      ids are served       nothing is written any more

- A request goes to the coordinator of its id. Until that is loaded it is refused with
  `CoordinatorLoading`: an answer from a state that is not complete would be wrong ("no such
  group"). If the node does not lead the partition, it is refused with `NotCoordinator`.
- A coordinator that is deposed answers no success any more, not even for what it has decided:
  only its successor knows whether that is on enough replicas.
- If the state cannot be read, requests get the reason, and loading is tried again. On a lone node
  the start fails instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from millstream.broker.state.internal_partitions import InternalPartition, InternalPartitions
from millstream.broker.state.state_log import StateLog, state_log_config
from millstream.clock import Clock, Timers
from millstream.config.schema import LogConfig
from millstream.errors import CoordinatorLoading, MillstreamError, NotCoordinator, Unavailable
from millstream.storage.disk.executor import Executor

logger = logging.getLogger(__name__)

LOAD_RETRY_SECONDS = 5.0
"""Between attempts to read a state that could not be read."""


class Coordinator(Protocol):
    """What is loaded from one internal partition."""

    async def start(self) -> None:
        """Build the state. Nothing is asked of it before this returns."""
        ...

    def depose(self, error: MillstreamError) -> None:
        """Fail everything that waits, with `error`, and refuse everything from now on."""
        ...

    async def close(self) -> None:
        """Return when nothing of it runs any more."""
        ...


C = TypeVar("C", bound=Coordinator)

CoordinatorFactory = Callable[[StateLog, int], C]
"""Makes a coordinator from its state, which has been read, and its epoch. It is not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorContext:
    """What coordinators of all kinds need."""

    partitions: InternalPartitions
    log_config: LogConfig
    clock: Clock
    timers: Timers
    background: Executor
    """Reads the logs of their states."""


class _Term(Generic[C]):
    """One time of leading one partition."""

    def __init__(self, partition: InternalPartition, epoch: int) -> None:
        self.partition = partition
        self.epoch = epoch
        self.state: StateLog | None = None
        self.coordinator: C | None = None
        """Set when it is loaded."""
        self.failure: MillstreamError | None = None
        """Why it could not be loaded, until the next attempt."""
        self.loading: asyncio.Task[None] | None = None
        self.error: MillstreamError | None = None
        """Set when it is over."""


class Coordinators(Generic[C]):
    """The coordinators of the internal partitions of one name. Owned by one event loop."""

    def __init__(
        self,
        name: str,
        context: CoordinatorContext,
        make: CoordinatorFactory[C],
        *,
        index_of: Callable[[str, int], int],
    ) -> None:
        """Make them; `index_of` returns which of so many partitions an id belongs to."""
        self.name = name
        self.count = context.partitions.count(name)
        self._partitions = context.partitions
        self._make = make
        self._index_of = index_of
        self._log_config = state_log_config(context.log_config)
        self._clock = context.clock
        self._timers = context.timers
        self._background = context.background
        self._check_lease = context.partitions.check_lease
        self._terms: dict[int, _Term[C]] = {}
        self._closing: dict[int, asyncio.Task[None]] = {}
        """The last term of each partition that is over, until nothing of it runs any more."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # Lookup.

    def of(self, key: str) -> C:
        """Return the coordinator of an id.

        Raises `NotCoordinator` if that is another node, `CoordinatorLoading` if it is not loaded
        yet, or the reason why it cannot be loaded.
        """
        index = 0 if self.count == 1 else self._index_of(key, self.count)
        term = self._terms.get(index)
        if term is None or term.coordinator is None:
            raise self._refusal(index)
        self._check_lease()
        return term.coordinator

    def index_of(self, key: str) -> int:
        """Return the internal partition of an id."""
        return self._index_of(key, self.count)

    def is_here(self, key: str) -> bool:
        """Return whether this node coordinates an id, loaded or not."""
        return self.index_of(key) in self._terms

    def loaded(self) -> list[C]:
        """Return all coordinators of this node; raises `CoordinatorLoading` if one is not loaded.

        For lists: one that lacks what is not loaded would look complete.
        """
        for index, term in self._terms.items():
            if term.coordinator is None:
                raise self._refusal(index)
        self._check_lease()
        return list(self.ready())

    def indexed(self) -> list[tuple[int, C]]:
        """Return what `loaded` does, each with the number of its internal partition."""
        self.loaded()
        return [
            (index, term.coordinator)
            for index, term in sorted(self._terms.items())
            if term.coordinator is not None
        ]

    def check_loaded(self, indexes: Iterable[int]) -> None:
        """Raise unless this node has loaded the coordinators of these internal partitions."""
        for index in indexes:
            term = self._terms.get(index)
            if term is None or term.coordinator is None:
                raise self._refusal(index)
        self._check_lease()

    def ready(self) -> Iterator[C]:
        """Go over the coordinators that are loaded, for metrics and background work."""
        for _, term in sorted(self._terms.items()):
            if term.coordinator is not None:
                yield term.coordinator

    @property
    def loading_count(self) -> int:
        """The number of partitions that this node leads and has not loaded."""
        return sum(term.coordinator is None for term in self._terms.values())

    def failures(self) -> list[str]:
        """Describe the partitions that cannot be loaded."""
        return [
            f"{term.partition}: {term.failure}"
            for term in self._terms.values()
            if term.failure is not None
        ]

    def _refusal(self, index: int) -> MillstreamError:
        partition = InternalPartition(self.name, index)
        if (term := self._terms.get(index)) is None:
            return self._not_coordinator(partition)
        return term.failure or CoordinatorLoading(f"{partition} is being loaded")

    def _not_coordinator(self, partition: InternalPartition) -> NotCoordinator:
        leader = self._partitions.leader_of(partition)
        known = "no node leads it now" if leader < 0 else f"node {leader} leads it"
        return NotCoordinator(
            f"this node does not lead {partition}, {known}", coordinator=max(leader, -1)
        )

    # Elections.

    async def open(self) -> None:
        """Follow the elections; return when all partitions led now are loaded, or raise."""
        self._partitions.follow(self.name, self)
        for term in list(self._terms.values()):
            if term.loading is not None:
                await term.loading
            if term.failure is not None:
                raise term.failure

    def elected(self, partition: InternalPartition, epoch: int) -> None:
        """Load the coordinator of a partition. See `LeadershipListener`."""
        if self._is_closed:
            return
        self._end_term(partition)
        term: _Term[C] = _Term(partition, epoch)
        self._terms[partition.number] = term
        self._start_loading(term)

    def deposed(self, partition: InternalPartition) -> None:
        """Forget the coordinator of a partition. See `LeadershipListener`."""
        self._end_term(partition)

    def _start_loading(self, term: _Term[C]) -> None:
        term.loading = self._start_task(self._load(term))

    async def _load(self, term: _Term[C]) -> None:
        started = self._clock.monotonic()
        if (closing := self._closing.get(term.partition.number)) is not None:
            await asyncio.wait([closing])
        state: StateLog | None = None
        try:
            log = await self._partitions.open_log(term.partition, self._log_config)
            state = await StateLog.load(log, clock=self._clock, background=self._background)
            term.state = state
            if term.error is not None:  # It is over by now.
                state.fence(term.error)
            coordinator = await self._started(self._make(state, term.epoch), term.partition)
        except MillstreamError as error:
            term.state = None
            if state is not None:
                await state.close()
            self._note_failure(term, error)
            return
        except Exception:
            # Else requests would be told forever that it is being loaded.
            logger.exception("%s cannot be loaded", term.partition)
            term.state = None
            if state is not None:
                await state.close()
            self._note_failure(term, Unavailable(f"{term.partition}: internal error"))
            return
        if term.error is not None:  # It is over by now; `_end` waits for this.
            coordinator.depose(term.error)
            await coordinator.close()
            return
        term.coordinator, term.failure = coordinator, None
        seconds = self._clock.monotonic() - started
        if self.count > 1:
            logger.info(
                "%s: loaded %d entries of epoch %d in %.3f s",
                term.partition,
                len(state.entries),
                term.epoch,
                seconds,
            )

    async def _started(self, coordinator: C, partition: InternalPartition) -> C:
        try:
            await coordinator.start()
        except BaseException:
            coordinator.depose(Unavailable(f"{partition} could not be loaded"))
            await coordinator.close()
            raise
        return coordinator

    def _note_failure(self, term: _Term[C], error: MillstreamError) -> None:
        if term.error is not None:
            return
        term.failure = error
        logger.error("%s cannot be loaded: %s", term.partition, error)

        def retry() -> None:
            if term.error is None and not self._is_closed:
                self._start_loading(term)

        self._timers.call_later(LOAD_RETRY_SECONDS, retry)

    def _end_term(self, partition: InternalPartition) -> None:
        """Let a term end: from now on nothing of it is answered or written."""
        term = self._terms.pop(partition.number, None)
        if term is None:
            return
        term.error = self._not_coordinator(partition)
        if term.state is not None:
            term.state.fence(term.error)
        if term.coordinator is not None:
            term.coordinator.depose(term.error)
        closing = self._start_task(self._end(term, self._closing.get(partition.number)))
        self._closing[partition.number] = closing
        closing.add_done_callback(lambda done: self._forget_closing(partition.number, done))

    async def _end(self, term: _Term[C], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if term.loading is not None:
            await asyncio.wait([term.loading])
        if term.coordinator is not None:
            await term.coordinator.close()
        if term.state is not None:
            await term.state.close()

    def _forget_closing(self, index: int, done: asyncio.Task[None]) -> None:
        if self._closing.get(index) is done:
            del self._closing[index]

    def _start_task(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._tasks.add(task)

        def end(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            if not done.cancelled() and (error := done.exception()) is not None:
                logger.error("%s: unexpected error of a coordinator", self.name, exc_info=error)

        task.add_done_callback(end)
        return task

    # Closing.

    async def close(self) -> None:
        """Close all coordinators: what they started is completed."""
        self._is_closed = True
        self._partitions.unfollow(self.name)
        while self._tasks:
            await asyncio.wait(self._tasks)
        for coordinator in self.ready():
            await coordinator.close()
        for term in self._terms.values():
            if term.state is not None:
                await term.state.close()
