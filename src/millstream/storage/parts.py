"""What the parts of one log share.

The front, the deletions and the cleaning of a log each change what it holds in their own way; they
are handed the same things to do it with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millstream.storage.background import Background
from millstream.storage.contents import Contents
from millstream.storage.counters import Counters
from millstream.storage.description import Description
from millstream.storage.segment import Place
from millstream.storage.tasks import Tasks


@dataclass(frozen=True, slots=True)
class Parts:
    """Those of one log. Any thread may read `contents`; all else belongs to the event loop."""

    name: str
    """How the log is called in messages."""
    place: Place
    background: Background
    """Threads for what is short: descriptions and removals. Not for cleaning, which has its own."""
    tasks: Tasks
    """What was begun and must be ended before the log is closed."""
    contents: Contents
    description: Description
    """Changes of `partition.json`, and of which files make up the log, go one after the other
    through its `change`."""
    counters: Counters
    on_change: Callable[[], None]
    """To be called after every change of what can be read."""
