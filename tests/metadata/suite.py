"""Suite that every `Metadata` must pass, the one in SQLite and later the one in etcd.

Subclass `MetadataSuite` and give it one fixture: `open_metadata`, which opens the same, initially
empty store each time that it is awaited, after the previous one was closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.errors import InvalidRequest, StorageFailed
from millstream.metadata.interface import (
    ABSENT,
    KEY_SIZE_MAX,
    VALUE_SIZE_MAX,
    Compare,
    Metadata,
    MetadataChange,
)
from tests.in_loop import in_loop

OpenMetadata = Callable[[], Awaitable[Metadata]]


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
        assert await metadata.get("key") == ("key", b"value", revision)
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
        for compares in (
            [Compare("a", ABSENT)],
            [Compare("a", second)],
            [Compare("c", first)],
            [Compare("a", first), Compare("b", first)],
        ):
            assert await metadata.transact(compares=compares, puts={"a": b"2"}) is None
        assert await metadata.get("a") == ("a", b"1", first)
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
        assert await metadata.get("a") == ("a", b"1", first)
        assert await put(metadata, a=b"1") == first + 1
        await metadata.close()

    @in_loop
    async def test_puts_and_deletes_happen_together(self, open_metadata: OpenMetadata) -> None:
        metadata = await open_metadata()
        await put(metadata, a=b"1", b=b"1")
        revision = await metadata.transact(puts={"c": b"2"}, deletes=["a", "missing"])
        assert [tuple(entry) for entry in await metadata.list("")] == [
            ("b", b"1", 1),
            ("c", b"2", revision),
        ]
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
        await put(metadata, a=b"1", b=b"1")
        last = await metadata.transact(deletes=["a"])
        await metadata.close()
        metadata = await open_metadata()
        assert [tuple(entry) for entry in await metadata.list("")] == [("b", b"1", 1)]
        assert await put(metadata, a=b"2") > (last or 0)
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
        assert await metadata.transact(compares=[Compare("t/b", 99)], deletes=["t/b"]) is None
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
