"""Embedded log: gaps, deletion, eviction and compaction, without an event loop."""

from __future__ import annotations

import itertools
import threading

import pytest

import millstream
from millstream import Durability, EmbeddedLog, Gap, LogConfig, Record
from millstream.errors import OffsetOutOfRange, RequestError

SMALL = LogConfig(durability=Durability.DISK, segment_records_max=9, segment_bytes_max=4096)
CAPPED = LogConfig(
    durability=Durability.DISK, segment_records_max=9, segment_bytes_max=4096, retention_records=10
)


@pytest.fixture
def log(tmp_path):
    with millstream.open(tmp_path / "data", config=SMALL) as store:
        made = store.log("t")
        fill(made, 36)
        yield made


def fill(log: EmbeddedLog, count: int) -> None:
    """Append batches of three records; their keys are `k0` to `k4`, over and over."""
    first = log.end_offset
    for start in range(first, first + count, 3):
        log.append_many([Record(b"%d" % n, key=b"k%d" % (n % 5)) for n in range(start, start + 3)])


def evict(log: EmbeddedLog, offset: int) -> None:
    log._store.run(log.inner.evict_before(offset))


def told(found) -> list[int | tuple[int, int]]:
    return [(e.from_offset, e.to_offset) if isinstance(e, Gap) else e.offset for e in found]


def arrow_offsets(log: EmbeddedLog, *bounds: int, **more: int) -> list[int]:
    found = log.read_arrow(*bounds, columns=["value", "offset"], **more)
    batches = list(found)
    assert all(batch.num_rows for batch in batches)
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


# Gaps.


@pytest.mark.parametrize("position", [0, 4, 9, 19, 20, 30, 36])
def test_a_reader_at_any_position_is_told_of_what_it_missed(log, position):
    evict(log, 20)
    gap = [(position, 19)] if position < 20 else []
    assert told(log.read(position)) == [*gap, *range(max(20, position), 36)]
    assert log.gap_at(position) == (Gap(position, 19, "retention") if gap else None)


@pytest.mark.parametrize("position", [0, 4, 9, 19, 20, 30])
def test_a_follower_at_any_position_is_told_of_what_it_missed(log, position):
    evict(log, 20)
    wanted = [*([(position, 19)] if position < 20 else []), *range(max(20, position), 36)]
    assert told(itertools.islice(log.follow(position), len(wanted))) == wanted


def test_a_reader_and_a_follower_that_are_overtaken_are_told(log):
    reading, following = log.read(), log.follow()
    assert (next(reading).offset, next(following).offset) == (0, 0)
    evict(log, 30)
    assert told(reading) == [*range(1, 9), (9, 29), *range(30, 36)]
    assert told(itertools.islice(following, 15)) == [*range(1, 9), (9, 29), *range(30, 36)]


def test_a_follower_that_waits_at_the_end_and_is_overtaken_there_is_told(log):
    """It wakes up when there is more, and then is too slow to read it."""
    following = log.follow(36)
    wait = log.inner.wait_for
    is_waiting = threading.Event()

    async def slowly(offset: int) -> None:
        is_waiting.set()
        await wait(offset)
        if log.inner.start_offset <= offset:
            await log.inner.evict_before(40)

    log.inner.wait_for = slowly
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(next(following)))
    thread.start()
    is_waiting.wait()
    log.append_many([Record(b"x")] * 6)
    thread.join()
    assert found == [Gap(36, 39, "retention")]
    assert told(itertools.islice(following, 2)) == [40, 41]


def test_a_follower_skips_what_was_deleted_without_a_word(log):
    following = log.follow()
    assert next(following).offset == 0
    log.delete_before(31)
    assert told(itertools.islice(following, 13)) == [*range(1, 9), *range(31, 36)]


def test_a_table_has_no_place_for_a_gap(log):
    evict(log, 20)
    with pytest.raises(OffsetOutOfRange) as caught:
        arrow_offsets(log, 3)
    assert caught.value.__notes__ == ["offsets 3 to 19: retention"]
    assert arrow_offsets(log) == list(range(20, 36))
    assert arrow_offsets(log, 25, until=28) == [25, 26, 27]


