"""What is loaded is exempt from the garbage collections after tasks; garbage is not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from millstream.spark.task_memory import TaskMemory


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, ModuleType(name))


def test_the_modules_of_the_first_task_are_exempt_from_the_second_on() -> None:
    memory = TaskMemory()
    memory.start_task()
    assert gc.get_freeze_count() == 0
    memory.start_task()
    assert gc.get_freeze_count() > 10_000


def test_only_a_task_after_more_modules_were_loaded_exempts_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = TaskMemory()
    memory.start_task()
    memory.start_task()
    gc.unfreeze()
    memory.start_task()
    assert gc.get_freeze_count() == 0
    load("a_module_of_a_later_task", monkeypatch)
    memory.start_task()
    assert gc.get_freeze_count() > 10_000


def test_garbage_of_later_tasks_is_collected() -> None:
    memory = TaskMemory()
    memory.start_task()
    memory.start_task()
    memory.start_task()
    garbage: list[object] = []
    garbage.append(garbage)
    del garbage
    assert gc.collect() >= 1
