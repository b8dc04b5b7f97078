"""Search for the records that a deletion by key matches, by the kernel and by plain Python."""

from __future__ import annotations

import subprocess
import sys
from array import array

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import CONTROL_BIT, HEADER_SIZE, decode_header, split, stamp
from millstream.records.build import build_batch
from millstream.records.compression import Codec, compress
from millstream.records.filter.keys import matcher as matching
from millstream.records.filter.keys.matcher import (
    KERNEL_RECORDS_MIN,
    KeyMatch,
    KeyMatcher,
    find_matched_python,
    find_matched_records,
)
from millstream.records.filter.keys.matcher_kernels import find as find_compiled
from millstream.records.iterate import read_records
from millstream.records.opened_batch import checked_batches, open_groups
from millstream.records.record import Record
from tests.records.samples import GOLDEN, GOLDEN_BODY, NOW, assemble

KEY, PREFIX = False, True
EVERY_OFFSET = 2**63 - 1


def find_matches(data, matches):
    """Return the records in complete batches that any of the matches matches."""
    return search(data, KeyMatcher(dict.fromkeys(matches, EVERY_OFFSET)))


def search(data, matcher, start=0):
    """Return the records in complete, checked batches that a matcher matches."""
    return find_matched_records(
        data, (placed for placed, _ in checked_batches(data)), matcher, start=start
    )


patterns = st.one_of(
    st.binary(max_size=6),
    st.text("ab", max_size=4).map(str.encode),
    st.lists(st.sampled_from([b"\0", b"\xff", b"a"]), max_size=4).map(b"".join),
)
keys = st.one_of(st.none(), patterns)
matches = st.builds(KeyMatch, patterns, st.booleans())
limits = st.dictionaries(matches, st.integers(1, 40), min_size=1, max_size=12)

slow = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def logs(draw):
    """A few batches in a row, of any codec, with holes between offsets and some markers."""
    data, offset = b"", draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 5))):
        records = [
            Record(draw(st.sampled_from([None, b"", b"ab" * 20])), key)
            for key in draw(st.lists(keys, min_size=1, max_size=6))
        ]
        batch = build_batch(records, now_ms=NOW, codec=draw(st.sampled_from(Codec)))
        header = decode_header(batch)
        gap = draw(st.integers(0, 2))
        changed = {"last_offset_delta": header.last_offset_delta + gap}
        if draw(st.integers(0, 4)) == 0:
            changed["attributes"] = header.attributes | CONTROL_BIT
        batch = assemble(batch[HEADER_SIZE:], template=batch, **changed)
        data += stamp(batch, base_offset=offset, leader_epoch=0)
        offset += header.last_offset_delta + 1 + gap
    return data


def keyed(data):
    """Offset and key of every record, as a plain reader sees them."""
    batches = [batch for header, batch in split(data) if not header.is_control]
    return [(record.offset, record.key) for batch in batches for record in read_records(batch)]


def naive(data, befores, start=0):
    return [
        offset
        for offset, key in keyed(data)
        if offset >= start
        and any(match.matches(key) and offset < before for match, before in befores.items())
    ]


@pytest.fixture(params=["kernels", "plain python"])
def either_search(request, monkeypatch):
    """Run a test with and without Numba, even with few records."""
    monkeypatch.setattr(matching, "KERNEL_RECORDS_MIN", 0)
    if request.param == "plain python":
        monkeypatch.setitem(sys.modules, "millstream.records.filter.keys.matcher_kernels", None)


def both(data, matcher, start=0):
    """Return the result of both searches, which must be the same."""
    batches = (placed for placed, _ in checked_batches(data) if not placed.header.is_control)
    group = [opened for some in open_groups(data, batches) for opened in some]
    found = find_matched_python(data, group, matcher, start)
    assert find_compiled(data, group, matcher, start) == found
    return found


# Matches.


