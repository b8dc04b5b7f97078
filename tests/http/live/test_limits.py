"""What the documentation says of limits is what holds."""

from __future__ import annotations

from pathlib import Path

from millstream.http.live.feed import PIECE_BYTES_MAX, PIECE_RECORDS_MAX
from millstream.http.live.place import EVENT_BYTES_MAX
from millstream.http.live.socket import REFUSED_MAX, UNDER_WAY_MAX
from millstream.http.live.starts import PLACES_MAX
from millstream.wire.web.cursors import CURSOR_LENGTH_MAX
from millstream.wire.web.live import TOPICS_MAX

DOCS = Path(__file__).parents[3] / "docs"


def words_of(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


def test_the_numbers_of_the_reference_are_true() -> None:
    described = words_of("reference/http.md")
    assert f"1 to {TOPICS_MAX} of them" in described
    assert f"watches {PLACES_MAX} partitions at the most" in described
    assert f"cursor has {CURSOR_LENGTH_MAX // 1024} KiB at the most" in described
    assert f"Where {UNDER_WAY_MAX} messages wait" in described
    assert REFUSED_MAX == 10
    assert "ten messages in a row were none" in described


def test_the_numbers_of_the_guide_and_of_the_internals_are_true() -> None:
    assert f"beyond {PLACES_MAX} partitions" in words_of("guides/live.md")
    internals = words_of("internals/live.md")
    assert f"{PIECE_RECORDS_MAX:,} records or {PIECE_BYTES_MAX // 1024} KiB" in internals
    assert f"| one event | {EVENT_BYTES_MAX // 1024} KiB" in internals
    assert f"| {TOPICS_MAX}, {PLACES_MAX}; the cursor over them 32 KiB |" in internals