def test_a_table_that_is_overtaken_ends_with_an_error(log):
    found = log.read_arrow(columns=["offset"])
    assert next(found).column("offset").to_pylist() == list(range(9))
    evict(log, 20)
    with pytest.raises(OffsetOutOfRange):
        next(found)


def test_a_table_leaves_out_what_was_deleted_without_a_word(log):
    log.delete_before(13)
    assert arrow_offsets(log, 3) == list(range(13, 36))
    found = log.read_arrow(columns=["offset"])
    first = next(found).column("offset").to_pylist()
    log.delete_before(30)
    rest = [offset for batch in found for offset in batch.column("offset").to_pylist()]
    assert (first, rest) == (list(range(13, 18)), list(range(30, 36)))


# Deleting by key.


@pytest.mark.parametrize("codec", millstream.Codec)
def test_records_with_a_key_are_gone_however_they_are_read(tmp_path, codec):
    with millstream.open(tmp_path / "data", config=SMALL) as store:
        log = store.log("t")
        for start in range(0, 36, 3):
            records = [Record(b"%d" % n, key=b"k%d" % (n % 5)) for n in range(start, start + 3)]
            log.append_many(records, codec=codec)
        assert log.delete_keys(key=b"k1") == 7
        assert log.delete_keys(prefix=b"k2", before=20) == 4
        left = [n for n in range(36) if n % 5 != 1 and (n % 5 != 2 or n >= 20)]
        assert told(log.read()) == left
        assert told(itertools.islice(log.follow(), len(left))) == left
        assert arrow_offsets(log) == left
        assert arrow_offsets(log, 5, until=31) == [n for n in left if 5 <= n < 31]


def test_a_batch_of_which_nothing_is_left_holds_nobody_up(tmp_path):
    with millstream.open(tmp_path / "data", config=SMALL) as store:
        log = store.log("t")
        log.append_many([Record(b"1", key=b"a"), Record(b"2", key=b"a")])
        log.append(b"3", key=b"b")
        log.delete_keys(key=b"a")
        assert [record.value for record in log.read()] == [b"3"]
        assert next(log.follow()).value == b"3"
        assert arrow_offsets(log) == [2]
        assert log.delete_keys(key=b"b") == 1
        assert (told(log.read()), arrow_offsets(log)) == ([], [])


def test_a_deletion_that_makes_no_sense_is_refused(log):
    with pytest.raises(RequestError):
        log.delete_keys()
    with pytest.raises(RequestError):
        log.delete_keys(key=b"a", prefix=b"a")


# Evicting and compacting.


def test_what_is_too_much_is_hidden_at_once_and_its_files_go_when_asked_for(tmp_path):
    with millstream.open(tmp_path / "data", config=CAPPED) as store:
        log = store.log("t")
        fill(log, 36)
        plan = log.evict(dry_run=True)
        assert plan is not None
        assert (plan.before_offset, plan.records) == (18, 18)
        kept = CAPPED.retention_records
        assert told(log.read(0)) == [(0, 35 - kept), *range(36 - kept, 36)]
        assert len(log.inner.segments) == 4
        assert log.evict() == plan
        assert told(log.read(0)) == [(0, 35 - kept), *range(36 - kept, 36)]
        assert len(log.inner.segments) == 2
        assert log.evict() is None


def test_a_log_without_limits_evicts_nothing(log):
    assert log.evict() is None
    assert told(log.read(0)) == list(range(36))


def test_compacting_keeps_the_latest_of_each_key(tmp_path):
    config = LogConfig(durability=Durability.DISK, segment_records_max=9, is_compacted=True)
    with millstream.open(tmp_path / "data", config=config) as store:
        log = store.log("t")
        fill(log, 36)
        done = log.compact()
        assert done is not None
        assert told(log.read(0)) == list(range(31, 36))
        assert arrow_offsets(log, 0) == list(range(31, 36))
        fill(log, 3)
        assert told(log.read(0)) == [*range(31, 36), 36, 37, 38]


def test_compacting_gives_back_what_was_deleted_by_key(log):
    size = log.inner.size_bytes
    assert log.delete_keys(key=b"k1") == 7
    assert log.inner.size_bytes == size
    assert log.compact() is not None
    assert log.inner.size_bytes < size
    assert log.inner.deleted_records == 0
    assert told(log.read()) == [n for n in range(36) if n % 5 != 1]
    assert log.compact() is None, "there is nothing left to do"