@pytest.mark.parametrize(
    ("pattern", "is_prefix", "key", "is_hit"),
    [
        (b"a", KEY, b"a", True),
        (b"a", KEY, b"ab", False),
        (b"a", KEY, b"", False),
        (b"a", KEY, None, False),
        (b"", KEY, b"", True),
        (b"", KEY, None, False),
        (b"", KEY, b"a", False),
        (b"a", PREFIX, b"a", True),
        (b"a", PREFIX, b"ab", True),
        (b"ab", PREFIX, b"a", False),
        (b"a", PREFIX, None, False),
        (b"", PREFIX, b"", True),
        (b"", PREFIX, b"x", True),
        (b"", PREFIX, None, False),
        (b"a\0", PREFIX, b"a", False),
        (b"\xff", PREFIX, b"\xff\xff", True),
    ],
)
@pytest.mark.usefixtures("either_search")
def test_a_key_is_hit_as_a_whole_or_by_what_it_begins_with(pattern, is_prefix, key, is_hit):
    match = KeyMatch(pattern, is_prefix)
    assert match.matches(key) == is_hit
    assert (KeyMatcher({match: 9}).before(key) == 9) == is_hit
    found = find_matches(build_batch([Record(b"v", key)], now_ms=NOW), [match])
    assert found.offsets == array("q", [0] if is_hit else [])


@settings(deadline=None, max_examples=200)
@given(limits, keys)
def test_of_many_matches_the_one_that_reaches_furthest_counts(befores, key):
    expected = max((before for match, before in befores.items() if match.matches(key)), default=0)
    assert KeyMatcher(befores).before(key) == expected


def test_a_longer_prefix_that_ends_earlier_does_not_hide_the_shorter_one():
    matcher = KeyMatcher(
        {
            KeyMatch(b"a", PREFIX): 5,
            KeyMatch(b"aa", PREFIX): 3,
            KeyMatch(b"aab", KEY): 2,
            KeyMatch(b"aaa", PREFIX): 9,
            KeyMatch(b"b", KEY): 7,
        }
    )
    found = {key: matcher.before(key) for key in (b"a", b"aa", b"aab", b"aaac", b"ab", b"b", b"ba")}
    assert found == {b"a": 5, b"aa": 5, b"aab": 5, b"aaac": 9, b"ab": 5, b"b": 7, b"ba": 0}


# Search.


@slow
@given(logs(), limits, st.integers(0, 12))
def test_both_searches_find_what_a_walk_over_all_records_does(data, befores, start):
    matcher = KeyMatcher(befores)
    assert search(data, matcher, start=start).offsets.tolist() == naive(data, befores, start)
    assert both(data, matcher, start) == search(data, matcher, start=start)


@slow
@given(logs(), st.lists(matches, min_size=1, max_size=10))
def test_matches_without_a_limit_count_everywhere(data, some):
    found = find_matches(data, some)
    assert found.offsets.tolist() == naive(data, dict.fromkeys(some, EVERY_OFFSET))
    assert bool(found.bytes) == bool(found.offsets)


@pytest.mark.usefixtures("either_search")
def test_markers_of_transactions_have_no_keys():
    batch = build_batch([Record(b"v", b"k")], now_ms=NOW)
    marker = assemble(batch[HEADER_SIZE:], template=batch, attributes=CONTROL_BIT)
    assert find_matches(marker, [KeyMatch(b"k", KEY), KeyMatch(b"", PREFIX)]) == (array("q"), 0)


@pytest.mark.usefixtures("either_search")
def test_batches_without_records_have_no_keys():
    empty = assemble(b"", record_count=0, last_offset_delta=4)
    assert find_matches(empty, [KeyMatch(b"", PREFIX)]) == (array("q"), 0)
    assert find_matches(b"", [KeyMatch(b"", PREFIX)]) == (array("q"), 0)


@pytest.mark.parametrize("codec", Codec)
def test_many_records_are_searched_like_few(codec):
    records = [Record(bytes(n % 50), b"key-%d" % (n % 97)) for n in range(KERNEL_RECORDS_MIN + 9)]
    batch = build_batch(records, now_ms=NOW, codec=codec)
    expected = [n for n in range(len(records)) if n % 97 == 13]
    assert find_matches(batch, [KeyMatch(b"key-13", KEY)]).offsets.tolist() == expected
    expected = [n for n in range(len(records)) if f"{n % 97}".startswith("9")]
    assert find_matches(batch, [KeyMatch(b"key-9", PREFIX)]).offsets.tolist() == expected


@pytest.mark.usefixtures("either_search")
@pytest.mark.parametrize("count", [1, 4, 5, 3000])
def test_thousands_of_matches_find_what_each_of_them_would(count):
    records = [Record(b"v", b"%d" % n) for n in range(500)]
    data = build_batch(records, now_ms=NOW)
    befores = {KeyMatch(b"%d" % (n * 7), n % 3 == 0): 100 + n for n in range(count)}
    assert search(data, KeyMatcher(befores)).offsets.tolist() == naive(data, befores)


# Size of the matched records.


