"""Deletions by key find their records through an index, which is never trusted blindly."""

from __future__ import annotations

import errno
import random
import struct
import subprocess
import sys
from array import array

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch, CorruptFile, DamagedRecords, UnknownFormat
from millstream.records.batch import CONTROL_BIT, HEADER_SIZE, decode_header, split, stamp
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.records.iterate import read_records
from millstream.records.record import Record
from millstream.storage.disk.file_cache import FileCache
from millstream.storage.disk.filesystem import write_all
from millstream.storage.files.partition_metadata import DeletionRule
from millstream.storage.files.seal import Seal
from millstream.storage.segment.keys import builder as key_building
from millstream.storage.segment.keys import key_index
from millstream.storage.segment.keys.builder import (
    PythonKeyGatherer,
    build_key_index,
    build_key_index_with,
)
from millstream.storage.segment.keys.kernels import CompiledKeyGatherer
from millstream.storage.segment.keys.key_file import (
    KEY_SIZE_MAX,
    KEYS_HEADER_SIZE,
    KeyedBatchPosition,
    KeyIndex,
    check_key_index,
)
from millstream.storage.segment.keys.key_index import find_deleted_offsets
from millstream.storage.segment.scan import scan
from millstream.storage.segment.segment import GrowingSegment, LogDirectory, SealedSegment
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.records.samples import assemble

BASE = 1_000
EPOCH = 3
KEY, PREFIX = False, True
ALL = 2**62

# Keys that differ late, early, or only in how long they are, and some that are cut off.
pieces = st.sampled_from([b"a", b"b", b"\0", b"\xff", b"customer-0000", b"x" * 60, b"x" * 127])
keys = st.one_of(st.none(), st.lists(pieces, max_size=4).map(b"".join), st.binary(max_size=10))
key_lists = st.lists(keys, min_size=1, max_size=8)
key_logs = st.lists(key_lists, min_size=1, max_size=12)


slow = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def batch_of(batch_keys, *, codec=Codec.NONE, value=b"v"):
    return build_batch([Record(value, key) for key in batch_keys], now_ms=1, codec=codec)


def laid(batches, *, base_offset=BASE):
    """Consecutive batches, stamped with their offsets."""
    data, offset = b"", base_offset
    for batch in batches:
        data += stamp(batch, base_offset=offset, leader_epoch=EPOCH)
        offset += decode_header(batch).last_offset_delta + 1
    return data


def log_of(*batches, codec=Codec.NONE):
    return laid([batch_of(batch_keys, codec=codec) for batch_keys in batches])


def marker(key):
    batch = batch_of([key])
    return assemble(batch[HEADER_SIZE:], template=batch, attributes=CONTROL_BIT)


def broken(key):
    """A batch with a correct checksum whose records cannot be decoded."""
    batch = batch_of([key])
    return assemble(batch[HEADER_SIZE:-1] + b"\x02", template=batch)


def spots_of(data):
    """The position of each batch, with its keys."""
    position, found = 0, []
    for header, batch in split(data):
        spot = KeyedBatchPosition(position, header.base_offset)
        position += header.size
        is_readable = not header.is_control and batch[-1] != 2
        found.append((spot, [record.key for record in read_records(batch)] if is_readable else []))
    return found


def seal_of(data, *, base_offset=BASE) -> Seal:
    found = scan(memoryview(data), base_offset=base_offset, created_ms=0, index_interval_bytes=200)
    assert found.damage is None
    return found.stats.seal(0)


def build(data, gatherer=PythonKeyGatherer, **options):
    return build_key_index_with(gatherer, memoryview(data), base_offset=BASE, **options)


def decode_key_index(data, seal) -> KeyIndex:
    check_key_index(data)
    return KeyIndex(data, seal)


def index_of(data, **options) -> KeyIndex:
    return decode_key_index(build(data, **options), seal_of(data))


# Lookups, against a walk over all keys.


def wanted(draw, data):
    """A match that is likely to match: a key of the log, part of one, or a bit more."""
    known = [key for _, found in spots_of(data) for key in found if key is not None]
    pattern = draw(st.one_of(st.sampled_from([*known, b"a"]), keys.filter(lambda k: k is not None)))
    pattern = pattern[: draw(st.integers(0, len(pattern)))] if draw(st.booleans()) else pattern
    return KeyMatch(pattern + draw(st.sampled_from([b"", b"", b"\0", b"z"])), draw(st.booleans()))


