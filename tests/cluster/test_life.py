"""A directory that is empty or older gives itself away (P7)."""

from __future__ import annotations

import pytest

from millstream.cluster.life import (
    THIS_REVISION,
    TOKENS_MAX,
    LifeRecord,
    begin_life,
    decode_life,
    encode_life,
)
from millstream.errors import CorruptData


def test_the_first_life_begins_with_itself():
    life = begin_life(None, 0, (), "a")
    assert life.tokens == ("a",)
    assert life.record == LifeRecord("a", THIS_REVISION)
    assert life.record.continuous_since(7) == 7


def test_a_restart_with_the_same_directory_continues_the_lives_before():
    first = begin_life(None, 0, (), "a")
    second = begin_life(first.record, 7, first.tokens, "b")
    third = begin_life(second.record, 9, second.tokens, "c")
    assert second.record.continuous_since(9) == 7
    assert third.record.continuous_since(12) == 7


def test_an_empty_directory_begins_again_and_stays_so_over_restarts():
    second = begin_life(LifeRecord("a", THIS_REVISION), 7, (), "b")
    assert second.record.continuous_since(9) == 9
    third = begin_life(second.record, 9, second.tokens, "c")
    assert third.record.continuous_since(12) == 9


def test_an_older_copy_of_a_directory_begins_again_and_stays_so_over_restarts():
    first = begin_life(None, 0, (), "a")
    second = begin_life(first.record, 7, first.tokens, "b")
    third = begin_life(second.record, 9, first.tokens, "c")
    assert third.record.continuous_since(12) == 12
    fourth = begin_life(third.record, 12, third.tokens, "d")
    assert fourth.record.continuous_since(15) == 12


def test_attempts_whose_outcome_is_unknown_lose_nothing():
    first = begin_life(None, 0, (), "a")
    refused = begin_life(first.record, 7, first.tokens, "b")
    unknown = begin_life(first.record, 7, refused.tokens, "c")
    for applied in (refused, unknown):
        after = begin_life(applied.record, 9, unknown.tokens, "d")
        assert after.record.continuous_since(11) == 7


def test_tokens_before_that_of_the_last_life_are_dropped_and_their_number_is_bounded():
    tokens = tuple(f"t{number}" for number in range(10))
    life = begin_life(LifeRecord("t8", 3), 7, tokens, "new")
    assert life.tokens == ("t8", "t9", "new")
    many = tuple(str(number) for number in range(2 * TOKENS_MAX))
    assert len(begin_life(None, 0, many, "new").tokens) == TOKENS_MAX


def test_a_record_is_stored_as_json():
    record = LifeRecord("a", 7)
    assert decode_life(encode_life(record)) == record
    with pytest.raises(CorruptData, match="record of a life"):
        decode_life(b"{}")
