"""The transactional ids of a node: every change is stored before it takes effect.

    storing ──► durable ──► in effect ─┬─ open:    a timer will abort it
                                       ├─ ending:  markers are being written; then "complete"
                                       └─ neither: forgotten, when nobody comes for long

- A value counts when it is durable and not before. The one exception is "complete", which nobody
  waits for: a start that finds the decision instead writes the markers once more, which changes
  nothing, because records of a next transaction are only let in when that one is durable, behind
  "complete" in the same log.
- Time is measured by the monotonic clock. A transaction that is found open at the start gets its
  full timeout again, since nobody knows for how long the node was down. The wall clock says only
  for how long an id was idle before the start. If it lies, ids are forgotten early or late, and who
  comes back after that gets a producer id that nobody had.
- A value of which it is not known whether it was stored stops its id until the next start.
- What is published is stored in one put, with all that it decides (see `publishing.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.broker.transactions import state_machine as machine
from millstream.broker.transactions.fair_iteration import iterate_fairly
from millstream.broker.transactions.marker_writer import RETRY_S_MAX, MarkerWriter
from millstream.broker.transactions.publication import Publication
from millstream.broker.transactions.publication_record import (
    decode_publication,
    encode_publication,
    encode_publication_key,
    is_publication_key,
)
from millstream.broker.transactions.publications import Publications, Publisher
from millstream.broker.transactions.transaction import TransactionMetadata
from millstream.broker.transactions.transaction_record import decode, encode, encode_key
from millstream.broker.transactions.transaction_slot import TransactionSlot
from millstream.clock import Clock, Timer, Timers
from millstream.errors import (
    InvalidProducerMapping,
    LogOffline,
    MillstreamError,
    RequestError,
    Stopping,
    Unavailable,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

STORE_RETRY_SECONDS = 1.0
"""How long requests wait for markers: far above what a healthy disk takes, far below the 30 s that
clients wait for an answer."""

SWEEP_SECONDS = 3600.0
"""How often idle ids are looked for. Kafka's interval."""

SWEEP_BATCH_SIZE = 1_000
"""How many ids are forgotten at the same time, and so with few writes."""


