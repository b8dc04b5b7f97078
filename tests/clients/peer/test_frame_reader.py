"""The frame reader: any arrival gives the same frames, and memory follows what has arrived."""

from __future__ import annotations

import random
import struct

import pytest

from millstream.clients.peer.frame_reader import CHUNK_SIZE, FrameReader
from millstream.errors import MalformedAnswer

MIB = 1024 * 1024


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def feed(reader: FrameReader, data: bytes, sizes) -> list[bytes]:
    frames, position = [], 0
    while position < len(data):
        space = reader.space()
        assert len(space) > 0
        size = min(len(space), max(1, next(sizes)), len(data) - position)
        space[:size] = data[position : position + size]
        position += size
        frames += reader.received(size)
    return frames


def forever(number):
    while True:
        yield number


BODIES = [b"a", b"b" * 100, b"c" * 70_000, b"d" * 65_532, b"e", b"f" * 300_000, b"g" * 8192] * 2


@pytest.mark.parametrize("size", [1, 3, 5, 4096, 65_536, 10**9])
def test_frames_are_the_same_however_they_arrive(size):
    reader = FrameReader(frame_size_max=MIB)
    bodies = BODIES if size > 5 else BODIES[:2] * 5
    assert feed(reader, framed(*bodies), forever(size)) == bodies


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_the_same_with_random_sizes(seed):
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.choice([1, 3, 50, 5000, 65_000, 66_000, 200_000]))] * 5
    bodies += [rng.randbytes(rng.randrange(1, 100_000)) for _ in range(20)]
    reader = FrameReader(frame_size_max=MIB)
    sizes = iter(lambda: rng.choice([1, 2, 4, 100, 5000, 70_000]), None)
    assert feed(reader, framed(*bodies), sizes) == bodies


@pytest.mark.parametrize("size", [0, -1, MIB + 1, 2**31 - 1])
def test_a_size_that_is_not_allowed_is_refused(size):
    reader = FrameReader(frame_size_max=MIB)
    with pytest.raises(MalformedAnswer, match=f"must be between 1 and {MIB}, got "):
        feed(reader, struct.pack(">i", size), forever(4))


def test_a_size_that_is_announced_is_not_allocated():
    reader = FrameReader(frame_size_max=128 * MIB)
    feed(reader, struct.pack(">i", 100 * MIB), forever(4))
    assert len(reader.space()) <= CHUNK_SIZE
    feed(reader, bytes(CHUNK_SIZE), forever(CHUNK_SIZE))
    assert len(reader.space()) <= 4 * CHUNK_SIZE


def test_frames_as_large_as_earlier_ones_are_read_where_they_stay():
    reader = FrameReader(frame_size_max=MIB)
    feed(reader, framed(bytes(500_000)), forever(10**9))
    feed(reader, struct.pack(">i", 400_000) + b"x", forever(5))
    assert len(reader.space()) >= 400_000 - 1


def test_the_memory_of_a_large_frame_is_used_again_only_when_nobody_has_the_frame():
    reader = FrameReader(frame_size_max=MIB)
    feed(reader, framed(bytes(500_000)), forever(10**9))
    memory: set[int] = set()
    for number in range(1, 9):
        body = bytes([number]) * 400_000
        (frame,) = feed(reader, framed(body), forever(10**9))
        assert frame == body
        memory.add(id(frame.obj))
    assert len(memory) <= 3
    held = []
    for number in range(1, 9):
        held += feed(reader, framed(bytes([number]) * 400_000), forever(10**9))
    assert [set(frame) for frame in held] == [{number} for number in range(1, 9)]


def test_memory_of_large_frames_is_given_back_when_only_small_ones_arrive():
    reader = FrameReader(frame_size_max=MIB)
    feed(reader, framed(bytes(500_000)), forever(10**9))
    assert reader._kept
    feed(reader, framed(*[bytes(10_000)] * 50), forever(10**9))
    assert not reader._kept