@slow
@given(key_logs, st.sampled_from([1, 5, 1000]), st.data())
def test_no_batch_that_holds_a_key_is_left_out(batches, section_keys, data):
    log = log_of(*batches)
    index = index_of(log, section_keys=section_keys)
    for _ in range(5):
        match = wanted(data.draw, log)
        found = index.find(match)
        assert found == sorted(set(found))
        holding = {spot for spot, held in spots_of(log) if any(map(match.matches, held))}
        assert holding <= set(found) <= {spot for spot, _ in spots_of(log)}


def test_a_key_leads_to_its_batches_and_to_no_others():
    batches = [[b"user-%05d" % (n * 37 + m) for m in range(30)] for n in range(60)]
    log = log_of(*batches, [b"user-00000", b"user-00001"])
    index, spots = index_of(log), [spot for spot, _ in spots_of(log)]
    assert index.find(KeyMatch(b"user-00000", KEY)) == [spots[0], spots[60]]
    assert index.find(KeyMatch(b"user-01115", KEY)) == [spots[30]]
    assert index.find(KeyMatch(b"user-0111", PREFIX)) == [spots[30]]
    assert index.find(KeyMatch(b"user-00", PREFIX)) == [*spots[:28], spots[60]]
    assert index.find(KeyMatch(b"user-", PREFIX)) == spots
    assert index.find(KeyMatch(b"", PREFIX)) == spots


@pytest.mark.parametrize(
    "match",
    [
        KeyMatch(b"", KEY),
        KeyMatch(b"a", KEY),
        KeyMatch(b"user-", KEY),
        KeyMatch(b"user-00035", KEY),
        KeyMatch(b"user-99999", KEY),
        KeyMatch(b"user-000000", KEY),
        KeyMatch(b"zebra", KEY),
        KeyMatch(b"\xff", PREFIX),
        KeyMatch(b"\0", PREFIX),
        KeyMatch(b"user-3", PREFIX),
        KeyMatch(b"user-00001x", PREFIX),
    ],
)
def test_a_key_that_is_not_there_leads_nowhere(match):
    log = log_of(*([b"user-%05d" % (n * 37 + m) for m in range(30)] for n in range(60)))
    assert index_of(log).find(match) == []


def test_nearly_no_random_key_is_taken_for_one_that_is_there():
    rng = random.Random(1)
    log = log_of(*([rng.randbytes(16) for _ in range(50)] for _ in range(40)))
    index = index_of(log)
    assert sum(len(index.find(KeyMatch(rng.randbytes(16), KEY))) for _ in range(1000)) < 5


def test_the_empty_key_is_a_key_and_no_key_is_none():
    log = log_of([None, None], [b""], [None, b"a"], [b"\0"])
    spots, index = [spot for spot, _ in spots_of(log)], index_of(log)
    assert index.find(KeyMatch(b"", KEY)) == [spots[1]]
    assert index.find(KeyMatch(b"", PREFIX)) == spots[1:]
    assert index.find(KeyMatch(b"\0", PREFIX)) == [spots[3]]


def test_of_long_keys_only_the_first_bytes_tell_them_apart():
    same = b"x" * KEY_SIZE_MAX
    log = log_of([same], [same + b"1"], [same + b"2" * 10_000], [b"y" * 10_000], [b"x" * 126])
    spots, index = [spot for spot, _ in spots_of(log)], index_of(log)
    for pattern in (same, same + b"1", same + b"3", same + b"2" * 10_000):
        assert index.find(KeyMatch(pattern, KEY)) == spots[:3]
        assert index.find(KeyMatch(pattern, PREFIX)) == spots[:3]
    assert index.find(KeyMatch(b"x" * 126, KEY)) == [spots[4]]
    assert index.find(KeyMatch(b"x" * 126, PREFIX)) == [*spots[:3], spots[4]]
    assert index.find(KeyMatch(b"y" * 10_000, KEY)) == [spots[3]]
    assert len(build(log)) < 500


