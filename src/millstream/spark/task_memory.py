"""Exemption of loaded modules from garbage collection, in the processes of Spark's tasks.

Spark's daemon collects all garbage after each task, and the next task of that process waits for it.
With Arrow and Numba loaded, that takes 30 to 80 ms: more than a small task itself.
"""

from __future__ import annotations

import gc
import sys


class TaskMemory:
    """Exempts what is in memory when a task starts, if modules were loaded since the last time.

    Garbage was collected just before, so this is the modules, and little more. It is not done
    before the first task of a process, which may still have garbage of its start.
    """

    def __init__(self) -> None:
        self._is_used = False
        self._modules_exempt = 0

    def start_task(self) -> None:
        """Must be called at the start of a task."""
        modules = len(sys.modules)
        if self._is_used and modules > self._modules_exempt:
            gc.freeze()
            self._modules_exempt = modules
        self._is_used = True


TASK_MEMORY = TaskMemory()
