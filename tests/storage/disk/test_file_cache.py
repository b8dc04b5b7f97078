"""The most recently used values stay in the cache; the others are dropped."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.storage.disk.file_cache import FileCache, map_file
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem


class Loader:
    """Loads values, and remembers which."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def get(self, recent: FileCache[str], path: str) -> str:
        def load() -> str:
            self.loaded.append(path)
            return f"value of {path}"

        return recent.get(path, load)

    def get_all(self, recent: FileCache[str], paths: str) -> None:
        for path in paths:
            assert self.get(recent, path) == f"value of {path}"


def test_a_value_is_loaded_once():
    recent, loader = FileCache[str](2), Loader()
    loader.get_all(recent, "aaa")
    assert loader.loaded == ["a"]


def test_the_least_recently_used_goes_first():
    recent, loader = FileCache[str](3), Loader()
    loader.get_all(recent, "abc" + "a" + "d")
    loader.loaded.clear()
    loader.get_all(recent, "acd")
    assert loader.loaded == []
    loader.get_all(recent, "b")
    assert loader.loaded == ["b"]


@given(st.text("abcdef", max_size=40), st.integers(1, 4))
def test_it_holds_exactly_the_last_few_that_were_used(paths, count_max):
    recent, loader = FileCache[str](count_max), Loader()
    held: list[str] = []
    for path in paths:
        loader.loaded.clear()
        loader.get(recent, path)
        assert loader.loaded == ([] if path in held else [path])
        held = [*(other for other in held if other != path), path][-count_max:]
        assert len(recent) == len(held)


def test_what_is_forgotten_is_loaded_anew():
    recent, loader = FileCache[str](3), Loader()
    loader.get_all(recent, "ab")
    recent.forget("a")
    assert len(recent) == 1
    loader.get_all(recent, "ba")
    assert loader.loaded == ["a", "b", "a"]


def test_forgetting_what_is_not_there_does_nothing():
    recent = FileCache[str](3)
    recent.forget("a")
    assert len(recent) == 0


def test_a_value_that_was_forgotten_while_it_was_loaded_is_not_kept():
    """The file changed after it was mapped: the next reader must see it as it is now."""
    recent = FileCache[str](3)

    def load_while_the_file_changes() -> str:
        recent.forget("a")
        return "old"

    recent.get("a", load_while_the_file_changes)
    assert recent.get("a", lambda: "new") == "new"


def test_a_directory_is_forgotten_with_all_that_is_in_it_and_nothing_else():
    recent, loader = FileCache[str](9), Loader()
    paths = ["/t/a/0/x", "/t/a/1/x", "/t/a-b/0/x", "/t/a", "/t/b/0/x"]
    for path in paths:
        loader.get(recent, path)
    recent.forget_below("/t/a")
    assert len(recent) == 3
    for path in paths:
        loader.get(recent, path)
    assert loader.loaded == [*paths, "/t/a/0/x", "/t/a/1/x"]


def test_a_value_that_was_loaded_while_its_directory_went_is_not_kept():
    recent = FileCache[str](3)

    def load_while_the_directory_goes() -> str:
        recent.forget_below("/t/a")
        return "old"

    recent.get("/t/a/0/x", load_while_the_directory_goes)
    assert recent.get("/t/a/0/x", lambda: "new") == "new"


def test_a_value_that_cannot_be_loaded_is_not_kept():
    recent, loader = FileCache[str](3), Loader()

    def fail() -> str:
        raise FileNotFoundError("a")

    with pytest.raises(FileNotFoundError):
        recent.get("a", fail)
    assert loader.get(recent, "a") == "value of a"


def test_a_value_may_be_loaded_with_the_help_of_another():
    recent, loader = FileCache[str](3), Loader()
    assert recent.get("a", lambda: loader.get(recent, "b")) == "value of b"


def test_threads_share_it_and_it_stays_bounded():
    recent = FileCache[int](5)
    wrong: list[tuple[int, int]] = []

    def use(seed: int) -> None:
        for step in range(2_000):
            number = (seed * 7 + step * 13) % 20
            if (found := recent.get(str(number), lambda n=number: n)) != number:
                wrong.append((found, number))
            if step % 50 == 0:
                recent.forget(str(number))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(recent) <= 5


# Mapping a file.


def test_a_map_shows_the_whole_file_and_holds_no_descriptor():
    disk = SimulatedFilesystem({"/file": b"content"})
    watched = FaultyFilesystem(disk, Fault(call=1_000))
    view = map_file(watched, "/file")
    assert (bytes(view), view.readonly) == (b"content", True)
    assert [call.name for call in watched.calls] == ["open_readonly", "size", "map", "close"]


@pytest.mark.parametrize("call", ["size", "map"])
def test_a_map_that_fails_holds_no_descriptor(call):
    disk = SimulatedFilesystem({"/file": b"content"})
    watched = FaultyFilesystem(disk, Fault(call=1, only={call}))
    with pytest.raises(OSError, match="/file"):
        map_file(watched, "/file")
    assert watched.calls[-1].name == "close"


def test_an_empty_file_maps_to_nothing():
    assert bytes(map_file(SimulatedFilesystem({"/file": b""}), "/file")) == b""