def test_markers_keyless_and_unreadable_batches_are_left_out():
    batches = [batch_of([None]), marker(b"k"), broken(b"k"), batch_of([b"k"]), broken(b"k")]
    log = laid(batches)
    third = spots_of(log)[3][0]
    for gatherer in (PythonKeyGatherer, CompiledKeyGatherer):
        index = index_of(log, gatherer=gatherer)
        assert index.find(KeyMatch(b"k", KEY)) == index.find(KeyMatch(b"", PREFIX)) == [third]


@pytest.mark.parametrize("log", [b"", log_of([None], [None, None]), laid([marker(b"k")])])
def test_a_log_without_keys_has_an_index_without_entries(log):
    assert len(build(log)) == KEYS_HEADER_SIZE
    assert index_of(log).find(KeyMatch(b"", PREFIX)) == []


# Building, with and without the compiler.


@slow
@given(key_logs, st.sampled_from(Codec), st.sampled_from([3, 1000]))
def test_kernels_and_plain_python_write_the_same_file(batches, codec, section_keys):
    log = log_of(*batches, codec=codec)
    options = {"section_keys": section_keys}
    assert build(log, CompiledKeyGatherer, **options) == build(log, PythonKeyGatherer, **options)


def random_keys(rng):
    return rng.randbytes(16)


def short_binary_keys(rng):
    return rng.randbytes(rng.randrange(4))


def keys_that_differ_late(rng):
    return b"customer-" * 10 + b"%07d" % rng.randrange(10**7)


def few_keys(rng):
    return b"sensor-%d" % (rng.randrange(20))


def keys_of_zeros(rng):
    return bytes(rng.randrange(200))


def keys_around_the_limit(rng):
    return b"k" * rng.randrange(120, 135) + rng.randbytes(1)


def keys_with_high_bytes(rng):
    return b"\xff" * rng.randrange(20) + bytes([rng.choice([0, 127, 128, 255])])


