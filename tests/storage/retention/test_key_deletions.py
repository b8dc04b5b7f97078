"""Deletion by key: which records match, when they disappear, what crashes and failures leave."""

from __future__ import annotations

import asyncio
import errno

import pytest
from crc32c import crc32c

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.errors import (
    CorruptBatch,
    DamagedRecords,
    DiskFull,
    LogClosed,
    LogOffline,
    OffsetOutOfRange,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.records.build import build_batch
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.record import Record
from millstream.storage.files.partition_metadata import (
    DeletionRule,
    PartitionMetadata,
    read_partition_metadata,
)
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.log import Log
from millstream.storage.retention import key_deletions
from millstream.storage.segment.segment import GrowingSegment, SealedSegment
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.keyed import (
    DIRECTORY,
    SMALL,
    clean,
    fill,
    filled,
    key_of,
    offsets,
    value_of,
)
from tests.storage.logs import HeldExecutor, HeldSyncer, make_store, turns

WITHOUT_K1 = [offset for offset in range(36) if key_of(offset) != b"k1"]


def rules(disk: SimulatedFilesystem) -> list[tuple[bytes, bool, int]]:
    """Return the deletion rules in `partition.json`."""
    found = read_partition_metadata(disk, DIRECTORY).deletions
    return [(rule.match.pattern, rule.match.is_prefix, rule.before) for rule in found]


async def reopened(disk: SimulatedFilesystem, config: LogConfig = SMALL) -> Log:
    return await make_store(disk, config=config).log("a")


# Matching records.


@in_loop
async def test_all_records_with_a_key_are_gone_at_once_and_no_others():
    disk, _, log = await filled()
    assert await log.delete_keys(key=b"k1") == 7
    assert offsets(log) == WITHOUT_K1
    assert log.deleted_records == 7
    assert log.reclaimable_bytes >= 7 * len(value_of(0))
    assert rules(disk) == [(b"k1", False, 36)]


@in_loop
async def test_all_records_whose_key_begins_so_are_gone():
    disk, _, log = await filled(9)
    for number, key in enumerate((b"", b"p", b"pa", b"pab", b"q", None)):
        await log.append_records([Record(b"%d" % number, key=key)])
    assert await log.delete_keys(prefix=b"pa") == 2
    assert offsets(log, 9) == [9, 10, 13, 14]
    assert await log.delete_keys(prefix=b"p") == 1
    assert await log.delete_keys(key=b"") == 1
    assert offsets(log, 9) == [13, 14], "one without a key is hit by nothing"
    assert rules(disk) == [(b"pa", True, 15), (b"p", True, 15), (b"", False, 15)]


@pytest.mark.parametrize("before", [0, 1, 2, 9, 11, 12, 17, 31, 32, 36])
@in_loop
async def test_only_records_before_an_offset_are_hit(before):
    _, _, log = await filled()
    hit = [offset for offset in range(before) if key_of(offset) == b"k1"]
    assert await log.delete_keys(key=b"k1", before=before) == len(hit)
    assert offsets(log) == [offset for offset in range(36) if offset not in hit]


@in_loop
async def test_the_key_may_be_appended_again_and_stays():
    disk, store, log = await filled()
    await log.delete_keys(key=b"k1")
    await log.append_records([Record(b"back", key=b"k1")])
    assert offsets(log) == [*WITHOUT_K1, 36]
    await store.close()
    assert offsets(await reopened(disk)) == [*WITHOUT_K1, 36]


@in_loop
async def test_what_lies_below_the_first_offset_does_not_count():
    _, _, log = await filled()
    await log.delete_before(7)
    assert await log.delete_keys(key=b"k1") == 5
    assert offsets(log) == [offset for offset in WITHOUT_K1 if offset >= 7]


@in_loop
async def test_deleting_again_hides_what_came_since_and_one_rule_says_all():
    disk, _, log = await filled()
    assert await log.delete_keys(key=b"k1") == 7
    await fill(log, 9)
    assert await log.delete_keys(key=b"k1") == 2
    assert await log.delete_keys(key=b"k1") == 0
    assert await log.delete_keys(key=b"k1", before=20) == 0
    assert rules(disk) == [(b"k1", False, 45)]
    assert log.deleted_records == 9


@in_loop
async def test_records_that_two_deletions_hit_count_once():
    _, _, log = await filled()
    assert await log.delete_keys(key=b"k1", before=20) == 4
    assert await log.delete_keys(prefix=b"k", before=20) == 16
    assert offsets(log) == list(range(20, 36))
    assert log.deleted_records == 20


@in_loop
async def test_where_nothing_is_hit_nothing_is_written_down():
    disk, _, log = await filled()
    before = disk.content(f"{DIRECTORY}/partition.json")
    assert await log.delete_keys(key=b"nobody") == 0
    assert await log.delete_keys(prefix=b"k1x") == 0
    assert disk.content(f"{DIRECTORY}/partition.json") == before
    assert log.counters.deletions == 0


@in_loop
async def test_an_empty_log_has_nothing_to_delete():
    log = await make_store(config=SMALL).log("a")
    assert await log.delete_keys(key=b"k1") == 0


@in_loop
async def test_what_was_deleted_is_counted():
    _, _, log = await filled()
    await log.delete_keys(key=b"k1")
    await log.delete_keys(key=b"k2")
    assert (log.counters.deletions, log.counters.deleted_records) == (2, 14)


# Admitted but uncommitted records.


@in_loop
async def test_what_was_acknowledged_before_it_is_on_the_disk_is_hit_too():
    """A record that was acknowledged must not be readable after its deletion."""
    syncer = HeldSyncer()
    log = await make_store(config=SMALL, syncer=syncer).log("a")
    await log.append_records([Record(b"u", key=b"k")])  # By a thread: its name is new.
    early = log.submit(build_batch([Record(b"v", key=b"k")], now_ms=1), is_early=True)
    while not early.done():
        await turns(1)
    assert log.end_offset == 1
    deleting = asyncio.ensure_future(log.delete_keys(key=b"k"))
    await turns(1)
    late = log.submit(build_batch([Record(b"w", key=b"k")], now_ms=1))
    await turns()
    assert not deleting.done()
    while not (deleting.done() and late.done()):
        if syncer._done:
            syncer.sync_now()
            syncer.tell()
        await turns(1)
    assert await deleting == 2
    assert offsets(log) == [2], "what was admitted after the call is not hit"


@in_loop
async def test_what_is_given_as_the_end_must_be_committed():
    _, _, log = await filled()
    with pytest.raises(OffsetOutOfRange, match="offset must be between 0 and 36, got 37"):
        await log.delete_keys(key=b"k1", before=37)
    assert offsets(log) == list(range(36))


@in_loop
async def test_appends_go_on_while_it_is_found_out_what_is_hit():
    background = HeldExecutor()
    _, _, log = await filled(background=background, syncer=NoWaitSyncer())
    background.is_held = True
    deleting = asyncio.ensure_future(log.delete_keys(key=b"k1"))
    await turns()
    assert background.waiting == 1
    await log.append_records([Record(b"meanwhile", key=b"k1")])
    assert log.end_offset == 37
    background.let_go()
    assert await deleting == 7
    assert offsets(log) == [*WITHOUT_K1, 36]


class NoWaitSyncer:
    """Syncs at once, and reports it in the next turn of the loop."""

    def has_capacity(self, count):
        return True

    def sync(self, files, done):
        for file in files:
            file.sync()
        asyncio.get_running_loop().call_soon(done, None)

    def close(self):
        pass


@in_loop
async def test_who_watches_the_log_is_woken():
    _, _, log = await filled()
    woken = []
    log.watch(lambda: woken.append(offsets(log)))
    await log.delete_keys(key=b"k1")
    assert woken == [WITHOUT_K1]


# Refused calls.


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({}, "either a key or a prefix"),
        ({"key": b"a", "prefix": b"a"}, "either a key or a prefix"),
        ({"prefix": b""}, "an empty prefix matches every key"),
        ({"key": b"x" * 65_537}, "must have at most 65536 bytes, got 65537"),
        ({"prefix": b"x" * 65_537}, "must have at most 65536 bytes, got 65537"),
    ],
)
@in_loop
async def test_what_makes_no_sense_is_refused(asked, reason):
    _, _, log = await filled()
    with pytest.raises(RequestError, match=reason):
        await log.delete_keys(**asked)
    assert offsets(log) == list(range(36))


