"""Store of a coordinator's transactional ids: every change is durable before it takes effect.

    store ──► durable ──► in effect ─┬─ open:    a timer will abort it
                                     ├─ ending:  markers are being written; then "complete"
                                     └─ neither: forgotten after a long idle time

- A value counts once it is durable and not before. The one exception is "complete", which nobody
  waits for: a start that finds the decision instead writes the markers once more. That changes
  nothing, because records of the next transaction are only admitted once that is durable, behind
  "complete" in the same log.
- Time is measured by the monotonic clock. The timeout of a transaction counts from its start, by
  the clock of the coordinator, also over restarts. That clock is stored while transactions are
  open; what it does not know of does not count. The wall clock only says how long an
  id was idle before the start. If it is wrong, ids are forgotten early or late, and a client that
  comes back after that gets a fresh producer id.
- If it is unknown whether a value was stored, its id is unusable until the next start.
- A publication is stored in one put, with all its decisions (see `transaction_publisher.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from millstream.broker.fair_iteration import iterate_fairly
from millstream.broker.state.state_clock import CLOCK_KEY
from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.broker.transactions import state_machine
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
    NotCoordinatorAnymore,
    RequestError,
    Stopping,
    Unavailable,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

MARKERS_WAIT_SECONDS = 1.0
"""How long requests wait for markers: far longer than a healthy disk needs, far shorter than the 30
s that clients wait for a response."""

SWEEP_SECONDS = 3600.0
"""How often idle ids are searched for. Kafka's interval."""

CLOCK_SECONDS = 10.0
"""How often the clock of the coordinator is stored while transactions are open: at most as much is
added to their time by a restart."""

SWEEP_BATCH_SIZE = 1_000
"""How many ids are forgotten at the same time, and so with few writes."""


