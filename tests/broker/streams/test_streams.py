"""Streams: created, written, closed, forked, deleted and expired; over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream.broker.partition.reader import PartitionReader
from millstream.broker.streams import stream as stream_module
from millstream.broker.streams.create_stream import CreateStream, ForkSource
from millstream.broker.streams.in_flight import InFlightAppend
from millstream.broker.streams.row import (
    StoredStream,
    WritersRow,
    decode_entry,
    encode,
    writers_key,
)
from millstream.broker.streams.write_marks import MARK_HEADER
from millstream.broker.streams.writers import StreamClosure, WriteMark, WriterPosition
from millstream.config.schema import MIB
from millstream.errors import (
    BatchTooLarge,
    DamagedRecords,
    InvalidRequest,
    MillstreamError,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamMismatch,
    StreamProducerGap,
    UnknownStream,
)
from millstream.records.build import build_batch
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.servers.http.streams.stream_chunk import read_chunk
from tests.broker.partitions import append
from tests.broker.streams.node import JSON, TEXT, Node, turns

Work = Callable[[Node], Awaitable[None]]


def on_a_node(work: Work) -> None:
    async def run() -> None:
        node = await Node().start()
        await work(node)
        await node.stop()

    asyncio.run(run())


def by(number: int, *, epoch: int = 0, **rest: Any) -> WriteMark:
    return WriteMark("p", epoch, number, **rest)


RESTARTS = pytest.mark.parametrize("again", [Node.restart, Node.crash], ids=["restart", "crash"])


# After a restart.


@RESTARTS
def test_what_was_told_of_a_stream_holds_over_another_start(again: Any) -> None:
    async def work(node: Node) -> None:
        await node.create("a", CreateStream(content_type="text/plain", ttl_seconds=50), b"first")
        await node.append("a", b"x", mark=by(0))
        await node.append("a", b"y", mark=by(1, sequence="s1"))
        await again(node)
        stream = node.streams.get("a")
        outcome = await stream.append([b"y"], by(1, sequence="s1"))
        assert outcome.is_duplicate
        assert outcome.position == WriterPosition(0, 1)
        with pytest.raises(StreamProducerGap):
            await node.append("a", b"z", mark=by(3))
        with pytest.raises(StreamMismatch):
            await node.append("a", b"z", mark=WriteMark(sequence="s0"))
        assert await node.values("a") == [b"first", b"x", b"y"]
        assert stream.row.ttl_seconds == 50

    on_a_node(work)


def test_a_stream_with_a_lost_mark_can_be_read_around_it_and_takes_no_appends() -> None:
    async def work(node: Node) -> None:
        await node.create("a", TEXT, b"first")
        await node.append("a", b"x" * 300, mark=by(0))
        await node.append("a", b"y", mark=by(1))
        disk = node.disk.copy()
        path = next(p for p in disk.paths() if p.startswith("/data/") and p.endswith(".log"))
        disk.flip_bit(path, 8 * (disk.content(path).index(b"xxx") + 10))
        node.streams.end_waits()
        node.disk = node.filesystem = disk
        node.metadata = node.metadata.reopened()
        await node.start()
        stream = node.streams.get("a")
        assert [r.value for r in (await read_chunk(stream, 0)).records] == [b"first"]
        with pytest.raises(DamagedRecords):
            await read_chunk(stream, 1)
        assert [r.value for r in (await read_chunk(stream, 2)).records] == [b"y"]
        with pytest.raises(DamagedRecords):
            await stream.append([b"x" * 300], by(0))

    on_a_node(work)


@RESTARTS
@pytest.mark.parametrize("has_data", [True, False])
def test_a_closed_stream_stays_closed(again: Any, has_data: bool) -> None:
    async def work(node: Node) -> None:
        stream, _ = await node.create("a", TEXT, b"first")
        closing = by(0, is_closing=True)
        await (stream.append([b"last"], closing) if has_data else stream.close(closing))
        await again(node)
        stream = node.streams.get("a")
        with pytest.raises(StreamClosed) as refusal:
            await stream.append([b"more"], WriteMark())
        assert refusal.value.end == (2 if has_data else 1)
        assert (await stream.append([b"last"], closing)).is_duplicate
        assert (await stream.close(WriteMark(is_closing=True))).is_closed
        assert len(await node.values("a")) == (2 if has_data else 1)

    on_a_node(work)


def test_marks_are_read_from_the_last_checkpoint_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "CHECKPOINT_RECORDS", 10)

    async def work(node: Node) -> None:
        await node.create("a")
        for number in range(25):
            await node.append("a", b"x", mark=by(number))
        await turns()
        reads: list[int] = []
        await node.crash()
        read = PartitionReader.read
        monkeypatch.setattr(
            PartitionReader,
            "read",
            lambda self, offset, **rest: reads.append(offset) or read(self, offset, **rest),
        )
        assert (await node.streams.get("a").append([b"x"], by(24))).is_duplicate
        assert reads
        assert min(reads) >= 20

    on_a_node(work)


def test_records_that_go_take_no_knowledge_of_producers_with_them() -> None:
    async def work(node: Node) -> None:
        await node.create("a")
        for number in range(5):
            await node.append("a", b"x", mark=by(number))
        await node.streams.get("a").partition.delete_before(5)
        await node.crash()
        assert (await node.streams.get("a").append([b"x"], by(4))).is_duplicate
        assert await node.values("a") == []

    on_a_node(work)


def test_a_mark_of_another_stream_says_nothing_here() -> None:
    async def work(node: Node) -> None:
        await node.create("a")
        await node.append("a", b"x", mark=by(0, is_closing=True))
        partition = node.streams.get("a").partition
        [record] = [
            one for part in partition.reader.read(0, size_max=MIB).parts for one in read_all(part)
        ]
        assert [name for name, _ in record.headers] == [MARK_HEADER]
        other, _ = await node.create("b")
        await other.open()
        forged = [Record(b"x", headers=record.headers), Record(b"y")]
        await append(other.partition, build_batch(forged, now_ms=0))
        broken = [Record(b"z", headers=((MARK_HEADER, b"{"),))]
        await append(other.partition, build_batch(broken, now_ms=0))
        await node.crash()
        assert await node.append("b", b"w") == 4

    on_a_node(work)


def test_a_checkpoint_past_the_end_of_a_log_that_lost_it_goes_back() -> None:
    async def work(node: Node) -> None:
        await node.create("a")
        await node.append("a", b"x", mark=by(0))
        closed = StreamClosure(end_offset=9)
        for closure in (closed, None):
            row = WritersRow(offset=9, closure=closure)
            await node.state.put([(writers_key("a"), encode(row))])
            await node.crash()
            stream = node.streams.get("a")
            await stream.open()
            assert stream.closure == (StreamClosure(end_offset=1) if closure else None)
        await node.append("a", b"y", mark=WriteMark("q", 0, 0))
        await node.crash()
        assert (await node.streams.get("a").append([b"y"], WriteMark("q", 0, 0))).is_duplicate

    on_a_node(work)


def test_a_stream_that_is_gone_leaves_nothing_to_the_next_under_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(node: Node) -> None:
        old, _ = await node.create("a", TEXT, b"x")
        write = _write(by(0))
        old._admit(write, 1)
        monkeypatch.setattr(stream_module, "CHECKPOINT_RECORDS", 1)
        await node.streams.delete("a")
        await node.create("a")
        before = dict(node.state.entries)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        old._settle(write, done)
        await old.save()
        await turns()
        assert node.state.entries == before

    on_a_node(work)


# Writing.


def test_appends_of_one_stream_share_syncs_and_keep_their_order() -> None:
    async def work(node: Node) -> None:
        await node.create("a")
        await node.append("a", b"0", mark=by(0))
        syncs = node.store.get("a").counters.syncs
        done = await asyncio.gather(
            *(node.append("a", b"%d" % number, mark=by(number)) for number in range(1, 50))
        )
        assert list(done) == list(range(2, 51))
        assert await node.values("a") == [b"%d" % number for number in range(50)]
        assert node.store.get("a").counters.syncs - syncs < 10

    on_a_node(work)


def test_a_repeated_append_that_comes_at_the_same_time_is_stored_once() -> None:
    async def work(node: Node) -> None:
        stream, _ = await node.create("a")
        done = await asyncio.gather(*(stream.append([b"x"], by(0)) for _ in range(5)))
        assert sorted(outcome.is_duplicate for outcome in done) == [False] + [True] * 4
        assert await node.values("a") == [b"x"]

    on_a_node(work)


def test_what_the_log_takes_back_was_never_applied() -> None:
    async def work(node: Node) -> None:
        stream, _ = await node.create("a")
        await node.append("a", b"x", mark=by(0))
        stream._admit(write := _write(by(1, sequence="q", is_closing=True)), 1)
        stream.partition._rewind(1)
        assert write.ended.done()
        assert not write.ended.result()
        assert stream.writers.producers == {"p": WriterPosition(0, 0)}
        assert stream.writers.sequence is None
        assert await node.append("a", b"y", mark=by(1)) == 2

    on_a_node(work)


def test_a_checkpoint_says_nothing_of_what_is_in_flight() -> None:
    async def work(node: Node) -> None:
        stream, _ = await node.create("a")
        await node.append("a", b"x", mark=by(0))
        stream._admit(_write(by(1, sequence="q", is_closing=True)), 1)
        await stream.save()
        known: dict[str, StoredStream] = {}
        for key, value in node.state.entries.items():
            decode_entry(known, key, value)
        stored = known["a"]
        assert stored.writers == WritersRow(offset=1)
        assert stored.producers == {"p": WriterPosition(0, 0)}
        stream.partition._rewind(1)

    on_a_node(work)


def _write(mark: WriteMark) -> InFlightAppend:
    return InFlightAppend(mark, 1)


def test_a_stream_ends_where_it_was_closed_whatever_comes_through_other_doors() -> None:
    async def work(node: Node) -> None:
        stream, _ = await node.create("a", TEXT, b"x")
        await stream.close(WriteMark(is_closing=True))
        await append(stream.partition, build_batch([Record(b"late")], now_ms=0))
        assert stream.next_offset == 1

    on_a_node(work)


def test_an_append_and_a_close_at_the_same_time_have_one_order() -> None:
    async def work(node: Node) -> None:
        stream, _ = await node.create("a")
        done = await asyncio.gather(
            stream.append([b"x"], WriteMark()),
            stream.close(WriteMark(is_closing=True)),
            stream.append([b"y"], WriteMark()),
            return_exceptions=True,
        )
        stored = [
            one
            for one, value in zip(done[::2], (b"x", b"y"), strict=True)
            if not isinstance(one, BaseException)
        ]
        values = await node.values("a")
        assert len(values) == len(stored)
        assert stream.closure is not None
        assert stream.closure.end_offset == len(values)
        refused = [one for one in done if isinstance(one, BaseException)]
        assert all(isinstance(one, StreamClosed) for one in refused)

    on_a_node(work)


# Creating.


def test_creating_the_same_again_finds_it_and_something_else_is_refused() -> None:
    async def work(node: Node) -> None:
        _, is_new = await node.create("a", TEXT, b"x")
        assert is_new
        _, is_new = await node.create("a", CreateStream(content_type="TEXT/plain; a=b"), b"y")
        assert not is_new
        for asked in (
            JSON,
            CreateStream(content_type="text/plain", ttl_seconds=1),
            CreateStream(content_type="text/plain", is_closed=True),
            CreateStream(content_type="text/plain", fork=ForkSource("b")),
        ):
            with pytest.raises(StreamExists):
                await node.create("a", asked)
        assert await node.values("a") == [b"x"]

    on_a_node(work)


def test_a_topic_that_is_no_stream_is_in_the_way() -> None:
    async def work(node: Node) -> None:
        await node.topics.create("a")
        with pytest.raises(StreamExists, match="topic 'a' exists"):
            await node.create("a")
        with pytest.raises(UnknownStream):
            node.streams.get("a")
        assert node.state.entries == {}

    on_a_node(work)


def test_what_cannot_be_created_leaves_nothing() -> None:
    async def work(node: Node) -> None:
        with pytest.raises(MillstreamError):
            await node.create("a", TEXT, b"x" * (21 * MIB))
        assert node.topics.all() == []
        assert node.state.entries == {}
        _, is_new = await node.create("a")
        assert is_new

    on_a_node(work)


# Deleting, through this server and others.


@pytest.mark.parametrize("api", ["streams", "topics"])
def test_a_stream_goes_with_its_topic_and_a_topic_with_its_stream(api: str) -> None:
    async def work(node: Node) -> None:
        await node.create("a", TEXT, b"x")
        await node.append("a", b"y", mark=by(0))
        await (node.streams.delete("a") if api == "streams" else node.topics.delete("a"))
        with pytest.raises(UnknownStream):
            node.streams.get("a")
        await turns()
        assert node.topics.all() == []
        assert node.state.entries == {}
        await node.create("a")
        assert await node.append("a", b"z", mark=by(0)) == 1

    on_a_node(work)


def test_a_stream_whose_topic_was_made_anew_meanwhile_is_gone() -> None:
    async def work(node: Node) -> None:
        await node.create("a", TEXT, b"x")
        entries = dict(node.state.entries)
        await node.topics.delete("a")
        await node.topics.create("a")
        await turns()
        await node.state.put(
            list(entries.items())
        )  # As if the crash had happened before the row was deleted.
        await node.crash()
        with pytest.raises(UnknownStream):
            node.streams.get("a")
        assert [topic.name for topic in node.topics.all()] == ["a"]

    on_a_node(work)


# Forks.


def test_a_fork_is_a_topic_of_its_own_with_the_same_offsets() -> None:
    async def work(node: Node) -> None:
        source, _ = await node.create("a", JSON, b"1", b"2", b"3")
        fork = await node.fork("b", "a", 2)
        assert fork.next_offset == 2
        assert await node.values("b") == [b"1", b"2"]
        assert await node.append("b", b"4") == 3
        assert await node.append("a", b"5") == 4
        await node.streams.delete("a")
        assert await node.values("b") == [b"1", b"2", b"4"]
        assert source.is_deleted

    on_a_node(work)


def test_a_fork_goes_on_where_its_source_is_though_the_first_records_are_gone() -> None:
    async def work(node: Node) -> None:
        source, _ = await node.create("a", JSON, b"1", b"2", b"3")
        await source.open()
        await source.partition.delete_before(2)
        fork = await node.fork("b", "a")
        assert await node.values("b") == [b"3"]
        assert fork.next_offset == source.next_offset == 3
        assert await node.append("b", b"4", mark=WriteMark(is_closing=True)) == 4
        with pytest.raises(StreamClosed, match="is closed at offset 4"):
            await node.append("b", b"5")
        again = await node.fork("c", "b", 3)
        assert again.next_offset == 3
        assert await node.values("c") == [b"3"]

    on_a_node(work)


@pytest.mark.parametrize("sub_offset", [0, 1, 1999, 3000])
def test_a_fork_inherits_so_many_messages_beyond(sub_offset: int) -> None:
    async def work(node: Node) -> None:
        await node.create("a", JSON, *[b"%d" % number for number in range(3001)])
        await node.fork("b", "a", 1, sub_offset)
        assert len(await node.values("b")) == 1 + sub_offset
        with pytest.raises(InvalidRequest, match="must be at most 3000 messages"):
            await node.fork("c", "a", 1, 3001)
        assert [topic.name for topic in node.topics.all()] == ["a", "b"]

    on_a_node(work)


def test_a_path_stays_taken_while_it_has_forks_over_another_start() -> None:
    async def work(node: Node) -> None:
        await node.create("a", TEXT, b"x")
        await node.fork("b", "a")
        await node.fork("c", "b")
        await node.streams.delete("a")
        await node.streams.delete("b")
        await node.crash()
        for path in ("a", "b"):
            with pytest.raises(StreamGone):
                node.streams.get(path)
            with pytest.raises(StreamExists):
                await node.create(path)
        with pytest.raises(StreamExists):
            await node.fork("d", "a")
        await node.streams.delete("c")
        for path in ("a", "b", "c"):
            with pytest.raises(UnknownStream):
                node.streams.get(path)
        assert node.state.entries == {}
        await node.create("a")

    on_a_node(work)


def test_a_fork_that_is_too_large_leaves_nothing() -> None:
    async def work(node: Node) -> None:
        await node.create("a", TEXT, b"123", b"456")
        node.streams._creator.fork_bytes_max = 5
        with pytest.raises(BatchTooLarge, match="5 bytes"):
            await node.fork("b", "a")
        assert [topic.name for topic in node.topics.all()] == ["a"]
        await node.streams.delete("a")
        with pytest.raises(UnknownStream):
            node.streams.get("a")

    on_a_node(work)


def test_a_fork_knows_no_producer_of_its_source() -> None:
    async def work(node: Node) -> None:
        await node.create("a")
        await node.append("a", b"x", mark=by(0, sequence="z"))
        fork = await node.fork("b", "a")
        assert not (await fork.append([b"y"], by(0, sequence="a"))).is_duplicate
        await node.crash()
        assert (await node.streams.get("b").append([b"y"], by(0, sequence="a"))).is_duplicate
        assert (await node.streams.get("a").append([b"x"], by(0, sequence="z"))).is_duplicate

    on_a_node(work)


# Expiring.


def test_an_expired_stream_is_gone_at_once_and_its_topic_soon() -> None:
    async def work(node: Node) -> None:
        await node.create("a", CreateStream(content_type="text/plain", ttl_seconds=10))
        await node.advance(9.5)
        node.streams.use(node.streams.get("a"))
        await node.advance(9.5)
        node.streams.get("a")
        node.clock.advance(1)
        with pytest.raises(UnknownStream):
            node.streams.get("a")
        await turns(200)
        assert node.topics.all() == []
        assert node.state.entries == {}

    on_a_node(work)


def test_a_stream_expires_though_nobody_asks_and_the_node_was_started_anew() -> None:
    async def work(node: Node) -> None:
        await node.create("a", CreateStream(content_type="text/plain", ttl_seconds=10))
        await node.create("b", CreateStream(expires_ms=node.clock.wall_ms() + 10_000))
        await node.advance(5)
        await node.restart()
        await node.advance(4)
        assert [topic.name for topic in node.topics.all()] == ["a", "b"]
        await node.advance(3)
        assert node.topics.all() == []

    on_a_node(work)


def test_a_stream_that_expired_can_be_created_anew_at_once() -> None:
    async def work(node: Node) -> None:
        asked = CreateStream(content_type="text/plain", ttl_seconds=10)
        await node.create("a", asked, b"old")
        node.clock.advance(10)
        _, is_new = await node.create("a", asked, b"new")
        assert is_new
        assert await node.values("a") == [b"new"]

    on_a_node(work)


def test_an_expired_source_is_gone_and_its_fork_lives() -> None:
    async def work(node: Node) -> None:
        await node.create("a", CreateStream(content_type="text/plain", ttl_seconds=10), b"x")
        asked = CreateStream(ttl_seconds=100, fork=ForkSource("a"))
        await node.create("b", asked)
        await node.advance(11)
        with pytest.raises(StreamGone):
            node.streams.get("a")
        assert await node.values("b") == [b"x"]
        await node.advance(100)
        assert node.state.entries == {}

    on_a_node(work)
