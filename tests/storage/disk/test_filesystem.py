"""The real file system and its fakes keep the same contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pytest

from millstream.records.batch import Bytes
from millstream.storage.disk.filesystem import PIECES_MAX, File, OsFilesystem, write_all
from millstream.storage.disk.memory_filesystem import MemoryFilesystem
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from millstream.testing.suites.files import fails_with, make_file
from millstream.testing.suites.filesystem_suite import FilesystemSuite


class TestOsFilesystem(FilesystemSuite):
    @pytest.fixture
    def filesystem(self):
        return OsFilesystem()

    @pytest.fixture
    def root(self, tmp_path):
        return str(tmp_path)

    def test_files_are_readable_by_their_owner_alone(self, filesystem, root):
        path = make_file(filesystem, f"{root}/file")
        filesystem.make_directory(f"{root}/directory")
        filesystem.lock(f"{root}/lock").release()
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(f"{root}/lock").st_mode & 0o777 == 0o600
        assert os.stat(f"{root}/directory").st_mode & 0o777 == 0o700

    def test_reserved_space_is_taken_on_disk_and_given_back(self, filesystem, root):
        file = filesystem.create(f"{root}/file")
        file.write_at(0, [b"x"])
        file.reserve(1 << 20)
        reserved = os.stat(f"{root}/file")
        if reserved.st_blocks * 512 < 1 << 20:
            pytest.skip("this file system cannot reserve")
        assert reserved.st_size == 1
        file.truncate(1)
        assert os.stat(f"{root}/file").st_blocks * 512 < 1 << 20
        file.close()


class TestMemoryFilesystem(FilesystemSuite):
    @pytest.fixture
    def filesystem(self):
        return MemoryFilesystem(1 << 20)

    @pytest.fixture
    def root(self, filesystem):
        filesystem.make_directory("/data")
        return "/data"


class TestSimulatedFilesystem(FilesystemSuite):
    @pytest.fixture
    def filesystem(self):
        return SimulatedFilesystem()

    @pytest.fixture
    def root(self, filesystem):
        filesystem.make_directory("data")
        return "data"


class TestFaultyFilesystemWithoutFault(FilesystemSuite):
    @pytest.fixture
    def filesystem(self):
        return FaultyFilesystem(SimulatedFilesystem(), Fault(call=1_000_000))

    @pytest.fixture
    def root(self, filesystem):
        filesystem.make_directory("/data")
        return "/data"


class TestBoundedMemory:
    @pytest.fixture
    def filesystem(self):
        return MemoryFilesystem(100)

    def test_growth_past_the_bound_is_refused_and_changes_nothing(self, filesystem):
        file = filesystem.create("file")
        file.write_at(0, [bytes(60)])
        for grow in (
            lambda: file.write_at(60, [b"x" * 41]),
            lambda: file.write_at(1000, [b"x"]),
            lambda: file.reserve(101),
            lambda: file.truncate(101),
        ):
            with fails_with(errno.ENOSPC):
                grow()
            assert filesystem.bytes_used == file.size() == 60
        file.write_at(60, [bytes(40)])
        file.write_at(0, [b"overwriting needs no room"])

    def test_reserved_bytes_count_once_until_given_back(self, filesystem):
        file = filesystem.create("file")
        file.reserve(80)
        file.write_at(0, [bytes(50)])
        assert filesystem.bytes_used == 80
        file.truncate(50)
        assert filesystem.bytes_used == 50

    def test_a_removed_file_counts_until_it_is_closed(self, filesystem):
        file = filesystem.create("file")
        file.write_at(0, [bytes(60)])
        filesystem.remove("file")
        assert filesystem.bytes_used == 60
        file.close()
        file.close()
        assert filesystem.bytes_used == 0

    def test_a_removed_file_that_no_one_refers_to_counts_no_more(self, filesystem):
        file = filesystem.create("file")
        file.write_at(0, [bytes(60)])
        filesystem.remove("file")
        del file
        assert filesystem.bytes_used == 0

    def test_a_removed_tree_counts_no_more(self, filesystem):
        filesystem.make_directory("tree")
        filesystem.make_directory("tree/branch")
        for path in ("tree/leaf", "tree/branch/leaf"):
            make_file(filesystem, path, bytes(40))
        filesystem.remove_tree("tree")
        assert filesystem.bytes_used == 0

    def test_a_replaced_file_counts_no_more(self, filesystem):
        make_file(filesystem, "old", bytes(60))
        make_file(filesystem, "new", bytes(30))
        filesystem.rename("new", "old")
        assert filesystem.bytes_used == 30

    def test_writes_resume_when_the_bound_is_raised(self, filesystem):
        path = make_file(filesystem, "file", bytes(100))
        filesystem.bytes_max = 200
        assert filesystem.open(path).write_at(100, [bytes(100)]) == 100

    def test_absolute_and_relative_paths_lead_to_the_same_file(self, filesystem):
        make_file(filesystem, "file", b"content")
        for path in ("/file", "./file", "//file", "/missing/../file"):
            assert filesystem.size(path) == 7
        filesystem.make_directory("/")

    def test_a_file_can_be_put_as_a_whole_and_then_changed(self, filesystem):
        content = b"0123456789"
        filesystem.put("file", content)
        file = filesystem.open("file")
        view = file.map(10)
        file.write_at(2, [b"ab"])
        assert file.read_at(0, 100) == b"01ab456789"
        assert content == bytes(view) == b"0123456789"
        with pytest.raises(FileExistsError):
            filesystem.put("file", b"")
        with fails_with(errno.ENOSPC):
            filesystem.put("other", bytes(91))
        assert filesystem.list("/") == ["file"]


def test_a_map_of_memory_is_no_copy():
    filesystem = MemoryFilesystem(1 << 20)
    file = filesystem.create("file")
    file.write_at(0, [b"before"])
    view = file.map(6)
    file.write_at(0, [b"after!"])
    assert bytes(view) == b"after!"


def test_appending_to_a_mapped_file_in_memory_moves_it_rarely():
    filesystem = MemoryFilesystem(1 << 20)
    file = filesystem.create("file")
    buffers = set()
    views = []
    for position in range(10_000):
        file.write_at(position, [b"x"])
        views.append(file.map(position + 1))
        buffers.add(id(views[-1].obj))
    assert len(buffers) < 20
    assert all(bytes(view) == b"x" * len(view) for view in views[::100])


class StutteringFile:
    """Takes at most `step` bytes at a time, and remembers where it was given them."""

    def __init__(self, file: File, step: int) -> None:
        self._file = file
        self._step = step
        self.pieces_most = 0

    def write_at(self, position: int, pieces: Sequence[Bytes]) -> int:
        self.pieces_most = max(self.pieces_most, len(pieces))
        return self._file.write_at(position, [b"".join(pieces)[: self._step]])


@pytest.fixture
def file():
    return MemoryFilesystem(1 << 20).create("file")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_write_all_writes_all_however_few_bytes_are_taken_at_a_time(file, step):
    pieces = [b"one", b"", b"two", b"three"]
    assert write_all(StutteringFile(file, step), 5, pieces) == 16
    assert file.read_at(0, 100) == bytes(5) + b"onetwothree"


@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_write_all_splits_more_pieces_than_the_kernel_takes(file, step):
    pieces = [b"%05d" % index for index in range(2 * PIECES_MAX + 10)]
    stuttering = StutteringFile(file, step)
    assert write_all(stuttering, 0, pieces) == 5 * len(pieces)
    assert file.read_at(0, file.size()) == b"".join(pieces)
    assert stuttering.pieces_most == PIECES_MAX


def test_write_all_of_nothing_writes_nothing(file):
    assert write_all(file, 7, []) == 7
    assert file.size() == 0


def test_write_all_gives_up_on_a_file_that_takes_nothing(file):
    with fails_with(errno.EIO):
        write_all(StutteringFile(file, 0), 0, [b"x"])
