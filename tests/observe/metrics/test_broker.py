"""Broker metrics are counted at scrape time; lag is reported for a limited number of partitions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.broker import Broker
from millstream.broker.groups.values import (
    GroupJoinRequest,
    GroupSyncRequest,
    OffsetAndMetadata,
    OffsetCommitter,
)
from millstream.broker.quota_rules import ClientQuotaEntity
from millstream.broker.transactions.publication import PublicationProposal
from millstream.config.schema import BrokerConfig
from millstream.observe.metrics.broker import BROKER, GROUP_STATES, census_of
from millstream.observe.metrics.group_lag import GROUPS, PartitionLag, listed_progress
from millstream.observe.metrics.metric import LISTED_MAX
from millstream.records.topic_partition import TopicPartition
from millstream.testing import ManualClock
from tests.broker.partitions import append as append_batch
from tests.servers.kafka.client import batch_of

from .test_metric import parsed

CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=0)
JOIN = GroupJoinRequest(
    session_timeout_ms=10_000,
    rebalance_timeout_ms=10_000,
    protocol_type="consumer",
    protocols={"range": b"topics"},
    needs_known_id=False,
)
Work = Callable[[Broker, ManualClock], Coroutine[Any, Any, None]]


def with_broker(work: Work) -> Callable[[Path], None]:
    """Wrap a coroutine that takes a broker and its clock as a test."""

    @functools.wraps(work)
    def test(tmp_path: Path) -> None:
        async def live() -> None:
            clock = ManualClock()
            broker = await Broker.open(str(tmp_path), config=CONFIG, clock=clock)
            try:
                await work(broker, clock)
            finally:
                await broker.close()

        asyncio.run(live())

    del test.__wrapped__
    return test


def told(broker: Broker) -> dict[tuple[str, ...], float]:
    return parsed("".join(BROKER.text([((), census_of(broker))])))


def lags(broker: Broker) -> dict[tuple[str, ...], float]:
    found = parsed("".join(GROUPS.text(listed_progress(broker))))
    return {key[1:]: value for key, value in found.items() if key[0].endswith("lag_records")}


async def append(broker: Broker, topic: str, count: int, partition: int = 0) -> None:
    found = broker.topics.partition(topic, partition)
    await found.open()
    await append_batch(found, batch_of(*[b"x"] * count))


async def commit(broker: Broker, group: str, topic: str, offset: int, partition: int = 0) -> None:
    where = TopicPartition(topic, partition)
    await broker.groups.of(group).commit(
        group, OffsetCommitter(), {where: OffsetAndMetadata(offset=offset)}
    )


@with_broker
async def test_a_new_broker_holds_nothing_and_says_so_of_each_state(broker, clock):
    found = told(broker)
    assert set(found.values()) == {0}
    for kind, state in GROUP_STATES:
        assert ("millstream_broker_groups", kind, state) in found


@with_broker
async def test_topics_and_partitions_are_counted_whether_they_were_used_or_not(broker, clock):
    await broker.topics.create("a", partitions=3)
    await broker.topics.create("b", partitions=4)
    found = told(broker)
    assert found["millstream_broker_topics",] == 2
    assert found["millstream_broker_partitions",] == 7
    await broker.topics.delete("b")
    assert told(broker)["millstream_broker_partitions",] == 3


@with_broker
async def test_a_group_moves_from_state_to_state(broker, clock):
    joined = await broker.groups.of("g").join("g", JOIN)
    assert told(broker)["millstream_broker_groups", "classic", "CompletingRebalance"] == 1
    sync = GroupSyncRequest(
        member_id=joined.member_id,
        generation=joined.generation,
        assignments={joined.member_id: b"all"},
    )
    await broker.groups.of("g").sync("g", sync)
    found = told(broker)
    assert found["millstream_broker_groups", "classic", "CompletingRebalance"] == 0
    assert found["millstream_broker_groups", "classic", "Stable"] == 1
    assert found["millstream_broker_group_members", "classic"] == 1
    assert found["millstream_broker_group_members", "consumer"] == 0


@with_broker
async def test_the_states_of_all_groups_are_among_those_that_are_told(broker, clock):
    await broker.topics.create("a")
    await commit(broker, "g", "a", 0)
    for listed in broker.groups.listed():
        assert (listed.kind.value, listed.state) in GROUP_STATES


@with_broker
async def test_transactional_ids_are_counted_by_state_and_the_oldest_is_told(broker, clock):
    await broker.topics.create("a")
    name = "millstream_broker_transactional_ids"
    first = await broker.transactions.init_producer("first", 60_000)
    second = await broker.transactions.init_producer("second", 60_000)
    assert told(broker)[name, "Empty"] == 2
    assert told(broker)["millstream_broker_oldest_transaction_seconds",] == 0
    await broker.transactions.of("first").add_partitions("first", *first, [("a", 0)])
    clock.advance(7)
    await broker.transactions.of("second").add_partitions("second", *second, [("a", 0)])
    clock.advance(1.5)
    found = told(broker)
    assert found[name, "Ongoing"] == 2
    assert found["millstream_broker_oldest_transaction_seconds",] == 8.5
    await broker.transactions.of("first").end("first", *first, is_commit=True, is_bumping=False)
    found = told(broker)
    assert (found[name, "Ongoing"], found[name, "CompleteCommit"]) == (1, 1)
    assert found["millstream_broker_oldest_transaction_seconds",] == 1.5


@with_broker
async def test_a_clock_that_was_set_back_makes_no_transaction_younger_than_nothing(broker, clock):
    await broker.topics.create("a")
    producer = await broker.transactions.init_producer("t", 60_000)
    await broker.transactions.of("t").add_partitions("t", *producer, [("a", 0)])
    clock.jump_wall(-3_600_000)
    assert told(broker)["millstream_broker_oldest_transaction_seconds",] == 0


@with_broker
async def test_publications_are_counted_and_repeated_ones_apart(broker, clock):
    for sequence in (0, 1, 1, 0):
        await broker.transactions.publish(PublicationProposal(publisher="q", sequence=sequence))
    await broker.transactions.publish(PublicationProposal(publisher="other", sequence=0))
    await broker.transactions.publish(
        PublicationProposal(publisher="q", sequence=9, is_commit=False)
    )
    found = told(broker)
    assert found["millstream_broker_publishers",] == 2
    assert found["millstream_broker_publications_total",] == 3
    assert found["millstream_broker_repeated_publications_total",] == 2


@with_broker
async def test_producers_are_counted_once_for_each_partition(broker, clock):
    await broker.topics.create("a", partitions=2)
    for partition in range(2):
        found = broker.topics.partition("a", partition)
        await found.open()
        for producer_id in range(3):
            batch = batch_of(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0)
            await append_batch(found, batch)
    assert told(broker)["millstream_broker_producers",] == 6


@with_broker
async def test_users_with_quotas_are_counted(broker, clock):
    await broker.quotas.alter(ClientQuotaEntity("ann", None), {"producer_byte_rate": 1000.0})
    assert told(broker)["millstream_broker_quotas",] == 1


# Lag.


@with_broker
async def test_lag_is_what_is_left_between_the_committed_offset_and_the_end(broker, clock):
    await broker.topics.create("a", partitions=2)
    await append(broker, "a", 10)
    await append(broker, "a", 5, partition=1)
    await commit(broker, "g", "a", 4)
    await commit(broker, "g", "a", 5, partition=1)
    await commit(broker, "h", "a", 0)
    assert lags(broker) == {("g", "a", "0"): 6, ("g", "a", "1"): 0, ("h", "a", "0"): 10}
    await append(broker, "a", 1)
    assert lags(broker)["g", "a", "0"] == 7
    assert told(broker)["millstream_broker_committed_offsets",] == 3


@with_broker
async def test_an_offset_past_the_end_is_no_lag_below_nothing(broker, clock):
    await broker.topics.create("a")
    await append(broker, "a", 1)
    await commit(broker, "g", "a", 100)
    assert lags(broker) == {("g", "a", "0"): 0}


@with_broker
async def test_no_lag_is_told_of_partitions_that_were_not_used_or_are_gone(broker, clock):
    await broker.topics.create("unused")
    await broker.topics.create("gone")
    await append(broker, "gone", 1)
    await commit(broker, "g", "unused", 0)
    await commit(broker, "g", "gone", 0)
    await commit(broker, "g", "never", 0)
    await commit(broker, "g", "unused", 0, partition=99)
    await broker.topics.delete("gone")
    assert lags(broker) == {}


@with_broker
async def test_lag_is_told_of_so_many_partitions_and_the_others_are_counted(broker, clock):
    await broker.topics.create("a", partitions=30)
    for partition in range(30):
        await append(broker, "a", 1, partition=partition)
    offsets = {TopicPartition("a", index): OffsetAndMetadata(offset=0) for index in range(30)}
    for number in range(100):
        await broker.groups.of(f"g{number}").commit(f"g{number}", OffsetCommitter(), offsets)
    assert len(lags(broker)) == LISTED_MAX
    found = told(broker)
    assert found["millstream_broker_committed_offsets",] == 3_000
    assert found["millstream_broker_unlisted_offsets",] == 3_000 - LISTED_MAX


@pytest.mark.parametrize("offset", [0, 3])
def test_progress_says_what_a_group_reads_next(offset):
    (text, _) = GROUPS.text([(("g", "a", "0"), PartitionLag(offset, 3))])
    assert parsed(text) == {("millstream_group_committed_offset", "g", "a", "0"): offset}
