"""The documented limits are those of the code."""

from __future__ import annotations

from pathlib import Path

from millstream.protocols.http.live import TOPICS_MAX
from millstream.records.cursor import CURSOR_LENGTH_MAX
from millstream.servers.http.live.partition_feed import READ_BYTES_MAX, READ_RECORDS_MAX
from millstream.servers.http.live.start_position import PARTITIONS_MAX
from millstream.servers.http.live.subscription_progress import EVENT_BYTES_MAX
from millstream.servers.http.live.websocket import ERRORS_MAX, IN_FLIGHT_MAX

DOCS = Path(__file__).parents[4] / "docs"


def words_of(page: str) -> str:
    return " ".join((DOCS / page).read_text().split())


def test_the_numbers_of_the_reference_are_true() -> None:
    described = words_of("reference/http.md")
    assert f"1 to {TOPICS_MAX} of them" in described
    assert f"watches at most {PARTITIONS_MAX} partitions" in described
    assert f"cursor has at most {CURSOR_LENGTH_MAX // 1024} KiB" in described
    assert f"While {IN_FLIGHT_MAX} messages wait" in described
    assert ERRORS_MAX == 10
    assert "ten invalid messages in a row" in described


def test_the_numbers_of_the_guide_and_of_the_internals_are_true() -> None:
    assert f"beyond {PARTITIONS_MAX} partitions" in words_of("guides/live.md")
    internals = words_of("internals/live.md")
    assert f"{READ_RECORDS_MAX:,} records or {READ_BYTES_MAX // 1024} KiB" in internals
    assert f"| one event | {EVENT_BYTES_MAX // 1024} KiB" in internals
    assert (
        f"| {TOPICS_MAX} and {PARTITIONS_MAX}; their cursor {CURSOR_LENGTH_MAX // 1024} KiB |"
        in internals
    )
