"""`millstream bench load`: the rate, the latencies, and what is stored at the end."""

from __future__ import annotations

import json
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.bench.latencies import WIDTH, Latencies
from millstream.cli.bench.load_run import LoadPlan, LoadResult, LoadRun
from millstream.errors import Unavailable
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, run, started, told
from tests.cli.nodes import PATIENCE, wait_until
from tests.in_loop import in_loop

PLAN = LoadPlan(
    topic="t",
    seconds=10,
    records_per_second=20,
    record_size=3,
    records_per_request=2,
    timeout_s=1,
)


class Server:
    """A node whose answers take as long as it is told, on a clock of its own."""

    def __init__(self, seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self.now = 1000.0
        self.sent: list[tuple[float, list[bytes]]] = []
        self.fails: Callable[[int], bool] = lambda _: False
        self._seconds = seconds

    async def append_many(self, topic: str, records: Iterable[Any], /) -> list[object]:
        assert topic == "t"
        values = list(records)
        number = len(self.sent)
        self.sent.append((self.now - 1000.0, values))
        self.now += self._seconds(number)
        if self.fails(number):
            raise Unavailable("not now")
        return list(values)

    def pause(self, seconds: float) -> Awaitable[None]:
        async def later() -> None:
            self.now += seconds

        return later()


async def loaded(server: Server, plan: LoadPlan = PLAN) -> LoadResult:
    return await LoadRun(plan, now=lambda: server.now, pause=server.pause).run([server])


@in_loop
async def test_requests_are_sent_at_the_rate_whatever_the_node_takes():
    server = Server(lambda _: 0.01)
    result = await loaded(server)
    assert [at for at, _ in server.sent] == pytest.approx([number / 10 for number in range(100)])
    assert all(len(values) == 2 and len(values[0]) == 3 for _, values in server.sent)
    assert len({bytes(values[0]) for _, values in server.sent[:32]}) > 16
    assert (result.acknowledged, result.latencies.count) == (200, 100)
    assert result.behind_s == pytest.approx(0, abs=1e-9)
    assert result.latencies.quantile(0.999) == pytest.approx(0.01, rel=0.02)


@in_loop
async def test_a_stall_counts_for_every_request_that_it_delays():
    """One request takes two seconds: twenty should have been sent meanwhile."""
    server = Server(lambda number: 2.0 if number == 50 else 0.0)
    result = await loaded(server)
    assert len(server.sent) == 100, "none is left out"
    assert result.latencies.longest == pytest.approx(2.0)
    assert result.latencies.quantile(0.9) > 0.9
    assert result.latencies.quantile(0.5) < 0.001
    assert result.behind_s == pytest.approx(1.9)


@in_loop
async def test_without_a_rate_the_next_request_follows_the_answer():
    server = Server(lambda _: 0.5)
    plan = LoadPlan(
        topic="t",
        seconds=10,
        records_per_second=0,
        record_size=0,
        records_per_request=1,
        timeout_s=1,
    )
    result = await loaded(server, plan)
    assert (result.acknowledged, result.seconds) == (20, pytest.approx(10))


@in_loop
async def test_failed_requests_are_counted_and_not_among_the_latencies():
    server = Server()
    server.fails = lambda number: number % 4 == 0
    result = await loaded(server)
    assert dict(result.failures) == {"Unavailable": 25}
    assert (result.acknowledged, result.latencies.count) == (150, 75)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 0.999, 1.0])
def test_a_quantile_is_at_most_one_percent_too_high(share: float):
    latencies = Latencies()
    values = [0.0001 * number for number in range(1, 5001)]
    for value in values:
        latencies.add(value)
    exact = values[int(len(values) * share) - 1]
    assert exact <= latencies.quantile(share) * (1 + 1e-9)
    assert latencies.quantile(share) <= exact * WIDTH * (1 + 1e-9)


def test_no_latencies_have_no_quantile():
    assert Latencies().quantile(0.99) == 0


LOAD = ("bench", "load", "--rate", 200, "--batch", 5, "--connections", 2, "--seconds", 0.5)


def test_everything_that_was_sent_is_stored_and_the_topic_is_gone(node: RunningBroker) -> None:
    result = run(*LOAD, "--json", server=node.url)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["acknowledged"] == found["stored"] == 100
    assert (found["missing"], found["failures"], found["requests"]) == (0, {}, 20)
    assert 0 < found["p50_ms"] <= found["p90_ms"] <= found["p99_ms"] <= found["p99_9_ms"]
    assert found["p99_9_ms"] <= found["max_ms"]
    assert told("topic", "list", server=node.url)["topics"] == []


def test_the_table_has_the_latencies_and_says_what_is_stored(node: RunningBroker) -> None:
    result = run(*LOAD, server=node.url)
    assert result.exit_code == 0, result.output
    head, row = result.stdout.splitlines()
    assert head.split("  ")[0] == "RECORDS/S"
    assert "P99.9 MS" in head
    assert len(row.split()) == 8
    assert result.stderr == "100 records acknowledged, 100 stored\n"


def test_what_cannot_be_sent_is_refused_with_what_can(node: RunningBroker) -> None:
    result = run("bench", "load", "--size", 1024 * 1024, "--batch", 9, server=node.url)
    assert result.exit_code == 2
    assert "must be at most 8388608 bytes, got 9437184" in result.stderr
    assert run("bench", "load", "--connections", 0, server=node.url).exit_code == 2
    refused = run("bench", "load", "--replicas", 2, "--seconds", 0.1, server=node.url)
    assert refused.exit_code == 1
    assert "replication factor must be 1, got 2" in refused.stderr
    assert told("topic", "list", server=node.url)["topics"] == []


def test_without_a_node_it_fails_in_one_line() -> None:
    result = run("bench", "load", server="http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert is_one_line(result.stderr)


def test_ctrl_c_deletes_the_topic(node: RunningBroker, tmp_path: Path) -> None:
    words = ("bench", "load", "--seconds", 600, "--server", node.url)
    with started(*words) as process:
        wait_until(lambda: bool(told("topic", "list", server=node.url)["topics"]))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    assert told("topic", "list", server=node.url)["topics"] == []
