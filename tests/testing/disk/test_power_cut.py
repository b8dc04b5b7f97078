"""What survives a power cut on the simulated disk, and what must not."""

from __future__ import annotations

import errno

import pytest

from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from millstream.testing.suites.files import fails_with, make_file

SEEDS = range(300)


@pytest.fixture
def disk():
    return SimulatedFilesystem({"/d": None})


def put(disk, path, data, *, position=0):
    """Write and sync."""
    file = disk.open(path)
    file.write_at(position, [data])
    file.sync()
    file.close()


def outcomes(build):
    """Return every content that any of the seeds leaves on the disk that `build` changes."""
    found = set()
    for seed in SEEDS:
        disk = SimulatedFilesystem({"/d": None})
        build(disk)
        found.add(tuple(disk.crash(seed).contents().items()))
    return [dict(items) for items in found]


def test_what_was_there_at_the_start_survives():
    contents = {"/d": None, "/d/a": b"old", "/d/e": None}
    for seed in (None, *SEEDS):
        assert SimulatedFilesystem(contents).crash(seed).contents() == contents


def test_a_synced_file_in_a_synced_directory_survives_whole(disk):
    make_file(disk, "/d/a")
    put(disk, "/d/a", b"durable")
    disk.sync_directory("/d")
    assert disk.crash().contents() == {"/d": None, "/d/a": b"durable"}


def test_synced_things_survive_every_seed():
    def build(disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"durable")
        disk.sync_directory("/d")
        disk.open("/d/a").write_at(7, [b"!"])
        make_file(disk, "/d/b", b"more")

    for contents in outcomes(build):
        assert contents["/d/a"] in (b"durable", b"durable!", b"durable\0")


def test_a_synced_file_whose_name_was_not_synced_may_vanish(disk):
    make_file(disk, "/d/a")
    put(disk, "/d/a", b"synced")
    assert disk.crash().contents() == {"/d": None}


def test_a_synced_file_whose_name_was_not_synced_may_also_stay():
    def build(disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"synced")

    found = outcomes(build)
    assert {"/d": None} in found
    assert {"/d": None, "/d/a": b"synced"} in found
    assert len(found) == 2


def test_a_synced_name_whose_file_was_not_synced_leads_to_any_part_of_it():
    def build(disk):
        make_file(disk, "/d/a", b"abcd")
        disk.sync_directory("/d")

    found = {contents["/d/a"] for contents in outcomes(build)}
    assert found == {b"", b"a", b"ab", b"abc", b"abcd", bytes(4)}


def test_all_in_a_directory_vanishes_with_its_name(disk):
    disk.make_directory("/d/e")
    make_file(disk, "/d/e/a")
    put(disk, "/d/e/a", b"synced")
    disk.sync_directory("/d/e")
    assert disk.crash().contents() == {"/d": None}


def test_a_directory_survives_once_its_parent_was_synced(disk):
    disk.make_directory("/d/e")
    make_file(disk, "/d/e/a")
    put(disk, "/d/e/a", b"synced")
    disk.sync_directory("/d/e")
    disk.sync_directory("/d")
    assert disk.crash().contents() == {"/d": None, "/d/e": None, "/d/e/a": b"synced"}


def test_a_rename_without_a_sync_of_the_content_can_show_an_empty_file(disk):
    make_file(disk, "/d/a.tmp", b"content")
    disk.rename("/d/a.tmp", "/d/a")
    disk.sync_directory("/d")
    assert disk.crash().contents() == {"/d": None, "/d/a": b""}


def test_an_unsynced_rename_leaves_the_old_or_the_new_and_never_neither():
    def build(disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"old")
        make_file(disk, "/d/a.tmp")
        put(disk, "/d/a.tmp", b"new")
        disk.sync_directory("/d")
        disk.rename("/d/a.tmp", "/d/a")

    found = outcomes(build)
    assert {"/d": None, "/d/a": b"old", "/d/a.tmp": b"new"} in found
    assert {"/d": None, "/d/a": b"new"} in found
    assert len(found) == 2


def make_tree(disk):
    """Create a durable file in a durable directory, beside another."""
    for path in ("/d/from", "/d/from/tree", "/d/to"):
        disk.make_directory(path)
    make_file(disk, "/d/from/tree/leaf")
    put(disk, "/d/from/tree/leaf", b"content")
    for path in ("/d/from/tree", "/d/from", "/d/to", "/d"):
        disk.sync_directory(path)


