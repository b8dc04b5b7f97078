"""Live delivery to clients that exceed a quota: delayed, not closed; others are not affected."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from millstream.broker.quotas import DEFAULT, ClientQuotaEntity, QuotaKind
from millstream.broker.streams.writers import WriteMark
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.app_node import AppNode, PendingRequest, with_app_node

from .event_streams import watching
from .live_topic import LiveTopic
from .websockets_client import talking

LARGE = "x" * 20_000
"""Twice the size of a bucket of 1,000 bytes per second."""


async def allow(node: AppNode, client_id: str, **rates: float | None) -> None:
    await node.ask("PUT", "/v1/quotas", {"client_id": client_id, "rates": rates})


async def turns() -> None:
    """Run everything that needs no time to pass."""
    for _ in range(50):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - nobody tells.
        await asyncio.sleep(0)


def kinds(watcher: PendingRequest) -> list[str]:
    return [kind for kind, _ in watcher._events()]


def values(watcher: PendingRequest) -> list[Any]:
    return [
        record["value"]
        for kind, data in watcher._events()
        if kind == "records"
        for record in data["records"]
    ]


async def watch(node: AppNode, client_id: str) -> PendingRequest:
    watcher = node.begin("GET", "/v1/events?topic=t", None, client_id)
    await watcher.events(1)
    return watcher


async def leave(*watchers: PendingRequest) -> None:
    for watcher in watchers:
        watcher.leave()
        await watcher.task


@with_app_node
async def test_a_watcher_that_owes_waits_and_nobody_else_does(node):
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, "slow", consumer_byte_rate=1_000)
    slow, other = await watch(node, "slow"), await watch(node, "other")
    await node.append("t", LARGE)
    await until(lambda: len(values(slow)) == len(values(other)) == 1)
    await node.append("t", "second")
    await until(lambda: values(other) == [LARGE, "second"])
    await turns()
    assert values(slow) == [LARGE]
    node.timers.advance(5.0)
    await turns()
    assert values(slow) == [LARGE]
    assert kinds(slow)[-1] == "heartbeat", "it hears that it is not forgotten"
    node.timers.advance(10.0)
    await until(lambda: values(slow) == [LARGE, "second"])
    assert node.counters.held_deliveries["consumer_byte_rate"] >= 1
    assert node.live.counters.encodings == 2, "one for each append, for everybody"
    await leave(slow, other)


@with_app_node
async def test_who_is_held_for_long_lags_and_misses_nothing(node):
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, "slow", consumer_byte_rate=1_000)
    slow = await watch(node, "slow")
    for number in range(8):
        await node.append("t", f"{number}{LARGE}")
        await turns()
    assert len(values(slow)) == 1
    for _ in range(40):
        node.timers.advance(10.0)
        await turns()
        if len(values(slow)) == 8:
            break
    assert [value[0] for value in values(slow)] == list("01234567")
    assert "lagged" in kinds(slow)
    await leave(slow)


@with_app_node
async def test_a_held_watcher_leaves_and_ends_as_every_other(node):
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, "gone", consumer_byte_rate=1_000)
    await allow(node, "told", consumer_byte_rate=1_000)
    gone, told = await watch(node, "gone"), await watch(node, "told")
    await node.append("t", LARGE)
    await until(lambda: values(gone) == values(told) == [LARGE])
    await node.append("t", "second")
    await turns()
    await leave(gone)
    await node.ask("DELETE", "/v1/topics/t")
    await told.task
    assert told._events()[-1] == ("end", {"topic": "t", "reason": "deleted"})
    assert values(told) == [LARGE]


@with_app_node
async def test_a_quota_that_goes_lets_the_watcher_go_on(node):
    await node.ask("PUT", "/v1/topics/t")
    await allow(node, "slow", consumer_byte_rate=1)
    slow = await watch(node, "slow")
    await node.append("t", LARGE)
    await until(lambda: values(slow) == [LARGE])
    await node.append("t", "second")
    await turns()
    await allow(node, "slow", consumer_byte_rate=None)
    node.timers.advance(1.0)  # Time for a heartbeat: it looks again.
    await until(lambda: values(slow) == [LARGE, "second"])
    await leave(slow)


@with_app_node
async def test_a_stream_as_events_waits_and_sends_what_is_there_then(node):
    await node.ask("PUT", "/v1/streams/s")
    path = "/v1/streams/s?offset=-1&live=sse"
    await allow(node, "slow", consumer_byte_rate=1_000)
    slow, other = node.begin("GET", path, None, "slow"), node.begin("GET", path, None, "other")

    def sent(reader: PendingRequest) -> bytes:
        return b"".join(one.get("body", b"") for one in reader.sent)

    large, second = base64.b64encode(LARGE.encode()), base64.b64encode(b"second")
    await until(lambda: b"control" in sent(slow) and b"control" in sent(other))
    await append_to_stream(node, LARGE)
    await until(lambda: large in sent(slow) and large in sent(other))
    await append_to_stream(node, "second")
    await until(lambda: second in sent(other))
    await turns()
    assert second not in sent(slow)
    node.timers.advance(5.0)
    await turns()
    assert sent(slow).endswith(b": \n\n"), "a closed connection is noticed"
    assert second not in sent(slow)
    node.timers.advance(20.0)
    await until(lambda: second in sent(slow))
    await leave(slow, other)


async def append_to_stream(node: AppNode, text: str) -> None:
    await node.broker.streams.of("s").get("s").append([text.encode()], WriteMark())


# By WebSocket, and with real sockets.


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory):
    with running_broker(tmp_path_factory.mktemp("node")) as node:
        yield node


def allow_running(node: RunningBroker, client_id: str, **rates: float) -> None:
    node.run(node.server.broker.quotas.alter(ClientQuotaEntity(None, client_id), rates))


def test_a_socket_that_owes_appends_is_told_and_goes_on(running: RunningBroker) -> None:
    topic = LiveTopic(running)
    allow_running(running, "writer", producer_byte_rate=1)
    record = {"value": "x" * 100}
    with talking(running.url, additional_headers={"Client-Id": "writer"}) as talk:
        placed = talk.result(op="append", topic=topic.name, records=[record])
        assert placed["cost"]["throttle_ms"] > 60_000
        refused = talk.ask(op="append", topic=topic.name, records=[record])
        assert refused["type"] == "error"
        assert refused["error"]["code"] == "quota_exceeded"
        assert refused["error"]["detail"]["throttle_ms"] > 60_000
        assert topic.partition().high_watermark == 1, "it did nothing"
        talk.result(op="subscribe", topics=[topic.name], from_="earliest")
        assert talk.values(1) == ["x" * 100]


def test_a_socket_that_owes_reads_still_appends(running: RunningBroker) -> None:
    topic = LiveTopic(running)
    allow_running(running, "reader", consumer_byte_rate=1)
    with (
        talking(running.url, additional_headers={"Client-Id": "reader"}) as talk,
        watching(running.url, topic.name) as other,
    ):
        talk.result(op="subscribe", topics=[topic.name])
        talk.result(op="append", topic=topic.name, records=[{"value": 1}])
        assert talk.values(1) == [1]
        for number in (2, 3):
            talk.result(op="append", topic=topic.name, records=[{"value": number}])
        assert other.values(3) == [1, 2, 3]
        assert not [one for one in talk.pushed if one["type"] == "records"]


def test_a_socket_of_a_client_that_owes_time_is_refused(running: RunningBroker) -> None:
    allow_running(running, "busy", request_percentage=1)

    async def owe() -> None:
        broker = running.server.broker
        now = broker.clock.monotonic()
        broker.quotas.charge(QuotaKind.REQUEST, "ANONYMOUS", "busy", 100.0, now)

    running.run(owe())
    with (
        pytest.raises(InvalidStatus) as refused,
        talking(running.url, additional_headers={"Client-Id": "busy"}),
    ):
        pass
    assert refused.value.response.status_code == 429
    assert int(refused.value.response.headers["Retry-After"]) > 60


@pytest.mark.parametrize("client_id", ["x" * 256, "a\tb"])
def test_a_socket_with_a_hostile_client_id_is_refused(
    running: RunningBroker, client_id: str
) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        talking(running.url, additional_headers={"Client-Id": client_id}),
    ):
        pass
    assert refused.value.response.status_code == 400


def test_a_watcher_that_is_slowed_is_not_cut(tmp_path: Path) -> None:
    """With real sockets and real time; takes about a second."""
    with running_broker(tmp_path) as node:
        topic = LiveTopic(node)
        everyone = ClientQuotaEntity(None, DEFAULT)
        with watching(node.url, topic.name) as stream:
            node.run(node.server.broker.quotas.alter(everyone, {"consumer_byte_rate": 20_000}))
            for number in range(15):
                topic.append(f"{number:02}{'x' * 15_000}")
            assert [value[:2] for value in stream.values(15)] == [f"{n:02}" for n in range(15)]
