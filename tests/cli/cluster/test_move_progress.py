"""Progress of moves: lines if standard error is no terminal, a bar if it is one."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable

import pytest

from millstream.cli.cluster.move_progress import (
    LINE_SECONDS,
    POLL_SECONDS,
    MoveProgress,
    wait_until_moved,
)


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


class Time:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clock(self) -> float:
        return self.now


def waited(
    steps: Iterable[MoveProgress], *, seconds: float = POLL_SECONDS, timeout_s: float | None = None
) -> MoveProgress:
    """Wait for a cluster that makes these steps, each `seconds` after the one before."""
    time, measured = Time(), iter(steps)
    return wait_until_moved(
        "moving",
        lambda: next(measured),
        timeout_s=timeout_s,
        sleep=lambda _: time.sleep(seconds),
        clock=time.clock,
    )


def steps(*left: int) -> list[MoveProgress]:
    return [MoveProgress(number, 10 * number) for number in left]


def test_without_a_terminal_each_change_is_a_line(capsys: pytest.CaptureFixture[str]):
    assert waited(steps(3, 3, 2, 0), seconds=LINE_SECONDS) == MoveProgress(0)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "moving: 0 of 3 done, 30 bytes left to copy",
        "moving: 1 of 3 done, 20 bytes left to copy",
        "moving: 3 of 3 done",
    ]


def test_a_long_move_writes_no_more_than_one_line_in_five_seconds(
    capsys: pytest.CaptureFixture[str],
):
    count = 200
    waited(steps(*range(count, -1, -1)))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == count * POLL_SECONDS / LINE_SECONDS + 1
    assert lines[-1] == f"moving: {count} of {count} done"


def test_moves_that_are_added_meanwhile_count_too(capsys: pytest.CaptureFixture[str]):
    waited(steps(2, 4, 0), seconds=LINE_SECONDS)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "moving: 0 of 4 done, 40 bytes left to copy",
        "moving: 4 of 4 done",
    ]


def test_nothing_to_wait_for_writes_nothing(capsys: pytest.CaptureFixture[str]):
    assert waited(steps(0)) == MoveProgress(0)
    assert capsys.readouterr().err == ""


def test_after_its_time_it_returns_what_is_left(capsys: pytest.CaptureFixture[str]):
    stuck = MoveProgress(2, 7)
    assert waited([stuck] * 100, seconds=1, timeout_s=3) == stuck
    assert capsys.readouterr().err == "moving: 0 of 2 done, 7 bytes left to copy\n"


def test_on_a_terminal_there_is_a_bar_and_no_lines(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    waited(steps(4, 1, 0))
    shown = terminal.getvalue()
    assert "moving, 10 bytes left to copy" in shown
    assert "3/4" in shown
    assert " of 4 done" not in shown
