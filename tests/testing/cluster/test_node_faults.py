"""Faults of disk and clock that a node of a test cluster takes from its harness."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from millstream.clock import SystemClock
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.testing.cluster.node_faults import (
    NO_FAULTS,
    CurrentFaults,
    NodeFaults,
    SteppedClock,
    decode_faults,
    encode_faults,
    failing_disk,
    full_disk,
)

FAULTS = [NO_FAULTS, failing_disk(), full_disk(), NodeFaults(sync_delay_s=0.5, wall_step_ms=-7)]


@pytest.mark.parametrize("faults", FAULTS)
def test_faults_arrive_as_they_were_sent(faults: NodeFaults):
    assert decode_faults(encode_faults(faults)) == faults


def test_a_failing_disk_writes_and_syncs_nothing_and_works_again_when_it_heals(tmp_path: Path):
    current = CurrentFaults()
    disk = current.filesystem(OsFilesystem())
    file = disk.create(str(tmp_path / "a"))
    current.faults = failing_disk()
    for call in (file.sync, lambda: file.write_at(0, [b"xy"])):
        with pytest.raises(OSError, match="Input/output error") as raised:
            call()
        assert raised.value.errno == errno.EIO
    assert file.read_at(0, 10) == b"x"  # A failed write may have written a part.
    current.faults = NO_FAULTS
    assert file.write_at(0, [b"abc"]) == 3
    file.sync()
    assert file.read_at(0, 10) == b"abc"
    file.close()


def test_a_full_disk_takes_no_bytes_and_no_names_but_can_be_read(tmp_path: Path):
    current = CurrentFaults()
    disk = current.filesystem(OsFilesystem())
    file = disk.create(str(tmp_path / "a"))
    file.write_at(0, [b"abc"])
    current.faults = full_disk()
    with pytest.raises(OSError, match="No space left") as raised:
        disk.create(str(tmp_path / "b"))
    assert raised.value.errno == errno.ENOSPC
    assert file.read_at(0, 10) == b"abc"
    file.close()


def test_a_slow_disk_delays_syncs_and_nothing_else(tmp_path: Path):
    slept: list[float] = []
    current = CurrentFaults(slept.append)
    current.faults = NodeFaults(sync_delay_s=0.5)
    disk = current.filesystem(OsFilesystem())
    file = disk.create(str(tmp_path / "a"))
    file.write_at(0, [b"abc"])
    file.sync()
    disk.sync_directory(str(tmp_path))
    assert slept == [0.5, 0.5]
    file.close()


def test_the_wall_clock_steps_and_the_monotonic_one_does_not():
    current = CurrentFaults()
    clock, system = SteppedClock(current), SystemClock()
    current.faults = NodeFaults(wall_step_ms=-3_600_000)
    before = system.wall_ms()
    assert before <= clock.wall_ms() + 3_600_000 <= system.wall_ms()
    started = system.monotonic()
    assert started <= clock.monotonic() <= system.monotonic()


def test_a_delay_below_zero_is_refused():
    with pytest.raises(ValueError, match="sync_delay_s must be at least 0, got -1"):
        NodeFaults(sync_delay_s=-1)
