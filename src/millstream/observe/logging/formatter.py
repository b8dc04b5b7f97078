"""Formats an event as one line, whatever a client put into it.

An event is a record of Python's `logging`: its message says what happened, and its `extra` are the
fields. Clients choose names of topics and groups, client ids and paths; nothing of these can end a
line, start another event, or control a terminal.
"""

from __future__ import annotations

import json
import logging
import math
import time
from typing import Any

from millstream.observe.logging.printable import printable
from millstream.tracing import current_traceparent, parse_trace_ids

TEXT_LENGTH_MAX = 8 * 1024
"""Characters of one text. The longest names that clients may choose have 32,767; a few hundred
identify one.
"""

TRACEBACK_LENGTH_MAX = 32 * 1024
"""Characters of a traceback; a longer one loses its middle."""

DEPTH_MAX = 4
"""Nesting of fields; ours are flat or nearly so."""

_KNOWN = {*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"}
"""Attributes that every log record has."""

_RESERVED = ("time", "level", "event", "logger", "traceback", "trace_id", "span_id")


def shortened(text: str, length_max: int) -> str:
    """Return `text` without its middle if it is too long."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]}…({len(text) - 2 * half} more)…{text[-half:]}"


class EventFormatter(logging.Formatter):
    """Base of both formats: the time, the fields and the traceback of an event."""

    def time_of(self, record: logging.LogRecord) -> str:
        """Return the time of the event, in UTC."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        return f"{seconds}.{int(record.msecs):03d}Z"

    def fields_of(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what was passed as `extra`, and the trace of the request that is processed.

        Call it where the event happens: the trace is that of the running code.
        """
        fields = {
            f"{name}_" if name in _RESERVED else name: _value(value, DEPTH_MAX)
            for name, value in record.__dict__.items()
            if name not in _KNOWN
        }
        traceparent = current_traceparent()
        if traceparent is not None and (ids := parse_trace_ids(traceparent)) is not None:
            fields["trace_id"] = ids.trace_id
            fields["span_id"] = ids.span_id
        return fields

    def traceback_of(self, record: logging.LogRecord) -> str:
        """Return the traceback and the stack; empty if there are none."""
        parts = []
        if record.exc_info:
            parts.append(self.formatException(record.exc_info))
        if record.stack_info:
            parts.append(record.stack_info)
        return shortened("\n".join(parts), TRACEBACK_LENGTH_MAX)


class JsonFormatter(EventFormatter):
    """One JSON object in plain ASCII, in which every character is escaped that could end a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return an event as one line, without a newline."""
        content: dict[str, Any] = {
            "time": self.time_of(record),
            "level": record.levelname.lower(),
            "event": _text(record.getMessage()),
            "logger": record.name,
            **self.fields_of(record),
        }
        if traceback := self.traceback_of(record):
            content["traceback"] = _text(traceback, TRACEBACK_LENGTH_MAX * 2)
        # DEL is a control character too, and JSON does not escape it.
        return json.dumps(content, separators=(",", ":")).replace("\x7f", "\\u007f")


_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


class PrettyFormatter(EventFormatter):
    """Time, level, message and fields on one line; a traceback follows on indented lines."""

    def __init__(self, *, is_coloured: bool = False) -> None:
        super().__init__()
        self._is_coloured = is_coloured

    def format(self, record: logging.LogRecord) -> str:
        """Return an event as one line, without a newline; a traceback adds more lines."""
        level = record.levelname.lower()
        shown = f"{level:7}"
        if self._is_coloured:
            shown = f"\x1b[{_COLOURS.get(level, '0')}m{shown}\x1b[0m"
        fields = "".join(
            f" {name}={_pretty(value)}" for name, value in self.fields_of(record).items()
        )
        name = record.name.removeprefix("millstream.")
        event = printable(_text(record.getMessage()))
        line = f"{self.time_of(record)} {shown} {name}: {event}{fields}"
        for below in self.traceback_of(record).splitlines():
            line += f"\n    {printable(below)}"
        return line


def _pretty(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = printable(text)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text


def _text(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Return text that every JSON reader accepts: short enough, and without lone surrogates."""
    text = shortened(text, length_max)
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def _value(value: Any, depth: int) -> Any:
    """Return a field as a JSON value."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple) and depth:
        return [_value(item, depth - 1) for item in value]
    if isinstance(value, dict) and depth:
        return {_text(str(name)): _value(item, depth - 1) for name, item in value.items()}
    return _text(str(value))
