"""Suites that every `Metadata` must pass: the one in SQLite, in memory and in etcd.

Subclass `MetadataSuite` and give it one fixture: `open_metadata`, which opens the same, initially
empty store each time that it is awaited, after the previous one was closed. `LeasedMetadataSuite`
adds the leases, and several connections: it needs `connect`, which opens one more connection to the
same store, and `pass_time`, which lets so many seconds pass for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.errors import InvalidRequest, LeaseExpired, StorageFailed
from millstream.metadata.interface import (
    ABSENT,
    KEY_SIZE_MAX,
    VALUE_SIZE_MAX,
    Compare,
    CompareCreated,
    Condition,
    LeasedMetadata,
    Metadata,
    MetadataChange,
)
from tests.in_loop import in_loop

OpenMetadata = Callable[[], Awaitable[Metadata]]
Connect = Callable[[], Awaitable[LeasedMetadata]]
PassTime = Callable[[float], Awaitable[None]]


class Heard:
    """Collects changes, and waits for a number of them."""

    def __init__(self) -> None:
        self.changes: list[MetadataChange] = []
        self._more = asyncio.Event()

    def __call__(self, change: MetadataChange) -> None:
        self.changes.append(change)
        self._more.set()

    async def wait_for(self, count: int) -> list[MetadataChange]:
        while len(self.changes) < count:
            self._more.clear()
            await self._more.wait()
        return self.changes


async def put(metadata: Metadata, **entries: bytes) -> int:
    revision = await metadata.transact(puts=entries)
    assert revision is not None
    return revision


class MetadataSuite:
    @in_loop
    async def test_what_was_put_can_be_got(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        revision = await put(metadata, key=b"value")
        assert await metadata.get("key") == ("key", b"value", revision, revision)
        assert metadata.revision == revision
        await metadata.close()

    @in_loop
    async def test_what_was_not_put_is_not_there(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        assert await metadata.get("key") is None
        assert list(await metadata.list("")) == []
        await metadata.close()

    @in_loop
    async def test_values_are_bytes_of_any_kind(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        values = {"empty": b"", "all": bytes(range(256)), "large": b"x" * VALUE_SIZE_MAX}
        await put(metadata, **values)
        assert {entry.key: entry.value for entry in await metadata.list("")} == values
        await metadata.close()

    @in_loop
    async def test_a_list_is_sorted_and_has_what_begins_with_the_prefix(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        keys = ["a", "a/", "a/b", "a/~", "a/~~", "a0", "b", "A/b"]
        await metadata.transact(puts=dict.fromkeys(keys, b""))
        found = [entry.key for entry in await metadata.list("a/")]
        assert found == ["a/", "a/b", "a/~", "a/~~"]
        assert [entry.key for entry in await metadata.list("")] == sorted(keys)
        assert [entry.key for entry in await metadata.list("c")] == []
        await metadata.close()

    @in_loop
    async def test_revisions_rise_with_every_transaction(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        first = await put(metadata, a=b"1", b=b"1")
        second = await put(metadata, a=b"2")
        assert ABSENT < first < second
        found = {entry.key: entry.revision for entry in await metadata.list("")}
        assert found == {"a": second, "b": first}
        await metadata.close()

    @in_loop
    async def test_a_transaction_needs_the_revisions_that_it_names(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        first = await put(metadata, a=b"1")
        second = await put(metadata, b=b"1")
        refused = (
            [Compare("a", ABSENT)],
            [Compare("a", second)],
            [Compare("c", first)],
            [Compare("a", first), Compare("b", first)],
        )
        for compares in refused:
            assert await metadata.transact(compares=compares, puts={"a": b"2"}) is None
        assert await metadata.get("a") == ("a", b"1", first, first)
        compares = [Compare("a", first), Compare("b", second), Compare("c", ABSENT)]
        assert await metadata.transact(compares=compares, puts={"a": b"2"})
        await metadata.close()

    @in_loop
    async def test_a_transaction_that_fails_takes_no_revision(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        first = await put(metadata, a=b"1")
        assert await metadata.transact(compares=[Compare("a", ABSENT)], deletes=["a"]) is None
        assert await metadata.get("a") == ("a", b"1", first, first)
        assert metadata.revision == first
        assert await put(metadata, a=b"1") > first
        await metadata.close()

    @in_loop
    async def test_puts_and_deletes_happen_together(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        first = await put(metadata, a=b"1", b=b"1")
        revision = await metadata.transact(puts={"c": b"2"}, deletes=["a", "missing"])
        listed = await metadata.list("")
        assert list(listed) == [("b", b"1", first, first), ("c", b"2", revision, revision)]
        assert listed.revision == revision
        await metadata.close()

    @in_loop
    async def test_a_key_that_was_deleted_and_put_again_has_a_new_revision(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        first = await put(metadata, a=b"1")
        await metadata.transact(deletes=["a"])
        await put(metadata, a=b"1")
        assert await metadata.transact(compares=[Compare("a", first)], deletes=["a"]) is None
        await metadata.close()

    @in_loop
    async def test_the_creation_of_a_key_stays_until_it_is_deleted(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        created = await put(metadata, a=b"1")
        changed = await put(metadata, a=b"2", b=b"1")
        assert list(await metadata.list("")) == [
            ("a", b"2", changed, created),
            ("b", b"1", changed, changed),
        ]
        await metadata.transact(deletes=["a"])
        again = await put(metadata, a=b"3")
        assert await metadata.get("a") == ("a", b"3", again, again)
        await metadata.close()

    @in_loop
    async def test_a_transaction_needs_the_creations_that_it_names(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        created = await put(metadata, a=b"1")
        changed = await put(metadata, a=b"2")
        refused: list[list[Condition]] = [
            [CompareCreated("a", ABSENT)],
            [CompareCreated("a", changed)],
            [CompareCreated("b", created)],
            [CompareCreated("a", created), Compare("a", created)],
            [Compare("a", changed), CompareCreated("a", changed)],
        ]
        for compares in refused:
            assert await metadata.transact(compares=compares, puts={"a": b"3"}) is None
        assert await metadata.get("a") == ("a", b"2", changed, created)
        compares = [
            CompareCreated("a", created),
            Compare("a", changed),
            CompareCreated("b", ABSENT),
        ]
        assert await metadata.transact(compares=compares, puts={"a": b"3"})
        assert await metadata.transact(compares=[CompareCreated("a", created)], deletes=["a"])
        await put(metadata, a=b"4")
        compares = [CompareCreated("a", created)]
        assert await metadata.transact(compares=compares, puts={"a": b"5"}) is None
        await metadata.close()

    @in_loop
    async def test_of_two_that_compare_the_same_one_wins(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        results = await asyncio.gather(
            *(
                metadata.transact(compares=[Compare("lock", ABSENT)], puts={"lock": b"%d" % who})
                for who in range(10)
            )
        )
        winners = [who for who, revision in enumerate(results) if revision is not None]
        assert len(winners) == 1
        entry = await metadata.get("lock")
        assert entry is not None
        assert entry.value == b"%d" % winners[0]
        await metadata.close()

    @in_loop
    async def test_everything_survives_closing(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        first = await put(metadata, a=b"1", b=b"1")
        second = await put(metadata, b=b"2")
        last = await metadata.transact(deletes=["a"])
        assert last is not None
        await metadata.close()
        metadata = await open_metadata()
        assert metadata.revision >= last
        assert list(await metadata.list("")) == [("b", b"2", second, first)]
        assert await put(metadata, a=b"2") > last
        await metadata.close()

    @in_loop
    async def test_a_watch_hears_of_each_change_in_order(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        await put(metadata, **{"t/a": b"0"})
        heard, everything = Heard(), Heard()
        metadata.watch("t/", heard)
        metadata.watch("", everything)
        first = await metadata.transact(puts={"t/a": b"1", "u/a": b"1"})
        second = await metadata.transact(puts={"t/b": b"2"}, deletes=["t/a"])
        assert await metadata.transact(compares=[Compare("t/b", 99_999)], deletes=["t/b"]) is None
        assert await heard.wait_for(3) == [
            MetadataChange("t/a", b"1", first or 0),
            MetadataChange("t/a", None, second or 0),
            MetadataChange("t/b", b"2", second or 0),
        ]
        assert len(await everything.wait_for(4)) == 4
        await metadata.close()

    @in_loop
    async def test_a_watch_that_was_cancelled_hears_of_no_more(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        heard, other = Heard(), Heard()
        watch = metadata.watch("", heard)
        metadata.watch("", other)
        await put(metadata, a=b"1")
        await heard.wait_for(1)
        watch.cancel()
        watch.cancel()
        await put(metadata, a=b"2")
        await other.wait_for(2)
        assert len(heard.changes) == 1
        await metadata.close()

    @in_loop
    async def test_a_watch_that_raises_does_not_keep_others_from_hearing(
        self, open_metadata: OpenMetadata, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(change: MetadataChange) -> None:
            raise ValueError(change.key)

        metadata = await open_metadata()
        heard = Heard()
        metadata.watch("", fail)
        metadata.watch("", heard)
        await put(metadata, a=b"1")
        await put(metadata, a=b"2")
        await heard.wait_for(2)
        assert metadata.failure is None
        assert "a watch of metadata failed at a" in caplog.text
        await metadata.close()

    @in_loop
    async def test_who_stops_waiting_does_not_stop_the_change(
        self, open_metadata: OpenMetadata
    ) -> None:
        metadata = await open_metadata()
        heard = Heard()
        metadata.watch("", heard)
        waiting = asyncio.ensure_future(metadata.transact(puts={"a": b"1"}))
        await asyncio.sleep(0)
        waiting.cancel()
        await heard.wait_for(1)
        entry = await metadata.get("a")
        assert entry is not None
        await metadata.close()

    @pytest.mark.parametrize(
        ("puts", "deletes", "message"),
        [
            ({"": b""}, [], "key must have 1 to 8192 characters, got 0"),
            ({"x" * (KEY_SIZE_MAX + 1): b""}, [], "key must have 1 to 8192 characters, got 8193"),
            ({"a b": b""}, [], "printable ASCII"),
            ({}, ["ä"], "printable ASCII"),
            ({}, ["a\n"], "printable ASCII"),
            ({"a": b"x" * (VALUE_SIZE_MAX + 1)}, [], "at most 1048576 bytes, got 1048577"),
            ({"a": b""}, ["a"], "a cannot be put and deleted"),
        ],
    )
    def test_what_cannot_be_kept_is_refused(
        self,
        open_metadata: OpenMetadata,
        puts: dict[str, bytes],
        deletes: list[str],
        message: str,
    ) -> None:
        @in_loop
        async def refuse() -> None:
            metadata = await open_metadata()
            with pytest.raises(InvalidRequest, match=message):
                await metadata.transact(puts=puts, deletes=deletes)
            assert list(await metadata.list("")) == []
            await metadata.close()

        refuse()

    @in_loop
    async def test_after_closing_nothing_can_be_done(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        await metadata.close()
        await metadata.close()
        for call in (metadata.get("a"), metadata.list(""), metadata.transact(puts={"a": b""})):
            with pytest.raises(StorageFailed, match="closed"):
                await call


class LeasedMetadataSuite(MetadataSuite):
    @in_loop
    async def test_a_key_with_a_lease_is_there_while_it_is_renewed(
        self, connect: Connect, pass_time: PassTime
    ) -> None:
        first, second = await connect(), await connect()
        heard = Heard()
        second.watch("", heard)
        lease = await first.grant(4)
        assert lease.ttl_seconds >= 4
        revision = await first.transact(puts={"a": b"1"}, lease=lease)
        for _ in range(3):
            await pass_time(lease.ttl_seconds / 2)
            await lease.renew()
        assert await second.get("a") == ("a", b"1", revision, revision)
        await pass_time(1.5 * lease.ttl_seconds)
        put, deleted = await heard.wait_for(2)
        assert put == MetadataChange("a", b"1", revision or 0)
        assert (deleted.key, deleted.value) == ("a", None)
        assert deleted.revision > put.revision
        assert await first.get("a") is None
        await first.close()
        await second.close()

    @in_loop
    async def test_a_lease_that_is_gone_can_be_neither_renewed_nor_used(
        self, connect: Connect
    ) -> None:
        metadata = await connect()
        lease = await metadata.grant(60)
        await metadata.transact(puts={"a": b"1"}, lease=lease)
        await lease.revoke()
        await lease.revoke()
        with pytest.raises(LeaseExpired, match=str(lease.id)):
            await lease.renew()
        with pytest.raises(LeaseExpired, match=str(lease.id)):
            await metadata.transact(puts={"b": b"1"}, lease=lease)
        assert list(await metadata.list("")) == []
        await metadata.close()

    @in_loop
    async def test_all_keys_of_a_lease_and_no_others_are_deleted_together(
        self, connect: Connect
    ) -> None:
        metadata = await connect()
        lease, other = await metadata.grant(60), await metadata.grant(60)
        assert lease.id != other.id
        await metadata.transact(puts={"a": b"1", "b": b"1", "c": b"1"}, lease=lease)
        await metadata.transact(puts={"d": b"1"}, lease=other)
        await metadata.transact(puts={"e": b"1"})
        await metadata.transact(puts={"b": b"2"})
        heard = Heard()
        metadata.watch("", heard)
        await lease.revoke()
        first, second = await heard.wait_for(2)
        assert (first.key, second.key) == ("a", "c")
        assert first.value is second.value is None
        assert first.revision == second.revision
        assert [entry.key for entry in await metadata.list("")] == ["b", "d", "e"]
        await other.revoke()
        await metadata.close()

    @in_loop
    async def test_a_condition_that_does_not_hold_comes_before_a_lease_that_is_gone(
        self, connect: Connect
    ) -> None:
        metadata = await connect()
        lease = await metadata.grant(60)
        await lease.revoke()
        compares = [Compare("a", 99_999)]
        assert await metadata.transact(compares=compares, puts={"a": b"1"}, lease=lease) is None
        await metadata.close()

    @in_loop
    async def test_a_lease_without_keys_changes_nothing_when_it_ends(
        self, connect: Connect
    ) -> None:
        metadata = await connect()
        first = await metadata.transact(puts={"a": b"1"})
        assert first is not None
        lease = await metadata.grant(60)
        await lease.renew()
        await lease.revoke()
        assert await metadata.get("a") == ("a", b"1", first, first)
        assert metadata.revision == first
        await metadata.close()

    @in_loop
    async def test_a_lease_needs_a_second_at_least(self, connect: Connect) -> None:
        metadata = await connect()
        with pytest.raises(InvalidRequest, match="TTL of a lease must be at least 1 s, got 0"):
            await metadata.grant(0)
        await metadata.close()

    @in_loop
    async def test_a_change_is_seen_by_all_connections_in_the_same_order(
        self, connect: Connect
    ) -> None:
        connections = [await connect() for _ in range(3)]
        ears = [Heard() for _ in connections]
        for metadata, heard in zip(connections, ears, strict=True):
            metadata.watch("", heard)
        await asyncio.gather(
            *(
                metadata.transact(puts={f"k{number % 3}": b"%d" % number})
                for number, metadata in enumerate(connections * 5)
            )
        )
        orders = [await heard.wait_for(15) for heard in ears]
        assert orders[0] == orders[1] == orders[2]
        revisions = [change.revision for change in orders[0]]
        assert revisions == sorted(set(revisions))
        for metadata in connections:
            assert metadata.revision == revisions[-1]
            await metadata.close()

    @in_loop
    async def test_a_watch_that_is_listed_after_it_began_misses_nothing(
        self, connect: Connect
    ) -> None:
        writer, reader = await connect(), await connect()
        heard = Heard()

        async def write() -> None:
            for number in range(30):
                await writer.transact(puts={f"k{number:02}": b"1"})

        writing = asyncio.ensure_future(write())
        await asyncio.sleep(0)
        reader.watch("k", heard)
        listed = await reader.list("k")
        await writing
        await writer.transact(puts={"k~": b"last"})
        while not heard.changes or heard.changes[-1].key != "k~":
            await heard.wait_for(len(heard.changes) + 1)
        keys = [entry.key for entry in listed]
        keys += [change.key for change in heard.changes if change.revision > listed.revision]
        assert keys == [*(f"k{number:02}" for number in range(30)), "k~"]
        await writer.close()
        await reader.close()
