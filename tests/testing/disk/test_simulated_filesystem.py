"""The simulated disk fills up, decays and records its trace."""

from __future__ import annotations

import errno
import threading

import pytest

from millstream.testing import SimulatedFilesystem
from millstream.testing.suites.files import fails_with, make_file


@pytest.fixture
def disk():
    return SimulatedFilesystem({"/d": None, "/d/a": b"\x00\xff"})


class TestSpace:
    def test_a_full_disk_refuses_and_resumes_when_space_returns(self):
        disk = SimulatedFilesystem(bytes_max=10)
        file = disk.create("/a")
        file.write_at(0, [bytes(8)])
        with fails_with(errno.ENOSPC):
            file.write_at(8, [b"abc"])
        assert file.size() == 8
        disk.free(1)
        assert disk.bytes_max == 11
        assert file.write_at(8, [b"abc"]) == 3

    def test_removing_a_file_makes_room(self):
        disk = SimulatedFilesystem({"/a": bytes(10)}, bytes_max=10)
        disk.remove("/a")
        make_file(disk, "/b", bytes(10))

    def test_free_makes_room_on_a_disk_that_is_more_than_full(self):
        disk = SimulatedFilesystem({"/a": bytes(10)}, bytes_max=5)
        disk.free(3)
        assert disk.open("/a").write_at(10, [b"abc"]) == 3

    def test_what_a_disk_holds_at_the_start_may_exceed_its_bound(self):
        disk = SimulatedFilesystem({"/a": bytes(10)}, bytes_max=5)
        assert disk.content("/a") == bytes(10)
        with fails_with(errno.ENOSPC):
            disk.open("/a").write_at(10, [b"x"])

    def test_the_bound_survives_a_crash(self):
        assert SimulatedFilesystem(bytes_max=5).crash().bytes_max == 5

    def test_a_refused_write_leaves_no_trace(self):
        disk = SimulatedFilesystem(bytes_max=1)
        file = disk.create("/a")
        count = len(disk.trace.events)
        with fails_with(errno.ENOSPC):
            file.write_at(0, [b"ab"])
        assert len(disk.trace.events) == count


class TestDamage:
    @pytest.mark.parametrize(
        ("bit", "content"), [(0, b"\x01\xff"), (7, b"\x80\xff"), (8, b"\x00\xfe")]
    )
    def test_one_bit_flips(self, disk, bit, content):
        disk.flip_bit("/d/a", bit)
        assert disk.content("/d/a") == content
        disk.flip_bit("/d/a", bit)
        assert disk.content("/d/a") == b"\x00\xff"

    def test_a_file_is_cut(self, disk):
        disk.cut("/d/a", 1)
        assert disk.content("/d/a") == b"\x00"

    def test_who_has_the_file_open_sees_the_damage(self, disk):
        file = disk.open_readonly("/d/a")
        disk.flip_bit("/d/a", 0)
        assert file.read_at(0, 2) == bytes(file.map(2)) == b"\x01\xff"

    def test_damage_is_durable_and_outlasts_what_was_pending(self, disk):
        disk.open("/d/a").write_at(0, [b"unsynced"])
        disk.replace_content("/d/a", b"damage")
        for seed in (None, 1, 2, 3):
            assert disk.crash(seed).content("/d/a") == b"damage"

    def test_a_copy_is_independent_and_durable(self, disk):
        make_file(disk, "/d/b", b"unsynced")
        copy = disk.copy()
        copy.flip_bit("/d/a", 0)
        assert disk.content("/d/a") == b"\x00\xff"
        assert copy.crash().contents() == {"/d": None, "/d/a": b"\x01\xff", "/d/b": b"unsynced"}

    def test_paths_are_those_of_files(self, disk):
        disk.make_directory("/d/e")
        make_file(disk, "d/e/b")
        assert disk.paths() == ["/d/a", "/d/e/b"]


class TestTrace:
    def test_every_change_is_recorded_in_order(self):
        disk = SimulatedFilesystem()
        disk.make_directory("/d")
        disk.make_directory("/d")
        file = disk.create("/d/a")
        file.write_at(5, [b"ab", b"c"])
        file.write_at(9, [])
        file.reserve(100)
        file.truncate(6)
        disk.note("sent")
        file.sync()
        disk.rename("/d/a", "/d/b")
        disk.sync_directory("/d")
        file.fail_sync()
        disk.flip_bit("/d/b", 0)
        disk.remove("/d/b")
        disk.remove_directory("/d")
        assert [str(event) for event in disk.trace.events] == [
            "creation of 'd', directory 1",
            "creation of 'a', file 2",
            "write of 3 bytes at 5 of file 2",
            "truncation of file 2 to 6 bytes",
            "note of 'sent'",
            "sync of file 2",
            "rename of 'a' to 'b', file 2",
            "sync of directory 1",
            "failed sync of file 2",
            "damage to file 2",
            "removal of 'b' from directory 1",
            "removal of 'd' from directory 0",
        ]

    def test_what_fails_or_changes_nothing_is_not_recorded(self, disk):
        for use in (
            lambda: disk.create("/d/a"),
            lambda: disk.create("/missing/a"),
            lambda: disk.remove("/d/b"),
            lambda: disk.rename("/d/b", "/d/c"),
            lambda: disk.open_readonly("/d/a").write_at(0, [b"x"]),
            lambda: disk.remove_directory("/d"),
        ):
            with pytest.raises(OSError):  # noqa: PT011 - each its own.
                use()
        disk.list("/d")
        disk.size("/d/a")
        disk.open("/d/a").read_at(0, 1)
        disk.open("/d/a").map(1)
        assert disk.trace.events == []

    def test_a_lock_file_is_recorded_when_it_is_created(self, disk):
        for _ in range(2):
            disk.lock("/d/lock").release()
        assert [str(event) for event in disk.trace.events] == ["creation of 'lock', file 3"]

    def test_threads_share_one_trace_in_the_order_of_effects(self, disk):
        """A note that follows a sync in one thread follows it in the trace, too."""

        def work(name):
            file = disk.create(f"/d/{name}")
            for index in range(100):
                file.write_at(index, [b"x"])
                file.sync()
                disk.note((name, index))

        threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        disk.sync_directory("/d")
        for name in ("t0", "t1", "t2", "t3"):
            noted = [event[1] for event in disk.trace.notes if event[0] == name]
            assert noted == list(range(100))
        crashed = disk.crash()
        assert all(crashed.content(f"/d/t{n}") == b"x" * 100 for n in range(4))