@in_loop
async def test_a_key_of_the_greatest_length_is_deleted():
    config = LogConfig()
    disk, store, log = await filled(0, config)
    key = b"x" * 65_536
    await log.append_records([Record(b"v", key=key)])
    assert await log.delete_keys(key=key) == 1
    await store.close()
    assert offsets(await reopened(disk)) == []


@in_loop
async def test_only_so_many_deletions_may_wait_to_be_reclaimed():
    disk, store, log = await filled(store_config=StoreConfig(deletions_max=2))
    await log.delete_keys(key=b"k0")
    await log.delete_keys(key=b"k1")
    with pytest.raises(Unavailable, match=r"at most 2 deletions .*, 2 are"):
        await log.delete_keys(key=b"k2")
    assert len(offsets(log)) == 36 - 8 - 7
    await fill(log, 9)
    assert await log.delete_keys(key=b"k1") == 2, "one more of a rule that waits already"
    await log.roll()
    await clean(store, log)
    assert rules(disk) == []
    assert await log.delete_keys(key=b"k2") == 9


@in_loop
async def test_deletions_that_wait_may_take_only_so_many_bytes(monkeypatch):
    monkeypatch.setattr(key_deletions, "RULES_BYTES_MAX", 100)
    _, _, log = await filled()
    await log.delete_keys(key=b"k0")
    await log.delete_keys(key=b"k1")
    with pytest.raises(Unavailable, match="at most 100 bytes, got 132"):
        await log.delete_keys(key=b"k2")


