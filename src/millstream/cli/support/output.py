"""Output of data, with control characters escaped for terminals."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from millstream.observe.logging.printable import (
    printable as printable,  # noqa: PLC0414 - for all commands.
)

if TYPE_CHECKING:
    from millstream.storage.inspect.catalog import Finding

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return ASCII JSON, in which every control character is escaped."""
    return json.dumps(value, indent=indent, ensure_ascii=True)


def text_or_base64(data: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes as text, and the encoding used: `utf-8` or `base64`."""
    if data is None:
        return None, None
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def time_text(timestamp_ms: int | None) -> str:
    """Return a time for people, or the bare number if it is outside the calendar."""
    if timestamp_ms is None:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def finding_line(finding: Finding) -> str:
    """Return a finding as one line."""
    place = "" if finding.position is None else f"byte {finding.position}: "
    return printable(f"{finding.kind.value}: {finding.path}: {place}{finding.message}")


def finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "is_damage": finding.is_damage,
        "path": finding.path,
        "position": finding.position,
        "what": finding.message,
    }


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with numbers aligned right, and the heads of columns bold on a terminal."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]
    are_numbers = [_are_numbers(column) for column in zip(*cells, strict=True)] or [False] * len(
        columns
    )
    layout = list(zip(widths, are_numbers, strict=True))
    head = _table_line(columns, layout)
    click.echo(click.style(head, bold=True) if _has_styles() else head)
    for row in cells:
        click.echo(_table_line(row, layout))


def _has_styles() -> bool:
    """Return whether the user wants styles. Without a terminal, click removes them in any case."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _table_line(row: Sequence[str], layout: Sequence[tuple[int, bool]]) -> str:
    parts = []
    for cell, (width, is_number) in zip(row, layout, strict=True):
        padding = " " * (width - _width(cell))
        parts.append(padding + cell if is_number else cell + padding)
    return "  ".join(parts).rstrip()


def _are_numbers(cells: Sequence[str]) -> bool:
    return any(map(_NUMBER.fullmatch, cells)) and all(
        cell == "-" or _NUMBER.fullmatch(cell) for cell in cells
    )


def _width(text: str) -> int:
    """Return the number of columns that a terminal needs for `text`."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # noqa: PLC0415 - few names need it.

    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(combining(character) > 0 for character in text)