class TransactionStore:
    """All transactional ids, and what time and the disk do to them. Lives on one event loop."""

    def __init__(
        self,
        state_log: StateLog,
        markers: MarkerWriter,
        publications: Publications,
        *,
        clock: Clock,
        timers: Timers,
        expiration_ms: int,
    ) -> None:
        self.slots: dict[str, TransactionSlot] = {}
        self.ongoing: dict[int, TransactionSlot] = {}
        """Those with a transaction open, by producer id."""
        self.publications = publications
        self._state_log = state_log
        self._markers = markers
        self._clock = clock
        self._timers = timers
        self._expiration_ms = expiration_ms
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endings: set[asyncio.Task[Any]] = set()
        self._sweeping: Timer | None = None
        self._is_closed = False

    def start(self) -> None:
        """Take up what the state log holds; what was being ended goes on in the background."""
        now_ms, now = self._clock.wall_ms(), self._clock.monotonic()
        for key, value in self._state_log.entries.items():
            if is_publication_key(key):
                self.publications.adopt(decode_publication(key, value))
                continue
            transaction = decode(key, value)
            idle_s = max(0, now_ms - transaction.update_ms) / 1000
            slot = TransactionSlot(transaction.transactional_id, idle_since=now - idle_s)
            self.slots[slot.transactional_id] = slot
            self._adopt(slot, transaction)
        self._schedule_sweep()

    async def close(self) -> None:
        """Finish what was begun, except markers: they are written after the next start."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for ending in self._endings:
            ending.cancel()
        for slot in self.slots.values():
            slot.cancel_timer()
            slot.set_settled()
        await asyncio.gather(*self._tasks, *self._endings, return_exceptions=True)

    # One event after the other.

    def slot(self, transactional_id: str) -> TransactionSlot:
        """Return what is held of an id; raises `InvalidProducerMapping` where it is not known."""
        slot = self.slots.get(transactional_id)
        if slot is None:
            raise InvalidProducerMapping(f"transactional id {transactional_id!r} is not known")
        return slot

    def slot_for(self, transactional_id: str) -> TransactionSlot:
        """Return what is held of an id, which becomes known if it is not. Take a turn at once."""
        slot = self.slots.get(transactional_id)
        if slot is None:
            slot = TransactionSlot(transactional_id, idle_since=self._clock.monotonic())
            self.slots[transactional_id] = slot
        return slot

    @asynccontextmanager
    async def turn(self, slot: TransactionSlot) -> AsyncIterator[TransactionSlot]:
        """Wait until nothing else happens to the id, and its last transaction has `settle`d."""
        with self._use(slot):
            async with slot.turn:
                await self.settle(slot)
                self._check_usable(slot)
                yield slot

    @asynccontextmanager
    async def turns(self, slots: Sequence[TransactionSlot]) -> AsyncIterator[None]:
        """Wait for the turns of many, which must be sorted by id: so no two wait for each other."""
        async with AsyncExitStack() as stack:
            for slot in slots:  # None of them goes while others are waited for.
                stack.enter_context(self._use(slot))
            async for slot in iterate_fairly(slots):
                await stack.enter_async_context(self.turn(slot))
            yield

    @contextmanager
    def _use(self, slot: TransactionSlot) -> Iterator[None]:
        slot.users += 1
        try:
            yield
        finally:
            slot.users -= 1
            is_held = self.slots.get(slot.transactional_id) is slot
            if slot.users == 0 and slot.transaction is None and is_held:
                del self.slots[slot.transactional_id]

    async def settle(self, slot: TransactionSlot) -> None:
        """Return when the id's transaction has ended, or when that takes too long."""
        if slot.settled is not None:
            await asyncio.shield(slot.settled)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` to its end, even if whoever asked for it stops waiting."""
        if self._is_closed:
            work.close()
            raise Stopping("the node is stopping")
        return await asyncio.shield(_spawn(work, self._tasks))

    def _check_usable(self, slot: TransactionSlot) -> None:
        if self._is_closed:
            raise Stopping("the node is stopping")
        if slot.is_uncertain:
            raise LogOffline(
                f"transactional id {slot.transactional_id!r}: storing it failed, and what the disk"
                " holds shows only when the node is started again"
            )

    # What is stored, and what follows from it.

    async def store(self, slot: TransactionSlot, transaction: TransactionMetadata) -> None:
        """Make a new value durable, then let it take effect. Needs the turn."""
        if transaction is not slot.transaction:
            await self._put(slot, encode(transaction))
            slot.idle_since = self._clock.monotonic()
            self._adopt(slot, transaction)

    async def store_published(
        self,
        publisher: Publisher,
        publication: Publication,
        decided: Mapping[TransactionSlot, TransactionMetadata],
    ) -> None:
        """Make a publication and all that it decides durable, or nothing; then let it take effect.

        Needs the turns of the publisher and of all slots.
        """
        entries: list[StateEntry] = [
            (encode_key(slot.transactional_id), encode(transaction))
            async for slot, transaction in iterate_fairly(decided.items())
        ]
        key = encode_publication_key(publisher.name)
        entries.append((key, encode_publication(publication)))
        await self._put_all(entries, [*decided, publisher])
        publisher.publication = publication
        async for slot, transaction in iterate_fairly(decided.items(), _marker_count):
            slot.idle_since = self._clock.monotonic()
            self._adopt(slot, transaction)

    async def _put(self, slot: TransactionSlot, value: bytes | None) -> None:
        await self._put_all([(encode_key(slot.transactional_id), value)], [slot])

    async def _put_all(
        self, entries: Sequence[StateEntry], owners: Sequence[TransactionSlot | Publisher]
    ) -> None:
        """Make entries durable, all or none; where that is not known, their owners have to stop."""
        try:
            await self._state_log.put(entries)
        except (Unavailable, RequestError):
            raise  # Nothing was written.
        except MillstreamError:
            for owner in owners:
                owner.is_uncertain = True
                if isinstance(owner, TransactionSlot):
                    self._forget_ongoing(owner)
            raise

    def _adopt(self, slot: TransactionSlot, transaction: TransactionMetadata) -> None:
        """Have a value take effect, with all that time and markers are to do from now on."""
        self._forget_ongoing(slot)
        slot.transaction = transaction
        if transaction.is_ongoing:
            self.ongoing[transaction.producer.id] = slot
        else:
            slot.cancel_timer()
        if self._is_closed:
            return
        if transaction.is_ongoing and slot.timer is None:
            self._set_timer(slot, transaction.timeout_ms / 1000)
        if transaction.is_ending:
            slot.settled = asyncio.get_running_loop().create_future()
            slot.unmarked = set(transaction.partitions)
            _spawn(self._end(slot, transaction), self._endings)

    def _forget_ongoing(self, slot: TransactionSlot) -> None:
        if slot.transaction is not None and slot.transaction.is_ongoing:
            self.ongoing.pop(slot.transaction.producer.id, None)

    async def _end(self, slot: TransactionSlot, transaction: TransactionMetadata) -> None:
        """Write the markers, then complete. Needs no turn: while it goes on, nothing else can."""
        patience = self._timers.call_later(STORE_RETRY_SECONDS, slot.set_settled)
        try:
            await self._markers.write(transaction, slot.unmarked)
        finally:
            patience.cancel()
        completed = machine.complete(transaction, now_ms=self._clock.wall_ms())
        self._adopt(slot, completed)
        slot.idle_since = self._clock.monotonic()
        slot.set_settled()
        slot.settled = None
        _spawn(self._put(slot, encode(completed)), self._tasks)
        if slot.is_leaving:
            slot.is_leaving = False
            _spawn(self._leave(slot), self._tasks)

    # What time does.

    def _set_timer(self, slot: TransactionSlot, seconds: float) -> None:
        def due() -> None:
            _spawn(self._time_out(slot, timer), self._tasks)

        timer = slot.timer = self._timers.call_later(seconds, due)

    async def _time_out(self, slot: TransactionSlot, timer: Timer) -> None:
        async with self.turn(slot):
            if slot.timer is not timer or slot.transaction is None:
                return  # It ended while this waited for its turn.
            logger.info("%r: the transaction timed out", slot.transactional_id)
            transaction = machine.time_out(slot.transaction, now_ms=self._clock.wall_ms())
            try:
                await self.store(slot, transaction)
            except Unavailable as error:
                logger.warning("%r: not aborted yet: %s", slot.transactional_id, error)
                self._set_timer(slot, RETRY_S_MAX)

    def _schedule_sweep(self) -> None:
        def due() -> None:
            self._schedule_sweep()
            _spawn(self._sweep(), self._tasks)

        expiration_ms = min(self._expiration_ms, self.publications.expiration_ms)
        seconds = min(SWEEP_SECONDS, expiration_ms / 1000)
        self._sweeping = self._timers.call_later(seconds, due)

    def _is_expired(self, slot: TransactionSlot) -> bool:
        idle_ms = (self._clock.monotonic() - slot.idle_since) * 1000
        return slot.is_idle and not slot.is_uncertain and idle_ms > self._expiration_ms

    async def _sweep(self) -> None:
        """Forget ids and publishers that were not used for long."""
        expired = [slot for slot in self.slots.values() if self._is_expired(slot)]
        for start in range(0, len(expired), SWEEP_BATCH_SIZE):
            await asyncio.gather(*map(self._forget, expired[start : start + SWEEP_BATCH_SIZE]))
        names = self.publications.expired()
        for start in range(0, len(names), SWEEP_BATCH_SIZE):
            await asyncio.gather(
                *map(self._forget_publisher, names[start : start + SWEEP_BATCH_SIZE])
            )

    async def _forget(self, slot: TransactionSlot) -> None:
        async with self.turn(slot):
            if self._is_expired(slot):
                await self._remove(slot)

    async def _remove(self, slot: TransactionSlot) -> None:
        """Forget an id. Needs the turn."""
        try:
            await self._put(slot, None)
        except MillstreamError as error:
            logger.warning("%r: not forgotten yet: %s", slot.transactional_id, error)
        else:
            slot.transaction = None

    async def _forget_publisher(self, name: str) -> None:
        async with self.publications.turn(name) as publisher:
            if not self.publications.is_expired(publisher):
                return
            try:
                await self._put_all([(encode_publication_key(name), None)], [publisher])
            except MillstreamError as error:
                logger.warning("publisher %r: not forgotten yet: %s", name, error)
            else:
                publisher.publication = None

    # What nobody comes back for.

    async def leave(self, slots: Collection[TransactionSlot]) -> None:
        """Forget ids whose transactions have ended, and others as soon as theirs have.

        Those for which somebody came back stay. What cannot be forgotten now is, when it was idle
        for long enough.
        """
        gone = []
        for slot in sorted(slots, key=lambda slot: slot.transactional_id):
            if slot.transaction is not None and slot.transaction.is_ending:
                slot.is_leaving = True
            else:
                gone.append(slot)
        for start in range(0, len(gone), SWEEP_BATCH_SIZE):
            await asyncio.gather(*map(self._leave, gone[start : start + SWEEP_BATCH_SIZE]))

    async def _leave(self, slot: TransactionSlot) -> None:
        try:
            async with self.turn(slot):
                if slot.transaction is not None and slot.transaction.is_complete:
                    await self._remove(slot)
        except MillstreamError as error:
            logger.info("%r: not forgotten yet: %s", slot.transactional_id, error)


def _marker_count(decided: tuple[TransactionSlot, TransactionMetadata]) -> int:
    return len(decided[1].partitions)


def _spawn(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """Begin `work`, and keep it among `tasks` until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def end(done: asyncio.Task[T]) -> None:
        tasks.discard(done)
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, MillstreamError):
            logger.error("a transaction cannot go on", exc_info=error)

    task.add_done_callback(end)
    return task