@in_loop
async def test_a_log_that_is_closed_or_offline_deletes_nothing():
    _, store, log = await filled()
    await store.close()
    with pytest.raises(LogClosed):
        await log.delete_keys(key=b"k1")
    disk = SimulatedFilesystem()
    fault = Fault(call=2, only={"sync"}, path=".log")
    log = await make_store(FaultyFilesystem(disk, fault), config=SMALL).log("a")
    await log.append_records([Record(b"v", key=b"k1")])
    with pytest.raises(LogOffline):
        await log.append_records([Record(b"v", key=b"k1")])
    with pytest.raises(LogOffline):
        await log.delete_keys(key=b"k1")


# Durability.


@pytest.mark.parametrize("how", ["closed", "killed", "power cut"])
@pytest.mark.parametrize("is_cleaned", [False, True], ids=["masked", "reclaimed"])
@in_loop
async def test_what_was_deleted_stays_so_when_the_log_is_opened_again(how, is_cleaned):
    disk, store, log = await filled()
    await log.delete_keys(key=b"k1")
    await log.delete_keys(prefix=b"k4", before=20)
    wanted = [o for o in WITHOUT_K1 if o >= 20 or key_of(o) != b"k4"]
    assert offsets(log) == wanted
    if is_cleaned:
        await log.roll()
        assert await clean(store, log)
    if how == "closed":
        await store.close()
    disk = disk.crash() if how == "power cut" else disk.copy()
    log = await reopened(disk)
    assert offsets(log) == wanted
    assert log.deleted_records == (0 if is_cleaned else 36 - len(wanted))
    await fill(log, 9)
    assert offsets(log) == [*wanted, *range(36, 45)]


