"""The broker: topics, groups, transactions, queues and streams of one node, on top of its logs.

It knows neither sockets nor wire formats; the servers hold one and call it.

    <data>/
      topics/     the records: one store
      __state/    state of groups, transactions, queues and streams: a store of its own, separate
                  from the records of clients
      meta.db     topics, ids, settings; meta.db-checkpoint has the revision that it must have
"""

from __future__ import annotations

import base64
import logging
import secrets
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Protocol

from millstream.broker.access.access import Access
from millstream.broker.access.login_secret import load_login_secret
from millstream.broker.access.user_slots import NO_USER_CAPS, UserCaps
from millstream.broker.cluster_admin import ClusterAdmin, LoneNodeAdmin
from millstream.broker.cluster_view import UNKNOWN_EPOCH, ClusterView, LoneNodeView
from millstream.broker.dynamic_configs import DynamicConfigs
from millstream.broker.groups.group_coordinators import GroupCoordinators, RemoteOffsets
from millstream.broker.loop_threads import LoopThreads
from millstream.broker.loop_timers import LoopTimers
from millstream.broker.partition.batch_opener import BatchOpener, DecompressionBudget
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.producers.seen_ids import greatest_producer_id
from millstream.broker.partition.value_check import ValueChecks
from millstream.broker.problems import Problem, ProblemCode
from millstream.broker.queues.dead_letter_box import DeadLetterBox
from millstream.broker.queues.job_source import HoldReports, JobSource
from millstream.broker.queues.queues import WorkQueues, hold_queue_topics
from millstream.broker.quotas import Quotas, defaults_of
from millstream.broker.state.coordinators import CoordinatorContext
from millstream.broker.state.internal_partitions import InternalPartitions, LonePartitions
from millstream.broker.streams.stream_coordinators import StreamCoordinators
from millstream.broker.topics.record_appender import RecordAppender
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import SharedTopics, Topics
from millstream.broker.transactions.marker_sender import MarkerSender
from millstream.broker.transactions.producer_ids import ProducerIds
from millstream.broker.transactions.transaction_coordinators import TransactionCoordinators
from millstream.broker.transactions.transaction_verifier import TransactionVerifier
from millstream.clock import Clock, SystemClock, Timers
from millstream.config.schema import (
    AccessConfig,
    BrokerConfig,
    Endpoint,
    LogConfig,
    ReadAccess,
    StoreConfig,
    TierConfig,
)
from millstream.metadata.interface import Metadata
from millstream.metadata.sqlite import SqliteMetadata
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.names import METADATA_FILE, STATE_DIRECTORY
from millstream.storage.store import Store, StoreOpenReport
from millstream.storage.tier.cold_store import ColdStore, open_cold_store

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = 600.0
"""How often partitions forget idle producers."""


def _cold_store(config: TierConfig | None) -> ColdStore | None:
    """Return the cold store of a node, if it has one."""
    return open_cold_store(config.store) if config is not None and config.store else None


class BrokerCluster(Protocol):
    """The node's part in a cluster; implemented by `cluster`."""

    metadata: Metadata
    topics: SharedTopics
    cluster_id: str
    partitions: InternalPartitions
    markers: MarkerSender
    verifier: TransactionVerifier
    offsets: RemoteOffsets
    admin: ClusterAdmin
    jobs: JobSource
    holds: HoldReports

    def attach(self, topics: Topics) -> None:
        """Use the topics of the broker, which is made after this object."""
        ...

    def add_partition(self, topic: Topic, partition: Partition) -> None:
        """Take over the replication of a new partition: set its `replica`."""
        ...

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the node's part in the cluster."""
        ...


