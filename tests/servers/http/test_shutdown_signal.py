"""Waiting requests are notified when the server stops."""

from __future__ import annotations

import pytest

from millstream.servers.http.shutdown_signal import ShutdownSignal


def test_everyone_who_watches_is_told_once() -> None:
    closing = ShutdownSignal()
    told: list[str] = []
    closing.watch(lambda: told.append("a"))
    closing.watch(lambda: told.append("b"))
    assert not closing.is_closing
    closing.begin()
    closing.begin()
    assert closing.is_closing
    assert sorted(told) == ["a", "b"]


def test_who_no_longer_watches_is_not_told() -> None:
    closing = ShutdownSignal()

    def tell() -> None:
        pytest.fail("was told")

    closing.watch(tell)
    closing.unwatch(tell)
    closing.unwatch(tell)
    closing.begin()


def test_who_comes_late_is_told_at_once() -> None:
    closing = ShutdownSignal()
    closing.begin()
    told: list[bool] = []
    closing.watch(lambda: told.append(closing.is_closing))
    assert told == [True]


def test_one_may_stop_watching_while_others_are_told() -> None:
    closing = ShutdownSignal()
    told: list[str] = []

    def first() -> None:
        told.append("first")
        closing.unwatch(second)

    def second() -> None:
        told.append("second")
        closing.unwatch(first)

    closing.watch(first)
    closing.watch(second)
    closing.begin()
    assert len(told) == 1