@pytest.mark.parametrize("synced", [(), ("/d/from",), ("/d/to",)], ids=str)
def test_a_move_leaves_the_old_name_or_the_new_until_both_directories_were_synced(synced):
    def build(disk):
        make_tree(disk)
        disk.rename("/d/from/tree", "/d/to/moved")
        for path in synced:
            disk.sync_directory(path)

    found = outcomes(build)
    bare = {"/d": None, "/d/from": None, "/d/to": None}
    assert {**bare, "/d/from/tree": None, "/d/from/tree/leaf": b"content"} in found
    assert {**bare, "/d/to/moved": None, "/d/to/moved/leaf": b"content"} in found
    assert len(found) == 2


@pytest.mark.parametrize("synced", [("/d/from", "/d/to"), ("/d/to", "/d/from")], ids=str)
def test_a_move_is_final_once_both_directories_were_synced(synced):
    def build(disk):
        make_tree(disk)
        disk.rename("/d/from/tree", "/d/to/moved")
        for path in synced:
            disk.sync_directory(path)

    [contents] = outcomes(build)
    assert contents["/d/to/moved/leaf"] == b"content"
    assert "/d/from/tree" not in contents


def test_a_name_that_is_used_again_after_a_move_is_not_moved_with_it(disk):
    make_tree(disk)
    disk.rename("/d/from/tree", "/d/to/moved")
    disk.make_directory("/d/from/tree")
    disk.sync_directory("/d/from")
    disk.sync_directory("/d/to")
    contents = disk.crash().contents()
    assert contents["/d/to/moved/leaf"] == b"content"
    assert contents["/d/from/tree"] is None
    assert "/d/from/tree/leaf" not in contents


def test_any_part_of_a_tree_may_survive_its_removal():
    def build(disk):
        make_tree(disk)
        disk.remove_tree("/d/from")

    found = outcomes(build)
    assert {"/d": None, "/d/to": None} in found
    assert {
        "/d": None,
        "/d/from": None,
        "/d/from/tree": None,
        "/d/from/tree/leaf": b"content",
        "/d/to": None,
    } in found
    assert any("/d/from" in contents and "/d/from/tree" not in contents for contents in found)


def test_an_unsynced_removal_may_be_undone():
    def build(disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"content")
        disk.sync_directory("/d")
        disk.remove("/d/a")

    found = outcomes(build)
    assert {"/d": None, "/d/a": b"content"} in found
    assert {"/d": None} in found


def test_a_synced_removal_is_final(disk):
    make_file(disk, "/d/a")
    disk.make_directory("/d/e")
    disk.sync_directory("/d")
    disk.remove("/d/a")
    disk.remove_directory("/d/e")
    disk.sync_directory("/d")
    assert disk.crash().contents() == {"/d": None}


def test_an_unsynced_truncation_may_be_undone():
    def build(disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"content")
        disk.sync_directory("/d")
        disk.open("/d/a").truncate(3)

    assert {contents["/d/a"] for contents in outcomes(build)} == {b"content", b"con"}


def test_a_later_write_may_survive_an_earlier_one_that_did_not():
    def build(disk):
        make_file(disk, "/d/a")
        disk.sync_directory("/d")
        file = disk.open("/d/a")
        file.write_at(0, [b"1"])
        file.write_at(1, [b"2"])

    assert b"\x002" in {contents["/d/a"] for contents in outcomes(build)}


def test_sectors_of_one_write_survive_on_their_own():
    def build(disk):
        make_file(disk, "/d/a")
        disk.sync_directory("/d")
        disk.open("/d/a").write_at(0, [b"x" * 1024])

    found = {contents["/d/a"] for contents in outcomes(build)}
    assert bytes(512) + b"x" * 512 in found
    assert b"x" * 512 + bytes(512) in found


