"""No event between two fetches is lost: leader and follower of many partitions, simulated.

A leader's `FetchServer` and a follower's `ReplicaFetcher` run against logs in memory. What they do
at times for safety, to look at everything, never happens here, and no fetch ends because it has
waited. So a partition that is not looked at after an event stays behind, and the test sees
it. A seed decides what happens, and in which order.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.epochs import EpochHistory
from millstream.cluster.follower import FollowerReplica
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.leader import LeaderReplica
from millstream.cluster.lease import LeaseBelief
from millstream.cluster.replication import fetch_server, replica_fetcher
from millstream.cluster.replication.fetch_server import FetchServer
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicationCounters
from millstream.cluster.replication.replica_fetcher import ReplicaFetcher, _requested
from millstream.cluster.replication_state import IsrMember, ReplicationState
from millstream.errors import DiskFull, OutcomeUnknown, Unavailable
from millstream.protocols.peer.messages.peer_fetch import PeerFetchResponse
from millstream.records.batch import stamp
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.append.pending_append import Appended, AppendWaiter
from millstream.storage.segment.replica_slice import ReplicaPosition, ReplicaSlice
from tests.in_loop import in_loop

LEADER, FOLLOWER = 1, 2
PARTITIONS = 6
BATCH = build_batch([Record(value=b"v" * 20)], now_ms=0)
SIZE = len(BATCH)
DAY = 24 * 3600.0


class MemoryLog:
    """A log of batches with one record each; a segment for each epoch. Is its own `replication`."""

    def __init__(self, on_write: Callable[[Callable[[], None]], None]) -> None:
        self._on_write = on_write
        self.epochs: list[int] = []
        """Of each batch."""
        self.epoch = 0
        """In which the leader appends."""
        self.durable_offset = 0
        self.end_offset = 0
        self.refuses = False
        """Whether the next slice is refused."""
        self.fails = False
        """Whether the next slice is admitted, and not written."""
        self.offline = None
        self.start_offset = self.first_offset = 0
        self.cleaned_offset = self.tombstones_removed = self.eviction_floor = 0
        self.eviction_reason = ""
        self.replication = self

    @property
    def written_offset(self) -> int:
        return len(self.epochs)

    @property
    def partition(self) -> SimpleNamespace:
        known = dict.fromkeys(self.epochs[: self.durable_offset])
        starts = [SimpleNamespace(number=n, start_offset=self.epochs.index(n)) for n in known]
        return SimpleNamespace(epochs=starts)

    def base_of(self, offset: int) -> int:
        return self.epochs.index(self.epochs[offset]) if offset < len(self.epochs) else offset

    @property
    def segments(self) -> list[SimpleNamespace]:
        bases = dict.fromkeys(map(self.base_of, range(len(self.epochs))))
        return [SimpleNamespace(base_offset=base) for base in bases]

    @property
    def position(self) -> ReplicaPosition:
        end = len(self.epochs)
        base = self.base_of(end - 1) if end else -1
        return ReplicaPosition(end, base, (end - base) * SIZE if end else 0)

    def accepts_replica(self, *_: int) -> bool:
        return True

    def set_high_watermark(self, offset: int) -> bool:
        is_more, self.end_offset = offset > self.end_offset, offset
        return is_more

    def read(self, offset: int, *, size_max: int = SIZE, is_durable: bool = True) -> ReplicaSlice:
        assert not is_durable or offset < self.durable_offset
        epoch, base = self.epochs[offset], self.base_of(offset)
        of_segment = base + self.epochs.count(epoch)
        end = min(of_segment, offset + max(1, size_max // SIZE))
        data = b"".join(
            stamp(BATCH, base_offset=number, leader_epoch=epoch) for number in range(offset, end)
        )
        return ReplicaSlice(
            leader_epoch=epoch,
            segment=base,
            position=(offset - base) * SIZE,
            offset=offset,
            next_offset=end,
            data=data,
            is_last_of_segment=end == of_segment and epoch < self.epoch,
        )

    def submit(self, source: ReplicaSlice, waiter: AppendWaiter) -> None:
        if self.refuses:
            self.refuses = False
            raise DiskFull("no space left on the disk")
        before = len(self.epochs)
        assert source.offset == before
        assert source.position == 0 or source.segment == self.position.segment
        self.epochs += [source.leader_epoch] * (source.next_offset - source.offset)
        fails, self.fails = self.fails, False

        def end() -> None:
            if fails:
                del self.epochs[before:]
                waiter.set_exception(Unavailable("the slice was not written"))
            else:
                self.durable_offset = source.next_offset
                waiter.set_result(Appended(source.offset, source.next_offset - 1, None))

        if source.data:
            self._on_write(end)
        else:
            waiter.set_result(Appended(source.offset, source.offset - 1, None))


class Simulation:
    """Two nodes; node 1 leads all partitions, and node 2 follows them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keys = [PartitionId(uuid.UUID(int=n), 0) for n in range(1, PARTITIONS + 1)]
        self.life = 10
        self.writes: list[Callable[[], None]] = []
        """What ends the writes of the follower that are in flight."""
        self.reads: list[asyncio.Future[None]] = []
        self.calls: list[asyncio.Future[PeerFetchResponse]] = []
        """Fetches that wait for the leader."""
        self.states: dict[PartitionId, ReplicationState] = {}
        self.leaders: dict[PartitionId, LocalReplica] = {}
        self.followers: dict[PartitionId, LocalReplica] = {}
        self.followed: set[PartitionId] = set()
        self.is_cut = False
        self.clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        self.lease = LeaseBelief(DAY)
        self.lease.renewed(self.clock.monotonic())
        self.membership = SimpleNamespace(broker_epoch=self.life)
        self.state = SimpleNamespace(partitions=dict[PartitionId, ReplicationState]())
        self.server = self._new_server()
        for key in self.keys:
            self.states[key] = ReplicationState(
                leader=LEADER,
                leader_broker_epoch=1,
                leader_epoch=0,
                isr=(IsrMember(LEADER, 1), IsrMember(FOLLOWER, self.life)),
                replicas=(LEADER, FOLLOWER),
                revision=1,
            )
            self.leaders[key] = self._new_replica(LEADER, key)
            self.lead(key)
            self.followers[key] = self._new_replica(FOLLOWER, key)
        self.fetcher = ReplicaFetcher(
            LEADER,
            cast("Any", self._context(FOLLOWER)),
            cast("Any", self),
            lambda: {k: r for k, r in self.followers.items() if k in self.followed},
            lambda _: None,
        )
        for key in self.keys:
            self.follow(key)

    def _context(self, node_id: int) -> SimpleNamespace:
        return SimpleNamespace(
            node_id=node_id,
            clock=self.clock,
            counters=ReplicationCounters(),
            membership=self.membership,
            state=self.state,
            high_watermarks={},
        )

    def _new_server(self) -> FetchServer:
        background = SimpleNamespace(run=self._read_later)
        context = cast("Any", self._context(LEADER))
        return FetchServer(context, self.leaders, cast("Any", background))

    async def _read_later(self, read: Callable[[], Any]) -> Any:
        waiting = asyncio.get_running_loop().create_future()
        self.reads.append(waiting)
        await waiting
        return read()

    def _new_replica(self, node_id: int, key: PartitionId) -> LocalReplica:
        producers = SimpleNamespace(add=id, truncate=id, commit=lambda *_: None)
        log = MemoryLog(self.writes.append)
        partition = SimpleNamespace(log=log, is_open=True, producers=producers)
        context = cast("Any", self._context(node_id))
        replica = LocalReplica(context, cast("Any", None), cast("Any", partition), key)
        replica._has_looked = True
        replica.on_news = lambda led: self.server.wake(led.key)
        replica.on_high_watermark = lambda led: self.server.note_high_watermark(led.key)
        return replica

    # The network.

    async def call(self, *args: Any, timeout_s: float) -> PeerFetchResponse:
        assert timeout_s > 0
        request = args[-1]
        answer: asyncio.Future[PeerFetchResponse] = asyncio.get_running_loop().create_future()
        if self.is_cut and self.random.random() < 0.5:
            raise Unavailable("the leader was not reached")
        fetch = self.server.fetch(request, FOLLOWER, answer.set_result)
        self.calls.append(answer)
        try:
            return await answer
        except OutcomeUnknown:
            fetch.end()
            raise
        finally:
            self.calls.remove(answer)

    # What happens at the leader.

    def lead(self, key: PartitionId) -> None:
        replica, state = self.leaders[key], self.states[key]
        log = cast("MemoryLog", replica.partition.log)
        log.epoch = state.leader_epoch
        log.durable_offset = log.written_offset
        starts = {epoch: log.epochs.index(epoch) for epoch in dict.fromkeys(log.epochs)}
        starts[log.epoch] = log.written_offset
        replica.leader = LeaderReplica(
            node=LEADER,
            broker_epoch=1,
            state=state,
            epochs=EpochHistory(starts.items()),
            log_start=0,
            log_end=log.written_offset,
            high_watermark=log.end_offset,
            min_insync=1,
            lease=self.lease,
            policy=IsrPolicy(),
            limiter=IsrChangeLimiter(),
            now=self.clock.monotonic(),
        )
        self.server.wake(key)

    def append(self, key: PartitionId, count: int = 0) -> None:
        replica = self.leaders[key]
        if replica.leader is not None:
            log = cast("MemoryLog", replica.partition.log)
            log.epochs += [log.epoch] * (count or self.random.choice((1, 1, 2, 9)))
            replica._on_commit()

    def sync(self, key: PartitionId) -> None:
        replica = self.leaders[key]
        if replica.leader is not None:
            log = cast("MemoryLog", replica.partition.log)
            log.durable_offset = log.written_offset
            replica._on_commit()

    def depose(self, key: PartitionId) -> None:
        self.leaders[key].leader = None

    def elect(self, key: PartitionId) -> None:
        if self.leaders[key].leader is None:
            epoch = self.states[key].leader_epoch + 1
            self.states[key] = replace(
                self.states[key], leader_epoch=epoch, revision=self.states[key].revision + 1
            )
            self.lead(key)

    def revise(self, key: PartitionId) -> None:
        """Move the revision of the state, as each change of the ISR does."""
        state = self.states[key] = replace(
            self.states[key],
            revision=self.states[key].revision + 1,
            isr=(IsrMember(LEADER, 1), IsrMember(FOLLOWER, self.life)),
        )
        leader = self.leaders[key].leader
        if leader is not None:
            leader.state_changed(state, self.clock.monotonic())
            self.leaders[key].publish_high_watermark()

    def restart_leader(self, _: PartitionId) -> None:
        self.server = self._new_server()
        for call in self.calls:
            if not call.done():
                call.set_exception(OutcomeUnknown("the leader was started again"))

    def read(self, _: PartitionId) -> None:
        if self.reads:
            self.reads.pop(0).set_result(None)

    # What happens at the follower.

    def follow(self, key: PartitionId) -> None:
        """Hear of the newest state."""
        self.state.partitions[key] = state = self.states[key]
        replica = self.followers[key]
        if replica.follower is None:
            log = cast("MemoryLog", replica.partition.log)
            epochs = log.epochs[: log.durable_offset]
            replica.follower = FollowerReplica(
                node=FOLLOWER,
                broker_epoch=self.life,
                state=state,
                epochs=EpochHistory((epoch, epochs.index(epoch)) for epoch in sorted({*epochs})),
                log_start=0,
                log_end=log.durable_offset,
                high_watermark=log.end_offset,
                segment_base=log.position.segment,
                position=log.position.position,
            )
        else:
            replica.follower.state_changed(state)
        self.followed.add(key)
        self.fetcher.wake()

    def change_role(self, key: PartitionId) -> None:
        """Begin to apply a state: until it is done, the replica does not follow."""
        self.followed.discard(key)
        self.fetcher.forget_followed()

    def refuse_write(self, key: PartitionId) -> None:
        cast("MemoryLog", self.followers[key].partition.log).refuses = True

    def fail_write(self, key: PartitionId) -> None:
        cast("MemoryLog", self.followers[key].partition.log).fails = True

    def write(self, _: PartitionId) -> None:
        if self.writes:
            self.writes.pop(self.random.randrange(len(self.writes)))()

    def begin_life(self, _: PartitionId) -> None:
        """Register again: nothing of the former life of the node is valid."""
        self.life += 1
        self.membership.broker_epoch = self.life
        for key in self.keys:
            self.followers[key].follower = None
            self.revise(key)
            self.follow(key)

    def break_connection(self, _: PartitionId) -> None:
        for call in self.calls:
            if not call.done():
                call.set_exception(OutcomeUnknown("the connection was closed"))

    def cut(self, _: PartitionId) -> None:
        self.is_cut = not self.is_cut

    # Running.

    async def step(self) -> None:
        events = (
            *((self.append,) * 6),
            *((self.sync, self.write, self.read) * 4),
            *((self.follow, self.depose, self.elect, self.revise) * 2),
            self.restart_leader,
            self.change_role,
            self.refuse_write,
            self.fail_write,
            self.begin_life,
            self.break_connection,
            self.cut,
        )
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self.random.choice(events)(self.random.choice(self.keys))
        await self.turns(self.random.choice((0, 1, 2, 5, 20)))

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everything that is under way end, without a new event."""
        for _ in range(6):
            await self.turns(8)
            while self.writes or self.reads:
                while self.writes:
                    self.write(self.keys[0])
                while self.reads:
                    self.read(self.keys[0])
                await self.turns(8)

    async def end(self) -> None:
        """End all faults, and let the follower fetch some more times, because of one partition."""
        self.is_cut = False
        for key in self.keys:
            self.elect(key)
            self.revise(key)
            self.sync(key)
        for key in self.keys:
            log = cast("MemoryLog", self.followers[key].partition.log)
            log.refuses = log.fails = False
            self.follow(key)
        await self.settle()
        for key in self.keys:
            self.append(key, 1)
        await self.settle()
        for key in self.keys:  # The sync of the leader is the last: it moves the high watermark.
            self.sync(key)
        for _ in range(40):
            self.append(self.keys[0], 1)
            self.sync(self.keys[0])
            await self.settle()

    # What has to hold.

    def check_waiting(self) -> None:
        """A fetch that waits has missed nothing: a look at everything finds nothing for it."""
        session = self.server._sessions.get(FOLLOWER)
        fetch = None if session is None else session.waiting
        if session is None or fetch is None or fetch.is_done or fetch.is_scheduled:
            return
        for key, known in session.partitions.items():
            leader = self.leaders[key].leader
            if leader is None or leader.leader_epoch != known.request.leader_epoch:
                continue  # The follower will hear of another state, and name it.
            end = self.leaders[key].partition.log.replication.written_offset
            assert known.request.fetch_offset == end, (key, known, end)

    def check_end(self) -> None:
        """Everybody has everything, and knows it."""
        for key in self.keys:
            leader, replica = self.leaders[key].leader, self.followers[key]
            follower = replica.follower
            assert leader is not None
            assert follower is not None
            end = self.leaders[key].partition.log.replication.written_offset
            progress = leader.follower(FOLLOWER)
            assert progress is not None
            found = (
                follower.written_end,
                follower.synced_end,
                progress.end,
                progress.revision,
                leader.high_watermark,
            )
            assert found == (end, end, end, self.states[key].revision, end), key
            # The high watermark of the last record is told with the next fetch.
            assert follower.high_watermark == end - (key == self.keys[0]), key
            assert not leader.counts_fetches(FOLLOWER), key
            fetch = follower.next_fetch()
            assert fetch is not None
            assert self.server._sessions[FOLLOWER].partitions[key].request == _requested(
                key, replica, fetch
            )


@pytest.mark.parametrize("first_seed", range(0, 160, 20))
@in_loop
async def test_whatever_happens_between_two_fetches_nothing_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, first_seed: int
):
    monkeypatch.setattr(fetch_server, "COMPLETE_SECONDS", DAY)
    monkeypatch.setattr(fetch_server, "JOINING_WAIT_SECONDS", DAY)
    monkeypatch.setattr(fetch_server, "JOINING_MAX", 2)
    monkeypatch.setattr(replica_fetcher, "COMPLETE_SECONDS", DAY)
    monkeypatch.setattr(replica_fetcher, "WAIT_MS_MAX", int(DAY * 1000))
    monkeypatch.setattr(replica_fetcher, "RETRY_SECONDS", 0.0)
    for seed in range(first_seed, first_seed + 20):
        monkeypatch.setattr(replica_fetcher, "RESPONSE_BYTES_MAX", SIZE * (seed % 4 * 2 + 1))
        simulation = Simulation(seed)
        try:
            for _ in range(60):
                await simulation.step()
                if seed % 3:
                    simulation.check_waiting()
            await simulation.end()
            simulation.check_waiting()
            simulation.check_end()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            await simulation.fetcher.stop()
