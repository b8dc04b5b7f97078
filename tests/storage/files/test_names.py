"""Names from outside become directories only if they are harmless."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import InvalidName
from millstream.storage.files.names import (
    PARTITION_MAX,
    check_partition,
    check_topic,
    is_topic,
    parse_partition,
    parse_segment_file,
    segment_file,
)

ALLOWED = ["a", "A", "0", "_", "-", "a.b", "...", "..a", "a..", ".a", "-rf", "con", "a" * 249]

REFUSED = {
    "nothing": "",
    "here": ".",
    "above": "..",
    "250 characters": "a" * 250,
    "far too long": "a" * 100_000,
    "slash": "a/b",
    "only a slash": "/",
    "leading slash": "/etc",
    "way up": "../a",
    "backslash": "a\\b",
    "NUL": "a\0",
    "only NUL": "\0",
    "escaped dot": "%2e%2e",
    "escaped slash": "a%2fb",
    "newline at the end": "a\n",
    "newline at the start": "\na",
    "carriage return": "a\r",
    "space": "a b",
    "only a space": " ",
    "tab": "a\t",
    "colon": "a:b",
    "star": "*",
    "tilde": "~",
    "dollar": "$HOME",
    "umlaut": "ä",
    "full-width letter": "\uff41",
    "full-width dots": "\uff0e\uff0e",
    "other digits": "١٢",
    "lone surrogate": "\ud800",
    "right-to-left mark": "a\u200f",
    "emoji": "🦀",
}


@pytest.mark.parametrize("name", ALLOWED, ids=lambda name: name[:10])
def test_a_topic_may_be_called(name):
    assert check_topic(name) == name
    assert is_topic(name)


@pytest.mark.parametrize("name", REFUSED.values(), ids=REFUSED.keys())
def test_a_topic_must_not_be_called(name):
    with pytest.raises(InvalidName):
        check_topic(name)


@pytest.mark.parametrize("size", [0, 250])
def test_the_message_about_a_length_says_what_is_allowed(size):
    with pytest.raises(InvalidName, match=f"must have 1 to 249 characters, got {size}"):
        check_topic("a" * size)


def test_the_message_about_a_name_shows_it_and_what_is_allowed():
    with pytest.raises(
        InvalidName, match=r"'a/b' may contain only letters, digits, '\.', '_' and '-'"
    ):
        check_topic("a/b")


@pytest.mark.parametrize("name", [".", ".."])
def test_the_message_about_a_name_of_dots_says_that_it_is_reserved(name):
    with pytest.raises(InvalidName, match=rf"must not be '\.' or '\.\.', got '{name}'"):
        check_topic(name)


@given(st.text(max_size=300))
def test_a_name_that_passes_names_one_directory_below_its_parent(name):
    try:
        check_topic(name)
    except InvalidName:
        return
    assert name not in ("", ".", "..")
    assert len(name.encode()) <= 249
    assert not set(name) & set("/\\\0\n%")


@pytest.mark.parametrize(
    "name", [*ALLOWED, *REFUSED.values()], ids=lambda name: f"{name[:9]!a} of {len(name)}"
)
def test_a_directory_is_taken_for_a_topic_exactly_if_a_topic_may_be_called_so(name):
    """Else a store would list topics that it refuses to open."""
    try:
        check_topic(name)
    except InvalidName:
        assert not is_topic(name)
    else:
        assert is_topic(name)


# Partitions.


@pytest.mark.parametrize("number", [0, 1, 7, PARTITION_MAX])
def test_a_partition_may_have_the_number(number):
    assert check_partition(number) == number
    assert parse_partition(str(number)) == number


@pytest.mark.parametrize("number", [-1, -(2**40), PARTITION_MAX + 1, 2**63])
def test_a_partition_must_not_have_the_number(number):
    with pytest.raises(
        InvalidName, match=f"partition must be between 0 and {PARTITION_MAX}, got {number}"
    ):
        check_partition(number)


@pytest.mark.parametrize("number", [True, False, 1.0, 0.5], ids=repr)
def test_a_partition_number_that_is_no_whole_number_is_refused(number):
    """`True` would become a directory that is called `True`, which no later start would find."""
    with pytest.raises(InvalidName):
        check_partition(number)


@pytest.mark.parametrize(
    "name",
    [
        *("", "-1", "+1", "01", "00", "1 ", " 1", "1\n", "1.0", "0x1", "1_0", "a", "1.tmp", ".."),
        *("True", "2147483648", "99999999999"),
    ],
    ids=repr,
)
def test_a_directory_is_not_a_partition(name):
    assert parse_partition(name) is None


@pytest.mark.parametrize("name", ["1٣", "٣", "1²", "1\uff13"], ids=ascii)
def test_a_directory_in_other_digits_is_not_a_partition(name):
    """Else it would be taken for another directory, the one in plain digits."""
    assert parse_partition(name) is None


# Segments.


@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from(["log", "index", "seal", "keys"]),
    st.integers(0, 10**18 - 1),
)
def test_the_name_of_a_segments_file_reads_back(base_offset, suffix, generation):
    name = segment_file(base_offset, suffix, generation)
    assert parse_segment_file(name) == (base_offset, generation, suffix)
    assert parse_segment_file(name).id == (base_offset, generation)


def test_a_segment_that_was_never_rewritten_is_called_by_its_offset_alone():
    assert segment_file(7, "log") == segment_file(7, "log", 0) == "00000000000000000007.log"
    assert segment_file(7, "log", 3) == "00000000000000000007.3.log"


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_the_names_of_segments_sort_as_their_offsets_do(one, other):
    assert (segment_file(one, "log") < segment_file(other, "log")) == (one < other)


@pytest.mark.parametrize(
    "name",
    [
        "0000000000000000000.log",
        "000000000000000000000.log",
        "00000000000000000000.log.tmp",
        "00000000000000000000.txt",
        "00000000000000000000.log\n",
        "00000000000000000000log",
        " 00000000000000000000.log",
        "-0000000000000000001.log",
        "00000000000000000000.LOG",
        "00000000000000000000.0.log",
        "00000000000000000000.01.log",
        "00000000000000000000.-1.log",
        "00000000000000000000..log",
        "00000000000000000000.1.2.log",
        "00000000000000000000.1.log.tmp",
        "00000000000000000000.1000000000000000000.log",
        "partition.json",
        "checkpoint",
        "",
    ],
    ids=repr,
)
def test_a_file_is_not_that_of_a_segment(name):
    assert parse_segment_file(name) is None


def test_a_file_in_other_digits_is_not_that_of_a_segment():
    """Else it would stand for the file in plain digits, which may not be there."""
    assert parse_segment_file("0000000000000000000٣.log") is None
    assert parse_segment_file("00000000000000000000.٣.log") is None
