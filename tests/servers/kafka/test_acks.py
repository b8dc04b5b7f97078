"""When a produce is answered, and when its buffer is released, on both paths.

Version 9 takes the fast path for plain requests, version 8 never does; a batch with a producer id
takes another branch on either.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.access.caller import NOBODY
from millstream.broker.cluster_view import LoneNodeView
from millstream.config.schema import Durability, Endpoint, KafkaConfig, LogConfig
from millstream.protocols.kafka.apis import PRODUCE_KEY
from millstream.servers.block_pool import BlockPool, ReceiveBlock
from millstream.servers.kafka.counters import KafkaCounters
from millstream.servers.kafka.dispatcher import Dispatcher
from millstream.servers.kafka.handlers.produce import produce
from tests.broker.partitions import Bench, Config, batch, run, values
from tests.storage.logs import HeldExecutor, turns

from .client import frame, produce_request

EVERY_WAY = pytest.mark.parametrize("version", [8, 9])
ANY_PRODUCER = pytest.mark.parametrize("producer_id", [-1, 1])


class Session:
    """The parts of a connection that a request needs."""

    caller, host = NOBODY, ""

    def answered(self, size: int) -> None:
        """Do nothing: the tests check the request."""


class ProduceClient:
    """Sends produce frames to one partition."""

    def __init__(self, bench: Bench) -> None:
        broker: Any = SimpleNamespace(
            topics=SimpleNamespace(partition=lambda name, index: bench.partition),
            quotas=SimpleNamespace(is_empty=True),
            access=None,
            cluster=LoneNodeView(1, lambda: Endpoint("there", 9092), lambda *_: 0),
        )
        sessions: Any = None
        self._dispatcher = Dispatcher(
            broker,
            {PRODUCE_KEY: produce},
            config=KafkaConfig(),
            fetch_sessions=sessions,
            counters=KafkaCounters(),
        )
        self._blocks = BlockPool(bytes_max=1 << 20)

    def send(self, records: bytes, *, acks: int, version: int) -> tuple[Any, ReceiveBlock]:
        """Begin a produce; return it and its buffer."""
        data = frame(produce_request("t", records, acks=acks), version, 1)[4:]
        block = self._blocks.take(len(data))
        block.view[: len(data)] = data
        session: Any = Session()
        return self._dispatcher.begin(session, block.view[: len(data)], block), block


@EVERY_WAY
@ANY_PRODUCER
def test_acks_all_is_answered_when_the_batch_is_durable_and_not_before(version, producer_id):
    async def scenario(bench: Bench):
        held = bench.store._background
        held.is_held = True
        pending, block = ProduceClient(bench).send(
            batch(b"v", producer_id=producer_id), acks=-1, version=version
        )
        await turns()
        assert pending.parts is None
        assert block.users == 1
        held.let_go()
        await turns()
        assert pending.parts
        assert block.users == 0
        survivor = await bench.again()
        assert values(survivor.partition) == [b"v"]

    run(scenario, store_background=HeldExecutor())


@EVERY_WAY
@ANY_PRODUCER
def test_acks_1_is_answered_when_the_batch_is_written_and_not_before(version, producer_id):
    async def scenario(bench: Bench):
        held = bench.store._background
        held.is_held = True
        pending, _ = ProduceClient(bench).send(
            batch(b"v", producer_id=producer_id), acks=1, version=version
        )
        assert pending.parts is None
        await turns()
        assert pending.parts
        assert bench.partition.high_watermark == 0, "readers do not see it yet"
        killed = Bench(bench.filesystem.copy())
        await killed.partition.open()
        assert values(killed.partition) == [b"v"], "it survives the death of the process"
        held.let_go()
        await turns()
        assert values(bench.partition) == [b"v"]

    run(scenario, store_background=HeldExecutor())


@EVERY_WAY
@ANY_PRODUCER
def test_acks_0_has_an_empty_answer(version, producer_id):
    async def scenario(bench: Bench):
        pending, block = ProduceClient(bench).send(
            batch(b"v", producer_id=producer_id), acks=0, version=version
        )
        await turns(100)
        assert (pending.parts, block.users) == ([], 0)
        assert values(bench.partition) == [b"v"]

    run(scenario)


@EVERY_WAY
@ANY_PRODUCER
@pytest.mark.parametrize("acks", [-1, 1, 0])
@pytest.mark.parametrize("durability", Durability)
def test_the_memory_of_a_request_is_kept_until_nothing_reads_from_it(
    version, producer_id, acks, durability
):
    async def scenario(bench: Bench):
        records = batch(b"v" * 100, producer_id=producer_id)
        pending, block = ProduceClient(bench).send(records, acks=acks, version=version)
        pending.cancel()  # The connection ended at once; the batch has its offset.
        for _ in range(100):
            if block.users == 0:
                block.view[:] = bytes(block.size)  # As the next request does.
            await turns(1)
        assert block.users == 0
        assert values(bench.partition) == [b"v" * 100]

    run(scenario, config=Config(log=LogConfig(durability=durability)))
