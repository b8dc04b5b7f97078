"""Embedded log: a cursor names its log, so a log that is created again does not answer for it."""

from __future__ import annotations

import asyncio
import itertools
import uuid

import pytest

import millstream
from millstream import Durability, EmbeddedStore, Gap, LogConfig
from millstream.errors import CorruptFile, InvalidRequest, MalformedRequest, OffsetOutOfRange
from millstream.storage.store import Store

CONFIG = LogConfig(durability=Durability.DISK)


@pytest.fixture
def store(tmp_path):
    with millstream.open(tmp_path / "data", config=CONFIG) as opened:
        yield opened


def fill(store: EmbeddedStore, *values: bytes, **options: str):
    log = store.log("t", **options)
    for value in values:
        log.append(value)
    return log


def told(found) -> list[bytes | Gap]:
    return [each if isinstance(each, Gap) else each.value for each in found]


def test_a_cursor_is_a_position_in_its_log(store):
    log = fill(store, b"a", b"b", b"c")
    assert told(log.read(log.cursor_at(1))) == [b"b", b"c"]
    assert told(itertools.islice(log.follow(log.cursor_at(2)), 1)) == [b"c"]
    assert list(log.read(log.cursor_at(3))) == []


@pytest.mark.parametrize("values", [[], [b"x"], [b"x", b"y", b"z"]])
def test_a_log_that_was_created_again_is_read_from_its_start_after_a_gap(store, values):
    cursor = fill(store, b"a", b"b").cursor_at(2)
    store.delete("t")
    log = fill(store, *values)
    assert told(log.read(cursor)) == [Gap(2, 2, "recreated"), *values]
    follower = log.follow(cursor)
    assert next(follower) == Gap(2, 2, "recreated")
    log.append(b"new")
    assert told(itertools.islice(follower, len(values) + 1)) == [*values, b"new"]


def test_what_the_new_log_lost_is_a_gap_of_its_own(store):
    cursor = fill(store, b"a").cursor_at(1)
    store.delete("t")
    log = fill(store, b"x", b"y")
    store.run(log.inner.evict_before(1, "age"))
    assert told(log.read(cursor)) == [Gap(1, 1, "recreated"), Gap(0, 0, "age"), b"y"]


def test_a_table_of_a_deleted_log_is_refused(store):
    pytest.importorskip("pyarrow")
    cursor = fill(store, b"a").cursor_at(1)
    store.delete("t")
    log = fill(store, b"x")
    with pytest.raises(OffsetOutOfRange) as caught:
        list(log.read_arrow(cursor))
    assert "t/0 was deleted and created again" in caught.value.__notes__[0]


def test_a_cursor_lasts_over_a_restart(tmp_path):
    with millstream.open(tmp_path, config=CONFIG) as store:
        cursor = fill(store, b"a", b"b").cursor_at(1)
    with millstream.open(tmp_path, config=CONFIG) as store:
        assert told(store.log("t").read(cursor)) == [b"b"]


def test_an_ephemeral_log_is_another_one_after_a_restart(tmp_path):
    with millstream.open(tmp_path) as store:
        cursor = fill(store, b"a", durability="ephemeral").cursor_at(1)
    with millstream.open(tmp_path) as store:
        log = fill(store, b"x", b"y", durability="ephemeral")
        assert told(log.read(cursor)) == [Gap(1, 1, "recreated"), b"x", b"y"]


def test_a_log_of_an_earlier_release_gets_an_id_that_lasts(tmp_path):
    async def write() -> None:
        async with Store(str(tmp_path), log_config=CONFIG) as store:
            assert (await store.log("t")).topic_id is None

    asyncio.run(write())
    with millstream.open(tmp_path, config=CONFIG) as store:
        log = fill(store, b"a", b"b")
        cursor = log.cursor_at(1)
        assert log.inner.topic_id is not None
    with millstream.open(tmp_path, config=CONFIG) as store:
        assert told(store.log("t").read(cursor)) == [b"b"]
        store.delete("t")
        assert told(fill(store, b"x").read(cursor)) == [Gap(1, 1, "recreated"), b"x"]


def test_a_position_without_an_id_is_one_of_the_present_log(store):
    fill(store, b"a")
    store.delete("t")
    assert told(fill(store, b"x", b"y").read("t:0:1")) == [b"y"]


def test_what_is_no_cursor_of_the_log_is_refused(store):
    log = fill(store, b"a")
    with pytest.raises(InvalidRequest, match="cursor must be one of t/0, got 'other:0:1'"):
        list(log.read("other:0:1"))
    with pytest.raises(MalformedRequest, match="expected topic@id:partition:offset"):
        list(log.read("x"))


def test_the_loop_form_has_cursors_too(tmp_path):
    async def run() -> None:
        async with millstream.open(tmp_path, config=CONFIG) as store:
            log = await store.log("t")
            await log.append_records([millstream.Record(b"a")])
            cursor = log.cursor_at(1)
            await store.delete("t")
            log = await store.log("t")
            assert list(log.records(cursor)) == [Gap(1, 1, "recreated")]

    asyncio.run(run())


def test_the_log_of_a_topic_has_the_id_of_the_topic(tmp_path):
    topic_id = uuid.uuid4()

    async def run() -> None:
        async with Store(str(tmp_path), log_config=CONFIG) as store:
            assert (await store.log("t", topic_id=topic_id)).topic_id == topic_id
        async with Store(str(tmp_path), log_config=CONFIG) as store:
            assert (await store.log("t", topic_id=topic_id)).topic_id == topic_id
        async with Store(str(tmp_path), log_config=CONFIG) as store:
            with pytest.raises(CorruptFile, match=f"belongs to the topic with id {topic_id}"):
                await store.log("t", topic_id=uuid.uuid4())

    asyncio.run(run())
