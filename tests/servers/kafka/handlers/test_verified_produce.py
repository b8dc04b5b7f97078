"""Transactional batches at a partition whose transaction another node coordinates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from millstream.broker.broker import Broker
from millstream.broker.transactions.transaction import TransactionProducer
from millstream.broker.transactions.transaction_verifier import NO_PARTS, TransactionParts
from millstream.config.schema import KafkaConfig
from millstream.errors import NotCoordinator
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.kafka.handlers.produce import produce
from millstream.servers.kafka.request_context import RequestContext
from tests.broker.state.internal_nodes import turns
from tests.in_loop import in_loop

PRODUCER = TransactionProducer(5, 0)


class RemoteCoordinator:
    """The coordinator of another node; `on_verify` runs while it is asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.missing = NO_PARTS
        self.error: Exception | None = None
        self.on_verify: Any = None

    async def verify(
        self,
        transactional_id: str,
        producer: TransactionProducer,
        parts: TransactionParts,
        *,
        may_add: bool,
    ) -> TransactionParts:
        assert (transactional_id, producer, may_add) == ("id", PRODUCER, True)
        self.asked += 1
        if self.on_verify is not None:
            await self.on_verify()
        if self.error is not None:
            raise self.error
        return self.missing


class ProducerNode:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.remote = RemoteCoordinator()
        broker.transactions._verifier = self.remote
        broker.transactions.coordinators.is_here = lambda _: False  # type: ignore[method-assign]

    async def send(self, sequence: int) -> ErrorCode:
        batch = build_batch(
            [Record(b"%d" % sequence)],
            now_ms=1,
            producer_id=PRODUCER.id,
            producer_epoch=PRODUCER.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        part = ProduceRequestPartition(index=0, records=memoryview(batch))
        request = ProduceRequest(
            transactional_id="id",
            acks=-1,
            timeout_ms=1000,
            topic_data=(ProduceRequestTopic(name="t", partition_data=(part,)),),
        )
        context = RequestContext(
            broker=self.broker,
            config=KafkaConfig(),
            fetch_sessions=None,  # type: ignore[arg-type]
            version=12,
            client_id="c",
        )
        response: Any = produce(request, context)
        if not isinstance(response, DeferredResponse) and hasattr(response, "__await__"):
            response = await response
        if isinstance(response, DeferredResponse):
            response = await response_of(response)
        return ErrorCode(response.responses[0].partition_responses[0].error_code)

    async def mark(self, *, is_commit: bool) -> None:
        await self.broker.topics.partition("t", 0).appender.append_marker(
            *PRODUCER, is_commit=is_commit, coordinator_epoch=1
        )


async def response_of(deferred: DeferredResponse) -> Any:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    deferred.then(future.set_result)
    return await future


@asynccontextmanager
async def a_node(path: Path) -> AsyncIterator[ProducerNode]:
    broker = await Broker.open(str(path))
    try:
        await broker.topics.create("t")
        await broker.topics.partition("t", 0).open()
        yield ProducerNode(broker)
    finally:
        await broker.close()


@in_loop
async def test_the_first_batch_of_a_transaction_is_verified_and_the_next_ones_are_not(
    tmp_path: Path,
) -> None:
    async with a_node(tmp_path) as node:
        assert await node.send(0) is ErrorCode.NONE
        assert await node.send(1) is ErrorCode.NONE
        assert node.remote.asked == 1
        await node.mark(is_commit=True)
        assert await node.send(2) is ErrorCode.NONE
        assert node.remote.asked == 2, "another transaction"


@in_loop
async def test_a_batch_that_is_part_of_no_transaction_is_refused(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        partition = node.broker.topics.partition("t", 0)
        node.remote.error = NotCoordinator("it moved")
        assert await node.send(0) is not ErrorCode.NONE
        assert partition.high_watermark == 0


@in_loop
async def test_a_batch_whose_transaction_ends_while_it_is_verified_opens_none(
    tmp_path: Path,
) -> None:
    async with a_node(tmp_path) as node:
        assert await node.send(0) is ErrorCode.NONE
        await node.mark(is_commit=True)

        async def end() -> None:
            await node.mark(is_commit=False)
            await turns()

        node.remote.on_verify = end
        assert await node.send(1) is ErrorCode.INVALID_TXN_STATE
        partition = node.broker.topics.partition("t", 0)
        assert partition.last_stable_offset == partition.high_watermark
