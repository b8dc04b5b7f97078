"""`high-watermarks.json`: what the replicas of a node had, stored outside of their logs."""

from __future__ import annotations

import logging
import uuid

import pytest

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.repair import CommittedEnd
from millstream.cluster.replication.high_watermarks import HighWatermarks, read_high_watermarks
from millstream.errors import UnknownFormat
from millstream.storage.files.document import encode_document
from millstream.testing import SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.in_loop import in_loop

ROOT = "/data"
PATH = f"{ROOT}/high-watermarks.json"
KIND = "millstream-high-watermarks"
FIRST = PartitionId(uuid.UUID(int=1), 0)
SECOND = PartitionId(uuid.UUID(int=2), 7)

GOLDEN_1 = (
    b'{"content":{"offsets":{"00000000-0000-0000-0000-000000000001/0":12,'
    b'"00000000-0000-0000-0000-000000000002/7":0}},"crc32c":"e3688be8",'
    b'"format":"millstream-high-watermarks","version":1}\n'
)
GOLDEN_2 = (
    b'{"content":{"committed":{"00000000-0000-0000-0000-000000000001/0":[12,3],'
    b'"00000000-0000-0000-0000-000000000002/7":[0,-1]}},"crc32c":"4c1e689a",'
    b'"format":"millstream-high-watermarks","version":2}\n'
)


def disk_with(data: bytes | None = None) -> SimulatedFilesystem:
    return SimulatedFilesystem({ROOT: None} if data is None else {ROOT: None, PATH: data})


def opened(disk: SimulatedFilesystem) -> HighWatermarks:
    stored = HighWatermarks(disk, ROOT, SeededBackground(0))
    stored.open()
    return stored


def test_a_file_without_epochs_of_an_earlier_release_is_read():
    stored = opened(disk_with(GOLDEN_1))
    assert stored.get(FIRST) == CommittedEnd(12)
    assert stored.get(SECOND) == CommittedEnd(0)


@in_loop
async def test_what_is_stored_is_found_again_and_has_these_bytes():
    disk = disk_with()
    await opened(disk).store({FIRST: CommittedEnd(12, 3), SECOND: CommittedEnd(0)})
    assert disk.content(PATH) == GOLDEN_2
    stored = opened(disk.crash())
    assert stored.get(FIRST) == CommittedEnd(12, 3)
    assert stored.get(SECOND) == CommittedEnd(0)
    assert stored.get(PartitionId(FIRST.topic_id, 1)) is None


@in_loop
async def test_an_end_that_was_lowered_on_purpose_has_no_epoch_and_does_not_rise():
    disk = disk_with(GOLDEN_2)
    stored = opened(disk)
    await stored.lower(FIRST, 20)
    assert stored.get(FIRST) == CommittedEnd(12, 3)
    await stored.lower(FIRST, 5)
    assert opened(disk.crash()).get(FIRST) == CommittedEnd(5)


def test_a_later_version_is_refused_with_both_numbers_and_not_changed():
    later = encode_document(KIND, 3, {"committed": {}})
    disk = disk_with(later)
    with pytest.raises(UnknownFormat, match=f"{PATH}: expected {KIND} version 1-2, got .* 3"):
        opened(disk)
    assert disk.content(PATH) == later


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        GOLDEN_2[:-9],
        GOLDEN_2.replace(b"[12,3]", b"[13,3]"),
        encode_document(KIND, 2, {"committed": {"a": 1}}),
        encode_document(KIND, 2, {"committed": {"a": [1]}}),
        encode_document(KIND, 2, {}),
        encode_document(KIND, 1, {"offsets": {"a": None}}),
    ],
)
def test_a_damaged_file_is_reported_and_nothing_is_known(
    data: bytes, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.ERROR):
        stored = opened(disk_with(data))
    assert stored.get(FIRST) is None
    assert "lost records of replicas may not be noticed" in caplog.text
    assert PATH in caplog.text


def test_a_file_that_does_not_exist_is_nothing_to_report(caplog: pytest.LogCaptureFixture):
    assert opened(disk_with()).get(FIRST) is None
    assert not caplog.records
    with pytest.raises(FileNotFoundError):
        read_high_watermarks(disk_with(), ROOT)