@in_loop
async def test_rules_that_nothing_is_left_of_are_forgotten_and_the_others_are_not():
    disk, store, log = await filled(33)
    await log.delete_keys(key=b"k1", before=9)
    await log.delete_keys(key=b"k2")
    assert isinstance(log.segments[-1], GrowingSegment)
    assert await clean(store, log)
    assert rules(disk) == [(b"k2", False, 33)], "some of it is in the growing segment"
    await log.roll()
    assert await clean(store, log)
    assert rules(disk) == []
    await store.close()
    found = offsets(await reopened(disk))
    gone = [o for o in range(33) if key_of(o) == b"k2" or (key_of(o) == b"k1" and o < 9)]
    assert found == [o for o in range(33) if o not in gone]


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
@in_loop
async def test_offsets_that_a_crash_took_back_are_not_deleted_when_they_are_given_again(durability):
    config = LogConfig(segment_bytes_max=1024, durability=durability)
    disk, _, log = await filled(9, config)
    await log.roll()
    await fill(log, 3)
    await log.delete_keys(key=b"k1")
    disk = disk.crash()
    log = await reopened(disk, config)
    end = log.end_offset
    assert end in range(9, 12)
    await log.append_records([Record(b"v", key=b"k1") for _ in range(5)])
    await turns()
    assert offsets(log)[-5:] == list(range(end, end + 5))
    again = await reopened(disk.copy(), config)
    assert offsets(again)[-5:] == list(range(end, end + 5))


@pytest.mark.parametrize(
    ("error", "kind"), [(errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull)], ids=["EIO", "ENOSPC"]
)
@pytest.mark.parametrize("call", ["create", "write_at", "sync", "rename", "sync_directory"])
@in_loop
async def test_where_the_rule_cannot_be_written_the_caller_is_told_and_either_is_safe(
    call, error, kind
):
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=SMALL).log("a")
    await fill(log, 9)
    fault = Fault(call=1, error=error, only={call}, path=DIRECTORY)
    place = log._context.metadata_file._log_directory
    faulty = FaultyFilesystem(disk, fault)
    object.__setattr__(place, "filesystem", faulty)
    with pytest.raises(kind):
        await log.delete_keys(key=b"k1")
    assert fault.hits
    assert offsets(log) == list(range(9)), "nothing is hidden that may come back"
    for after in (disk.copy(), disk.copy().crash()):
        found = offsets(await reopened(after))
        assert found in (list(range(9)), [o for o in range(9) if key_of(o) != b"k1"])
    assert await log.delete_keys(key=b"k1") == 2, "it can be tried again"
    assert offsets(await reopened(disk.crash())) == [o for o in range(9) if key_of(o) != b"k1"]


# Damage.


def spoil(disk: SimulatedFilesystem, offset: int) -> tuple[str, int]:
    """Flip a bit of a record in the file that holds it, and return the file."""
    for path in disk.paths():
        if path.endswith(".log") and value_of(offset) in disk.content(path):
            bit = disk.content(path).index(value_of(offset)) * 8
            disk.flip_bit(path, bit)
            return path, bit
    raise AssertionError(offset)


def forget(log: Log) -> None:
    for segment in log.sealed:
        segment.forget()


@in_loop
async def test_where_a_segment_cannot_be_read_nothing_is_deleted_anywhere():
    disk, _, log = await filled()
    spoil(disk, 10)
    forget(log)
    before = disk.content(f"{DIRECTORY}/partition.json")
    with pytest.raises(CorruptBatch):
        await log.delete_keys(key=b"k1")
    assert disk.content(f"{DIRECTORY}/partition.json") == before
    assert log.masks == {}
    assert 1 in [record.offset for record in log.records(0, until=9)]


@in_loop
async def test_what_was_deleted_does_not_come_back_because_something_is_damaged():
    """Its key index is lost too, so it is unknown which records were deleted."""
    disk, store, log = await filled()
    await log.delete_keys(key=b"k1")
    await store.close()
    damage = spoil(disk, 10)
    for path in disk.paths():
        if path.endswith(".keys"):
            disk.remove(path)
    store = make_store(disk, config=SMALL)
    log = await store.log("a")
    assert offsets(log, 18) == [offset for offset in WITHOUT_K1 if offset >= 18]
    assert [r.offset for r in log.records(0, until=9)] == [o for o in WITHOUT_K1 if o < 9]
    for offset in range(9, 18):
        with pytest.raises(DamagedRecords, match="the deleted records are not known"):
            log.read(offset)
    with pytest.raises(DamagedRecords):
        log.find_timestamp(3_000)
    with pytest.raises(DamagedRecords):
        list(log.records_between(0, 10**6))
    with pytest.raises(CorruptBatch):
        await log.delete_keys(key=b"k2")
    # Repaired, say from a copy, it can be read again.
    disk.flip_bit(*damage)
    log = await store.reopen("a")
    assert offsets(log) == WITHOUT_K1


