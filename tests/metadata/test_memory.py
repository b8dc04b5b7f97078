"""The metadata in memory of the testing kit passes the suites, and can be disturbed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from millstream.errors import OutcomeUnknown, Unavailable
from millstream.testing import ManualClock, ManualTimers
from millstream.testing.memory_metadata import MemoryMetadata, MetadataServer
from tests.in_loop import in_loop
from tests.metadata.suite import Heard, LeasedMetadataSuite, put


class TestMemoryMetadata(LeasedMetadataSuite):
    @pytest.fixture
    def timers(self) -> ManualTimers:
        return ManualTimers(ManualClock())

    @pytest.fixture
    def connect(self, timers: ManualTimers) -> Callable[[], Awaitable[MemoryMetadata]]:
        server = MetadataServer(timers)

        async def connect() -> MemoryMetadata:
            return server.connect()

        return connect

    @pytest.fixture
    def open_metadata(
        self, connect: Callable[[], Awaitable[MemoryMetadata]]
    ) -> Callable[[], Awaitable[MemoryMetadata]]:
        return connect

    @pytest.fixture
    def pass_time(self, timers: ManualTimers) -> Callable[[float], Awaitable[None]]:
        async def pass_time(seconds: float) -> None:
            timers.advance(seconds)

        return pass_time


@in_loop
async def test_a_disconnected_node_can_do_nothing_and_hears_the_rest_later() -> None:
    server = MetadataServer()
    cut, other = server.connect(), server.connect()
    heard = Heard()
    cut.watch("", heard)
    cut.disconnect()
    for call in (cut.get("a"), cut.list(""), cut.transact(puts={"a": b""}), cut.grant(4)):
        with pytest.raises(Unavailable, match="disconnected"):
            await call
    revisions = [await put(other, a=b"1"), await put(other, a=b"2")]
    assert heard.changes == []
    assert cut.revision == 0
    cut.reconnect()
    assert [change.revision for change in heard.changes] == revisions
    assert cut.revision == revisions[-1]


@in_loop
async def test_watches_can_be_delayed_and_delivered_one_by_one() -> None:
    metadata = MetadataServer().connect()
    heard = Heard()
    metadata.watch("", heard)
    metadata.delay_watches()
    for number in range(4):
        await put(metadata, a=b"%d" % number, b=b"%d" % number)
    assert heard.changes == []
    assert metadata.undelivered == 4
    metadata.deliver()
    assert [change.value for change in heard.changes] == [b"0", b"0"]
    metadata.deliver(2)
    assert [change.value for change in heard.changes[2:]] == [b"1", b"1", b"2", b"2"]
    metadata.stop_delaying()
    await put(metadata, a=b"4")
    assert [change.value for change in heard.changes[6:]] == [b"3", b"3", b"4"]


@pytest.mark.parametrize("is_made", [False, True])
def test_a_response_can_be_lost_before_and_after_the_change(is_made: bool) -> None:
    @in_loop
    async def run() -> None:
        metadata = MetadataServer().connect()
        metadata.lose_response(is_made=is_made)
        with pytest.raises(OutcomeUnknown, match="on purpose"):
            await metadata.transact(puts={"a": b"1"})
        assert (await metadata.get("a") is not None) == is_made
        await put(metadata, b=b"1")

    run()


@in_loop
async def test_the_leases_of_a_closed_connection_expire_by_the_clock() -> None:
    timers = ManualTimers(ManualClock())
    server = MetadataServer(timers)
    first = server.connect()
    lease = await first.grant(4)
    await first.transact(puts={"nodes/1": b""}, lease=lease)
    await first.close()
    assert server.leases == {lease.id: {"nodes/1"}}
    timers.advance(3.9)
    assert "nodes/1" in server.entries
    timers.advance(0.2)
    assert server.leases == {}
    assert server.entries == {}
