"""Metrics of what a broker holds: topics, groups, transactions, producers.

These numbers are not kept anywhere; a scrape counts. It visits each topic, group, member, open
partition and transactional id once, which takes a millisecond for every few thousand of them. Only
publications are counted as they happen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from millstream.broker.broker import Broker
from millstream.broker.groups.classic.rebalance import ClassicGroupState
from millstream.broker.groups.consumer.consumer_group import ConsumerGroupState
from millstream.broker.groups.group import GroupType
from millstream.broker.transactions.transaction import TransactionState
from millstream.observe.metrics.metric import (
    LISTED_MAX,
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    gauge,
    gauge_by,
)

GROUP_STATES: Sequence[tuple[str, str]] = (
    *(
        (GroupType.CLASSIC.value, state.value)
        for state in ClassicGroupState
        if state is not ClassicGroupState.DEAD  # A dead group is not in the registry.
    ),
    *((GroupType.CONSUMER.value, state.value) for state in ConsumerGroupState),
)
"""Kinds of groups, with the states of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerCensus:
    """Numbers of things that a broker holds at one moment."""

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
    decompression_bytes: int
    decompression_waiting: int
    decompression_timeouts: int


def _groups_in(kind_and_state: tuple[str, str]) -> MetricSample[BrokerCensus]:
    return MetricSample(labels=kind_and_state, read=lambda census: census.groups[kind_and_state])


BROKER_METRICS: Sequence[MetricDeclaration[BrokerCensus]] = (
    gauge("millstream_broker_topics", "Topics.", lambda census: census.topics),
    gauge(
        "millstream_broker_partitions",
        "Partitions of all topics, used or not.",
        lambda census: census.partitions,
    ),
    MetricDeclaration(
        name="millstream_broker_groups",
        kind=MetricKind.GAUGE,
        help="Groups, by kind and state.",
        labels=("kind", "state"),
        samples=tuple(map(_groups_in, GROUP_STATES)),
    ),
    gauge_by(
        "kind",
        (kind.value for kind in GroupType),
        "millstream_broker_group_members",
        "Members of all groups, by kind of group.",
        lambda census, kind: census.members[kind],
    ),
    gauge(
        "millstream_broker_committed_offsets",
        "Committed offsets, one for each group and partition.",
        lambda census: census.committed_offsets,
    ),
    gauge(
        "millstream_broker_unlisted_offsets",
        f"Committed offsets beyond the first {LISTED_MAX:,}, for which no lag is reported.",
        lambda census: max(0, census.committed_offsets - LISTED_MAX),
    ),
    gauge_by(
        "state",
        (state.value for state in TransactionState),
        "millstream_broker_transactional_ids",
        "Known transactional ids, by the state of their last transaction.",
        lambda census, state: census.transactional_ids[TransactionState(state)],
    ),
    gauge(
        "millstream_broker_oldest_transaction_seconds",
        "Age of the oldest open transaction, which holds back readers of committed records; 0 if"
        " none is open. Health names it when it is open for more than a minute.",
        lambda census: census.oldest_transaction_seconds,
    ),
    gauge(
        "millstream_broker_publishers",
        "Publishers whose last publication is remembered.",
        lambda census: census.publishers,
    ),
    counter(
        "millstream_broker_publications_total",
        "Publications committed; each commits many transactions at once.",
        lambda census: census.publications,
    ),
    counter(
        "millstream_broker_repeated_publications_total",
        "Publications that were repeated, and committed nothing.",
        lambda census: census.repeated_publications,
    ),
    gauge(
        "millstream_broker_producers",
        "Producers that open partitions remember, counted once for each partition.",
        lambda census: census.producers,
    ),
    gauge(
        "millstream_broker_quotas",
        "Users and clients with quotas.",
        lambda census: census.quotas,
    ),
    gauge(
        "millstream_broker_decompression_memory_bytes",
        "Memory reserved for large batches that are being decompressed.",
        lambda census: census.decompression_bytes,
    ),
    gauge(
        "millstream_broker_decompression_waiting_requests",
        "Requests that wait for memory to decompress a batch.",
        lambda census: census.decompression_waiting,
    ),
    counter(
        "millstream_broker_decompression_timeouts_total",
        "Requests that failed because they waited too long for memory to decompress a batch.",
        lambda census: census.decompression_timeouts,
    ),
)

BROKER = MetricSection(metrics=BROKER_METRICS)


def census_of(broker: Broker) -> BrokerCensus:
    topics = broker.topics.all()
    groups = list(broker.groups)
    members: Counter[str] = Counter()
    for group in groups:
        members[group.kind.value] += group.member_count
    transactions = broker.transactions.all()
    publications = broker.transactions.publications()
    return BrokerCensus(
        topics=len(topics),
        partitions=broker.topics.partition_count,
        groups=Counter((group.kind.value, str(group.state)) for group in groups),
        members=members,
        committed_offsets=sum(len(offsets) for _, offsets in broker.groups.committed_offsets()),
        transactional_ids=Counter(each.state for each in transactions),
        oldest_transaction_seconds=_oldest_seconds(broker),
        publishers=sum(map(len, publications)),
        publications=sum(each.published for each in publications),
        repeated_publications=sum(each.repeated for each in publications),
        producers=sum(
            len(partition.appender.states)
            for topic in topics
            for partition in topic.partitions
            if partition.is_open
        ),
        quotas=len(broker.quotas.all()),
        decompression_bytes=broker.opener.budget.used_bytes,
        decompression_waiting=broker.opener.budget.waiting,
        decompression_timeouts=broker.opener.budget.timeouts,
    )


def _oldest_seconds(broker: Broker) -> float:
    return max((age_ms for _, age_ms in broker.transactions.ages_ms()), default=0) / 1000
