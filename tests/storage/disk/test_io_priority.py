"""I/O priority of threads: what is set, and what the kernel reports."""

from __future__ import annotations

import ctypes
import platform
import threading

import pytest

from millstream.config.schema import ReplayPriority, StoreConfig
from millstream.storage.disk import io_priority
from millstream.storage.disk.executor import ThreadExecutor
from millstream.storage.disk.io_priority import (
    IDLE,
    IDLE_CLASS,
    LOWEST_BEST_EFFORT,
    IoPriority,
    is_granted,
    set_io_priority,
)
from millstream.storage.store import Store
from tests.in_loop import in_loop

is_known = pytest.mark.skipif(not is_granted(IDLE), reason="the kernel has no disk priorities")


def get_io_priority() -> IoPriority:
    """Return the priority of the calling thread (`ioprio_get`)."""
    syscall = ctypes.CDLL(None).syscall
    number = {"x86_64": 252, "aarch64": 31}[platform.machine()]
    priority = syscall(ctypes.c_long(number), ctypes.c_long(1), ctypes.c_long(0))
    return IoPriority(priority >> 13, priority & 0x1FFF)


def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@is_known
@pytest.mark.parametrize("wanted", [IDLE, LOWEST_BEST_EFFORT])
def test_a_thread_has_the_priority_that_it_was_given_and_others_keep_theirs(wanted):
    def work() -> IoPriority:
        set_io_priority(wanted)
        return get_io_priority()

    before = get_io_priority()
    found = in_thread(work)
    assert found.kind == wanted.kind
    assert found.kind == IDLE_CLASS or found.level == wanted.level
    assert get_io_priority() == before


@is_known
@in_loop
async def test_threads_that_bring_in_old_data_are_idle(tmp_path):
    store = Store(str(tmp_path))
    async with store:
        assert store.replay_priority is ReplayPriority.IDLE
        assert (await store._replay_background.run(get_io_priority)).kind == IDLE_CLASS
        assert await store._cleaning_background.run(get_io_priority) == LOWEST_BEST_EFFORT
        assert (await store._background.run(get_io_priority)).kind != IDLE_CLASS


@in_loop
async def test_a_store_that_is_set_so_leaves_priorities_alone(tmp_path):
    config = StoreConfig(replay_priority=ReplayPriority.NORMAL)
    store = Store(str(tmp_path), config=config)
    async with store:
        assert store.replay_priority is ReplayPriority.NORMAL
        if is_granted(IDLE):
            usual = in_thread(get_io_priority)
            assert await store._replay_background.run(get_io_priority) == usual
            assert await store._cleaning_background.run(get_io_priority) == usual


@in_loop
async def test_where_the_kernel_refuses_all_goes_on_without(tmp_path, monkeypatch):
    monkeypatch.setattr(io_priority, "_SYSCALLS", {})
    with pytest.raises(OSError, match="not supported on"):
        set_io_priority(IDLE)
    assert not is_granted(IDLE)
    store = Store(str(tmp_path))
    async with store:
        assert store.replay_priority is ReplayPriority.NORMAL
        assert await store._replay_background.run(lambda: "done") == "done"


@in_loop
async def test_a_thread_starts_with_what_it_was_told_to():
    seen = []
    threads = ThreadExecutor(
        2, name="test", on_start=lambda: seen.append(threading.current_thread().name)
    )
    for _ in range(5):
        await threads.run(lambda: None)
    threads.close()
    assert sorted(seen) == ["test-0", "test-1"]
