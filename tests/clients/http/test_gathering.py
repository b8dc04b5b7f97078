"""Concurrent appends: they share requests, keep their order, and respect the memory limit."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.clients.http.aio.client import AsyncClient
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.sync.client import Client
from millstream.errors import InvalidRecord, NodeUnreachable
from tests.crash.broker_process import BrokerProcess

from .scripted import ScriptedNode
from .test_faults import DESCRIBED, PRODUCER


@pytest.fixture
def requests(broker, monkeypatch):
    """The record count of each append request that the node received."""
    counted = []
    appends = broker.server.broker.appends
    original = appends.append

    async def append(*args, **options):
        counted.append(len(args[1]))
        return await original(*args, **options)

    monkeypatch.setattr(appends, "append", append)
    return counted


def run(broker, work, **config):
    async def live():
        async with AsyncClient(broker.url, config=ClientConfig(**config)) as client:
            return await work(client)

    return asyncio.run(live())


def test_tasks_that_append_at_once_share_requests(broker, name, requests):
    async def work(client):
        await client.create_topic(name)
        placed = await asyncio.gather(*(client.append(name, n) for n in range(500)))
        assert [one.offset for one in placed] == list(range(500)), "in the order of the calls"
        return [record.value async for record in client.read(name)]

    assert run(broker, work) == list(range(500))
    assert len(requests) < 20


def test_a_request_is_no_larger_than_it_may_be(broker, name, requests):
    async def work(client):
        await client.create_topic(name)
        await asyncio.gather(*(client.append(name, n) for n in range(100)))

    run(broker, work, gather_records_max=10)
    assert max(requests) == 10


def test_who_appends_waits_where_too_much_is_not_answered(broker, name):
    async def work(client):
        await client.create_topic(name)
        held = 0
        sender = client._sender
        original = sender._add

        def add(appends, group):
            nonlocal held
            original(appends, group)
            held = max(held, sender._waiting_bytes)

        sender._add = add
        await asyncio.gather(*(client.append(name, "x" * 1_000) for _ in range(200)))
        assert sender._waiting_bytes == 0
        return held

    assert run(broker, work, waiting_bytes_max=10_000) < 12_000


def test_who_waits_to_be_taken_in_can_be_called_off(broker, name):
    async def work(client):
        await client.create_topic(name)
        tasks = [asyncio.create_task(client.append(name, "x" * 1_000)) for _ in range(50)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in done[::2])
        assert all(isinstance(one.offset, int) for one in done[1::2])

    run(broker, work, waiting_bytes_max=3_000)


def test_one_bad_record_fails_alone(broker, name):
    async def work(client):
        await client.create_topic(name, cleanup="compact")
        appends = [client.append(name, n, key=None if n == 7 else str(n)) for n in range(20)]
        done = await asyncio.gather(*appends, return_exceptions=True)
        assert isinstance(done.pop(7), InvalidRecord)
        assert sorted(one.offset for one in done) == list(range(19))

    run(broker, work)


def test_appends_of_a_client_that_is_closed_end():
    async def work():
        silent = threading.Event()
        with ScriptedNode(DESCRIBED, PRODUCER, lambda _: silent.wait(20)) as node:
            client = AsyncClient(node.url)
            appends = [asyncio.create_task(client.append("t", n)) for n in range(3)]
            while len(node.seen) < 3:  # noqa: ASYNC110 - another thread sees them.
                await asyncio.sleep(0.001)
            later = asyncio.create_task(client.append("t", "later"))
            await asyncio.sleep(0)
            await client.close()
            done = await asyncio.gather(*appends, later, return_exceptions=True)
            silent.set()
        assert [type(one) for one in done] == [NodeUnreachable] * 4
        assert done[0].may_be_done
        assert not done[-1].may_be_done

    asyncio.run(work())


def test_threads_that_append_at_once_share_requests_and_each_hears_of_its_own(
    broker, name, requests
):
    with Client(broker.url) as client, ThreadPoolExecutor(16) as threads:
        client.create_topic(name)
        placed = list(threads.map(lambda n: client.append(name, n), range(400)))
        found = {record.offset: record.value for record in client.read(name)}
    assert [found[one.offset] for one in placed] == list(range(400))
    assert len(requests) < 400


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
def test_a_node_that_is_killed_under_appends_has_each_acknowledged_one_once(tmp_path, is_async):
    """Takes a few seconds: a real process is killed twice during appends."""
    node = BrokerProcess(tmp_path)
    acked: dict[str, tuple[int, int]] = {}
    stop = threading.Event()

    def write(client, worker):
        n = 0
        while not stop.is_set():
            value = f"{worker}-{n}"
            placed = client.append("t", value, key=value)
            acked[value] = (placed.partition, placed.offset)
            n += 1

    async def write_there(client, worker):
        n = 0
        while not stop.is_set():
            value = f"{worker}-{n}"
            placed = await client.append("t", value, key=value)
            acked[value] = (placed.partition, placed.offset)
            n += 1

    async def write_all(url):
        async with AsyncClient(url) as client:
            await asyncio.gather(*(write_there(client, one) for one in range(20)))

    def restart():
        for _ in range(2):
            before = len(acked)
            while len(acked) < before + 100:
                stop.wait(0.005)
            node.kill()
            node.start()
            node.wait_until_ready()
        before = len(acked)
        while len(acked) < before + 100:
            stop.wait(0.005)
        stop.set()

    try:
        node.start()
        node.wait_until_ready()
        url = f"http://{node.http}"
        with Client(url) as client, ThreadPoolExecutor(9) as threads:
            client.create_topic("t", partitions=2)
            restarting = threads.submit(restart)
            restarting.add_done_callback(lambda _: stop.set())
            if is_async:
                asyncio.run(write_all(url))
            else:
                writers = [threads.submit(write, client, one) for one in range(8)]
                for writer in writers:
                    writer.result()
            restarting.result()
            found = {(one.partition, one.offset): one.value for one in client.read("t")}
    finally:
        stop.set()
        node.close()
    assert len(set(found.values())) == len(found), "a record is there twice"
    assert {value: found.get(place) for value, place in acked.items()} == {
        value: value for value in acked
    }
    assert len(acked) >= 300
