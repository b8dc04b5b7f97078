"""Live delivery: time from an append to a hundred watchers over SSE."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from subjects.http.load import ask, connect, post
from subjects.http.processes import fan, node
from subjects.kafka.processes import ServerProcess

TOPIC = "watched"
EVENT_SIZE = 150
"""About the size of an event with one small record."""


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    watchers = scale.pick(smoke=5, quick=100, full=100)
    count = scale.pick(smoke=5, quick=100, full=500)
    with ExitStack() as stack:
        server = stack.enter_context(node(folder / "data"))
        limit = stack.enter_context(fan(folder / "records", EVENT_SIZE))
        with connect(server.port) as connection:
            ask(connection, post(f"/v1/topics/{TOPIC}/records", b'{"records":[{"value":1}]}'))

        def deliver(target: ServerProcess, name: str) -> Figures:
            used = target.cpu_seconds()
            command = [sys.executable, str(Path(__file__).with_name("watchers.py"))]
            arguments = map(str, (target.port, TOPIC, watchers, count))
            printed = subprocess.run(
                [*command, *arguments], check=True, capture_output=True, text=True
            ).stdout
            median_ms, slow_ms = map(float, printed.split())
            cpu_us = (target.cpu_seconds() - used) / (count * watchers) * 1e6
            return {name: median_ms, f"{name} slow": slow_ms, f"{name} CPU": cpu_us}

        yield lambda: deliver(limit, "bare"), lambda: deliver(server, "ours")


LIVE = Experiment(
    title="append to delivery",
    note=(
        "A hundred watchers of one topic of class `fsync`, over SSE, all in one client process. It"
        " appends a record by POST, and measures from the first byte of that to the end of the"
        " event at each watcher; the next goes out when all have it. The median is over all"
        " watchers and appends, and holds what the client itself takes to read from a hundred"
        " sockets. Bare is a server that writes and syncs the request, and then writes the same"
        " bytes to every watcher: no HTTP, no JSON, no log."
    ),
    rows=(
        Row(
            name="append to delivery, 100 watchers, p50",
            unit="ms",
            ours="ours",
            limit="bare",
            limit_name="sync, then write to each",
            goal=at_most(2.0),
        ),
        Row(
            name="append to delivery, 100 watchers, p99",
            unit="ms",
            ours="ours slow",
            limit="bare slow",
            limit_name="sync, then write to each",
        ),
        Row(
            name="append to delivery, server CPU",
            unit="µs per event",
            ours="ours CPU",
            limit="bare CPU",
            limit_name="sync, then write to each",
        ),
    ),
    arms=_arms,
)
