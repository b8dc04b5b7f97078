"""Frames: a byte stream, cut where the sizes say."""

from __future__ import annotations

import pytest

from millstream.errors import MalformedRequest
from millstream.wire.frames import FrameReader, frame_parts

STREAM = bytes.fromhex("00000003 616263  00000000  00000001 64")
FRAMES = [b"abc", b"", b"d"]


def test_frames_come_out_of_a_whole_stream():
    assert FrameReader(frame_size_max=3).receive(STREAM) == FRAMES


def test_frames_come_out_of_a_stream_byte_by_byte():
    reader = FrameReader(frame_size_max=3)
    pieces = [reader.receive(STREAM[index : index + 1]) for index in range(len(STREAM))]
    assert [frame for frames in pieces for frame in frames] == FRAMES


@pytest.mark.parametrize("size", range(len(STREAM)))
def test_frames_come_out_whatever_the_cut(size):
    reader = FrameReader(frame_size_max=3)
    assert reader.receive(STREAM[:size]) + reader.receive(STREAM[size:]) == FRAMES


@pytest.mark.parametrize("size", [4, 2**31 - 1, -1, -(2**31)])
def test_a_size_is_refused_before_its_bytes_arrive(size):
    reader = FrameReader(frame_size_max=3)
    with pytest.raises(MalformedRequest, match=f"frame claims {size} bytes, limit is 3"):
        reader.receive(size.to_bytes(4, "big", signed=True))


def test_parts_of_a_frame_come_after_their_size_and_are_not_copied():
    records = memoryview(b"records")
    parts = frame_parts([b"header", records])
    assert parts == [bytes.fromhex("0000000d"), b"header", records]
    assert parts[2] is records
    assert FrameReader(frame_size_max=99).receive(b"".join(parts)) == [b"headerrecords"]
