"""Output of data, with control characters escaped for terminals."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from millstream.observe.logging.formatter import (
    printable as printable,  # noqa: PLC0414 - for all commands.
)

if TYPE_CHECKING:
    from millstream.storage.inspect.catalog import Finding

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_WIDTH_UNBOUNDED = 1000
"""Width of tables without a terminal."""


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
    """Print a table with numbers aligned right."""
    # Only here: a node, which prints no table, should not wait for these to be loaded.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(columns):
        cells = [str(row[number]) for row in rows]
        is_number = any(map(_NUMBER.fullmatch, cells)) and all(
            cell == "-" or _NUMBER.fullmatch(cell) for cell in cells
        )
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_UNBOUNDED)
    console.print(table)
