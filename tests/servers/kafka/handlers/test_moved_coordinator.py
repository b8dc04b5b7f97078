"""What clients are told by a node that coordinates nothing, or has not loaded it yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.broker import Broker
from millstream.broker.state.internal_partitions import InternalPartition
from millstream.config.schema import KafkaConfig
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    ListGroupsRequest,
)
from millstream.protocols.kafka.messages.offsets import OffsetFetchRequestGroup
from millstream.protocols.kafka.messages.transactions import (
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
)
from millstream.servers.kafka.handlers import groups, offsets, transactions
from millstream.servers.kafka.request_context import RequestContext
from tests.in_loop import in_loop

MOVED, LOADING = ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@asynccontextmanager
async def a_broker(path: Path) -> AsyncIterator[Broker]:
    broker = await Broker.open(str(path))
    try:
        yield broker
    finally:
        await broker.close()


async def codes_of(broker: Broker, *, lists: bool = True) -> set[int]:
    """Return the codes of all kinds of requests."""
    context = RequestContext(
        broker=broker,
        config=KafkaConfig(),
        fetch_sessions=None,  # type: ignore[arg-type]
        version=4,
        client_id="c",
    )
    heartbeat = HeartbeatRequest(group_id="g", generation_id=0, member_id="m")
    end: Any = EndTxnRequest(transactional_id="id", producer_id=0, producer_epoch=0, committed=True)
    fetch = offsets._fetch_group(
        OffsetFetchRequestGroup(group_id="g", topics=None), context, is_stable_required=False
    )
    codes = {
        groups.heartbeat(heartbeat, context).error_code,
        groups.describe_groups(DescribeGroupsRequest(groups=("g",)), context).groups[0].error_code,
        (await groups.delete_groups(DeleteGroupsRequest(groups_names=("g",)), context))
        .results[0]
        .error_code,
        fetch.error_code,
        (await transactions.end_txn(end, context)).error_code,
        transactions.describe_transactions(
            DescribeTransactionsRequest(transactional_ids=("id",)), context
        )
        .transaction_states[0]
        .error_code,
    }
    if lists:
        codes.add(groups.list_groups(ListGroupsRequest(), context).error_code)
        listed = transactions.list_transactions(ListTransactionsRequest(), context)
        codes.add(listed.error_code)
    return codes


@pytest.mark.parametrize("is_loading", [False, True])
@in_loop
async def test_no_request_is_answered_from_a_state_that_is_not_there(
    tmp_path: Path, is_loading: bool
) -> None:
    async with a_broker(tmp_path) as broker:
        for kind in (broker.groups.coordinators, broker.transactions.coordinators):
            partition = InternalPartition(kind.name)
            if is_loading:
                kind.elected(partition, 2)  # It is loaded in the next turns of the event loop.
            else:
                kind.deposed(partition)
        expected = LOADING if is_loading else MOVED
        # A node that coordinates nothing has complete lists, which are empty.
        assert await codes_of(broker, lists=is_loading) == {expected}
