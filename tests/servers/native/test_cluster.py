"""The native server in a cluster: any node takes records and shows them; commits have a place."""

from __future__ import annotations

import asyncio
import contextlib

from millstream.protocols.native.error_codes import NativeErrorCode
from millstream.protocols.native.operations import END
from millstream.protocols.native.record_set import RAW, typed_record
from tests.cluster.local_cluster import ANY_PORT, LONG_LEASE_MS, LocalCluster
from tests.in_loop import in_loop

from .client import CatchingUp, NativeClient, Refused


def fetched(client, number, count):
    """The records of a topic, once the node has learned of all."""
    while True:
        with contextlib.suppress(CatchingUp):
            answer, data = client.fetch(number, 0)
            if answer.record_count >= count:
                return data


def use(addresses):
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(NativeClient(address)) for address in addresses]
        number = clients[0].create("orders")["id"]
        for client in clients:
            while client.topics().get("orders") != number:
                pass
        for value, client in enumerate(clients):
            client.ingest(number, b"%d" % value)
        expected = b"".join(typed_record(RAW, b"%d" % value) for value in range(len(clients)))
        for client in clients:
            assert fetched(client, number, len(clients)) == expected
            assert client.fetch(number, END)[0].next_offset == len(clients)
        second = clients[2].create("payments")["id"]
        assert second == number + 1
        return [commit(client, number) for client in clients]


def commit(client, number):
    """The error and the node that it names; `None` if the commit was taken."""
    try:
        client.commit(number, 2, consumer=7)
    except Refused as refused:
        return refused.code, refused.details["coordinator"]
    return None


@in_loop
async def test_any_node_takes_records_and_one_takes_the_commits_of_a_consumer(tmp_path):
    cluster = LocalCluster(tmp_path, 3, LONG_LEASE_MS)
    cluster.native = ANY_PORT
    try:
        await cluster.start()
        addresses = [cluster.nodes[node_id].native for node_id in (1, 2, 3)]
        told = await asyncio.to_thread(use, addresses)
    finally:
        await cluster.stop()
    [coordinator] = [node_id for node_id, said in zip((1, 2, 3), told, strict=True) if said is None]
    assert set(told) == {None, (NativeErrorCode.NOT_LEADER, coordinator)}