@pytest.mark.parametrize(
    "make",
    [
        random_keys,
        short_binary_keys,
        keys_that_differ_late,
        few_keys,
        keys_of_zeros,
        keys_around_the_limit,
        keys_with_high_bytes,
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_kernels_and_plain_python_sort_thousands_of_keys_alike(make, codec):
    rng = random.Random(7)
    log = log_of(*([make(rng) for _ in range(25)] for _ in range(150)), codec=codec)
    for section_keys in (1000, 10_000):
        compiled = build(log, CompiledKeyGatherer, section_keys=section_keys)
        assert compiled == build(log, PythonKeyGatherer, section_keys=section_keys)
    index = decode_key_index(compiled, seal_of(log))
    for spot, held in spots_of(log)[::30]:
        assert all(spot in index.find(KeyMatch(key, KEY)) for key in held)


def test_a_key_that_is_everywhere_leads_everywhere():
    log = log_of(*([b"hot", b"%05d" % n, b"hot"] for n in range(9_000)))
    plain, compiled = build(log), build(log, CompiledKeyGatherer)
    assert plain == compiled
    index, spots = decode_key_index(plain, seal_of(log)), [spot for spot, _ in spots_of(log)]
    assert index.find(KeyMatch(b"hot", KEY)) == spots
    assert index.find(KeyMatch(b"08999", KEY)) == [spots[8_999]]


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_large_log_is_indexed_with_the_compiler_where_there_is_one(monkeypatch, is_compiled):
    log = log_of([b"a"], [b"b"])
    monkeypatch.setattr(key_building, "KERNEL_BYTES_MIN", len(log))
    if not is_compiled:
        monkeypatch.setitem(sys.modules, "millstream.storage.segment.keys.kernels", None)
    assert build_key_index(memoryview(log), base_offset=BASE) == build(log)


def flip_in_records(data):
    data[-1] ^= 1


def flip_in_base_offset(data):
    data[len(data) // 2 + 7] ^= 1


def flip_in_epoch(data):
    data[len(data) // 2 + 15] ^= 1


def flip_in_length(data):
    data[len(data) // 2 + 11] ^= 1


def cut_last_byte(data):
    del data[-1:]


DAMAGES = [flip_in_records, flip_in_base_offset, flip_in_epoch, flip_in_length, cut_last_byte]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("gatherer", [PythonKeyGatherer, CompiledKeyGatherer])
def test_no_index_is_built_of_a_damaged_log(damage, gatherer):
    log = bytearray(log_of([b"a"], [b"b"]))
    half = len(log) // 2
    damage(log)
    with pytest.raises(CorruptBatch, match=f"byte {half}: "):
        build(log, gatherer)


# The file.

HEADER = struct.Struct("<4sHHqq16sII")

TINY = log_of([b"apple", None, b"apple"], [b"apricot", b"b"], [b"apple", b"banana-split"])
SIZES = [header.size for header, _ in split(TINY)]

GOLDEN = (
    b"MSKY\x01\0\0\0"
    + struct.pack("<qq16sII", BASE, len(TINY), seal_of(TINY).digest, 1, 0)
    + struct.pack("<III", 4, 3, 26)
    + struct.pack("<qqqqqq", 0, 1000, SIZES[0], 1003, SIZES[0] + SIZES[1], 1005)
    + struct.pack("<I", 0)
    + bytes.fromhex("00 0a 6170706c65 05 00 02")  # apple, in the first and the third batch
    + bytes.fromhex("02 07 726963 02")  # apric..., in the second
    + bytes.fromhex("00 02 62 02")  # b, in the second
    + bytes.fromhex("01 07 616e61 04")  # bana..., in the third
)
"""Written by hand from the picture in `key_file.py`, with zeros for the checksum."""


def with_sum(data):
    """A file with a correct checksum, whatever else it contains."""
    blank = data[:44] + bytes(4) + data[48:]
    return blank[:44] + struct.pack("<I", crc32c(blank)) + blank[48:]


def with_fields(data, **changes):
    names = ("magic", "version", "pad", "base", "size", "digest", "sections", "crc")
    fields = dict(zip(names, HEADER.unpack_from(data), strict=True)) | changes
    return with_sum(HEADER.pack(*fields.values()) + data[KEYS_HEADER_SIZE:])


@pytest.mark.parametrize("gatherer", [PythonKeyGatherer, CompiledKeyGatherer])
def test_the_file_is_as_it_is_drawn(gatherer):
    assert build(TINY, gatherer) == with_sum(GOLDEN)


def test_every_cut_of_a_file_is_refused():
    data, seal = build(TINY), seal_of(TINY)
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_key_index(data[:size], seal)


def test_every_flipped_bit_of_a_file_is_refused():
    data, seal = build(TINY), seal_of(TINY)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decode_key_index(flipped, seal)


def test_bytes_behind_the_last_section_are_refused():
    with pytest.raises(CorruptFile, match="keys have checksum"):
        decode_key_index(build(TINY) + b"!", seal_of(TINY))
    with pytest.raises(CorruptFile, match="keys end at byte 138, but the file has 139 bytes"):
        decode_key_index(with_sum(build(TINY) + b"!"), seal_of(TINY))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"magic": b"MSIX"}, CorruptFile, "keys start with b'MSIX', expected b'MSKY'"),
        ({"pad": 1}, CorruptFile, "keys start with"),
        ({"version": 2}, UnknownFormat, "keys have version 2, expected 1"),
        ({"base": 7}, CorruptFile, "have base offset 7, .* expected 1000"),
        ({"size": 7}, CorruptFile, "log size 7"),
        ({"digest": bytes(16)}, CorruptFile, "digest 00000000000000000000000000000000, expected"),
        ({"sections": 2}, CorruptFile, "section of keys must have at least 12 bytes, got 0"),
        ({"sections": 0}, CorruptFile, "keys end at byte 48, but the file has 138 bytes"),
    ],
)
def test_a_file_with_another_header_is_refused(changes, error, message):
    with pytest.raises(error, match=message):
        decode_key_index(with_fields(build(TINY), **changes), seal_of(TINY))


def test_a_section_that_claims_more_than_there_is_is_refused():
    data = bytearray(build(TINY))
    data[KEYS_HEADER_SIZE + 7] = 0x7F
    with pytest.raises(CorruptFile, match=r"section of keys must have .* bytes, got 90"):
        decode_key_index(with_sum(bytes(data)), seal_of(TINY))


# What deletions hit in a segment.


class Disk:
    """A segment in a directory."""

    def __init__(self, data, *, fault=None, generation=0):
        self.simulated = SimulatedFilesystem()
        self.simulated.make_directory("/log")
        filesystem = FaultyFilesystem(self.simulated, fault) if fault else self.simulated
        self.log_directory = LogDirectory(filesystem, "/log", FileCache(8), FileCache(8), 200)
        self.seal = seal_of(data)
        self.path = self.log_directory.path(BASE, "log", generation)
        file = self.simulated.create(self.path)
        write_all(file, 0, [data])
        self.sealed = SealedSegment(self.log_directory, self.seal, generation)
        found = scan(memoryview(data), base_offset=BASE, created_ms=0, index_interval_bytes=200)
        self.growing = GrowingSegment(self.log_directory, found.stats, found.index, file)

    def forget(self):
        """Read the files again, as another process would."""
        self.sealed.forget()

    def matches(self, *deletions, kind="sealed", start=BASE, limit=None):
        segment = self.sealed if kind == "sealed" else self.growing
        limit = self.seal.size if limit is None else limit
        return find_deleted_offsets(segment, deletions, start=start, limit=limit)

    def offsets(self, *deletions, **options):
        return self.matches(*deletions, **options).offsets.tolist()


def deletion(pattern, *, is_prefix=KEY, before=ALL):
    return DeletionRule(KeyMatch(pattern, is_prefix), before)


kinds = pytest.mark.parametrize("kind", ["sealed", "growing"])

SMALL = log_of([b"a", b"b"], [b"b", b"a", b"ab"], [None, b"c"], [b"a", b"abc"])
"""Offsets 1000-1001, 1002-1004, 1005-1006, 1007-1008."""


@kinds
def test_a_deletion_finds_its_records_and_what_they_take(kind):
    disk = Disk(SMALL)
    assert disk.offsets(deletion(b"a"), kind=kind) == [1000, 1003, 1007]
    begun = deletion(b"a", is_prefix=PREFIX)
    assert disk.offsets(begun, kind=kind) == [1000, 1003, 1004, 1007, 1008]
    assert disk.matches(deletion(b"abc"), kind=kind) == (array("q", [1008]), 11, None)
    assert disk.matches(deletion(b"nothing"), kind=kind) == (array("q"), 0, None)


@kinds
def test_only_what_lies_between_the_start_and_the_limits_counts(kind):
    disk = Disk(SMALL)
    rule = deletion(b"a")
    assert disk.offsets(rule, kind=kind, start=1001) == [1003, 1007]
    assert disk.offsets(rule, kind=kind, start=1004) == [1007]
    assert disk.offsets(rule, kind=kind, start=1008) == []
    assert disk.offsets(rule, kind=kind, start=1009) == []
    assert disk.offsets(deletion(b"a", before=1007), kind=kind) == [1000, 1003]
    assert disk.offsets(deletion(b"a", before=1003), kind=kind) == [1000]
    assert disk.offsets(deletion(b"a", before=1000), kind=kind) == []
    assert disk.offsets(rule, kind=kind, limit=0) == []
    third = spots_of(SMALL)[2][0].position
    assert disk.offsets(rule, kind=kind, limit=third) == [1000, 1003]


@kinds
def test_each_deletion_counts_up_to_its_own_limit(kind):
    disk = Disk(SMALL)
    rules = [
        deletion(b"a", before=1001),
        deletion(b"b", before=1003),
        deletion(b"ab", is_prefix=PREFIX, before=1005),
        deletion(b"a", before=1004),
    ]
    assert disk.offsets(*rules, kind=kind) == [1000, 1001, 1002, 1003, 1004]


@slow
@given(key_logs, st.data())
def test_what_is_found_is_what_a_walk_over_all_records_finds(batches, data):
    log = log_of(*batches)
    disk = Disk(log)
    end = disk.seal.next_offset
    offsets = st.integers(BASE, end)
    rules = [
        DeletionRule(wanted(data.draw, log), data.draw(offsets))
        for _ in range(data.draw(st.integers(1, 8)))
    ]
    start = data.draw(offsets)
    expected = [
        record.offset
        for _, batch in split(log)
        for record in read_records(batch)
        if record.offset >= start
        and any(rule.match.matches(record.key) and record.offset < rule.before for rule in rules)
    ]
    for kind in ("sealed", "growing"):
        assert disk.offsets(*rules, kind=kind, start=start) == expected


@kinds
def test_thousands_of_deletions_are_found_at_once(kind, monkeypatch):
    monkeypatch.setattr(key_index, "_CHUNK_BYTES", 5_000)
    log = log_of(*([b"%06d" % (10 * n + m) for m in range(10)] for n in range(300)))
    rules = [deletion(b"%06d" % (2 * n)) for n in range(5_000)]
    assert Disk(log).offsets(*rules, kind=kind) == list(range(BASE, BASE + 3_000, 2))


@pytest.mark.parametrize("chunk_bytes", [1, 100, 150, 10_000])
def test_a_growing_segment_is_searched_in_pieces_of_whole_batches(monkeypatch, chunk_bytes):
    monkeypatch.setattr(key_index, "_CHUNK_BYTES", chunk_bytes)
    rule = deletion(b"a", is_prefix=PREFIX)
    assert Disk(SMALL).offsets(rule, kind="growing") == [1000, 1003, 1004, 1007, 1008]


# The file of a sealed segment: built once, and rebuilt if it cannot be used.


def names(disk):
    return sorted(path.rpartition("/")[2] for path in disk.simulated.paths() if "." in path)


@pytest.mark.parametrize("generation", [0, 7])
def test_the_index_is_built_with_the_first_deletion_and_kept(generation):
    disk = Disk(SMALL, generation=generation)
    disk.matches(deletion(b"a"))
    assert disk.simulated.content(disk.sealed.keys_path) == build(SMALL)
    assert disk.sealed.keys_path in disk.simulated.paths()


def test_a_deletion_that_cannot_hit_anything_builds_no_index():
    disk = Disk(SMALL)
    disk.matches(deletion(b"a", before=BASE))
    disk.matches(deletion(b"a"), start=2_000)
    disk.matches(deletion(b"a"), limit=0)
    disk.matches()
    assert not any(name.endswith(".keys") for name in names(disk))


@kinds
def test_batches_that_lie_behind_all_limits_are_not_looked_at(kind):
    disk = Disk(SMALL)
    disk.matches(deletion(b"a"))
    disk.simulated.flip_bit(disk.path, 8 * (len(SMALL) - 1))
    disk.forget()
    assert disk.offsets(deletion(b"a", before=1007), kind=kind) == [1000, 1003]
    with pytest.raises((CorruptBatch, DamagedRecords), match="batch checksum is"):
        disk.matches(deletion(b"a", before=1008), kind=kind)


def test_an_index_that_is_there_is_read_and_only_batches_with_such_keys_are():
    disk = Disk(SMALL)
    disk.matches(deletion(b"a"))
    disk.simulated.flip_bit(disk.path, 8 * (len(SMALL) - 1))
    disk.forget()
    assert disk.offsets(deletion(b"b")) == [1001, 1002]
    with pytest.raises(CorruptBatch, match=rf"{disk.path}: byte \d+: batch checksum is"):
        disk.matches(deletion(b"a"))


def damaged(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def cut(data):
    return data[:70]


def empty(_):
    return b""


def of_another_release(data):
    return with_fields(data, version=9)


def of_other_records_of_the_same_size(_):
    other = log_of([b"x", b"y"], [b"y", b"x", b"xy"], [None, b"z"], [b"x", b"xyz"])
    assert len(other) == len(SMALL)
    return build(other)


@pytest.mark.parametrize(
    "spoil", [damaged, cut, empty, of_another_release, of_other_records_of_the_same_size]
)
def test_an_index_that_cannot_be_used_is_replaced(spoil, caplog):
    disk = Disk(SMALL)
    disk.matches(deletion(b"a"))
    sound = disk.simulated.content(disk.sealed.keys_path)
    disk.simulated.replace_content(disk.sealed.keys_path, spoil(sound))
    disk.forget()
    assert disk.offsets(deletion(b"a")) == [1000, 1003, 1007]
    assert disk.simulated.content(disk.sealed.keys_path) == sound
    assert f"rebuilding {disk.sealed.keys_path}" in caplog.text


def test_an_index_at_hand_is_not_taken_for_that_of_a_log_that_went_on(caplog):
    disk = Disk(SMALL)
    disk.matches(deletion(b"a"))
    more = SMALL + stamp(batch_of([b"a"]), base_offset=1009, leader_epoch=EPOCH)
    disk.simulated.replace_content(disk.path, more)
    disk.log_directory.map_cache.forget(disk.path)
    grown = SealedSegment(disk.log_directory, seal_of(more))
    for _ in range(2):
        found = find_deleted_offsets(grown, [deletion(b"a")], start=BASE, limit=len(more))
        assert found.offsets.tolist() == [1000, 1003, 1007, 1009]
    assert caplog.text.count("rebuilding") == 1


@pytest.mark.parametrize("call", ["create", "write_at", "sync", "rename"])
def test_a_disk_that_takes_no_index_is_no_error(call, caplog):
    fault = Fault(call=1, error=errno.ENOSPC, only={call}, path=".keys", forever=True)
    disk = Disk(SMALL, fault=fault)
    for _ in range(2):
        assert disk.offsets(deletion(b"a")) == [1000, 1003, 1007]
    assert fault.hits
    assert f"{disk.sealed.keys_path} cannot be written" in caplog.text
    assert names(disk) == [disk.path.rpartition("/")[2]]


def test_an_index_that_cannot_be_read_is_derived_anew():
    fault = Fault(call=1, only={"map"}, path=".keys", forever=True)
    disk = Disk(SMALL, fault=fault)
    disk.matches(deletion(b"a"))
    assert disk.offsets(deletion(b"a")) == [1000, 1003, 1007]
    assert fault.hits


def test_a_log_that_cannot_be_read_is_an_error():
    disk = Disk(SMALL, fault=Fault(call=1, only={"map"}, path=".log"))
    with pytest.raises(OSError, match="Input/output error"):
        disk.matches(deletion(b"a"))
    assert disk.offsets(deletion(b"a")) == [1000, 1003, 1007]


# Damage: unreadable records are not reported as deleted.


@kinds
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_the_log_is_an_error(kind, damage):
    log = bytearray(log_of([b"a"], [b"b"]))
    disk = Disk(bytes(log))
    damage(log)
    disk.simulated.replace_content(disk.path, bytes(log))
    with pytest.raises((CorruptBatch, DamagedRecords), match=disk.path):
        disk.matches(deletion(b"not there"), kind=kind)


@kinds
def test_a_log_that_lost_its_last_batches_is_an_error(kind):
    disk = Disk(SMALL)
    disk.simulated.cut(disk.path, spots_of(SMALL)[2][0].position)
    with pytest.raises((CorruptBatch, DamagedRecords), match=disk.path):
        disk.matches(deletion(b"a"), kind=kind)


def test_a_log_that_lost_its_last_batches_after_it_was_indexed_is_an_error():
    disk = Disk(SMALL)
    disk.matches(deletion(b"a"))
    disk.simulated.cut(disk.path, spots_of(SMALL)[2][0].position)
    disk.forget()
    with pytest.raises(CorruptBatch, match=r"ends at byte .*, but .* are committed"):
        disk.matches(deletion(b"a"))


def test_an_offset_that_changed_after_the_log_was_indexed_is_an_error():
    disk = Disk(SMALL)
    disk.matches(deletion(b"a"))
    second = spots_of(SMALL)[1][0].position
    disk.simulated.flip_bit(disk.path, 8 * (second + 7))
    disk.forget()
    with pytest.raises(CorruptBatch, match="batch has base offset 1003, expected 1002"):
        disk.matches(deletion(b"a"))


@kinds
def test_batches_that_their_producer_broke_hold_nothing_that_could_be_deleted(kind):
    disk = Disk(laid([broken(b"k"), batch_of([b"k"]), broken(b"k")]))
    assert disk.offsets(deletion(b"k"), kind=kind) == [1001]


def test_looking_up_needs_no_compiler():
    script = (
        "import sys, millstream.storage.segment.keys.key_index as k\n"
        "assert 'numba' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
