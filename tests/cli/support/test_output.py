"""Format of data on standard output."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.cli.support.output import (
    print_table,
    printable,
    text_or_base64,
    time_text,
    to_json,
)


@given(st.text())
def test_text_reaches_the_terminal_without_control_characters(text: str) -> None:
    assert all(character.isprintable() for character in printable(text))
    assert all(character.isprintable() for character in to_json(text))
    assert json.loads(to_json(text)) == text


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [
        (None, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (2**63 - 1, str(2**63 - 1)),
        (-(2**63), str(-(2**63))),
    ],
)
def test_a_time_is_shown_as_people_read_it(timestamp_ms: int | None, shown: str) -> None:
    assert time_text(timestamp_ms) == shown


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, (None, None)),
        (b"", ("", "utf-8")),
        ("ä".encode(), ("ä", "utf-8")),
        (b"\xff", ("/w==", "base64")),
    ],
)
def test_bytes_are_shown_with_how_they_became_text(
    data: bytes | None, shown: tuple[str | None, str | None]
) -> None:
    assert text_or_base64(data) == shown


@pytest.mark.parametrize(
    ("columns", "rows", "lines"),
    [
        (
            ("TOPIC", "RECORDS"),
            [("a", 5), ("orders", "-"), ("b", 12_000)],
            ["TOPIC   RECORDS", "a             5", "orders        -", "b         12000"],
        ),
        (("KEY", "VALUE"), [("a", "1"), ("b", "x")], ["KEY  VALUE", "a    1", "b    x"]),
        (("NAME", "N"), [("日本", 1), ("e\u0301", 2)], ["NAME  N", "日本  1", "e\u0301     2"]),
        (("NAME", "N"), [("a\nb\x1b[2J", 1)], ["NAME         N", r"a\nb\x1b[2J  1"]),
        (("NAME", "N"), [], ["NAME  N"]),
    ],
    ids=["numbers", "text", "wide and combining", "control characters", "no rows"],
)
def test_a_table_has_its_columns_aligned_as_a_terminal_shows_them(
    columns: tuple[str, ...],
    rows: list[tuple[object, ...]],
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table(columns, rows)
    assert capsys.readouterr().out.splitlines() == lines
