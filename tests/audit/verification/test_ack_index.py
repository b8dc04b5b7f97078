"""Acknowledgements from many files, by partition and offset."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from millstream import AcknowledgementFile
from millstream.audit.verification.ack_index import AckIndex
from millstream.errors import CorruptFile


def test_files_are_read_together_in_the_order_of_the_logs(tmp_path: Path) -> None:
    places = [
        (topic, partition, offset)
        for topic in ("a", "b")
        for partition in (0, 3)
        for offset in range(40)
    ]
    random.Random(1).shuffle(places)
    files = [AcknowledgementFile(tmp_path / str(number)) for number in range(3)]
    for number, (topic, partition, offset) in enumerate(places):
        files[number % 3].note(topic, partition, offset, value=b"%d" % offset)
    for file in files:
        file.close()
    with AckIndex(entries_max=7) as ack_index:
        for file in files:
            ack_index.read(file.path)
        found = {where: list(noted) for where, noted in ack_index.partitions()}
    assert sorted(found) == [("a", 0), ("a", 3), ("b", 0), ("b", 3)]
    for noted in found.values():
        assert [one.offset for one in noted] == list(range(40))
        for one in noted:
            assert Path(one.file).read_text().splitlines()[one.line - 1].count(f":{one.offset},")


def test_only_the_topics_that_are_asked_for_are_taken_in(tmp_path: Path) -> None:
    with AcknowledgementFile(tmp_path / "file") as file:
        file.note("a", 0, 0, value=b"")
        file.note("b", 0, 0, value=b"")
    with AckIndex() as ack_index:
        ack_index.read(file.path, topics=["b"])
        assert ack_index.count == 1
        assert [where.topic for where, _ in ack_index.partitions()] == ["b"]


def test_what_has_no_offset_is_counted_and_what_is_torn_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with AcknowledgementFile(path) as file:
        file.note("a", 0, -1, value=b"")
    with path.open("ab") as torn:
        torn.write(b'{"topic":')
    with AckIndex() as ack_index:
        ack_index.read(str(path))
        assert (ack_index.count, ack_index.unplaced, ack_index.torn_files) == (1, 1, [str(path)])
        assert list(ack_index.partitions()) == []


def test_a_damaged_file_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with AcknowledgementFile(path) as file:
        for offset in range(3):
            file.note("a", 0, offset, value=b"")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"?" + lines[2][1:], *lines[3:]]))
    with AckIndex() as ack_index, pytest.raises(CorruptFile, match="line 3"):
        ack_index.read(str(path))
