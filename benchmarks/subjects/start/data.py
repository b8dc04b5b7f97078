"""Data directories of nodes that were stopped cleanly, with many partitions or many segments.

One partition with one record is made by a real node. The others are its copies: files that are the
same are hard links of one, since sealed files never change and making ten thousand real ones takes
a minute. What a start does with them is the same: it lists each directory, asks for the size of
each log and reads each seal. Nothing may be appended to such a copy: it would reach all of them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from millstream.storage.files.names import segment_file
from millstream.storage.files.seal import decode_seal, encode_seal
from subjects.kafka.client import LONE_SIZE, answer_size, make_topic, produce_frame
from subjects.kafka.processes import node
from subjects.log.common import make_batch


def make_partitions(data: Path, count: int) -> None:
    """Make the data of a node that has one topic, with a record in each of `count` partitions."""
    first = _make_topic(data, partitions=count)
    for number in range(1, count):
        other = first.with_name(str(number))
        other.mkdir()
        for path in first.iterdir():
            (other / path.name).hardlink_to(path)


def make_segments(data: Path, count: int) -> None:
    """Make the data of a node that has one partition, with `count` segments of one record."""
    multiply_segment(_make_topic(data, partitions=1), count)


def multiply_segment(directory: Path, count: int) -> None:
    """Give a log `count` segments that are all like its first, each with a seal of its own.

    The batches in them name the offsets of the first: good for opening, and not for reading. Only
    those of the last are right, because opening looks at them.
    """
    first = {suffix: directory / segment_file(0, suffix) for suffix in ("log", "index", "seal")}
    seal = decode_seal(first["seal"].read_bytes())
    for base in range(1, count):
        if base < count - 1:
            for suffix in ("log", "index"):
                (directory / segment_file(base, suffix)).hardlink_to(first[suffix])
        else:  # Without its index, which is built again.
            batch = base.to_bytes(8, "big") + first["log"].read_bytes()[8:]
            (directory / segment_file(base, "log")).write_bytes(batch)
        own = replace(seal, base_offset=base, next_offset=base + 1)
        (directory / segment_file(base, "seal")).write_bytes(encode_seal(own))


def _make_topic(data: Path, *, partitions: int) -> Path:
    """Have a node make a topic and one record; return the directory of the first partition."""
    with node(data) as server:
        topic = make_topic(server.port, partitions=partitions)
        batch = make_batch(LONE_SIZE, value_size=100)
        answer_size(server.port, produce_frame(topic, batch, acks=-1))
    return data / "topics" / topic / "0"
