"""Opening of batches, and grouping."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.batch import decode_header
from millstream.records.body import BatchBody, group_bodies, open_bodies
from millstream.records.compression import Codec, compress

from .samples import GOLDEN, GOLDEN_BODY, assemble

HEADER = decode_header(GOLDEN)


def test_bodies_lie_in_the_data_unless_they_were_packed():
    packed = assemble(compress(Codec.GZIP, GOLDEN_BODY), attributes=Codec.GZIP)
    bodies = list(open_bodies(GOLDEN + packed + GOLDEN, check=True, size_max=1000))
    assert [bytes(body.records) for body in bodies] == [GOLDEN_BODY] * 3
    assert [body.position for body in bodies] == [61, -1, len(GOLDEN) + len(packed) + 61]


def test_a_sum_is_verified_before_anything_is_unpacked():
    damaged = bytearray(assemble(b"no gzip at all", attributes=Codec.GZIP))
    damaged[17] ^= 1
    with pytest.raises(CorruptBatch, match="batch checksum is"):
        list(open_bodies(damaged, check=True, size_max=1000))


@given(st.lists(st.integers(0, 12), max_size=20))
def test_groups_keep_the_order_and_the_limit(sizes):
    bodies = [BatchBody(HEADER, bytes(size), number) for number, size in enumerate(sizes)]
    groups = list(group_bodies(bodies, size_max=10))
    assert [body for group in groups for body in group] == bodies
    for group in groups:
        assert sum(len(body.records) for body in group) <= 10 or len(group) == 1


def test_groups_are_as_large_as_the_limit_allows():
    bodies = [BatchBody(HEADER, bytes(5), number) for number in range(5)]
    assert [len(group) for group in group_bodies(bodies, size_max=10)] == [2, 2, 1]
