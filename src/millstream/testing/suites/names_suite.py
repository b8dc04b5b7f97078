"""Conformance suite for the names and directories of a `Filesystem`."""

from __future__ import annotations

import errno

import pytest

from millstream.errors import StoreLocked
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.testing.suites.files import fails_with, make_file, read_file


class NamesSuite:
    """Tests of names and directories that every `Filesystem` must pass."""

    def test_create_refuses_a_name_that_exists(self, filesystem: Filesystem, root: str) -> None:
        path = make_file(filesystem, join(root, "file"), b"kept")
        filesystem.make_directory(join(root, "directory"))
        with pytest.raises(FileExistsError):
            filesystem.create(path)
        with pytest.raises(FileExistsError):
            filesystem.create(join(root, "directory"))
        assert read_file(filesystem, path) == b"kept"

    def test_what_is_missing_is_not_found(self, filesystem: Filesystem, root: str) -> None:
        missing = join(root, "missing")
        for use in (
            filesystem.open,
            filesystem.open_readonly,
            filesystem.size,
            filesystem.remove,
            filesystem.remove_directory,
            filesystem.sync_directory,
            lambda path: filesystem.rename(path, join(root, "other")),
            lambda path: filesystem.create(join(path, "file")),
            lambda path: filesystem.make_directory(join(path, "directory")),
            lambda path: filesystem.lock(join(path, "lock")),
        ):
            with pytest.raises(FileNotFoundError):
                use(missing)
        assert filesystem.list(root) == []

    def test_a_file_is_no_directory(self, filesystem: Filesystem, root: str) -> None:
        path = make_file(filesystem, join(root, "file"))
        for use in (
            filesystem.list,
            filesystem.remove_directory,
            filesystem.sync_directory,
            lambda path: filesystem.create(join(path, "below")),
            lambda path: filesystem.make_directory(join(path, "below")),
            lambda path: filesystem.size(join(path, "below")),
        ):
            with pytest.raises(NotADirectoryError):
                use(path)
        with pytest.raises(FileExistsError):
            filesystem.make_directory(path)

    def test_a_directory_is_no_file(self, filesystem: Filesystem, root: str) -> None:
        filesystem.make_directory(directory := join(root, "directory"))
        path = make_file(filesystem, join(root, "file"))
        for use in (
            filesystem.open,
            filesystem.remove,
            filesystem.lock,
            lambda directory: filesystem.rename(path, directory),
        ):
            with pytest.raises(IsADirectoryError):
                use(directory)

    def test_list_is_sorted_and_shallow(self, filesystem: Filesystem, root: str) -> None:
        for name in ("b", "a", "10", "9"):
            make_file(filesystem, join(root, name))
        filesystem.make_directory(join(root, "c"))
        make_file(filesystem, join(root, "c", "below"))
        assert filesystem.list(root) == ["10", "9", "a", "b", "c"]

    def test_list_of_a_missing_directory_is_empty(self, filesystem: Filesystem, root: str) -> None:
        assert filesystem.list(join(root, "missing")) == []

    def test_make_directory_may_be_repeated(self, filesystem: Filesystem, root: str) -> None:
        filesystem.make_directory(directory := join(root, "directory"))
        make_file(filesystem, join(directory, "file"))
        filesystem.make_directory(directory)
        assert filesystem.list(directory) == ["file"]

    def test_rename_moves_a_file(self, filesystem: Filesystem, root: str) -> None:
        source = make_file(filesystem, join(root, "source"), b"content")
        filesystem.rename(source, join(root, "target"))
        assert filesystem.list(root) == ["target"]
        assert read_file(filesystem, join(root, "target")) == b"content"

    def test_rename_replaces_a_file_and_leaves_who_has_it_open(
        self, filesystem: Filesystem, root: str
    ) -> None:
        source = make_file(filesystem, join(root, "source"), b"new")
        target = make_file(filesystem, join(root, "target"), b"old")
        old = filesystem.open_readonly(target)
        filesystem.rename(source, target)
        assert filesystem.list(root) == ["target"]
        assert read_file(filesystem, target) == b"new"
        assert old.read_at(0, 100) == b"old"
        old.close()

    def test_rename_to_its_own_name_changes_nothing(
        self, filesystem: Filesystem, root: str
    ) -> None:
        path = make_file(filesystem, join(root, "file"), b"content")
        filesystem.rename(path, path)
        assert read_file(filesystem, path) == b"content"

    def test_rename_moves_a_file_to_another_directory(
        self, filesystem: Filesystem, root: str
    ) -> None:
        source = make_file(filesystem, join(root, "source"), b"content")
        filesystem.make_directory(join(root, "other"))
        filesystem.rename(source, join(root, "other", "target"))
        assert filesystem.list(root) == ["other"]
        assert read_file(filesystem, join(root, "other", "target")) == b"content"

    def test_rename_moves_a_directory_with_all_that_is_in_it(
        self, filesystem: Filesystem, root: str
    ) -> None:
        for name in ("from", "from/tree", "from/tree/branch", "to"):
            filesystem.make_directory(join(root, name))
        path = make_file(filesystem, join(root, "from/tree/branch", "leaf"), b"content")
        leaf = filesystem.open_readonly(path)
        filesystem.rename(join(root, "from/tree"), join(root, "to/moved"))
        assert filesystem.list(join(root, "from")) == []
        assert filesystem.list(join(root, "to")) == ["moved"]
        assert read_file(filesystem, join(root, "to/moved/branch/leaf")) == b"content"
        assert leaf.read_at(0, 100) == b"content"
        leaf.close()
        filesystem.make_directory(join(root, "from/tree"))
        assert filesystem.list(join(root, "from/tree")) == [], "the name is free"

    def test_a_directory_replaces_an_empty_one_and_no_other(
        self, filesystem: Filesystem, root: str
    ) -> None:
        for name in ("source", "empty", "full"):
            filesystem.make_directory(join(root, name))
        make_file(filesystem, join(root, "source", "file"))
        make_file(filesystem, join(root, "full", "file"))
        with fails_with(errno.ENOTEMPTY):
            filesystem.rename(join(root, "source"), join(root, "full"))
        filesystem.rename(join(root, "source"), join(root, "empty"))
        assert filesystem.list(root) == ["empty", "full"]
        assert filesystem.list(join(root, "empty")) == ["file"]

    def test_a_directory_cannot_be_moved_into_itself(
        self, filesystem: Filesystem, root: str
    ) -> None:
        filesystem.make_directory(join(root, "tree"))
        filesystem.make_directory(join(root, "tree/branch"))
        for target in ("tree/new", "tree/branch/new"):
            with fails_with(errno.EINVAL):
                filesystem.rename(join(root, "tree"), join(root, target))
        assert filesystem.list(join(root, "tree")) == ["branch"]

    def test_remove_tree_removes_all_that_is_below(self, filesystem: Filesystem, root: str) -> None:
        for name in ("tree", "tree/branch", "tree/bare"):
            filesystem.make_directory(join(root, name))
        for name in ("tree/file", "tree/branch/leaf", "kept"):
            path = make_file(filesystem, join(root, name), b"content")
        leaf = filesystem.open_readonly(join(root, "tree/branch/leaf"))
        filesystem.remove_tree(join(root, "tree"))
        assert filesystem.list(root) == ["kept"]
        assert leaf.read_at(0, 100) == b"content"
        leaf.close()
        filesystem.remove_tree(path)
        assert filesystem.list(root) == []

    def test_remove_tree_of_what_is_missing_does_nothing(
        self, filesystem: Filesystem, root: str
    ) -> None:
        filesystem.remove_tree(join(root, "missing"))
        filesystem.remove_tree(join(root, "missing", "below"))
        assert filesystem.list(root) == []

    def test_a_removed_file_stays_with_who_has_it_open(
        self, filesystem: Filesystem, root: str
    ) -> None:
        path = make_file(filesystem, join(root, "file"), b"old")
        old = filesystem.open(path)
        filesystem.remove(path)
        make_file(filesystem, path, b"new")
        old.write_at(3, [b"er"])
        assert old.read_at(0, 100) == b"older"
        assert read_file(filesystem, path) == b"new"
        old.close()

    def test_only_an_empty_directory_can_be_removed(
        self, filesystem: Filesystem, root: str
    ) -> None:
        filesystem.make_directory(directory := join(root, "directory"))
        path = make_file(filesystem, join(directory, "file"))
        with fails_with(errno.ENOTEMPTY):
            filesystem.remove_directory(directory)
        filesystem.remove(path)
        filesystem.remove_directory(directory)
        assert filesystem.list(root) == []

    def test_directories_can_be_synced(self, filesystem: Filesystem, root: str) -> None:
        path = make_file(filesystem, join(root, "file"), b"content")
        filesystem.sync_directory(root)
        assert read_file(filesystem, path) == b"content"

    def test_one_at_a_time_holds_a_lock(self, filesystem: Filesystem, root: str) -> None:
        path = join(root, "lock")
        first = filesystem.lock(path)
        with pytest.raises(StoreLocked):
            filesystem.lock(path)
        other = filesystem.lock(join(root, "other"))
        first.release()
        second = filesystem.lock(path)
        first.release()
        with pytest.raises(StoreLocked):
            filesystem.lock(path)
        second.release()
        other.release()
        assert filesystem.list(root) == ["lock", "other"]
