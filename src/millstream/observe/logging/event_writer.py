"""Writes log events to standard error, in a thread that may wait for its reader.

    logger ──► line ──► bounded buffer ──► thread ──► standard error

The reader of standard error may be slow, or stop reading. The event loop must not wait for that,
and memory is bounded: lines that do not fit are dropped and counted, and the count is logged with
the next line that is written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from typing import IO

from millstream.config.schema import EventFormat, LoggingConfig
from millstream.observe.logging.formatter import EventFormatter, JsonFormatter, PrettyFormatter

WAITING_BYTES_MAX = 4 * 1024 * 1024
"""Bytes that may wait to be written: some 20,000 lines, more than a quiet node logs in a day."""

FLUSH_SECONDS_MAX = 1.0
"""How long the end of a process waits for the reader of standard error."""

THREAD_NAME = "millstream-events"

logger = logging.getLogger(__name__)


class EventWriter(logging.Handler):
    """Writes events as lines, in the order in which they happened. Never waits for the reader."""

    def __init__(
        self, stream: IO[str], lines: EventFormatter, *, waiting_bytes_max: int = WAITING_BYTES_MAX
    ) -> None:
        super().__init__()
        self.setFormatter(lines)
        self.is_terminal = stream.isatty()
        self._stream = stream
        self._descriptor = _descriptor_of(stream)
        self._waiting_bytes_max = waiting_bytes_max
        self._changed = threading.Condition()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._is_writing = False
        self._is_closed = False
        self._is_broken = False
        self._unreported = 0
        self.dropped = 0
        """Lines that did not fit."""
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue an event to be written."""
        try:
            line = self.format(record)
        except Exception:  # noqa: BLE001 - logging must not fail its caller.
            line = self.format(_format_failure(record))
        self.write(line)

    def write(self, text: str) -> None:
        """Queue a line of text to be written."""
        data = text.encode("utf-8", "backslashreplace") + b"\n"
        with self._changed:
            if self._is_closed or self._is_broken:
                return
            if self._waiting_bytes + len(data) > self._waiting_bytes_max:
                self.dropped += 1
                self._unreported += 1
                return
            self._waiting.append(data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, for at most `FLUSH_SECONDS_MAX`."""
        self._flushed()

    def _flushed(self) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: (
                    not (self._waiting or self._is_writing or self._unreported) or self._is_broken
                ),
                timeout=FLUSH_SECONDS_MAX,
            )

    def close(self) -> None:
        """Write what is queued, and accept no more."""
        is_flushed = self._flushed()
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if is_flushed:  # Otherwise the thread waits for a reader, perhaps forever.
            self._thread.join()
        super().close()

    # The thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._unreported or self._is_closed)
                if self._is_closed and not self._waiting:
                    return
                self._is_writing = True
                data = b"".join(self._waiting)
                self._waiting.clear()
                self._waiting_bytes = 0
                unreported, self._unreported = self._unreported, 0
            if unreported:
                data += self.format(_dropped(unreported)).encode() + b"\n"
            self._write(data)

    def _write(self, data: bytes) -> None:
        try:
            if self._descriptor is None:
                self._stream.write(data.decode())
                self._stream.flush()
            else:
                _write_all(self._descriptor, data)
        except (
            OSError,
            ValueError,
        ):  # The reader has closed the pipe, and there is nowhere to report it.
            self._is_broken = True


def _descriptor_of(stream: IO[str]) -> int | None:
    try:
        return stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return None


def _write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        try:
            remaining = remaining[os.write(descriptor, remaining) :]
        except BlockingIOError:  # A process that shares it made it non-blocking.
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def _dropped(count: int) -> logging.LogRecord:
    record = _record("lines were dropped: standard error is not read fast enough", logging.WARNING)
    record.dropped = count
    return record


def _format_failure(failed: logging.LogRecord) -> logging.LogRecord:
    record = _record("an event cannot be formatted", logging.ERROR)
    record.template = str(failed.msg)
    record.source = f"{failed.pathname}:{failed.lineno}"
    return record


def _record(text: str, level: int) -> logging.LogRecord:
    return logging.LogRecord(__name__, level, __file__, 0, text, None, None)


def formatter_for(stream: IO[str], format_: EventFormat) -> EventFormatter:
    """Return the formatter for `stream`: for people on a terminal, otherwise for programs."""
    is_terminal = stream.isatty()
    if format_ is EventFormat.JSON or (format_ is EventFormat.AUTO and not is_terminal):
        return JsonFormatter()
    return PrettyFormatter(is_coloured=is_terminal and "NO_COLOR" not in os.environ)


@contextlib.contextmanager
def event_logging(config: LoggingConfig, stream: IO[str] | None = None) -> Iterator[EventWriter]:
    """Write everything that is logged in this process to standard error, one event per line.

    This includes the logs of libraries, warnings of Python, and uncaught errors in threads and
    finalizers. `stream` replaces standard error.
    """
    root = logging.getLogger()
    stream = stream or sys.stderr
    writer = EventWriter(stream, formatter_for(stream, config.format))
    before = root.handlers[:], root.level, threading.excepthook, sys.unraisablehook
    root.handlers[:] = [writer]
    root.setLevel(config.level.value.upper())
    threading.excepthook = _thread_failed
    sys.unraisablehook = _finalizer_failed
    try:
        logging.captureWarnings(capture=True)
        yield writer
    finally:
        logging.captureWarnings(capture=False)
        root.handlers[:], level, threading.excepthook, sys.unraisablehook = before
        root.setLevel(level)
        writer.close()


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_value is None or isinstance(failed.exc_value, SystemExit):
        return
    name = failed.thread.name if failed.thread else "unknown"
    error = (failed.exc_type, failed.exc_value, failed.exc_traceback)
    logger.critical("a thread failed", exc_info=error, extra={"of_thread": name})


def _finalizer_failed(failed: sys.UnraisableHookArgs) -> None:
    if failed.exc_value is None:
        return
    error = (failed.exc_type, failed.exc_value, failed.exc_traceback)
    extra = {"where": repr(failed.object)}
    logger.error("%s", failed.err_msg or "an error in a finalizer", exc_info=error, extra=extra)
