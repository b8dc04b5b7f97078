"""This node as a member of its cluster: the control plane and the replicas, put together.

etcd ◄─ watches ─ ClusterState ─► Topics, ReplicaManager, ControllerLoop
     ◄─ lease ──── Membership
     ◄─ proposals ─ Proposer ◄── leaders (ISR), the controller (elections)
peers ◄─ fetches ─ ReplicaManager
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from millstream.broker.broker import Broker
from millstream.broker.cluster_admin import ClusterAdmin
from millstream.broker.cluster_view import CoordinatorKind
from millstream.broker.groups.group_coordinators import RemoteOffsets
from millstream.broker.partition.partition import Partition
from millstream.broker.problems import Problem, ProblemCode
from millstream.broker.queues.job_source import HoldReports, JobSource
from millstream.broker.state.internal_partitions import (
    GROUPS,
    TRANSACTIONS,
    InternalPartitions,
)
from millstream.broker.state.routing import index_of_group, index_of_transactional_id
from millstream.broker.topics.deleted_topics import DeletedTopics
from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent
from millstream.broker.topics.topics import SharedTopics
from millstream.broker.transactions.marker_sender import MarkerSender
from millstream.broker.transactions.transaction_verifier import TransactionVerifier
from millstream.clock import Clock
from millstream.cluster.administration.administrator import ClusterAdministrator
from millstream.cluster.control.cluster_state import ClusterState, SharedClusterView
from millstream.cluster.control.controller_loop import ControllerLoop
from millstream.cluster.control.membership import Membership
from millstream.cluster.control.node_identity import IdentityFile
from millstream.cluster.control.node_row import NodeRow
from millstream.cluster.control.proposer import Proposer
from millstream.cluster.control.replication_factor import FACTOR_DEFAULT, min_insync_of
from millstream.cluster.control.shared_topics import ClusterTopics
from millstream.cluster.coordination.cluster_partitions import ClusterPartitions
from millstream.cluster.coordination.internal_topics import PARTITIONS, topic_of
from millstream.cluster.coordination.queue_jobs import ClusterJobs, MetadataHolds
from millstream.cluster.coordination.remote_transactions import RemoteTransactions
from millstream.cluster.hlc import DriftHealth, drift_health, drift_text
from millstream.cluster.isr import IsrChangeLimiter, IsrPolicy
from millstream.cluster.reading.partition_anywhere import PartitionAnywhere
from millstream.cluster.replication.high_watermarks import HighWatermarks
from millstream.cluster.replication.lost_replicas import disown_lost_replicas
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.replica_fetcher import PeerCalls
from millstream.cluster.replication.replica_manager import ReplicaManager
from millstream.cluster.replication.replica_repair import ResyncPolicy
from millstream.config.schema import Endpoint
from millstream.errors import MillstreamError
from millstream.metadata.interface import LeasedMetadata, Metadata, Watch
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.filesystem import Filesystem

logger = logging.getLogger(__name__)


class ClusterMember:
    """A node's part in its cluster. Made before the broker is opened, started after."""

    def __init__(
        self,
        metadata: LeasedMetadata,
        *,
        node_id: int,
        cluster: str,
        data: str,
        filesystem: Filesystem,
        ttl_seconds: int,
        peers: PeerCalls,
        background: Executor,
        clock: Clock,
        policy: IsrPolicy | None = None,
        resync: ResyncPolicy | None = None,
        replicas_default: int = FACTOR_DEFAULT,
    ) -> None:
        self.node_id = node_id
        self._replicas_default = replicas_default
        self._peers = peers
        self.cluster_id = cluster
        self.metadata: Metadata = metadata
        self._leased = metadata
        identity_file = IdentityFile(filesystem, data)
        identity_file.open(cluster, node_id)
        self.state = ClusterState(metadata)
        self.membership = Membership(
            metadata,
            node_id,
            ttl_seconds=ttl_seconds,
            identity_file=identity_file,
            background=background,
            clock=clock,
        )
        self.proposer = Proposer(metadata, self.state)
        self.replicas = ReplicaManager(
            ReplicaContext(
                node_id=node_id,
                state=self.state,
                membership=self.membership,
                proposer=self.proposer,
                policy=policy or IsrPolicy(),
                limiter=IsrChangeLimiter(),
                clock=clock,
                min_insync=min_insync_of,
                high_watermarks=HighWatermarks(filesystem, data, background),
            ),
            peers,
            background,
            resync or ResyncPolicy(),
        )
        self.topics: SharedTopics = ClusterTopics(
            metadata,
            self.state,
            DeletedTopics(metadata, node_id),
            replicas=replicas_default,
        )
        partitions = ClusterPartitions(self.state, self.replicas)
        remote = RemoteTransactions(
            node_id, self.state, partitions, peers, lambda: partitions.topics
        )
        self.partitions: InternalPartitions = partitions
        self.markers: MarkerSender = remote
        self.verifier: TransactionVerifier = remote
        self.offsets: RemoteOffsets = remote
        self.jobs: JobSource = ClusterJobs()
        self._holds = MetadataHolds(metadata)
        self.holds: HoldReports = self._holds
        self._holds_watch: Watch | None = None
        self.controller: ControllerLoop | None = None
        self.administrator = ClusterAdministrator(
            metadata,
            self.state,
            self.proposer,
            lambda: partitions.topics,
            self.replicas.replicas,
            node_id=node_id,
            clock=clock,
        )
        self.admin: ClusterAdmin = self.administrator
        self.attach = partitions.attach
        self.drifts_ms: Callable[[], Mapping[int, int]] = dict
        """Returns how far the clocks of other nodes are ahead, in milliseconds."""
        self._clock = clock

    async def open(self) -> None:
        """Load the state of the cluster. Before the broker is opened."""
        self.replicas.context.high_watermarks.open()
        await self.membership.check_last_life()
        await self.state.open()

    def add_partition(self, topic: Topic, partition: Partition) -> None:
        """Take over the replication of a partition that the broker made, and its reads."""
        replica = self.replicas.add(topic, partition)
        partition.anywhere = PartitionAnywhere(partition, replica, self._peers)

    async def start(
        self,
        broker: Broker,
        *,
        kafka: Endpoint,
        http: Endpoint,
        is_http_tls: bool = False,
        peer: Endpoint,
        rack: str | None,
        selects_by_rack: bool,
        directory: str,
        release: str,
        started_ms: int,
    ) -> None:
        """Register the node, and take part. The servers listen already, at these addresses."""
        broker.cluster = SharedClusterView(
            self.state,
            broker.topics,
            self._coordinator_partition,
            node_id=self.membership.node_id,
            leading_life=self.membership.leading_life,
            rack=rack if selects_by_rack else None,
            replicas=self._replicas_default,
        )
        broker.topics.on_change(self._on_topic_change)
        row = NodeRow(
            directory=directory,
            release=release,
            kafka=(kafka.host, kafka.port),
            http=(http.host, http.port),
            is_http_tls=is_http_tls,
            peer=(peer.host, peer.port),
            rack=rack,
            started_ms=started_ms,
        )
        await self.membership.wait_for_former_life(row)
        await disown_lost_replicas(self.replicas.context, broker.topics, broker.store)
        await self.membership.start(row)
        self.controller = ControllerLoop(
            self._leased,
            self.state,
            broker.topics,
            self.membership,
            self.proposer,
            clock=self._clock,
            create_internal_topics=self._create_internal_topics,
            replicas=self._replicas_default,
        )
        self._holds_watch = await self._holds.follow(broker.queues.report_hold)
        self.replicas.start(broker.store)
        self.controller.start()

    async def hand_over(self) -> None:
        """Hand leaderships to other nodes, before the node stops serving."""
        try:
            await self.membership.announce_stop()
        except MillstreamError as error:  # Without metadata nobody can take over anyway.
            logger.warning("leaderships are not handed over: %s", error)
            return
        await self.replicas.hand_over()

    async def stop(self) -> None:
        """Leave: others need not wait for the lease to expire. Before the broker is closed."""
        if self.controller is not None:
            await self.controller.stop()
        if self._holds_watch is not None:
            self._holds_watch.cancel()
        await self.replicas.stop()
        await self.membership.stop()
        self.state.close()

    async def _create_internal_topics(self) -> None:
        for name in PARTITIONS:
            await self.partitions.create(name)

    def _coordinator_partition(self, kind: CoordinatorKind, key: str) -> tuple[str, int]:
        """Return the internal partition of a group or a transactional id."""
        if kind is CoordinatorKind.GROUP:
            return topic_of(GROUPS), index_of_group(key, self.partitions.count(GROUPS))
        count = self.partitions.count(TRANSACTIONS)
        return topic_of(TRANSACTIONS), index_of_transactional_id(key, count)

    def _on_topic_change(self, change: TopicChange) -> None:
        if change.event is TopicEvent.DELETED:
            self.replicas.remove(change.topic)

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with this node's part in the cluster."""
        if self.membership.problem is not None:
            yield Problem(ProblemCode.QUORUM_LOST, self.membership.problem)
        for problem in self.replicas.problems():
            yield Problem(ProblemCode.REPLICA_STOPPED, problem)
        for problem in self.replicas.small_isrs():
            yield Problem(ProblemCode.ISR_SMALL, problem)
        for lag in self.replicas.behind():
            yield Problem(
                ProblemCode.REPLICA_BEHIND,
                f"{lag.partition}: the replica on node {lag.node_id} is not in sync: {lag.records}"
                " records behind",
            )
        for replica, progress in self.replicas.resyncs():
            yield Problem(
                ProblemCode.RESYNCING,
                f"{replica}: copying segments from node {progress.source}:"
                f" {progress.bytes_left} of {progress.bytes_total} bytes are left",
            )
        for node_id, drift_ms in self.drifts_ms().items():
            # The times of events and traces do not agree any more.
            if drift_health(drift_ms) is DriftHealth.ALARM:
                yield Problem(ProblemCode.CLOCK_DRIFT, drift_text(node_id, drift_ms))
