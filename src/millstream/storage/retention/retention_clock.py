"""Retention clock: the age of data, independent of the wall clock.

    the machine      runs .................................. is off   runs, another boot
    the store        open ..... closed, or crashed .. open            open
    retention clock  runs      runs                   runs   stands   runs, from the last saved time

Segments are dated by it, and their ages decide what is evicted. It runs while the machine does,
whether the store is open or not: `clock.json` holds its value at a moment of the monotonic clock,
and the boot that this moment belongs to. After another boot it is unknown how much time has
passed, so none has: data lives longer by the time that the machine was off, and by the time since
the file was last written.

Only the start of a new store is taken from the wall clock, so that dates look like dates. If the
file is lost, or never existed, the clock continues from the latest date in any seal. Those dates
may come from a wall clock that jumped, so all existing data counts as created at that moment
(`since_ms`). It then lives for its full retention time once more, and nothing is evicted too
early.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Any

from millstream.clock import Clock
from millstream.errors import CorruptFile, MillstreamError
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, write_document
from millstream.storage.files.names import CLOCK_FILE, TOPICS_DIRECTORY
from millstream.storage.files.seal import SEAL_SIZE, decode_seal

logger = logging.getLogger(__name__)

_KIND = "millstream-clock"
_VERSION = 1

RETENTION_CLOCK_MS_MAX = 2**62
"""Far beyond any date; fits into a seal, with room to add to it."""

_DATE_MS_MAX = 2**61
"""Later dates in seals are reduced to this one, so that the clock can continue from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRetentionClock:
    """Content of `clock.json`: the retention clock at one moment of the monotonic clock."""

    steady_ms: int
    since_ms: int
    """Dates before this one were not made by the retention clock."""
    boot_id: str
    monotonic_ms: int


class RetentionClock:
    """Milliseconds that advance with the monotonic clock. Thread-safe."""

    def __init__(self, clock: Clock, *, start_ms: int, since_ms: int) -> None:
        self._clock = clock
        self._start_ms = start_ms
        self._begun_ms = _monotonic_ms(clock)
        self.since_ms = since_ms
        """Dates before this one were not made by this clock, and count as this one."""

    @classmethod
    def resume(cls, clock: Clock, saved: SavedRetentionClock) -> RetentionClock:
        """Continue from a saved time, plus the time since then if it is known."""
        passed_ms = 0
        if saved.boot_id and saved.boot_id == clock.boot_id():
            passed_ms = max(0, _monotonic_ms(clock) - saved.monotonic_ms)
        return cls(clock, start_ms=saved.steady_ms + passed_ms, since_ms=saved.since_ms)

    def now_ms(self) -> int:
        """Return the current time in milliseconds; never decreases."""
        return self._start_ms + _monotonic_ms(self._clock) - self._begun_ms

    def age_ms(self, date_ms: int) -> int:
        """Return the minimum age of a date: one not made by this clock counts from `since_ms`."""
        return max(0, self.now_ms() - max(date_ms, self.since_ms))

    def saved(self) -> SavedRetentionClock:
        """Return the state from which `resume` continues."""
        return SavedRetentionClock(
            steady_ms=self.now_ms(),
            since_ms=self.since_ms,
            boot_id=self._clock.boot_id(),
            monotonic_ms=_monotonic_ms(self._clock),
        )


def load_retention_clock(filesystem: Filesystem, path: str, clock: Clock) -> RetentionClock:
    """Return the retention clock of the store at `path`, from its `clock.json` or its seals.

    Writes the file if it is missing, corrupt or from another boot. Raises `UnknownFormat` if a
    newer release wrote it.
    """
    saved = _find_saved(filesystem, path)
    if saved is not None:
        retention_clock = RetentionClock.resume(clock, saved)
        if saved.boot_id and saved.boot_id == clock.boot_id():
            return retention_clock
    else:
        latest_ms = latest_date(filesystem, path)
        start_ms = max(0, clock.wall_ms()) if latest_ms is None else latest_ms
        retention_clock = RetentionClock(clock, start_ms=start_ms, since_ms=start_ms)
    save_retention_clock(filesystem, path, retention_clock)
    return retention_clock


