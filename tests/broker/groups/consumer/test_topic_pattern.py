"""Patterns from clients: matches, refusals, and bounded time."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.groups.consumer.topic_pattern import PATTERN_LENGTH_MAX, TopicPattern
from millstream.errors import InvalidRegex

NAMES = st.sets(st.text("ab.-_0", min_size=1, max_size=4), max_size=8)


@pytest.mark.parametrize(
    ("source", "name", "is_match"),
    [
        ("orders", "orders", True),
        ("orders", "orders-eu", False),
        ("orders", "my-orders", False),
        ("orders.*", "orders-eu", True),
        ("a|ab", "ab", True),
        ("^orders$", "orders", True),
        ("(?i)ORDERS", "orders", True),
        (r"[a-z]+\.\d{2}", "log.07", True),
        (r"[a-z]+\.\d{2}", "log.7", False),
        (r"\p{Lu}.*", "Orders", True),
        ("", "orders", False),
    ],
)
def test_a_pattern_matches_a_whole_name(source: str, name: str, is_match: bool) -> None:
    assert TopicPattern(source).matches(name) is is_match


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("(", r"invalid pattern '\(': missing \)"),
        ("*", "no argument for repetition operator"),
        ("[", r"missing \]"),
        ("(?=a)b", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        ("(a{1,100}){1,100}", "invalid repetition size"),
        (r"\pL{500}" * 100, "too large"),
        ("a" * (PATTERN_LENGTH_MAX + 1), "at most 1024 characters, got 1025"),
    ],
)
def test_a_pattern_that_cannot_be_compiled_is_refused(source: str, reason: str) -> None:
    with pytest.raises(InvalidRegex, match=reason):
        TopicPattern(source)


@pytest.mark.parametrize(
    "source",
    [
        ".*",
        "|".join(f"topic-number-{number}-of-many" for number in range(35)),
        "[a-zA-Z0-9._-]{1,249}",
        r"(?i)(orders|payments|refunds)[._-](eu|us|apac)[._-]v[0-9]{1,4}",
        r"[\p{L}\p{N}._-]*",
        "a{1000}",
    ],
    ids=lambda source: source[:12],
)
def test_patterns_as_people_write_them_are_not_too_large(source: str) -> None:
    TopicPattern(source)


def test_a_refusal_does_not_repeat_all_of_a_long_pattern() -> None:
    with pytest.raises(InvalidRegex) as refused:
        TopicPattern("(" * PATTERN_LENGTH_MAX)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "source",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+$",
        "(.*a){20}",
        "(x+x+)+y",
        ".*" * 500,
        "(a?){500}" + "a{500}",
        "(" * 500 + "a" + ")" * 500,
        "a" * 65_536,
        "(a+)+" * 13_107,
    ],
    ids=lambda source: source[:12],
)
@pytest.mark.timeout(10)
def test_no_pattern_takes_long(source: str) -> None:
    """By CPU time of this process: 100 ms for compiling and a name of the greatest length."""
    start = time.process_time()
    with suppress(InvalidRegex):
        TopicPattern(source).matches("a" * 248 + "!")
    assert time.process_time() - start < 0.1


@given(rounds=st.lists(NAMES, max_size=5), source=st.sampled_from(["a.*", ".*b", "[ab]+", ".*"]))
def test_what_was_decided_before_makes_no_difference(rounds: list[set[str]], source: str) -> None:
    pattern = TopicPattern(source)
    for names in rounds:
        fresh = TopicPattern(source)
        assert pattern.select(names) == {name for name in names if fresh.matches(name)}
