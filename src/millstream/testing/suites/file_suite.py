"""Conformance suite for `File`."""

from __future__ import annotations

import errno
import threading

import pytest

from millstream.records.batch import Bytes
from millstream.storage.disk.filesystem import PIECES_MAX, Filesystem, join
from millstream.testing.suites.files import fails_with, make_file, read_file


class FileSuite:
    """Tests that every `File` must pass."""

    @pytest.fixture
    def path(self, filesystem: Filesystem, root: str) -> str:
        return make_file(filesystem, join(root, "file"), b"0123456789")

    def test_a_new_file_is_empty(self, filesystem: Filesystem, root: str) -> None:
        file = filesystem.create(join(root, "new"))
        assert file.size() == 0
        assert file.read_at(0, 100) == b""
        assert bytes(file.map(0)) == b""
        file.close()

    def test_what_was_written_is_read_back(self, filesystem: Filesystem, root: str) -> None:
        file = filesystem.create(join(root, "new"))
        assert file.write_at(0, [b"hello"]) == 5
        assert file.read_at(0, 5) == b"hello"
        assert file.read_at(1, 3) == b"ell"
        file.close()

    def test_pieces_of_any_kind_are_written_one_after_the_other(
        self, filesystem: Filesystem, root: str
    ) -> None:
        file = filesystem.create(join(root, "new"))
        pieces: list[Bytes] = [b"one", bytearray(b"two"), memoryview(b"<three>")[1:-1], b""]
        assert file.write_at(0, pieces) == 11
        assert file.read_at(0, 100) == b"onetwothree"
        file.close()

    def test_as_many_pieces_as_allowed_are_written_at_once(
        self, filesystem: Filesystem, root: str
    ) -> None:
        file = filesystem.create(join(root, "new"))
        assert file.write_at(0, [b"x"] * PIECES_MAX) == PIECES_MAX
        with fails_with(errno.EINVAL):
            file.write_at(0, [b"x"] * (PIECES_MAX + 1))
        file.close()

    def test_a_write_inside_a_file_leaves_the_rest(self, filesystem: Filesystem, path: str) -> None:
        file = filesystem.open(path)
        assert file.write_at(3, [b"ab", b"c"]) == 3
        assert file.read_at(0, 100) == b"012abc6789"
        file.close()

    def test_a_write_past_the_end_fills_the_gap_with_zeros(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open(path)
        file.write_at(12, [b"x"])
        assert file.read_at(8, 100) == b"89\0\0x"
        file.close()

    def test_writing_nothing_does_not_grow_a_file(self, filesystem: Filesystem, path: str) -> None:
        file = filesystem.open(path)
        assert file.write_at(100, [b""]) == 0
        assert file.write_at(100, []) == 0
        assert file.size() == 10
        file.close()

    def test_reads_are_short_at_the_end_and_empty_past_it(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open_readonly(path)
        assert file.read_at(8, 100) == b"89"
        assert file.read_at(10, 1) == b""
        assert file.read_at(1000, 1) == b""
        assert file.read_at(3, 0) == b""
        file.close()

    def test_truncate_cuts(self, filesystem: Filesystem, path: str) -> None:
        file = filesystem.open(path)
        file.truncate(4)
        assert file.size() == 4
        assert file.read_at(0, 100) == b"0123"
        file.close()

    def test_what_truncate_cut_does_not_come_back_when_the_file_grows(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open(path)
        file.truncate(4)
        file.truncate(6)
        file.write_at(8, [b"x"])
        assert file.read_at(0, 100) == b"0123\0\0\0\0x"
        file.close()

    def test_reserve_keeps_the_visible_size(self, filesystem: Filesystem, path: str) -> None:
        file = filesystem.open(path)
        file.reserve(10_000)
        assert file.size() == filesystem.size(path) == 10
        assert file.read_at(0, 100) == b"0123456789"
        file.write_at(10, [b"x"])
        assert file.size() == 11
        file.truncate(11)
        assert file.read_at(0, 100) == b"0123456789x"
        file.close()

    def test_a_map_shows_the_start_of_a_file_and_cannot_be_written(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open_readonly(path)
        view = file.map(4)
        assert bytes(view) == b"0123"
        assert view.readonly
        file.close()

    def test_a_map_outlives_its_file(self, filesystem: Filesystem, path: str) -> None:
        file = filesystem.open_readonly(path)
        view = file.map(10)
        file.close()
        filesystem.remove(path)
        assert bytes(view) == b"0123456789"

    def test_a_mapped_file_may_grow_and_be_mapped_again(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open(path)
        before = file.map(10)
        file.write_at(10, [bytes(100_000)])
        file.write_at(100_010, [b"end"])
        after = file.map(100_013)
        assert bytes(before) == b"0123456789"
        assert bytes(after[:10]) == b"0123456789"
        assert bytes(after[-3:]) == b"end"
        file.close()

    def test_a_map_cannot_reach_past_the_end(self, filesystem: Filesystem, path: str) -> None:
        file = filesystem.open_readonly(path)
        with pytest.raises(ValueError, match=r"."):
            file.map(11)
        file.close()

    def test_all_who_have_a_file_open_see_the_same(self, filesystem: Filesystem, path: str) -> None:
        writer, reader = filesystem.open(path), filesystem.open_readonly(path)
        writer.write_at(10, [b"x"])
        assert reader.read_at(9, 100) == b"9x"
        assert reader.size() == filesystem.size(path) == 11
        writer.close()
        assert reader.size() == 11
        reader.close()

    def test_a_file_opened_for_reading_takes_no_bytes(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open_readonly(path)
        with fails_with(errno.EBADF):
            file.write_at(0, [b"x"])
        with pytest.raises(OSError):  # noqa: PT011 - which error differs between systems.
            file.truncate(0)
        file.sync()
        file.close()
        assert read_file(filesystem, path) == b"0123456789"

    def test_a_closed_file_is_of_no_use_and_can_be_closed_again(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open(path)
        file.sync()
        file.close()
        file.close()
        for use in (
            file.size,
            lambda: file.read_at(0, 1),
            lambda: file.write_at(0, [b"x"]),
            lambda: file.truncate(0),
        ):
            with fails_with(errno.EBADF):
                use()

    def test_positions_and_sizes_below_zero_are_refused(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open(path)
        for use in (
            lambda: file.read_at(-1, 1),
            lambda: file.read_at(0, -1),
            lambda: file.truncate(-1),
        ):
            with fails_with(errno.EINVAL):
                use()
        file.close()

    def test_threads_read_whole_prefixes_while_one_appends(
        self, filesystem: Filesystem, path: str
    ) -> None:
        file = filesystem.open(path)
        file.truncate(0)
        unit, count = b"0123456789abcdef", 500
        torn: list[bytes] = []

        def read() -> None:
            while (size := file.size()) < count * len(unit):
                data = file.read_at(0, size)
                if data != (unit * count)[:size]:
                    torn.append(data)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for index in range(count):
            file.write_at(index * len(unit), [unit])
        for reader in readers:
            reader.join()
        file.close()
        assert torn == []
