"""Objects that the parts of one log share: log start, key deletions, cleaner and append path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.executor import Executor
from millstream.storage.segment.counters import LogCounters
from millstream.storage.segment.log_state import LogState
from millstream.storage.segment.metadata_file import MetadataFile
from millstream.storage.segment.segment import LogDirectory


@dataclass(frozen=True, slots=True)
class LogContext:
    """The shared objects of one log.

    Any thread may read `state`; the rest belongs to the event loop.
    """

    name: str
    """The name of the log in messages."""
    log_directory: LogDirectory
    background: Executor
    """Threads for short work: metadata files and removals. The cleaner has its own."""
    tasks: BackgroundTasks
    """Tasks that must end before the log is closed."""
    state: LogState
    metadata_file: MetadataFile
    """Changes of `partition.json`, and of the set of files of the log, run one at a time
    through its `run_exclusive`.
    """
    counters: LogCounters
    on_change: Callable[[], None]
    """Called after every change of what can be read."""
    on_commit: Callable[[], None]
    """Called after every commit, whether readers may see it yet or not."""
