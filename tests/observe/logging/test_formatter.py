"""An event is one line and one JSON object, for any text from a client."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys

import pytest

from millstream.broker.loop_timers import LoopTimers
from millstream.observe.logging.formatter import (
    DEPTH_MAX,
    TEXT_LENGTH_MAX,
    TRACEBACK_LENGTH_MAX,
    JsonFormatter,
    PrettyFormatter,
    printable,
    shortened,
)
from millstream.tracing import current_traceparent, traced_as
from tests.in_loop import in_loop

from .hostile_strings import NASTY

HALF = "\ud800"
"""A lone surrogate, as Python decodes a byte in a path that is not UTF-8."""


def record(message="it happened", *args, level=logging.INFO, error=None, **fields):
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("millstream.part", level, __file__, 1, message, args, exc_info)
    made.created, made.msecs = 1_700_000_000.007, 7.9
    made.__dict__.update(fields)
    return made


def raised(message: str) -> Exception:
    try:
        raise RuntimeError(message)
    except RuntimeError as error:
        return error


def fits_one_line(line: str) -> bool:
    return line.isascii() and line.isprintable() and len(line.splitlines()) == 1


# JSON.


def test_an_event_has_time_level_logger_and_fields():
    line = JsonFormatter().format(record("%s: %d went", "t", 3, topic="t", offset=7))
    assert line == (
        '{"time":"2023-11-14T22:13:20.007Z","level":"info","event":"t: 3 went",'
        '"logger":"millstream.part","topic":"t","offset":7}'
    )


@pytest.mark.parametrize("text", [*NASTY, HALF, f"a{HALF}b"], ids=range(len(NASTY) + 2))
def test_whatever_a_client_says_stays_within_its_line_and_its_field(text: str):
    line = JsonFormatter().format(
        record("%s", text, level=logging.ERROR, error=raised(text), client_id=text, names=[text])
    )
    assert fits_one_line(line)
    found = json.loads(line)
    assert list(found) == ["time", "level", "event", "logger", "client_id", "names", "traceback"]
    assert found["level"] == "error"
    if HALF not in text and len(text) <= TEXT_LENGTH_MAX:
        assert found["event"] == found["client_id"] == found["names"][0] == text
        assert found["traceback"].endswith(f"RuntimeError: {text}" if text else "RuntimeError")


def test_half_a_character_is_written_so_that_every_reader_takes_it():
    line = JsonFormatter().format(record("%s", f"a{HALF}b"))
    assert json.loads(line)["event"] == "a\\ud800b"
    json.loads(line)["event"].encode()


def test_a_text_that_is_too_long_loses_its_middle():
    found = json.loads(JsonFormatter().format(record("%s", "a" * 50_000 + "z", x="b" * 50_000)))
    assert found["event"].startswith("aaa")
    assert found["event"].endswith("z")
    assert f"({50_001 - TEXT_LENGTH_MAX} more)" in found["event"]
    assert len(found["x"]) < TEXT_LENGTH_MAX + 30


def test_a_traceback_is_one_field_and_bounded():
    found = json.loads(JsonFormatter().format(record(error=raised("x" * 100_000))))
    assert found["traceback"].startswith("Traceback (most recent call last):\n")
    assert len(found["traceback"]) < TRACEBACK_LENGTH_MAX + 30


def test_a_field_cannot_pass_for_what_every_event_has():
    found = json.loads(JsonFormatter().format(record(level_="x", time="1999", event="forged")))
    assert found["time"] == "2023-11-14T22:13:20.007Z"
    assert found["event"] == "it happened"
    assert (found["time_"], found["event_"]) == ("1999", "forged")


def test_fields_are_plain_values_and_others_are_told_as_text():
    fields = {"a": None, "b": True, "c": 1.5, "d": float("nan"), "e": (1, "x"), "f": {1: b"y"}}
    found = json.loads(JsonFormatter().format(record(**fields)), parse_constant=pytest.fail)
    assert {name: found[name] for name in fields} == {
        "a": None, "b": True, "c": 1.5, "d": "nan", "e": [1, "x"], "f": {"1": "b'y'"},
    }  # fmt: skip


def test_fields_within_fields_end_somewhere():
    deep: list[object] = []
    for _ in range(50):
        deep = [deep]
    found = json.loads(JsonFormatter().format(record(deep=deep[0])))["deep"]
    for _ in range(DEPTH_MAX):
        (found,) = found
    assert isinstance(found, str)


# Human-readable format.


def test_a_pretty_event_has_time_level_part_and_fields():
    line = PrettyFormatter().format(record("it %s", "happened", name_of="a b", count=3))
    assert line == ('2023-11-14T22:13:20.007Z info    part: it happened name_of="a b" count=3')


@pytest.mark.parametrize("text", [*NASTY, HALF], ids=range(len(NASTY) + 1))
def test_nothing_that_a_client_says_reaches_a_terminal(text: str):
    line = PrettyFormatter().format(record("%s", text, client_id=text))
    assert line.isprintable()
    assert len(line.splitlines()) == 1


def test_a_traceback_follows_on_lines_that_are_indented():
    line = PrettyFormatter().format(record("failed", error=raised("a\x1b[2Jb")))
    first, *below = line.splitlines()
    assert first.endswith("failed")
    assert below[-1] == "    RuntimeError: a\\x1b[2Jb"
    assert all(one.startswith("    ") and one.isprintable() for one in below)


def test_a_level_has_a_colour_only_where_that_is_wanted():
    coloured = PrettyFormatter(is_coloured=True).format(record(level=logging.ERROR))
    assert "\x1b[31merror" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == PrettyFormatter().format(
        record(level=logging.ERROR)
    )


# Parts.


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_printable_text_can_be_seen_whole(text: str):
    assert printable(text).isprintable()


def test_what_is_short_enough_is_left_alone():
    assert shortened("x" * 10, 10) == "x" * 10
    assert shortened("a" * 5 + "b" * 6, 10) == "aaaaa…(1 more)…bbbbb"


def test_everything_that_python_puts_into_a_record_is_known():
    if sys.version_info >= (3, 12):
        assert "taskName" not in JsonFormatter().format(record())
    assert set(json.loads(JsonFormatter().format(record()))) == {"time", "level", "event", "logger"}


# Traces.

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("flags", ["00", "01"])
def test_an_event_has_the_ids_of_the_trace_that_the_code_works_for(flags):
    with traced_as(f"00-{TRACE}-{CALLER}-{flags}"):
        found = json.loads(JsonFormatter().format(record()))
        line = PrettyFormatter().format(record())
    assert (found["trace_id"], found["span_id"]) == (TRACE, CALLER)
    assert line.endswith(f" trace_id={TRACE} span_id={CALLER}")
    after = json.loads(JsonFormatter().format(record()))
    assert not {"trace_id", "span_id"} & set(after)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x\ny",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{CALLER}-01-more",
        f"01-{TRACE}-{CALLER}-01-" + "x" * 300,
        f"ff-{TRACE}-{CALLER}-01",
        f"00-{TRACE.upper()}-{CALLER}-01",
    ],
)
def test_a_trace_that_is_none_is_not_logged(text):
    with traced_as(text):
        assert "trace_id" not in json.loads(JsonFormatter().format(record()))


def test_a_field_cannot_pass_for_the_trace():
    with traced_as(f"00-{TRACE}-{CALLER}-01"):
        found = json.loads(JsonFormatter().format(record(trace_id="mine")))
    assert (found["trace_id"], found["trace_id_"]) == (TRACE, "mine")


@in_loop
async def test_a_timer_that_a_request_sets_is_not_part_of_its_trace():
    """It may set the next timer, and so on: its events would have the trace forever."""
    done = asyncio.get_running_loop().create_future()
    with traced_as(f"00-{TRACE}-{CALLER}-01"):
        LoopTimers().call_later(0, lambda: done.set_result(current_traceparent()))
        assert await done is None
        assert current_traceparent() is not None
