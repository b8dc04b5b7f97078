"""What a broker holds, as Prometheus reads it: topics, groups, transactions, producers.

These numbers are not kept anywhere; a scrape counts. It looks once at each topic, group, member,
open partition and transactional id, which takes a millisecond for every few thousand of them. Only
publications are counted as they happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.broker.broker import Broker
from millstream.broker.groups import group
from millstream.broker.groups.classic import rebalance as classic_rounds
from millstream.broker.groups.consumer.consumer_group import ConsumerGroupState
from millstream.broker.groups.offsets.committed_offsets import CommittedOffsets
from millstream.broker.transactions.transaction import TransactionMetadata, TransactionState
from millstream.observe.metrics.metric import (
    LISTED_MAX,
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    gauge,
)

GROUP_STATES: Sequence[tuple[str, str]] = (
    *(
        (group.GroupType.CLASSIC.value, state.value)
        for state in classic_rounds.ClassicGroupState
        if state is not classic_rounds.ClassicGroupState.DEAD  # Nobody can ask one that is dead.
    ),
    *((group.GroupType.CONSUMER.value, state.value) for state in ConsumerGroupState),
)
"""Kinds of groups, and the states that each can be in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCensus:
    """What a broker holds, counted at one moment."""

    topics: int
    partitions: int
    groups: Counter[tuple[str, str]]
    """By kind and state."""
    members: Counter[str]
    """By kind of group."""
    committed_offsets: int
    transactional_ids: Counter[TransactionState]
    oldest_transaction_seconds: float
    publishers: int
    publications: int
    repeated_publications: int
    producers: int
    quotas: int


def _groups_in(place: tuple[str, str]) -> MetricSample[BrokerCensus]:
    return MetricSample(labels=place, read=lambda seen: seen.groups[place])


def _members_of(kind: group.GroupType) -> MetricSample[BrokerCensus]:
    return MetricSample(labels=(kind.value,), read=lambda seen: seen.members[kind.value])


def _ids_in(state: TransactionState) -> MetricSample[BrokerCensus]:
    return MetricSample(labels=(state.value,), read=lambda seen: seen.transactional_ids[state])


BROKER_METRICS: Sequence[MetricDeclaration[BrokerCensus]] = (
    gauge("millstream_broker_topics", "Topics that there are.", lambda seen: seen.topics),
    gauge(
        "millstream_broker_partitions",
        "Partitions of all topics, used or not.",
        lambda seen: seen.partitions,
    ),
    MetricDeclaration(
        name="millstream_broker_groups",
        kind=MetricKind.GAUGE,
        help="Groups, by their kind and the state that they are in.",
        labels=("kind", "state"),
        samples=tuple(map(_groups_in, GROUP_STATES)),
    ),
    MetricDeclaration(
        name="millstream_broker_group_members",
        kind=MetricKind.GAUGE,
        help="Members of all groups of a kind.",
        labels=("kind",),
        samples=tuple(map(_members_of, group.GroupType)),
    ),
    gauge(
        "millstream_broker_committed_offsets",
        "Offsets that groups have committed, one for each group and partition.",
        lambda seen: seen.committed_offsets,
    ),
    gauge(
        "millstream_broker_unlisted_offsets",
        f"Committed offsets beyond the first {LISTED_MAX:,}, of which no lag is told.",
        lambda seen: max(0, seen.committed_offsets - LISTED_MAX),
    ),
    MetricDeclaration(
        name="millstream_broker_transactional_ids",
        kind=MetricKind.GAUGE,
        help="Transactional ids that are known, by the state of their last transaction.",
        labels=("state",),
        samples=tuple(map(_ids_in, TransactionState)),
    ),
    gauge(
        "millstream_broker_oldest_transaction_seconds",
        "For how long the oldest open transaction is open, by the wall clock; 0 where none is.",
        lambda seen: seen.oldest_transaction_seconds,
    ),
    gauge(
        "millstream_broker_publishers",
        "Publishers whose last publication is remembered.",
        lambda seen: seen.publishers,
    ),
    counter(
        "millstream_broker_publications_total",
        "Publications that were committed: many transactions, one decision.",
        lambda seen: seen.publications,
    ),
    counter(
        "millstream_broker_repeated_publications_total",
        "Publications that were asked for once more, and committed nothing.",
        lambda seen: seen.repeated_publications,
    ),
    gauge(
        "millstream_broker_producers",
        "Producers that open partitions remember, counted once for each partition.",
        lambda seen: seen.producers,
    ),
    gauge(
        "millstream_broker_quotas",
        "Users and clients that have quotas.",
        lambda seen: seen.quotas,
    ),
)

BROKER = MetricSection(metrics=BROKER_METRICS)


def census_of(broker: Broker) -> BrokerCensus:
    """Count what a broker holds."""
    topics = broker.topics.all()
    groups = list(broker.groups.registry)
    members: Counter[str] = Counter()
    for one in groups:
        members[one.kind.value] += one.member_count
    offsets = committed_offsets(broker)
    transactions = broker.transactions.all()
    publications = broker.transactions.publications
    return BrokerCensus(
        topics=len(topics),
        partitions=broker.topics.partition_count,
        groups=Counter((one.kind.value, str(one.state)) for one in groups),
        members=members,
        committed_offsets=sum(len(offsets.of_group(one.group_id)) for one in groups),
        transactional_ids=Counter(one.state for one in transactions),
        oldest_transaction_seconds=_oldest_seconds(transactions, broker.clock.wall_ms()),
        publishers=len(publications),
        publications=publications.published,
        repeated_publications=publications.repeated,
        producers=sum(
            len(partition.appender.states)
            for topic in topics
            for partition in topic.partitions
            if partition.is_open
        ),
        quotas=len(broker.quotas.all()),
    )


def committed_offsets(broker: Broker) -> CommittedOffsets:
    """Return what all groups have committed, to look at."""
    return broker.groups.offsets


def _oldest_seconds(transactions: Sequence[TransactionMetadata], now_ms: int) -> float:
    oldest_ms = min((one.start_ms for one in transactions if one.is_ongoing), default=now_ms)
    return max(0, now_ms - oldest_ms) / 1000
