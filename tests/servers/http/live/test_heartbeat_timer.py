"""A connection without events gets heartbeats."""

from __future__ import annotations

from pathlib import Path

from millstream.config.schema import HttpConfig
from millstream.servers.http.live.heartbeat_timer import HeartbeatTimer
from millstream.testing import ManualClock
from millstream.testing.broker import running_broker
from millstream.testing.clocks.manual_timers import ManualTimers

from .event_streams import watching
from .live_topic import LiveTopic
from .websockets_client import talking


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.beats: list[float] = []
        self.pulse = HeartbeatTimer(
            self.clock, self.timers, 10.0, lambda: self.beats.append(self.clock.monotonic())
        )


def test_it_beats_whenever_nothing_was_sent_for_the_whole_time() -> None:
    bench = Bench()
    bench.timers.advance(35)
    assert bench.beats == [10, 20, 30]


def test_it_counts_from_what_was_sent_last() -> None:
    bench = Bench()
    bench.timers.advance(4)
    bench.pulse.note_sent()
    bench.timers.advance(9)
    assert bench.beats == []
    bench.timers.advance(1)
    assert bench.beats == [14]


def test_it_leaves_no_timer_behind() -> None:
    bench = Bench()
    bench.timers.advance(25)
    bench.pulse.stop()
    assert bench.timers.pending == 0


def test_a_heartbeat_says_where_the_watcher_stands(tmp_path: Path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(heartbeat_ms=10)) as node:
        topic = LiveTopic(node)
        topic.append(1)
        with watching(node.url, topic.name) as stream:
            told = stream.next()
            assert (told.kind, told.data, told.id) == ("heartbeat", {}, topic.cursor(1))
        with talking(node.url) as talk:
            talk.result(op="subscribe", topics=[topic.name])
            assert talk.next() == {"type": "heartbeat", "cursor": topic.cursor(1)}
