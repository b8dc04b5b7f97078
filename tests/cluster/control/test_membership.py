"""How a node registers, keeps its registration, and begins a new life."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator

import pytest

from millstream.broker.loop_threads import LoopThreads
from millstream.clock import SystemClock
from millstream.cluster.control import membership as module
from millstream.cluster.control.membership import Membership
from millstream.cluster.control.node_identity import IdentityFile
from millstream.cluster.control.node_row import NodeRow, decode_node, encode_node
from millstream.errors import StorageFailed
from millstream.storage.disk.filesystem import Filesystem
from millstream.testing.disk.fault import Fault
from millstream.testing.disk.faulty_filesystem import FaultyFilesystem
from millstream.testing.disk.simulated_filesystem import SimulatedFilesystem
from millstream.testing.memory_metadata import MemoryMetadata, MetadataServer
from tests.cluster.local_cluster import until
from tests.in_loop import in_loop

DATA = "/data"


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(module, "RENEWALS_PER_TTL", 1000)


def row(directory: str = "a") -> NodeRow:
    return NodeRow(
        directory=directory,
        release="0",
        kafka=("127.0.0.1", 1),
        http=("127.0.0.1", 2),
        peer=("127.0.0.1", 3),
    )


def disk() -> SimulatedFilesystem:
    filesystem = SimulatedFilesystem()
    filesystem.make_directory(DATA)
    return filesystem


class Member(Membership):
    """A membership that notes its lives."""

    def __init__(self, metadata: MemoryMetadata, filesystem: Filesystem) -> None:
        identity = IdentityFile(filesystem, DATA)
        identity.open("test", 1)
        super().__init__(
            metadata,
            1,
            ttl_seconds=10,
            identity_file=identity,
            background=LoopThreads(),
            clock=SystemClock(),
        )
        self.lives: list[int] = []
        self.on_life = self.lives.append

    @property
    def is_believed(self) -> bool:
        return self.belief.is_valid(self._clock.monotonic())


@contextlib.asynccontextmanager
async def running(member: Member) -> AsyncIterator[Member]:
    await member.start(row())
    try:
        yield member
    finally:
        await member.stop()


def registered(server: MetadataServer) -> NodeRow | None:
    entry = server.entries.get("nodes/1")
    return None if entry is None else decode_node(entry.key, entry.value, entry.created)[1]


@in_loop
async def test_a_stop_removes_the_registration_at_once():
    server = MetadataServer()
    async with running(Member(server.connect(), disk())) as member:
        assert registered(server) is not None
        assert member.is_believed
        assert member.problem is None
    assert registered(server) is None
    assert not member.is_believed


@in_loop
async def test_an_expired_lease_begins_a_new_life_with_another_broker_epoch():
    server = MetadataServer()
    async with running(Member(server.connect(), disk())) as member:
        first = member.broker_epoch
        assert member.lease is not None
        server.expire(member.lease.id)
        await until(lambda: len(member.lives) == 2)
        assert member.lives == [first, member.broker_epoch]
        assert member.broker_epoch > first
        present = registered(server)
        assert present is not None
        assert present.continuous_since == first  # The same directory, all the time.


@in_loop
async def test_another_directory_under_the_same_id_is_a_node_that_has_nothing():
    server = MetadataServer()
    async with running(Member(server.connect(), disk())):
        pass
    async with running(Member(server.connect(), disk())) as member:
        present = registered(server)
        assert present is not None
        assert present.continuous_since == member.broker_epoch


@pytest.mark.parametrize(
    ("directory", "reason"),
    [("b", "registered by another node, at 127.0.0.1:3"), ("a", "by its former life")],
)
@in_loop
async def test_a_node_waits_while_its_id_is_registered_and_says_why(directory, reason):
    server = MetadataServer()
    other = server.connect()
    await other.transact(puts={"nodes/1": encode_node(row(directory))})
    member = Member(server.connect(), disk())
    starting = asyncio.create_task(member.start(row()))
    await until(lambda: member.problem is not None and reason in member.problem)
    await other.transact(deletes=["nodes/1"])
    await starting
    assert member.problem is None
    await member.stop()
    assert not server.leases  # Those of the attempts were given up too.


@pytest.mark.parametrize("is_made", [True, False])
@in_loop
async def test_a_registration_whose_outcome_is_unknown_is_made_again(is_made):
    server = MetadataServer()
    metadata = server.connect()
    metadata.lose_response(is_made=is_made)
    async with running(Member(metadata, disk())) as member:
        assert len(server.leases) == 1
        present = registered(server)
        assert present is not None
        assert present.broker_epoch == member.broker_epoch


@in_loop
async def test_a_node_that_cannot_renew_stops_believing_and_goes_on_when_it_can():
    server = MetadataServer()
    metadata = server.connect()
    member = Member(metadata, disk())
    member.belief.ttl_seconds = 0.05
    async with running(member):
        metadata.disconnect()
        await until(lambda: member.problem is not None)
        assert not member.is_believed
        metadata.reconnect()
        await until(lambda: member.problem is None)
        assert len(member.lives) == 1


@in_loop
async def test_a_disk_that_takes_no_token_ends_the_start():
    server = MetadataServer()
    faulty = FaultyFilesystem(disk(), Fault(call=1, only={"create"}, forever=True))
    with pytest.raises(StorageFailed, match="the identity of the node was not stored"):
        await Member(server.connect(), faulty).start(row())
    assert registered(server) is None
    assert not server.leases


@in_loop
async def test_a_full_disk_keeps_a_running_node_out_until_it_has_space_again():
    server = MetadataServer()
    fault = Fault(call=2, only={"create"}, error=errno.ENOSPC, forever=True)
    async with running(Member(server.connect(), FaultyFilesystem(disk(), fault))) as member:
        assert member.lease is not None
        server.expire(member.lease.id)
        await until(lambda: member.problem is not None and "not stored" in member.problem)
        assert not member.is_believed
        assert registered(server) is None
        fault.only = ()
        await until(lambda: len(member.lives) == 2)
        assert member.is_believed


@pytest.mark.parametrize("error", [StorageFailed("the metadata cannot be used"), KeyError("a bug")])
@in_loop
async def test_a_renewal_that_fails_in_an_unexpected_way_does_not_end_the_membership(
    monkeypatch, error
):
    server = MetadataServer()
    metadata = server.connect()
    renew, failures = metadata.renew, 0

    async def fail_once(lease: int) -> None:
        nonlocal failures
        if not failures:
            failures += 1
            raise error
        await renew(lease)

    async with running(Member(metadata, disk())) as member:
        monkeypatch.setattr(metadata, "renew", fail_once)
        await until(lambda: failures > 0)
        assert member.lease is not None
        server.expire(member.lease.id)
        await until(lambda: len(member.lives) == 2)
        assert member.failed_renewals == 1
        assert registered(server) is not None