@pytest.mark.usefixtures("either_search")
def test_the_bytes_of_records_are_counted_with_their_length():
    assert find_matches(GOLDEN, [KeyMatch(b"k", KEY)]) == (array("q", [0]), 17)


@pytest.mark.usefixtures("either_search")
def test_of_a_packed_batch_the_share_of_its_packed_size_is_counted():
    record, other = Record(b"x" * 997, b"k"), Record(b"x" * 997, b"j")
    packed = build_batch([record, other, other, record], now_ms=NOW, codec=Codec.ZSTD)
    stored = len(packed) - HEADER_SIZE
    assert stored < 100
    assert find_matches(packed, [KeyMatch(b"k", KEY)]).bytes == stored // 2
    assert find_matches(packed, [KeyMatch(b"", PREFIX)]).bytes == stored


# Malformed batches.


def unreadable_body():
    return assemble(GOLDEN_BODY[:-1] + b"\x01")


def unknown_codec():
    return assemble(GOLDEN_BODY, attributes=7)


def body_that_does_not_unpack():
    return assemble(GOLDEN_BODY, attributes=Codec.ZSTD)


def more_records_than_there_are():
    return assemble(GOLDEN_BODY, record_count=30, last_offset_delta=29)


def trailing_bytes():
    return assemble(compress(Codec.LZ4, GOLDEN_BODY + b"!"), attributes=Codec.LZ4)


@pytest.mark.parametrize(
    "broken",
    [
        unreadable_body,
        unknown_codec,
        body_that_does_not_unpack,
        more_records_than_there_are,
        trailing_bytes,
    ],
)
@pytest.mark.usefixtures("either_search")
def test_a_batch_that_its_producer_broke_has_no_keys_and_hides_no_others(broken):
    placed = [GOLDEN, broken(), broken(), GOLDEN, broken()]
    data = b"".join(stamp(b, base_offset=100 * n, leader_epoch=0) for n, b in enumerate(placed))
    assert find_matches(data, [KeyMatch(b"k", KEY)]) == (array("q", [0, 300]), 34)


@pytest.mark.usefixtures("either_search")
def test_a_batch_whose_sum_is_wrong_is_refused_wherever_it_stands():
    damaged = bytearray(GOLDEN)
    damaged[-1] ^= 1
    for data in (bytes(damaged), GOLDEN + damaged, damaged + GOLDEN):
        with pytest.raises(CorruptBatch, match="batch checksum is"):
            find_matches(data, [KeyMatch(b"not there", KEY)])


@settings(deadline=None, max_examples=100)
@given(st.integers(0, len(GOLDEN_BODY) - 1), st.integers(1, 255), st.integers(0, 4))
def test_both_searches_leave_out_the_same_batches(position, flip, count):
    body = bytearray(GOLDEN_BODY)
    body[position] ^= flip
    fields = {"record_count": count, "last_offset_delta": max(0, count - 1)}
    broken = assemble(bytes(body), **fields)
    data = GOLDEN + stamp(broken, base_offset=50, leader_epoch=0) + GOLDEN
    both(
        data,
        KeyMatcher({KeyMatch(b"", PREFIX): 60, KeyMatch(b"k", KEY): 9, KeyMatch(b"h", PREFIX): 99}),
    )


def test_a_key_whose_length_is_written_longer_than_needed_is_found():
    body = bytes.fromhex("1a 00 00 00 8200 6b 0a 68656c6c6f 00")
    batch = assemble(body, record_count=1, last_offset_delta=0)
    assert find_matches(batch, [KeyMatch(b"k", KEY)]).offsets.tolist() == [0]


def test_a_pattern_that_stands_only_in_a_value_hits_nothing():
    batch = build_batch([Record(b"pattern", b"key"), Record(b"pattern")], now_ms=NOW)
    assert find_matches(
        batch, [KeyMatch(b"pattern", KEY), KeyMatch(b"pat", PREFIX)]
    ).offsets == array("q")


def test_a_few_records_are_searched_without_loading_the_compiler():
    script = (
        "import sys\n"
        "from millstream.records.filter.keys.matcher import KeyMatch, KeyMatcher\n"
        "from millstream.records.filter.keys.matcher import find_matched_records\n"
        "from millstream.records.opened_batch import checked_batches\n"
        f"batches = [placed for placed, _ in checked_batches({GOLDEN!r})]\n"
        "matcher = KeyMatcher({KeyMatch(b'k', False): 2**63 - 1})\n"
        f"assert find_matched_records({GOLDEN!r}, batches, matcher).offsets.tolist() == [0]\n"
        "assert 'numba' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
