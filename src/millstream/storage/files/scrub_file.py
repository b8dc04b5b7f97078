"""`scrub.json`: how far the scrub of a store has come, so that a restart does not begin it again.

It only saves work. A missing or damaged file means that the next scrub begins at the first log.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from millstream.errors import CorruptFile, UnknownFormat
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, write_document
from millstream.storage.files.names import SCRUB_FILE

logger = logging.getLogger(__name__)

_KIND = "millstream-scrub"
_VERSION = 1


class ScrubPosition(NamedTuple):
    """A segment, in the order in which a scrub reads them."""

    topic: str
    partition: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubProgress:
    """How far the scrub has come. Times are those of the retention clock."""

    since_ms: int
    """When the last complete pass ended, or the first one began if none has ended."""
    begun_ms: int | None = None
    """When the pass in flight, or else the last one, began."""
    is_running: bool = False
    """Whether a pass is in flight."""
    last: ScrubPosition | None = None
    """The last segment that it has read."""
    passes: int = 0
    """Complete passes so far."""


def read_scrub_progress(filesystem: Filesystem, path: str) -> ScrubProgress | None:
    """Return the progress that a store has saved; `None` if there is none that can be used."""
    file = join(path, SCRUB_FILE)
    try:
        return _decode(read_document(filesystem, file, _KIND, _VERSION))
    except FileNotFoundError:
        return None
    except (CorruptFile, UnknownFormat, OSError) as error:
        logger.warning("%s cannot be used; the next scrub begins at the first log: %s", file, error)
        return None


def write_scrub_progress(filesystem: Filesystem, path: str, progress: ScrubProgress) -> None:
    """Save the progress. If that fails, some segments are read again after a restart."""
    content = asdict(progress)
    content["last"] = None if progress.last is None else list(progress.last)
    try:
        write_document(filesystem, path, SCRUB_FILE, content, kind=_KIND, version=_VERSION)
    except OSError as error:
        logger.warning("%s could not be written: %s", join(path, SCRUB_FILE), error)


def _decode(content: dict[str, Any]) -> ScrubProgress:
    try:
        last = content.pop("last")
        progress = ScrubProgress(**content, last=None if last is None else ScrubPosition(*last))
    except (KeyError, TypeError) as error:
        raise CorruptFile(f"{_KIND}: {error!r}") from error
    numbers = [progress.since_ms, progress.passes]
    numbers += [] if progress.begun_ms is None else [progress.begun_ms]
    if progress.last is not None:
        numbers += progress.last[1:]
        if not isinstance(progress.last.topic, str):
            raise CorruptFile(f"{_KIND}: topic must be a string, got {progress.last.topic!r}")
    for number in numbers:
        if type(number) is not int or number < 0:
            raise CorruptFile(f"{_KIND}: must be a number from 0 on, got {number!r}")
    return progress