def save_retention_clock(
    filesystem: Filesystem, path: str, retention_clock: RetentionClock
) -> None:
    """Write `clock.json`. If that fails, data only lives a little longer."""
    saved = retention_clock.saved()
    content = {
        "steady_ms": saved.steady_ms,
        "since_ms": saved.since_ms,
        "boot_id": saved.boot_id,
        "monotonic_ms": saved.monotonic_ms,
    }
    try:
        write_document(filesystem, path, CLOCK_FILE, content, kind=_KIND, version=_VERSION)
    except OSError as error:
        logger.warning("%s could not be written: %s", join(path, CLOCK_FILE), error)


def latest_date(filesystem: Filesystem, path: str) -> int | None:
    """Return the latest date in any seal of a store; unreadable seals are ignored."""
    latest: int | None = None
    topics = join(path, TOPICS_DIRECTORY)
    for directory in _below(filesystem, [topics], depth=2):
        for name in _names(filesystem, directory):
            if name.endswith(".seal"):
                with contextlib.suppress(OSError, MillstreamError):
                    latest = max(latest or 0, _date(filesystem, join(directory, name)))
    return latest


def _date(filesystem: Filesystem, path: str) -> int:
    file = filesystem.open_readonly(path)
    try:
        seal = decode_seal(file.read_at(0, SEAL_SIZE + 1))
    finally:
        file.close()
    return min(max(seal.created_ms, seal.sealed_ms), _DATE_MS_MAX)


def _below(filesystem: Filesystem, directories: list[str], *, depth: int) -> list[str]:
    """Return all paths that are `depth` levels below the directories."""
    for _ in range(depth):
        directories = [
            join(directory, name)
            for directory in directories
            for name in _names(filesystem, directory)
        ]
    return directories


def _names(filesystem: Filesystem, path: str) -> list[str]:
    try:
        return list(filesystem.list(path))
    except NotADirectoryError:
        return []


def read_retention_clock(filesystem: Filesystem, path: str) -> SavedRetentionClock:
    """Read `clock.json` of a store; raise `FileNotFoundError` or `CorruptFile`."""
    file = join(path, CLOCK_FILE)
    content = read_document(filesystem, file, _KIND, _VERSION)
    try:
        return _saved_of(content)
    except CorruptFile as error:
        raise CorruptFile(f"{file}: {error}") from error


def _find_saved(filesystem: Filesystem, path: str) -> SavedRetentionClock | None:
    try:
        return read_retention_clock(filesystem, path)
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        logger.error(  # noqa: TRY400 - the message says it all.
            "%s is corrupt and was reset; segment ages restart now: %s", CLOCK_FILE, error
        )
        return None


def _saved_of(content: dict[str, Any]) -> SavedRetentionClock:
    numbers = [content.get(name) for name in ("steady_ms", "since_ms", "monotonic_ms")]
    boot_id = content.get("boot_id")
    for number in numbers:
        if type(number) is not int or not 0 <= number <= RETENTION_CLOCK_MS_MAX:
            raise CorruptFile(
                f"{_KIND}: time must be between 0 and {RETENTION_CLOCK_MS_MAX}, got {number!r}"
            )
    if not isinstance(boot_id, str):
        raise CorruptFile(f"{_KIND}: boot_id must be a string, got {boot_id!r}")
    steady_ms, since_ms, monotonic_ms = (int(number) for number in numbers if number is not None)
    if since_ms > steady_ms:
        raise CorruptFile(
            f"{_KIND}: steady_ms must be at least since_ms, {since_ms}, got {steady_ms}"
        )
    return SavedRetentionClock(
        steady_ms=steady_ms, since_ms=since_ms, boot_id=boot_id, monotonic_ms=monotonic_ms
    )


def _monotonic_ms(clock: Clock) -> int:
    return round(clock.monotonic() * 1000)
