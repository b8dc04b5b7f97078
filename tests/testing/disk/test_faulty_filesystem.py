"""Faults hit every call once, have the effect that the kernel's would have, and say where."""

from __future__ import annotations

import errno
import threading

import pytest

from millstream.storage.disk.filesystem import write_all
from millstream.testing import (
    GROWING,
    OPENING,
    Call,
    Fault,
    FaultyFilesystem,
    SimulatedFilesystem,
    sweep,
)
from millstream.testing.suites.files import fails_with


def every_call(filesystem):
    """Make every call that exists, once."""
    filesystem.make_directory("/d")
    lock = filesystem.lock("/d/lock")
    file = filesystem.create("/d/a")
    file.reserve(100)
    write_all(file, 0, [b"01234", b"56789"])
    file.truncate(8)
    file.sync()
    file.size()
    file.read_at(0, 4)
    file.map(4)
    file.close()
    file.close()
    filesystem.open("/d/a").close()
    filesystem.open_readonly("/d/a").close()
    filesystem.rename("/d/a", "/d/b")
    filesystem.sync_directory("/d")
    filesystem.list("/d")
    filesystem.size("/d/b")
    filesystem.remove("/d/b")
    filesystem.remove("/d/lock")
    filesystem.remove_directory("/d")
    filesystem.remove_tree("/d")
    lock.release()


CALLS = [
    Call("make_directory", "/d"),
    Call("lock", "/d/lock"),
    Call("create", "/d/a"),
    Call("reserve", "/d/a"),
    Call("write_at", "/d/a"),
    Call("truncate", "/d/a"),
    Call("sync", "/d/a"),
    Call("size", "/d/a"),
    Call("read_at", "/d/a"),
    Call("map", "/d/a"),
    Call("close", "/d/a"),
    Call("open", "/d/a"),
    Call("close", "/d/a"),
    Call("open_readonly", "/d/a"),
    Call("close", "/d/a"),
    Call("rename", "/d/a"),
    Call("sync_directory", "/d"),
    Call("list", "/d"),
    Call("size", "/d/b"),
    Call("remove", "/d/b"),
    Call("remove", "/d/lock"),
    Call("remove_directory", "/d"),
    Call("remove_tree", "/d"),
]


def run(fault):
    """Run `every_call` and return the error that ended it, if one did."""
    try:
        every_call(FaultyFilesystem(SimulatedFilesystem(), fault))
    except OSError as error:
        return error.errno
    return None


def test_every_call_is_counted_with_its_path():
    faulty = FaultyFilesystem(SimulatedFilesystem(), Fault(call=1000))
    every_call(faulty)
    assert faulty.calls == CALLS


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
def test_a_sweep_hits_each_call_in_turn_and_ends_with_success(error, forever):
    hits = []
    for fault in sweep(error=error, forever=forever):
        ended_with = run(fault)
        hits.append(fault.hits[0] if fault.hits else None)
        assert ended_with == (error if fault.hits else None), fault.describe()
    assert hits == [*CALLS, None]


@pytest.mark.parametrize("only", [OPENING, GROWING, ["sync", "sync_directory"]])
def test_a_sweep_can_be_narrowed_to_some_calls(only):
    hits = []
    for fault in sweep(only=only):
        run(fault)
        hits += fault.hits
    assert hits == [call for call in CALLS if call.name in only]


def test_a_sweep_can_be_narrowed_to_some_paths():
    hits = []
    for fault in sweep(path="lock"):
        run(fault)
        hits += fault.hits
    assert hits == [Call("lock", "/d/lock"), Call("remove", "/d/lock")]


def test_a_fault_happens_once_or_for_ever():
    for forever, failures in ((False, [2]), (True, [2, 3, 4])):
        faulty = FaultyFilesystem(SimulatedFilesystem(), Fault(call=2, forever=forever))
        failed = []
        for number in range(1, 5):
            try:
                faulty.list("/")
            except OSError:
                failed.append(number)
        assert failed == failures


def test_a_fault_says_where_it_struck():
    fault = Fault(call=5, error=errno.ENOSPC, forever=True)
    assert fault.describe() == "ENOSPC at call 5 (not reached), forever"
    run(fault)
    assert fault.describe() == "ENOSPC at call 5 (write_at of /d/a), forever"
    fault = Fault(call=1, kind="short write")
    run(fault)
    assert fault.describe() == "short write at call 1 (write_at of /d/a), once"


def test_the_error_carries_the_path():
    faulty = FaultyFilesystem(SimulatedFilesystem(), Fault(call=1, error=errno.EMFILE))
    with pytest.raises(OSError, match="/missing") as caught:
        faulty.open("/missing")
    assert (caught.value.errno, caught.value.filename) == (errno.EMFILE, "/missing")


class TestWrites:
    @pytest.fixture
    def disk(self):
        return SimulatedFilesystem({"/a": b""})

    def test_a_short_write_takes_half_once(self, disk):
        file = FaultyFilesystem(disk, Fault(call=1, kind="short write")).open("/a")
        assert file.write_at(0, [b"0123", b"4567"]) == 4
        assert file.write_at(4, [b"4567"]) == 4
        assert disk.content("/a") == b"01234567"

    def test_writes_that_stay_short_make_progress_to_the_last_byte(self, disk):
        fault = Fault(call=1, kind="short write", forever=True)
        file = FaultyFilesystem(disk, fault).open("/a")
        assert write_all(file, 0, [b"0123", b"456789"]) == 10
        assert disk.content("/a") == b"0123456789"
        assert len(fault.hits) == 4

    def test_short_writes_are_swept_over_writes_alone(self):
        hits = []
        for fault in sweep(kind="short write"):
            assert run(fault) is None
            hits += fault.hits
        assert hits == [Call("write_at", "/d/a")]

    def test_a_failed_write_leaves_a_part(self, disk):
        file = FaultyFilesystem(disk, Fault(call=1, only=["write_at"])).open("/a")
        with fails_with(errno.EIO):
            file.write_at(0, [b"0123", b"4567"])
        assert disk.content("/a") == b"0123"


@pytest.mark.parametrize(
    "call",
    [
        lambda filesystem: filesystem.create("/b"),
        lambda filesystem: filesystem.make_directory("/e"),
        lambda filesystem: filesystem.rename("/a", "/b"),
        lambda filesystem: filesystem.remove("/a"),
        lambda filesystem: filesystem.remove_directory("/d"),
        lambda filesystem: filesystem.remove_tree("/d"),
        lambda filesystem: filesystem.lock("/lock"),
    ],
)
def test_other_calls_that_fail_do_nothing(call):
    contents = {"/a": b"content", "/d": None}
    disk = SimulatedFilesystem(contents)
    with fails_with(errno.EIO):
        call(FaultyFilesystem(disk, Fault(call=1)))
    assert disk.contents() == contents


def test_a_failed_close_has_closed():
    disk = SimulatedFilesystem({"/a": b"content"})
    file = FaultyFilesystem(disk, Fault(call=2)).open("/a")
    disk.remove("/a")
    with fails_with(errno.EIO):
        file.close()
    file.close()
    assert disk.bytes_used == 0


def test_calls_of_many_threads_are_each_counted():
    faulty = FaultyFilesystem(SimulatedFilesystem(), Fault(call=4001))
    threads = [
        threading.Thread(target=lambda: [faulty.list("/") for _ in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(faulty.calls) == 4000
    with fails_with(errno.EIO):
        faulty.list("/")
