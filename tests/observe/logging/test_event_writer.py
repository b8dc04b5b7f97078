"""A thread writes events in order and may block; callers that log never block."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from millstream.config.schema import EventFormat, EventLevel, LoggingConfig
from millstream.observe.logging.event_writer import EventWriter, event_logging, formatter_for
from millstream.observe.logging.formatter import JsonFormatter, PrettyFormatter


class Pipe:
    """A pipe that is read only when a test reads it."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.reading = os.fdopen(reading, "rb")
        self.writing = os.fdopen(writing, "w")

    def lines(self) -> list[dict[str, object]]:
        """Close the write end and return all lines."""
        self.writing.close()
        return [json.loads(line) for line in self.reading.read().splitlines()]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.writing.close()
    pipe.reading.close()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.writer")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    yield logger
    logger.handlers.clear()


def attached(logger: logging.Logger, pipe: Pipe, **settings: int) -> EventWriter:
    writer = EventWriter(pipe.writing, JsonFormatter(), **settings)
    logger.addHandler(writer)
    return writer


def read_until(pipe: Pipe, count: int) -> list[dict[str, object]]:
    return [json.loads(pipe.reading.readline()) for _ in range(count)]


def test_events_come_out_in_the_order_in_which_they_happened(pipe: Pipe, logger: logging.Logger):
    writer = attached(logger, pipe)
    for number in range(100):
        logger.info("%d", number)
    writer.close()
    assert [line["event"] for line in pipe.lines()] == [str(number) for number in range(100)]


@pytest.mark.timeout(20)
def test_who_logs_does_not_wait_for_who_reads(pipe: Pipe, logger: logging.Logger):
    """The pipe is not read, and the events exceed its capacity and the memory limit."""
    writer = attached(logger, pipe, waiting_bytes_max=100_000)
    for number in range(3_000):
        logger.info("%d %s", number, "x" * 100)
    assert 0 < writer.dropped < 3_000
    dropped = writer.dropped
    lines: list[dict[str, object]] = []
    reader = threading.Thread(target=lambda: lines.extend(read_until(pipe, 3_001 - dropped)))
    reader.start()
    reader.join()
    writer.close()
    said = [line for line in lines if "dropped" in line]
    assert sum(line["dropped"] for line in said) == dropped, "the count is told, once"
    assert {line["level"] for line in said} == {"warning"}
    told = [int(str(line["event"]).split()[0]) for line in lines if "dropped" not in line]
    assert told == sorted(told)
    assert len(told) == 3_000 - dropped


def test_a_reader_that_is_gone_harms_nobody(pipe: Pipe, logger: logging.Logger):
    writer = attached(logger, pipe)
    pipe.reading.close()
    logger.info("to nobody")
    writer.flush()
    logger.info("again")
    writer.close()


def test_a_descriptor_that_does_not_want_to_wait_is_waited_for(pipe: Pipe, logger: logging.Logger):
    os.set_blocking(pipe.writing.fileno(), False)
    writer = attached(logger, pipe)
    for number in range(3_000):
        logger.info("%d %s", number, "x" * 100)
    assert len(read_until(pipe, 3_000)) == 3_000
    assert writer.dropped == 0
    writer.close()


def test_an_event_that_cannot_be_told_is_told_as_that(pipe: Pipe):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("not today")

    writer = EventWriter(pipe.writing, JsonFormatter())
    for message, arg, field in (
        ("%d apples", "three", 1),
        ("%s", Broken(), 1),
        ("%s", 1, Broken()),
    ):
        record = logging.LogRecord("x", logging.INFO, __file__, 1, message, (arg,), None)
        record.field = field
        writer.handle(record)
    writer.close()
    lines = pipe.lines()
    assert [line["event"] for line in lines] == ["an event cannot be formatted"] * 3
    assert lines[0]["template"] == "%d apples"
    assert "test_event_writer.py" in str(lines[0]["source"])


def test_what_is_no_file_is_written_to_all_the_same(logger: logging.Logger):
    stream = io.StringIO()
    writer = EventWriter(stream, JsonFormatter())
    logger.addHandler(writer)
    logger.info("hello")
    writer.close()
    assert json.loads(stream.getvalue())["event"] == "hello"


def test_what_is_said_after_the_end_is_not_said(pipe: Pipe, logger: logging.Logger):
    writer = attached(logger, pipe)
    writer.close()
    logger.info("too late")
    writer.close()
    assert pipe.lines() == []


# All log output of a process.


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def lines_of(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_all_that_is_logged_is_written_as_far_as_the_level_wants(stream: io.StringIO):
    with event_logging(LoggingConfig(level=EventLevel.WARNING), stream):
        logging.getLogger("millstream.x").info("quiet")
        logging.getLogger("websockets").warning("loud")
    assert [(line["logger"], line["event"]) for line in lines_of(stream)] == [
        ("websockets", "loud")
    ]


def test_afterwards_all_is_as_it_was(stream: io.StringIO):
    root = logging.getLogger()

    def state() -> tuple[object, ...]:
        hooks = (threading.excepthook, sys.unraisablehook, warnings.showwarning)
        return (root.handlers[:], root.level, *hooks)

    before = state()
    with event_logging(LoggingConfig(), stream):
        assert state() != before
    assert state() == before
    assert "millstream-events" not in {thread.name for thread in threading.enumerate()}


def test_an_error_in_a_thread_is_one_event_with_its_traceback(stream: io.StringIO):
    def fail() -> None:
        raise RuntimeError("first\nsecond")

    with event_logging(LoggingConfig(), stream):
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
    (line,) = lines_of(stream)
    assert (line["level"], line["of_thread"]) == ("critical", "worker")
    assert str(line["traceback"]).endswith("RuntimeError: first\nsecond")


def test_an_error_in_a_finalizer_is_an_event(stream: io.StringIO):
    class Broken:
        def __del__(self) -> None:
            raise RuntimeError("at the end")

    with event_logging(LoggingConfig(), stream):
        Broken()
    (line,) = lines_of(stream)
    assert line["level"] == "error"
    assert str(line["traceback"]).endswith("RuntimeError: at the end")


def test_a_warning_of_python_is_an_event(stream: io.StringIO):
    with event_logging(LoggingConfig(), stream), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    (line,) = lines_of(stream)
    assert line["logger"] == "py.warnings"
    assert "DeprecationWarning: old" in str(line["event"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "wanted", "kind"),
    [
        (io.StringIO(), EventFormat.AUTO, JsonFormatter),
        (io.StringIO(), EventFormat.PRETTY, PrettyFormatter),
        (Terminal(), EventFormat.AUTO, PrettyFormatter),
        (Terminal(), EventFormat.JSON, JsonFormatter),
    ],
)
def test_people_read_terminals_and_programs_the_rest(stream, wanted, kind):
    assert type(formatter_for(stream, wanted)) is kind


def test_who_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    record = logging.makeLogRecord({"levelname": "INFO", "name": "x", "msg": "m"})
    assert "\x1b" in formatter_for(Terminal(), EventFormat.AUTO).format(record)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in formatter_for(Terminal(), EventFormat.AUTO).format(record)
