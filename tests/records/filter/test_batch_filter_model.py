"""Any log, filtered by any rules: kernels, plain Python and a naive model agree."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import TIMESTAMP_TYPE_BIT, decode_header, split
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.control import read_marker
from millstream.records.filter.batch_filter import (
    AbortedOffsets,
    FilterRules,
    filler_batches,
    filter_batches,
    remove_offsets,
)
from millstream.records.filter.keys.table import KeyTable
from millstream.records.iterate import read_records
from millstream.records.record import Record
from tests.records.samples import NOW, assemble, blobs, record_lists, texts

from .log_batches import WAYS, batch_at, filtering_by, headers, marker_at, read

present = st.sampled_from([b"", b"a", b"b", b"12345678", b"k" * 9, b"x" * 300])
keys = st.one_of(st.none(), present)
log_records = st.builds(
    Record,
    value=st.one_of(st.none(), blobs),
    key=keys,
    headers=st.lists(st.tuples(texts, blobs), max_size=2).map(tuple),
    timestamp_ms=st.one_of(st.none(), st.integers(-(2**61), 2**61), st.integers(NOW - 9, NOW + 9)),
)


@dataclass
class Log:
    """A log as in a segment, and the rules to filter it by."""

    data: bytes = b""
    next_offset: int = 0
    aborted: list[AbortedOffsets] = field(default_factory=list)

    def add(self, batch: bytes) -> None:
        self.data += batch
        self.next_offset = headers([batch])[-1].next_offset


def offset_arrays(end: int):
    return st.lists(st.integers(0, end), max_size=12).map(lambda found: array("q", sorted(found)))


@st.composite
def logs(draw):
    log = Log(next_offset=draw(st.sampled_from([0, 5, 2**40])))
    start = log.next_offset
    for _ in range(draw(st.integers(1, 7))):
        kind = draw(
            st.sampled_from(["data", "data", "data", "compressed", "filtered", "marker", "hole"])
        )
        producer_id = draw(st.sampled_from([-1, 1, 2]))
        if kind == "marker":
            log.add(
                marker_at(
                    log.next_offset, producer_id=abs(producer_id), is_commit=draw(st.booleans())
                )
            )
            continue
        if kind == "hole":
            log.add(
                filler_batches(
                    log.next_offset,
                    log.next_offset + draw(st.sampled_from([1, 7, 2**31 + 3])),
                    leader_epoch=4,
                )
            )
            continue
        batch = batch_at(
            log.next_offset,
            draw(st.lists(log_records, min_size=1, max_size=8)),
            codec=draw(st.sampled_from(Codec)) if kind == "compressed" else Codec.NONE,
            producer_id=producer_id,
            is_transactional=producer_id > 0 and draw(st.booleans()),
            append_time=draw(st.sampled_from([None, None, NOW + 77])),
        )
        if kind == "filtered":
            gone = draw(st.sets(st.integers(0, 7)))
            batch = remove_offsets(
                batch, array("q", sorted(log.next_offset + delta for delta in gone))
            )
            if draw(st.booleans()):
                dated = filter_batches(
                    batch, FilterRules(now_ms=NOW - 50, tombstone_ms=draw(st.integers(0, 99)))
                )
                batch = b"".join(dated.pieces) or batch
        log.add(batch)
    for producer_id in (1, 2):
        ends = sorted(draw(st.sets(st.integers(start, log.next_offset), max_size=4)))
        for first, last in zip(ends[::2], ends[1::2], strict=False):
            log.aborted.append(
                AbortedOffsets(producer_id=producer_id, first_offset=first, last_offset=last)
            )
    return log


@st.composite
def filter_cases(draw):
    """Draw a log, rules for it, and the content of their key table."""
    log = draw(logs())
    bases = [header.base_offset for header in headers([log.data])]
    offset = st.sampled_from([*bases, *(record.offset for record in read([log.data]))])
    rules = {
        "start_offset": draw(st.one_of(st.just(0), offset)),
        "deleted": array("q", sorted(draw(st.sets(offset, max_size=9)))),
        "aborted": draw(st.sampled_from([None, log.aborted])),
        "now_ms": NOW,
        "tombstone_ms": draw(st.sampled_from([None, 0, 1000, 2**63 - 1])),
        "producers": frozenset(draw(st.sets(st.sampled_from(bases)))),
    }
    latest = draw(st.one_of(st.none(), st.dictionaries(present, offset, max_size=4)))
    return log.data, rules, latest


def filled(latest: dict[bytes, int] | None) -> KeyTable | None:
    if latest is None:
        return None
    table = KeyTable(memory_bytes_max=1 << 16, seed=5)
    for key, offset in latest.items():
        table.add(batch_at(offset, [Record(b"", key)]), FilterRules())
    return table


def is_aborted(header, rules):
    return header.is_transactional and any(
        each.producer_id == header.producer_id
        and each.first_offset <= header.base_offset <= each.last_offset
        for each in rules["aborted"] or ()
    )


def modelled(data, rules, latest):
    """Return what must remain: the relevant header fields, each with its records."""
    left = []
    for header, batch in split(data):
        records = read_records(batch)
        is_needed = header.base_offset in rules["producers"]
        if header.is_control:
            goes = rules["aborted"] is not None and read_marker(batch).is_commit and not is_needed
            kept = [] if goes else records
        else:
            is_due = (
                rules["tombstone_ms"] is not None
                and header.has_horizon
                and header.base_timestamp <= rules["now_ms"]
            )
            kept = [
                record
                for record in records
                if not is_aborted(header, rules)
                and record.offset >= rules["start_offset"]
                and record.offset not in rules["deleted"]
                and not (
                    record.key is not None and (latest or {}).get(record.key, -1) > record.offset
                )
                and not (is_due and record.key is not None and record.value is None)
            ]
        if kept or is_needed:
            bit = header.is_transactional and (rules["aborted"] is None or header.is_control)
            place = (header.base_offset, header.last_offset_delta, header.leader_epoch)
            producer = header[9:12]
            left.append(
                (place, producer, bit, header.is_control, header.codec if kept else 0, kept)
            )
    return left


def found(pieces):
    return [
        (
            (header.base_offset, header.last_offset_delta, header.leader_epoch),
            header[9:12],
            header.is_transactional,
            header.is_control,
            header.codec,
            read_records(batch),
        )
        for header, batch in split(b"".join(pieces))
    ]


@settings(deadline=None, max_examples=100)
@given(filter_cases())
def test_what_is_left_is_what_the_model_says_and_both_ways_give_the_same_bytes(case):
    data, fields, latest = case
    results = []
    for way in WAYS:
        with filtering_by(way):
            rules = FilterRules(key_table=filled(latest), **fields)
            results.append(filter_batches(data, rules))
            again = filter_batches(b"".join(results[-1].pieces), rules)
        once = b"".join(results[-1].pieces)
        if fields["tombstone_ms"] == 0:  # Then what gets a horizon at first goes at last.
            continue
        assert b"".join(again.pieces) == once
        assert (again.removed_records, again.changed_batches) == (0, 0)
    assert results[0] == results[1]
    filtered = results[0]
    assert found(filtered.pieces) == modelled(data, fields, latest)
    before, after = len(read([data])), len(read(filtered.pieces))
    assert filtered.removed_records == before - after


@settings(deadline=None, max_examples=60)
@given(filter_cases())
def test_headers_tell_the_truth_about_what_is_left(case):
    data, fields, latest = case
    originals = {header.base_offset: header for header in headers([data])}
    with filtering_by("kernels"):
        filtered = filter_batches(data, FilterRules(key_table=filled(latest), **fields))
    for header, batch in split(b"".join(filtered.pieces)):
        original, records = originals[header.base_offset], read_records(batch)
        assert header.record_count == len(records)
        if records and not header.is_log_append_time:
            assert header.max_timestamp == max(record.timestamp_ms for record in records)
        else:
            assert header.max_timestamp == original.max_timestamp
        assert header.is_log_append_time == original.is_log_append_time
        if header.has_horizon == original.has_horizon:
            assert header.base_timestamp == original.base_timestamp
        else:
            assert any(record.value is None and record.key is not None for record in records)
            assert header.base_timestamp == min(NOW + fields["tombstone_ms"], 2**62)


@settings(deadline=None, max_examples=60)
@given(
    record_lists,
    st.sampled_from(Codec),
    st.sampled_from([None, 9]),
    st.sets(st.integers(95, 115)),
)
def test_stripping_leaves_the_others(records, codec, append_time, gone):
    batch = batch_at(100, records, codec=codec, append_time=append_time)
    deleted = array("q", sorted(gone))
    results = []
    for way in WAYS:
        with filtering_by(way):
            results.append(remove_offsets(batch, deleted))
    assert results[0] == results[1]
    assert read(results[:1]) == [r for r in read([batch]) if r.offset not in gone]


def outcome(way, batch, rules):
    with filtering_by(way):
        return filter_batches(batch, rules)


def stripped(way, batch, deleted):
    with filtering_by(way):
        try:
            return remove_offsets(batch, deleted)
        except CorruptBatch:
            return "refused"


@settings(deadline=None, max_examples=100)
@given(record_lists, st.data())
def test_every_damage_to_records_is_judged_alike_and_loses_nothing(records, data):
    batch = build_batch(records, now_ms=NOW)
    body = bytearray(batch[61:])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    attributes = data.draw(st.sampled_from([0, TIMESTAMP_TYPE_BIT]))
    damaged = assemble(bytes(body), template=batch, attributes=attributes)
    deleted = array("q", sorted(data.draw(st.sets(st.integers(0, len(records))))))
    rules = FilterRules(deleted=deleted, now_ms=NOW, tombstone_ms=4)
    filtered = outcome("kernels", damaged, rules)
    assert outcome("plain python", damaged, rules) == filtered
    assert stripped("kernels", damaged, deleted) == stripped("plain python", damaged, deleted)
    try:
        expected = [r for r in read([damaged]) if r.offset not in deleted]
    except CorruptBatch:
        assert filtered.pieces == [damaged]
    else:
        assert read(filtered.pieces) == expected
    assert decode_header(damaged).record_count == len(records)