@in_loop
async def test_with_its_index_of_keys_only_a_damaged_batch_cannot_be_read():
    disk, store, log = await filled()
    await log.delete_keys(key=b"k1")
    await store.close()
    spoil(disk, 13)
    log = await reopened(disk)
    assert [r.offset for r in log.records(9, until=12)] == [9, 10]
    with pytest.raises(DamagedRecords):
        log.read(12)
    assert log.read(15).next_offset == 18


@in_loop
async def test_records_that_cannot_be_opened_keep_nobody_from_deleting_others():
    """A careless producer sent them so: their checksum is right, but they cannot be decoded."""
    disk, store, log = await filled(9)
    batch = bytearray(build_batch([Record(b"v", key=b"k1")], now_ms=1))
    batch[61] = 0x7F
    await log.append(resummed(batch))
    await fill(log, 9)
    assert await log.delete_keys(key=b"k1") == 4
    await store.close()
    log = await reopened(disk)
    assert log.deleted_records == 4
    assert log.read(9, size_max=1).next_offset == 10


def resummed(batch: bytearray) -> bytes:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return bytes(batch)


# Growing segments.


@in_loop
async def test_a_large_growing_segment_is_sealed_so_that_the_next_deletion_finds_an_index(
    monkeypatch,
):
    monkeypatch.setattr(key_deletions, "ROLL_BYTES_MIN", 500)
    disk, _, log = await filled(33)
    assert isinstance(log.segments[-1], GrowingSegment)
    assert log.segments[-1].size > 500
    await log.delete_keys(key=b"k1")
    await turns(50)
    assert isinstance(log.segments[-1], SealedSegment)
    assert await log.delete_keys(key=b"k2") == 7
    assert f"{DIRECTORY}/{27:020d}.keys" in disk.paths()


@in_loop
async def test_a_small_one_goes_on_growing():
    _, _, log = await filled(30)
    await log.delete_keys(key=b"k1")
    await turns(50)
    assert isinstance(log.segments[-1], GrowingSegment)


@in_loop
async def test_a_log_in_memory_deletes_by_key_too():
    config = LogConfig(segment_bytes_max=1024, durability=Durability.EPHEMERAL)
    log = await make_store().log("a", config=config)
    await fill(log, 36)
    await turns(50)
    assert await log.delete_keys(key=b"k1") == 7
    assert offsets(log) == WITHOUT_K1


@in_loop
async def test_a_log_with_deletions_is_sound():
    disk, store, log = await filled()
    await log.delete_keys(key=b"k1")
    await store.close()
    found = list(verify_partition(disk, DIRECTORY))
    assert [str(each) for each in found if each.is_damage] == []


# The rules themselves.


class Untouchable:
    """A segment that must not be read."""

    def __init__(self, base_offset, next_offset):
        self.base_offset, self.next_offset, self.size = base_offset, next_offset, 10

    def __getattr__(self, name):
        raise AssertionError(name)


@pytest.mark.parametrize(
    "partition",
    [
        PartitionMetadata(),
        PartitionMetadata(deletions=(DeletionRule(KeyMatch(b"k", is_prefix=False), 50),)),
        PartitionMetadata(
            start_offset=60, deletions=(DeletionRule(KeyMatch(b"k", is_prefix=False), 70),)
        ),
    ],
    ids=["no rules", "a rule that ends before it", "a segment that was deleted"],
)
def test_a_segment_that_no_rule_can_hit_is_not_looked_into(partition):
    assert key_deletions.resolve_deleted_offsets([Untouchable(50, 60)], partition, 60) == {}
