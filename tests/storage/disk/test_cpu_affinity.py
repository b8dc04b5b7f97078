"""Processors of a process and of its threads."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.config.schema import StoreConfig
from millstream.errors import InvalidConfig
from millstream.storage.disk.cpu_affinity import allowed_cpus, check_cpus, pin_thread
from millstream.storage.store import Store

PINNED = """
import os, threading, time
from millstream.storage.disk.cpu_affinity import allowed_cpus, pin_process

found = {}
go_on = threading.Event()

def note(name):
    found[name] = sorted(os.sched_getaffinity(0))

def wait_and_note():
    go_on.wait()
    note("earlier thread")

earlier = threading.Thread(target=wait_and_note)
earlier.start()
pin_process([allowed_cpus()[-1]])
go_on.set()
earlier.join()
later = threading.Thread(target=note, args=("later thread",))
later.start()
later.join()
note("main thread")
print(found)
"""


def test_all_threads_of_a_process_are_pinned_also_earlier_and_later_ones():
    result = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, check=True
    )
    pinned = [allowed_cpus()[-1]]
    names = ("earlier thread", "later thread", "main thread")
    assert eval(result.stdout) == dict.fromkeys(names, pinned)


def test_a_thread_is_pinned_alone():
    before = os.sched_getaffinity(0)
    found: list[set[int]] = []

    def work() -> None:
        pin_thread([min(before)])
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{min(before)}]
    assert os.sched_getaffinity(0) == before


def test_a_processor_that_is_not_allowed_is_refused_with_those_that_are():
    check_cpus("node.cpus", (), ())
    check_cpus("node.cpus", (0, 2), (0, 1, 2))
    with pytest.raises(InvalidConfig) as refused:
        check_cpus("node.cpus", (2, 5, 6), (0, 1, 2))
    assert str(refused.value) == (
        "node.cpus must be processors that this process may run on, which are 0-2, got 5-6"
    )
    with pytest.raises(InvalidConfig, match="this system cannot choose processors"):
        check_cpus("node.cpus", (0,), ())


def test_maintenance_runs_on_its_own_processors_and_the_rest_of_a_store_does_not(tmp_path: Path):
    before = os.sched_getaffinity(0)

    async def affinities() -> list[set[int]]:
        store = Store(str(tmp_path), config=StoreConfig(maintenance_cpus=(min(before),)))
        executors = (store._cleaning_background, store._scrub_background, store._background)
        found = [await each.run(lambda: os.sched_getaffinity(0)) for each in executors]
        for each in executors:
            each.close()
        return found

    assert asyncio.run(affinities()) == [{min(before)}, {min(before)}, before]


def test_a_processor_that_maintenance_may_not_use_is_a_warning_and_it_runs_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async def affinity() -> set[int]:
        store = Store(str(tmp_path), config=StoreConfig(maintenance_cpus=(8_000,)))
        executor = store._cleaning_background
        found = await executor.run(lambda: os.sched_getaffinity(0))
        executor.close()
        return found

    assert asyncio.run(affinity()) == os.sched_getaffinity(0)
    assert "not on 8000: Invalid argument" in caplog.text