class Broker:
    """All services of a node that the servers use. One event loop owns it."""

    def __init__(
        self,
        *,
        store: Store,
        state: Store,
        metadata: Metadata,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
        cluster: BrokerCluster | None = None,
        access_config: AccessConfig | None = None,
    ) -> None:
        self.store = store
        self.state = state
        """Store of the node's own state: groups, transactions, queues, streams."""
        self.config = config
        self.clock = clock
        self.timers = timers
        self.advertised = Endpoint("127.0.0.1", 0)
        """The address that clients are told to connect to."""
        self.openings: Mapping[str, StoreOpenReport] = {}
        """Reports of opening the stores, of topics and of the node's own state."""
        self.listener = Endpoint("127.0.0.1", 0)
        """The address at which the Kafka server listens."""
        self.configs = DynamicConfigs(metadata, config)
        """Configs of the node and of groups that clients have changed."""
        self.login_secret = b""
        """From which salts of users that do not exist are derived, on a node with logins."""
        self.access: Access | None = None
        """The gate that decides what callers may do; `None` if everyone may do everything."""
        if access_config is not None and access_config.enabled:
            self.access = Access(
                metadata,
                clock=clock,
                timers=timers,
                super_users=access_config.super_users,
                are_reads_open=access_config.reads is ReadAccess.OPEN,
            )
        self.caps = UserCaps(config) if self.access is not None else NO_USER_CAPS
        """What users may have in use at once, on a node with logins."""
        self.quotas = Quotas(metadata, defaults=defaults_of(config))
        self.producer_ids = ProducerIds(metadata, self._find_producer_ids)
        self.appends = RecordAppender(clock)
        self.opener = BatchOpener(DecompressionBudget(config, timers=timers))
        """Decompresses batches for all partitions, within one budget of memory."""
        self.value_checks = ValueChecks()
        """Checks values against the schema of their topic, once it is told how."""
        self._cluster = cluster
        self.topics = Topics(
            metadata=metadata,
            store=store,
            config=config,
            make_partition=self._make_partition,
            shared=None if cluster is None else cluster.topics,
        )
        self.cluster: ClusterView = LoneNodeView(
            config.node_id, lambda: self.advertised, partial(epoch_of, self.topics)
        )
        """The nodes, and where partitions and coordinators are."""
        self.admin: ClusterAdmin = LoneNodeAdmin(
            config.node_id, self.topics, lambda: self.advertised
        )
        """Changes of the cluster that operators ask for."""
        if cluster is not None:
            self.admin = cluster.admin
            cluster.attach(self.topics)
        self.internal_partitions: InternalPartitions = (
            LonePartitions(state, config.node_id) if cluster is None else cluster.partitions
        )
        """Where the node keeps its own state, and who coordinates it."""
        self.groups: GroupCoordinators
        self.transactions: TransactionCoordinators
        self.queues: WorkQueues
        self.dead_letters: DeadLetterBox
        self._metadata = metadata
        self.streams: StreamCoordinators
        self._stack = AsyncExitStack()
        self._expiry = timers.call_later(EXPIRY_SECONDS, self._expire)

    @classmethod
    async def open(
        cls,
        data: str,
        *,
        config: BrokerConfig | None = None,
        log_config: LogConfig | None = None,
        store_config: StoreConfig | None = None,
        tier_config: TierConfig | None = None,
        clock: Clock | None = None,
        timers: Timers | None = None,
        filesystem: Filesystem | None = None,
        open_cluster: Callable[[Store], Awaitable[BrokerCluster]] | None = None,
        access_config: AccessConfig | None = None,
    ) -> Broker:
        """Open the data of a node; if a step fails, close again what was opened before.

        `filesystem` stores the logs, if not that of the machine. `open_cluster` returns the node's
        part in a cluster, which has metadata of its own; a lone node keeps it in its directory.
        """
        clock, timers = clock or SystemClock(), timers or LoopTimers()
        async with AsyncExitStack() as stack:
            store = Store(
                data,
                config=store_config,
                log_config=log_config,
                clock=clock,
                filesystem=filesystem,
                tier=tier_config,
                cold_store=_cold_store(tier_config),
            )
            await stack.enter_async_context(store)
            state = Store(join(data, STATE_DIRECTORY), clock=clock, filesystem=filesystem)
            await stack.enter_async_context(state)
            config = config or BrokerConfig()
            metadata: Metadata
            cluster: BrokerCluster | None = None
            if open_cluster is None:
                # State logs are created after the metadata, so where there is one, there was
                # metadata.
                metadata = await stack.enter_async_context(
                    SqliteMetadata(
                        join(data, METADATA_FILE),
                        must_exist=bool(state.unsorted_names()),
                        is_loss_accepted=config.adopt_topics,
                    )
                )
            else:
                cluster = await open_cluster(store)
                metadata = cluster.metadata
            broker = cls(
                store=store,
                state=state,
                metadata=metadata,
                config=config,
                clock=clock,
                timers=timers,
                cluster=cluster,
                access_config=access_config,
            )
            broker.openings = {"topics": store.opening, "state": state.opening}
            stack.callback(broker._stop_expiry)
            await broker._start(stack)
            broker._stack = stack.pop_all()
        return broker

    @property
    def metadata(self) -> Metadata:
        """The metadata store."""
        return self._metadata

    async def _start(self, stack: AsyncExitStack) -> None:
        state, cluster = self.state, self._cluster
        if cluster is not None:
            stack.callback(self.configs.follow().cancel)
            stack.callback(self.quotas.follow().cancel)
        if self.access is not None:
            self.access.is_internal = self.topics.is_internal
            stack.callback(self.access.close)
            await self.access.open()
            self.login_secret = await load_login_secret(self._metadata, secrets.token_bytes)
        await self.configs.open()
        stack.push_async_callback(self.configs.close)
        self._apply_configs()
        self.configs.on_node_change.append(self._apply_configs)
        await self.quotas.open()
        await self.topics.open()
        await hold_queue_topics(self._metadata, self.topics)
        stack.push_async_callback(self.topics.close)
        context = CoordinatorContext(
            partitions=self.internal_partitions,
            log_config=state.log_config,
            clock=self.clock,
            timers=self.timers,
            background=LoopThreads(),
        )
        self.groups = GroupCoordinators(
            context,
            self.topics,
            config=self.config,
            config_of=self.configs.group_config,
            remote=None if cluster is None else cluster.offsets,
        )
        self.configs.on_group_change.append(self.groups.reconfigure)
        stack.push_async_callback(self.groups.close)
        await self.groups.open()
        self.transactions = TransactionCoordinators(
            context,
            self.topics,
            self.groups,
            self.producer_ids,
            config=self.config,
            retention_clock=self.store if cluster is None else None,
            markers=None if cluster is None else cluster.markers,
            verifier=None if cluster is None else cluster.verifier,
        )
        stack.push_async_callback(self.transactions.close)
        await self.transactions.open()
        self.queues = WorkQueues(
            topics=self.topics,
            partitions=self.internal_partitions,
            log_config=state.log_config,
            metadata=self._metadata,
            config=self.config,
            appends=self.appends,
            clock=self.clock,
            timers=self.timers,
            is_shared=cluster is not None,
            source=None if cluster is None else cluster.jobs,
            hold_reports=None if cluster is None else cluster.holds,
        )
        stack.push_async_callback(self.queues.close)
        await self.queues.open()
        self.dead_letters = DeadLetterBox(
            topics=self.topics, queues=self.queues, appends=self.appends
        )
        stack.push_async_callback(self.dead_letters.close)
        self.streams = StreamCoordinators(
            context,
            self.topics,
            retention_clock=self.store if cluster is None else None,
            appends=self.appends,
        )
        stack.push_async_callback(self.streams.close)
        await self.streams.open()
        self._start_maintenance(stack)

    def _apply_configs(self) -> None:
        """Apply the configs that clients have changed."""
        self.quotas.set_defaults(defaults_of(self.configs.broker_config()))

    def _start_maintenance(self, stack: AsyncExitStack) -> None:
        """Maintain the logs by the configs of their topics, until the broker is closed.

        A log is opened as a partition: only that knows which transactions are open, and which
        records are the last trace of a producer. The state logs of groups and transactions maintain
        themselves.
        """
        upkeep = self.store.maintenance
        upkeep.opener = self.topics.open_log
        upkeep.config_of = self.topics.log_config_of
        self.store.start_maintenance(self.timers)
        stack.push_async_callback(upkeep.stop)
        stack.push_async_callback(self.store.scrubber.stop)

    async def close(self) -> None:
        """Stop in reverse order; every log is committed and sealed."""
        await self._stack.aclose()

    # Identity and health.

    @property
    def node_id(self) -> int:
        """The number by which clients know this node."""
        return self.config.node_id

    @property
    def cluster_id(self) -> str:
        """The unique id of this cluster, in Kafka's notation."""
        if self._cluster is not None:
            return self._cluster.cluster_id
        return base64.urlsafe_b64encode(uuid.UUID(self.store.store_id).bytes).decode().rstrip("=")

    def problems(self) -> Iterator[Problem]:
        """Yield the problems of logs, queues and metadata; none if all is well."""
        code = ProblemCode
        for log in self.state.health.offline():
            yield Problem(code.STATE_OFFLINE, f"{STATE_DIRECTORY}/{log.offline}")
        for kind in (self.groups, self.transactions, self.streams):
            for unloaded in kind.coordinators.failures():
                yield Problem(code.STATE_OFFLINE, f"{STATE_DIRECTORY}/{unloaded}")
        if (failure := self._metadata.failure) is not None:
            yield Problem(
                code.METADATA_OFFLINE, f"topics and settings cannot be changed: {failure}"
            )
        full = [*self.state.health.full(), *self.store.health.full()]
        if full:
            others = f" (and {len(full) - 1} other logs)" if len(full) > 1 else ""
            yield Problem(code.DISK_FULL, f"{full[0].disk_full}{others}")
        for log in self.store.health.offline():
            yield Problem(code.LOG_OFFLINE, str(log.offline))
        for name, errors in self.store.damage().items():
            for error in errors:
                yield Problem(code.LOG_DAMAGED, f"{name}: {error}")
        yield from (Problem(code.TIER_UNAVAILABLE, why) for why in self.store.tier_problems())
        for problem in self.queues.problems():
            yield Problem(code.QUEUE_REFUSED, problem)
        for transaction in self.transactions.held_back():
            yield Problem(code.TRANSACTION_OPEN, transaction)
        yield from self.topics.problems()
        if self._cluster is not None:
            yield from self._cluster.problems()

    # Partitions.

    def _make_partition(self, topic: Topic, index: int) -> Partition:
        partition = Partition(
            topic.name,
            index,
            topic_id=topic.id,
            store=self.store,
            config=topic.config,
            clock=self.clock,
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
            opener=self.opener,
            value_checks=self.value_checks,
        )
        if self._cluster is not None:
            self._cluster.add_partition(topic, partition)
        return partition

    async def _find_producer_ids(self) -> int:
        """Return the greatest producer id in any log, snapshot or transaction; -1 if none is."""
        store = self.store
        ends = {
            join(store.topic_directory(name.topic), str(name.partition)): store.end_offset_of(name)
            for name in store.unsorted_names()
        }
        find = partial(greatest_producer_id, store.filesystem, ends)
        return max(await LoopThreads().run(find), self.transactions.greatest_producer_id)

    def _expire(self) -> None:
        for topic in self.topics.all():
            for partition in topic.partitions:
                if partition.is_open:
                    partition.appender.expire_producers()
        self._expiry = self.timers.call_later(EXPIRY_SECONDS, self._expire)

    def _stop_expiry(self) -> None:
        self._expiry.cancel()


def epoch_of(topics: Topics, topic: str, index: int) -> int:
    """Return the leader epoch of a partition; -1 if it is not open."""
    partition = topics.partition(topic, index)
    return partition.offsets.leader_epoch if partition.is_open else UNKNOWN_EPOCH
