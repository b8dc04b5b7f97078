"""Stacks of all threads and tasks, for an operator who wants to know what a node is doing."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def write_thread_stacks_on(number: signal.Signals) -> None:
    """Write the stacks of all threads to standard error when the signal comes.

    They are written by the signal handler itself, so an event loop that hangs shows where. The
    handler that was set before is called afterwards.
    """
    with contextlib.suppress(io.UnsupportedOperation, ValueError):  # Standard error is no file.
        faulthandler.register(number, all_threads=True, chain=True)


def write_task_stacks() -> None:
    """Write the stacks of all tasks of the running loop to standard error."""
    tasks = sorted(asyncio.all_tasks(), key=asyncio.Task.get_name)
    lines = [f"{len(tasks)} tasks:\n"]
    for task in tasks:
        lines.append(f"Task {task.get_name()} (most recent call last):\n")
        lines += traceback.format_list(traceback.StackSummary.extract(_frames(task)))
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.writelines(lines)
        sys.stderr.flush()


def _frames(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a task; its own `get_stack` ends at the first `await`."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = next(
            (f for kind in ("cr", "gi", "ag") if (f := getattr(awaited, f"{kind}_frame", None))),
            None,
        )
        if frame is not None:
            yield frame, frame.f_lineno
        awaited = next(
            (
                inner
                for name in ("cr_await", "gi_yieldfrom", "ag_await")
                if (inner := getattr(awaited, name, None)) is not None
            ),
            None,
        )
