"""A marker that an earlier release wrote is read, and written as then."""

from __future__ import annotations

import contextlib

import pytest

from millstream.errors import UnknownFormat
from millstream.storage.files.cold_marker import read_cold_marker, write_cold_marker
from millstream.storage.files.document import decode_document, encode_document
from millstream.storage.files.names import SegmentId
from millstream.storage.segment.cold_segment import ColdMiss
from millstream.testing import SimulatedFilesystem
from tests.in_loop import in_loop

from .golden.disk import golden_files
from .golden.make_v6_cold import FOLDER, VALUES, open_store

FILES = golden_files(FOLDER)
MARKER = "data/topics/t/0/00000000000000000000.0.cold"
DIRECTORY = "/data/topics/t/0"


def disk_with(files: dict[str, bytes]) -> SimulatedFilesystem:
    disk = SimulatedFilesystem()
    for name, content in files.items():
        path = ""
        for part in name.split("/")[:-1]:
            path += f"/{part}"
            disk.make_directory(path)
        file = disk.create(f"/{name}")
        file.write_at(0, [content])
        file.sync()
        file.close()
    return disk.copy()


@in_loop
async def test_the_golden_log_is_read_from_both_stores() -> None:
    store = open_store(disk_with(FILES))
    assert (store.damage(), store.recovered()) == ({}, {})
    log = await store.log("t")
    found = []
    while len(found) < len(VALUES):
        with contextlib.suppress(ColdMiss):
            found += [record.value for record in log.records(len(found))]
    assert found == VALUES
    await store.close()


def test_the_same_marker_makes_the_same_bytes() -> None:
    assert b'"version":6' in FILES["data/topics/t/0/partition.json"]
    disk = disk_with(FILES)
    marker = read_cold_marker(disk, DIRECTORY, SegmentId(0, 0))
    disk.remove(f"/{MARKER}")
    write_cold_marker(disk, DIRECTORY, marker)
    assert disk.content(f"/{MARKER}") == FILES[MARKER]


def test_a_marker_of_a_later_release_is_refused_and_left() -> None:
    content = decode_document(FILES[MARKER], "millstream-cold", 1)
    later = encode_document("millstream-cold", 2, content)
    disk = disk_with({**FILES, MARKER: later})
    with pytest.raises(UnknownFormat, match="version 2"):
        read_cold_marker(disk, DIRECTORY, SegmentId(0, 0))
    store = open_store(disk)
    assert "version 2" in str(store.damage())
    assert disk.content(f"/{MARKER}") == later