class TransactionStore:
    """All transactional ids, with their timers and stored values. One event loop owns it."""

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
        """Slots with an open transaction, by producer id."""
        self.publications = publications
        self._state_log = state_log
        self._markers = markers
        self._clock = clock
        self._timers = timers
        self._expiration_ms = expiration_ms
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endings: set[asyncio.Task[Any]] = set()
        self._sweeping: Timer | None = None
        self._clock_timer: Timer | None = None
        """While transactions are open: stores the clock of the coordinator."""
        self._refusal: MillstreamError | None = None
        """Why requests are refused, once they are."""
        self._is_deposed = False

    async def start(self) -> None:
        """Load the state log; transactions that were ending continue in the background.

        Other work of the event loop runs in between. Serve no request before this returns.
        """
        now_ms, now = self._clock.wall_ms(), self._clock.monotonic()
        async for key, value in iterate_fairly(list(self._state_log.entries.items())):
            if is_publication_key(key):
                self.publications.load(decode_publication(key, value))
                continue
            if key == CLOCK_KEY:
                continue
            transaction = decode(key, value)
            idle_s = max(0, now_ms - transaction.update_ms) / 1000
            slot = TransactionSlot(transaction.transactional_id, idle_since=now - idle_s)
            self.slots[slot.transactional_id] = slot
            self._apply(slot, transaction, is_restored=True)
        self._schedule_sweep()

    async def close(self) -> None:
        """Complete what was started, except for markers: they are written after the next start."""
        self.stop(Stopping("the node is stopping"))
        await asyncio.gather(*self._tasks, *self._endings, return_exceptions=True)

    def stop(self, refusal: MillstreamError) -> None:
        """Refuse requests, and stop writing markers."""
        if self._refusal is not None:
            return
        self._refusal = refusal
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._clock_timer is not None:
            self._clock_timer.cancel()
        for ending in self._endings:
            ending.cancel()
        for slot in self.slots.values():
            slot.cancel_timer()
            slot.set_settled()

    def depose(self, error: MillstreamError) -> None:
        """Do the same because this node is not the coordinator any more."""
        self._is_deposed = True
        self.stop(error)

    def check_led(self) -> None:
        """Raise if this node is not the coordinator any more, so that its state is outdated."""
        if self._is_deposed and self._refusal is not None:
            raise self._refusal

    # Locking.

    def slot(self, transactional_id: str) -> TransactionSlot:
        """Return the slot of an id; raises `InvalidProducerMapping` if it is unknown."""
        slot = self.slots.get(transactional_id)
        if slot is None:
            raise InvalidProducerMapping(f"transactional id {transactional_id!r} is unknown")
        return slot

    def slot_for(self, transactional_id: str) -> TransactionSlot:
        """Return the slot of an id, which is created if necessary. Lock it at once."""
        slot = self.slots.get(transactional_id)
        if slot is None:
            slot = TransactionSlot(transactional_id, idle_since=self._clock.monotonic())
            self.slots[transactional_id] = slot
        return slot

    @asynccontextmanager
    async def lock(self, slot: TransactionSlot) -> AsyncIterator[TransactionSlot]:
        """Hold an id for one event, once its last transaction has settled."""
        with self._use(slot):
            async with slot.lock:
                await self.settle(slot)
                self._check_usable(slot)
                yield slot

    @asynccontextmanager
    async def lock_all(self, slots: Sequence[TransactionSlot]) -> AsyncIterator[None]:
        """Hold many ids, which must be sorted, so that no two callers wait for each other."""
        async with AsyncExitStack() as stack:
            for slot in slots:  # None of them is removed while others are waited for.
                stack.enter_context(self._use(slot))
            async for slot in iterate_fairly(slots):
                await stack.enter_async_context(self.lock(slot))
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

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if the caller stops waiting."""
        if self._refusal is not None:
            work.close()
            raise self._refusal
        result = await asyncio.shield(_spawn(work, self._tasks))
        if self._is_deposed:  # Only the next coordinator knows whether it took effect.
            raise NotCoordinatorAnymore(str(self._refusal))
        return result

    def _check_usable(self, slot: TransactionSlot) -> None:
        if self._refusal is not None:
            raise self._refusal
        if slot.is_uncertain:
            raise LogOffline(
                f"transactional id {slot.transactional_id!r} could not be stored; its state on the"
                " disk is unknown until the node restarts"
            )

    # Storing.

    async def save(self, slot: TransactionSlot, transaction: TransactionMetadata) -> None:
        """Make a new value durable, then apply it. Requires the lock."""
        if transaction is not slot.transaction:
            await self._put(slot, encode(transaction))
            slot.idle_since = self._clock.monotonic()
            self._apply(slot, transaction)

    async def save_published(
        self,
        publisher: Publisher,
        publication: Publication,
        decided: Mapping[TransactionSlot, TransactionMetadata],
    ) -> None:
        """Make a publication and all its decisions durable, or nothing; then apply them.

        Requires the locks of the publisher and of all slots.
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
            self._apply(slot, transaction)

    async def _put(self, slot: TransactionSlot, value: bytes | None) -> None:
        await self._put_all([(encode_key(slot.transactional_id), value)], [slot])

    async def _put_all(
        self, entries: Sequence[StateEntry], owners: Sequence[TransactionSlot | Publisher]
    ) -> None:
        """Make entries durable, all or none; if that is unknown, mark their owners as uncertain."""
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

    def _apply(
        self, slot: TransactionSlot, transaction: TransactionMetadata, *, is_restored: bool = False
    ) -> None:
        """Put a value into effect: set its timer, or start to write its markers."""
        self._forget_ongoing(slot)
        slot.transaction = transaction
        if transaction.is_ongoing:
            self.ongoing[transaction.producer.id] = slot
        else:
            slot.cancel_timer()
        if self._refusal is not None:
            return
        if transaction.is_ongoing and slot.timer is None:
            left_ms = state_machine.time_left_ms(
                transaction, age_ms=self.age_ms(transaction), is_restored=is_restored
            )
            self._set_timer(slot, left_ms / 1000)
            if self._clock_timer is None:
                self._schedule_clock()
        if transaction.is_ending:
            slot.settled = asyncio.get_running_loop().create_future()
            slot.unmarked = set(transaction.partitions)
            _spawn(self._end(slot, transaction), self._endings)

    def _forget_ongoing(self, slot: TransactionSlot) -> None:
        if slot.transaction is not None and slot.transaction.is_ongoing:
            self.ongoing.pop(slot.transaction.producer.id, None)

    async def _end(self, slot: TransactionSlot, transaction: TransactionMetadata) -> None:
        """Write the markers, then complete. Requires no lock: until then no event is admitted."""
        deadline = self._timers.call_later(MARKERS_WAIT_SECONDS, slot.set_settled)
        try:
            await self._markers.write(transaction, slot.unmarked)
        finally:
            deadline.cancel()
        completed = state_machine.complete(transaction, now_ms=self._clock.wall_ms())
        self._apply(slot, completed)
        slot.idle_since = self._clock.monotonic()
        slot.set_settled()
        slot.settled = None
        _spawn(self._put(slot, encode(completed)), self._tasks)
        if slot.must_forget:
            slot.must_forget = False
            _spawn(self._forget_ended(slot), self._tasks)

    # Timeouts and expiration.

    def age_ms(self, transaction: TransactionMetadata) -> int:
        """Return how long ago a transaction began, at least."""
        if transaction.begun_ms < 0:
            return 0
        return self.publications.age_of(transaction.begun_ms)

    def renew(self, prefix: str, duration_ms_max: int) -> int:
        """Start the timeouts of open transactions below a prefix again; return their number."""
        if self._refusal is not None:
            raise self._refusal
        count = 0
        for slot in self.ongoing.values():
            if not slot.transactional_id.startswith(prefix) or slot.timer is None:
                continue
            assert slot.transaction is not None, "it is open"
            left_ms = state_machine.renewed_ms(
                slot.transaction,
                age_ms=self.age_ms(slot.transaction),
                duration_ms_max=duration_ms_max,
            )
            slot.cancel_timer()
            self._set_timer(slot, left_ms / 1000)
            count += 1
        return count

    def _schedule_clock(self) -> None:
        def due() -> None:
            self._clock_timer = None
            if self.ongoing:
                self._schedule_clock()
                _spawn(self._save_clock(), self._tasks)

        self._clock_timer = self._timers.call_later(CLOCK_SECONDS, due)

    async def _save_clock(self) -> None:
        try:
            await self.publications.save_clock()
        except MillstreamError as error:  # Transactions and publications live longer.
            logger.warning("the clock of the coordinator was not stored: %s", error)

    def _set_timer(self, slot: TransactionSlot, seconds: float) -> None:
        def due() -> None:
            _spawn(self._time_out(slot, timer), self._tasks)

        timer = slot.timer = self._timers.call_later(seconds, due)

    async def _time_out(self, slot: TransactionSlot, timer: Timer) -> None:
        async with self.lock(slot):
            if slot.timer is not timer or slot.transaction is None:
                return  # It ended while this waited for the lock.
            logger.info("transactional id %r: the transaction timed out", slot.transactional_id)
            transaction = state_machine.time_out(slot.transaction, now_ms=self._clock.wall_ms())
            try:
                await self.save(slot, transaction)
            except Unavailable as error:
                logger.warning(
                    "transactional id %r: cannot abort the transaction yet: %s",
                    slot.transactional_id,
                    error,
                )
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
        """Forget ids and publishers that have not been used for a long time."""
        await self._save_clock()
        expired = [slot for slot in self.slots.values() if self._is_expired(slot)]
        for start in range(0, len(expired), SWEEP_BATCH_SIZE):
            await asyncio.gather(*map(self._forget, expired[start : start + SWEEP_BATCH_SIZE]))
        names = self.publications.expired()
        for start in range(0, len(names), SWEEP_BATCH_SIZE):
            await asyncio.gather(
                *map(self._forget_publisher, names[start : start + SWEEP_BATCH_SIZE])
            )

    async def _forget(self, slot: TransactionSlot) -> None:
        async with self.lock(slot):
            if self._is_expired(slot):
                await self._remove(slot)

    async def _remove(self, slot: TransactionSlot) -> None:
        """Forget an id. Requires the lock."""
        try:
            await self._put(slot, None)
        except MillstreamError as error:
            logger.warning(
                "transactional id %r: cannot be removed yet: %s", slot.transactional_id, error
            )
        else:
            slot.transaction = None

    async def _forget_publisher(self, name: str) -> None:
        async with self.publications.lock(name) as publisher:
            if not self.publications.is_expired(publisher):
                return
            try:
                await self._put_all([(encode_publication_key(name), None)], [publisher])
            except MillstreamError as error:
                logger.warning("publisher %r: cannot be removed yet: %s", name, error)
            else:
                publisher.publication = None

    # Ids that are not used again.

    async def forget_ended(self, slots: Collection[TransactionSlot]) -> None:
        """Forget ids whose transactions have ended, and the others once theirs have.

        Ids that are in use again are kept. Those that cannot be forgotten now expire like any idle
        id.
        """
        ended = []
        for slot in sorted(slots, key=lambda slot: slot.transactional_id):
            if slot.transaction is not None and slot.transaction.is_ending:
                slot.must_forget = True
            else:
                ended.append(slot)
        for start in range(0, len(ended), SWEEP_BATCH_SIZE):
            await asyncio.gather(*map(self._forget_ended, ended[start : start + SWEEP_BATCH_SIZE]))

    async def _forget_ended(self, slot: TransactionSlot) -> None:
        try:
            async with self.lock(slot):
                if slot.transaction is not None and slot.transaction.is_complete:
                    await self._remove(slot)
        except MillstreamError as error:
            logger.info(
                "transactional id %r: cannot be removed yet: %s", slot.transactional_id, error
            )


def _marker_count(decided: tuple[TransactionSlot, TransactionMetadata]) -> int:
    return len(decided[1].partitions)


def _spawn(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[T]:
    """Start `work`, and keep it in `tasks` until it is done."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def end(done: asyncio.Task[T]) -> None:
        tasks.discard(done)
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, MillstreamError):
            logger.error(
                "unexpected error in a background task of the transaction store", exc_info=error
            )

    task.add_done_callback(end)
    return task
