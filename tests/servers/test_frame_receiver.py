"""Frame receiver: cuts received bytes into frames without a copy, and validates sizes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import MalformedRequest
from millstream.servers.block_pool import BLOCK_SIZE, BlockPool
from millstream.servers.frame_receiver import FRAME_SIZE_MIN, Frame, FrameReceiver

MIB = 1024 * 1024


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def body(size: int, fill: int = 7) -> bytes:
    return bytes([fill]) * size


def make(*, bytes_max: int = 512 * MIB, frame_size_max: int = 100 * MIB):
    blocks = BlockPool(bytes_max=bytes_max)
    return blocks, FrameReceiver(blocks, frame_size_max=frame_size_max)


def cut(receiver: FrameReceiver) -> list[Frame]:
    """Cut all frames of the backlog."""
    return list(iter(receiver.next_frame, None))


def feed(receiver: FrameReceiver, data: bytes, piece: int) -> list[bytes]:
    """Feed `data` in pieces of at most `piece` bytes; release each frame at once."""
    found, position = [], 0
    while position < len(data):
        assert receiver.has_capacity()
        space = receiver.space()
        count = min(piece, len(space), len(data) - position)
        space[:count] = data[position : position + count]
        position += count
        receiver.received(count)
        for frame, block in cut(receiver):
            found.append(bytes(frame))
            block.release()
    return found


@pytest.mark.parametrize("piece", [1, 3, 4, 5, 1000, BLOCK_SIZE, 10 * MIB])
def test_frames_come_out_whole_however_their_bytes_arrive(piece):
    bodies = [body(8), body(100, 1), body(5000, 2), body(20_000, 3), body(9, 4)]
    _, receiver = make()
    assert feed(receiver, framed(*bodies), piece) == bodies


@given(
    st.lists(st.sampled_from([8, 9, 500, 16_384, 70_000, BLOCK_SIZE, 600_000]), max_size=8),
    st.lists(st.sampled_from([1, 2, 4, 100, 70_000, MIB]), min_size=1, max_size=5),
)
def test_frames_of_all_sizes_come_out_in_order_and_all_memory_comes_back(sizes, pieces):
    bodies = [body(size, index) for index, size in enumerate(sizes)]
    blocks, receiver = make()
    data, position, found = framed(*bodies), 0, []
    while position < len(data):
        piece = min(max(pieces[len(found) % len(pieces)], len(data) // 2000), len(data) - position)
        space = receiver.space()
        count = min(piece, len(space))
        space[:count] = data[position : position + count]
        position += count
        receiver.received(count)
        for frame, block in cut(receiver):
            found.append(bytes(frame))
            block.release()
        assert receiver.has_capacity()
    assert found == bodies
    assert blocks.used_bytes == BLOCK_SIZE


def test_a_backlog_tells_whether_it_has_more_frames_than_a_number():
    _, receiver = make()
    assert not receiver.has_more_frames_than(0)
    data = framed(body(8), body(300), body(9)) + b"\0\0"  # The begin of a fourth.
    receiver.space()[: len(data)] = data
    receiver.received(len(data))
    assert [receiver.has_more_frames_than(count) for count in range(6)] == [True] * 4 + [False] * 2
    receiver.next_frame()
    assert not receiver.has_more_frames_than(3)


def test_a_frame_keeps_its_bytes_while_others_arrive():
    _, receiver = make()
    first, second = body(1000, 1), body(1000, 2)
    space = receiver.space()
    space[: len(framed(first))] = framed(first)
    receiver.received(len(framed(first)))
    ((kept, _),) = cut(receiver)
    assert feed(receiver, framed(second) * 300, 4096) == [second] * 300
    assert bytes(kept) == first


def test_a_frame_is_a_view_of_what_arrived_and_not_a_copy():
    _, receiver = make()
    space = receiver.space()
    space[:104] = framed(body(100))
    receiver.received(104)
    ((frame, block),) = cut(receiver)
    assert block.view.obj is frame.obj


def test_reads_go_behind_frames_that_are_in_use_and_to_the_start_when_none_is():
    blocks, receiver = make()
    first = blocks.reading
    for number in range(3):
        space = receiver.space()
        assert len(space) == BLOCK_SIZE - 104 * number
        space[:104] = framed(body(100, number))
        receiver.received(104)
        cut(receiver)
    for _ in range(3):
        first.release()
    assert blocks.reading is first
    receiver.space()[:104] = framed(body(100))
    receiver.received(104)
    ((_, block),) = cut(receiver)
    block.release()
    receiver.space()[:104] = framed(body(100))
    receiver.received(104)
    assert len(receiver.space()) >= BLOCK_SIZE - 6 * 104


@pytest.mark.parametrize("claimed", [-1, 0, FRAME_SIZE_MIN - 1, 1001, 2**31 - 1, 352_518_912])
@pytest.mark.parametrize("piece", [1, 4, 100])
def test_a_size_that_is_not_allowed_is_refused_with_both_numbers(claimed, piece):
    _, receiver = make(frame_size_max=1000)
    with pytest.raises(
        MalformedRequest, match=rf"frame size must be between 8 and 1000, got {claimed}"
    ):
        feed(receiver, struct.pack(">i", claimed) + b"x" * 20, piece)


def test_frames_before_a_bad_size_give_their_memory_back():
    blocks, receiver = make(frame_size_max=1000)
    data = framed(body(100)) + struct.pack(">i", -1)
    receiver.space()[: len(data)] = data
    receiver.received(len(data))
    frame = receiver.next_frame()
    assert frame is not None
    frame[1].release()
    with pytest.raises(MalformedRequest):
        receiver.next_frame()
    receiver.close()
    assert blocks.used_bytes == BLOCK_SIZE


def test_a_claim_alone_allocates_next_to_nothing():
    blocks = BlockPool(bytes_max=512 * MIB)
    receivers = [FrameReceiver(blocks, frame_size_max=100 * MIB) for _ in range(1000)]
    for receiver in receivers:
        receiver.space()[:4] = struct.pack(">i", 100 * MIB)
        before = blocks.used_bytes
        receiver.received(4)
        assert not receiver.has_backlog
        assert blocks.used_bytes - before <= 16 * 1024, "each, so that a failure costs little too"


def test_memory_grows_with_what_has_arrived():
    blocks, receiver = make()
    arrived = 0
    receiver.space()[:4] = struct.pack(">i", 50 * MIB)
    receiver.received(4)
    while arrived < 10 * MIB:
        assert receiver.has_capacity()
        count = min(len(receiver.space()), 64 * 1024)
        receiver.received(count)
        arrived += count
        assert blocks.used_bytes <= BLOCK_SIZE + max(16 * 1024, 8 * (arrived + 4))


def test_a_connection_that_sent_large_frames_gets_the_memory_for_the_next_at_once():
    _, receiver = make()
    assert feed(receiver, framed(body(MIB)), 100_000) == [body(MIB)]
    receiver.space()[:4] = struct.pack(">i", MIB)
    receiver.received(4)
    assert len(receiver.space()) == MIB


def test_where_all_memory_is_in_use_there_is_no_room_until_some_comes_back():
    blocks, receiver = make(bytes_max=2 * MIB)
    hog = blocks.take(MIB)
    receiver.space()[:4] = struct.pack(">i", 8 * MIB)
    receiver.received(4)
    while receiver.has_capacity():
        receiver.received(len(receiver.space()))
    assert blocks.used_bytes <= 2 * MIB
    woken = []
    blocks.when_free(lambda: woken.append(receiver.has_capacity()))
    hog.release()
    assert woken == [True]


def test_a_frame_that_fits_no_limit_at_all_still_arrives_when_it_is_alone():
    _, receiver = make(bytes_max=MIB)
    assert feed(receiver, framed(body(3 * MIB)), 100_000) == [body(3 * MIB)]


def test_closing_in_the_middle_of_a_frame_gives_its_memory_back():
    blocks, receiver = make()
    receiver.space()[:100] = framed(body(5000))[:100]
    receiver.received(100)
    assert receiver.is_within_frame
    receiver.close()
    assert blocks.used_bytes == BLOCK_SIZE
