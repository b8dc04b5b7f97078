"""What the parts of one log share.

The front, the deletions and the cleaning of a log each change what it holds in their own way; they
are handed the same things to do it with.
"""

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
    """Those of one log. Any thread may read `contents`; all else belongs to the event loop."""

    name: str
    """How the log is called in messages."""
    log_directory: LogDirectory
    background: Executor
    """Threads for what is short: descriptions and removals. Not for cleaning, which has its own."""
    tasks: BackgroundTasks
    """What was begun and must be ended before the log is closed."""
    state: LogState
    metadata_file: MetadataFile
    """Changes of `partition.json`, and of which files make up the log, go one after the other
    through its `change`."""
    counters: LogCounters
    on_change: Callable[[], None]
    """To be called after every change of what can be read."""