class TestFailedSync:
    """Linux marks the pages of a failed sync clean: the next sync succeeds without writing them."""

    @pytest.fixture
    def file(self, disk):
        make_file(disk, "/d/a")
        disk.sync_directory("/d")
        file = disk.open("/d/a")
        file.write_at(0, [b"lost"])
        file.fail_sync()
        return file

    def test_retrying_the_sync_does_not_make_the_data_durable(self, disk, file):
        file.sync()
        file.sync()
        assert disk.content("/d/a") == b"lost"
        assert disk.crash().content("/d/a") == b""

    def test_what_is_written_later_is_durable_and_the_rest_a_hole(self, disk, file):
        file.write_at(4, [b"kept"])
        file.sync()
        assert disk.crash().content("/d/a") == b"\0\0\0\0kept"

    def test_writing_it_again_helps(self, disk, file):
        file.write_at(0, [b"kept"])
        file.sync()
        assert disk.crash().content("/d/a") == b"kept"

    @pytest.mark.parametrize("seed", range(20))
    def test_what_was_lost_never_replaces_what_was_written_over_it(self, disk, file, seed):
        file.write_at(0, [b"kept"])
        file.sync()
        assert disk.crash(seed).content("/d/a") == b"kept"

    def test_a_second_failure_forsakes_only_what_was_not_settled(self, disk, file):
        file.write_at(4, [b"kept"])
        file.sync()
        file.write_at(8, [b"gone"])
        file.fail_sync()
        file.sync()
        assert disk.crash().content("/d/a") == b"\0\0\0\0kept"

    def test_it_may_reach_the_disk_all_the_same(self):
        def build(disk):
            make_file(disk, "/d/a", b"x")
            disk.sync_directory("/d")
            disk.open("/d/a").fail_sync()

        assert b"x" in {contents["/d/a"] for contents in outcomes(build)}

    def test_names_are_lost_alike(self, disk):
        make_file(disk, "/d/a")
        disk.fail_sync_directory("/d")
        disk.sync_directory("/d")
        make_file(disk, "/d/b")
        disk.sync_directory("/d")
        assert disk.crash().contents() == {"/d": None, "/d/b": b""}

    def test_an_injected_failure_does_the_same(self, disk):
        faulty = FaultyFilesystem(disk, Fault(call=1, only=["sync"]))
        file = faulty.create("/d/a")
        faulty.sync_directory("/d")
        file.write_at(0, [b"lost"])
        with fails_with(errno.EIO):
            file.sync()
        file.sync()
        assert disk.crash().content("/d/a") == b""

    def test_names_that_an_injected_failure_left_out_are_settled_by_the_next_sync(self, disk):
        faulty = FaultyFilesystem(disk, Fault(call=1, only=["sync_directory"]))
        faulty.create("/d/a")
        with fails_with(errno.EIO):
            faulty.sync_directory("/d")
        faulty.sync_directory("/d")
        assert disk.crash().contents() == {"/d": None, "/d/a": b""}


class TestReboot:
    def test_the_old_machine_is_of_no_use(self, disk):
        file = disk.create("/d/a")
        disk.crash()
        for use in (
            file.size,
            file.sync,
            lambda: file.read_at(0, 1),
            lambda: file.write_at(0, [b"x"]),
            lambda: disk.open("/d/a"),
            lambda: disk.list("/d"),
        ):
            with fails_with(errno.EBADF):
                use()
        file.close()

    def test_the_old_machine_notes_nothing_more(self, disk):
        disk.note("before")
        disk.crash()
        disk.note("after")
        assert disk.trace.notes == ["before"]

    def test_locks_are_gone(self, disk):
        lock = disk.lock("/d/lock")
        disk.sync_directory("/d")
        rebooted = disk.crash()
        again = rebooted.lock("/d/lock")
        lock.release()
        again.release()

    def test_the_new_machine_can_crash_again(self, disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"one")
        disk.sync_directory("/d")
        second = disk.crash()
        put(second, "/d/a", b"two", position=3)
        second.open("/d/a").write_at(6, [b"three"])
        assert second.crash().contents() == {"/d": None, "/d/a": b"onetwo"}

    def test_a_new_file_never_shows_what_an_old_one_held(self, disk):
        make_file(disk, "/d/a")
        put(disk, "/d/a", b"old")
        second = disk.crash()
        make_file(second, "/d/b", b"new")
        second.sync_directory("/d")
        assert second.crash().contents() == {"/d": None, "/d/b": b""}

    def test_the_same_seed_leaves_the_same(self, disk):
        for name in "abcdefgh":
            make_file(disk, f"/d/{name}", name.encode() * 2000)
        left = [disk.crash(seed).contents() for seed in (1, 1, 2)]
        assert left[0] == left[1] != left[2]
