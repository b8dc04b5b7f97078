"""A node's part in its cluster: metadata in etcd, the peer server, connections to peers.

A lone node has none of this.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from millstream import __version__
from millstream.broker.broker import Broker
from millstream.broker.loop_threads import LoopThreads
from millstream.clients.peer.pool import PeerPool
from millstream.clock import Clock
from millstream.cluster.administration.administrator import PeerLink
from millstream.cluster.control.adoption_row import ADOPTING_KEY, decode_adoption
from millstream.cluster.control.node_identity import CLUSTER_FILE
from millstream.cluster.control.node_row import NodeRow
from millstream.cluster.control.peer_certificates import PeerCertificates, names_host
from millstream.cluster.coordination.transaction_server import TransactionServer
from millstream.cluster.forwarding.append_forwarder import AppendForwarder
from millstream.cluster.forwarding.counters import ForwardCounters
from millstream.cluster.hlc import HybridClock
from millstream.cluster.isr import IsrPolicy
from millstream.cluster.member import ClusterMember
from millstream.cluster.replication.replica_repair import ResyncPolicy
from millstream.config.schema import Endpoint, NodeConfig, ReplicaSelector, is_unspecified
from millstream.errors import InvalidConfig, Unavailable
from millstream.metadata.etcd.etcd_metadata import EtcdMetadata
from millstream.metadata.interface import LeasedMetadata
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.identity import PeerIdentity
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest
from millstream.protocols.peer.messages.delete_before import DeleteBeforeRequest
from millstream.protocols.peer.messages.fetch_batches import FetchBatchesRequest
from millstream.protocols.peer.messages.find_offset import FindOffsetRequest
from millstream.protocols.peer.messages.forward import ForwardRequest
from millstream.protocols.peer.messages.peer_fetch import PeerFetchRequest
from millstream.protocols.peer.messages.peer_transactions import (
    CommitTransactionOffsetsRequest,
    VerifyTransactionRequest,
    WriteMarkersRequest,
)
from millstream.protocols.peer.messages.segments import (
    SegmentChunkRequest,
    SegmentManifestRequest,
)
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.http.forwarding.forwarded_requests import ForwardedRequests
from millstream.servers.http.forwarding.request_forwarder import RequestForwarder
from millstream.servers.peer.append_handler import AppendHandler
from millstream.servers.peer.listener import PeerListener
from millstream.servers.peer.peer_context import ConnectingPeer, PeerContext
from millstream.servers.peer.peer_gate import PeerGate
from millstream.servers.peer.read_handlers import PeerReadHandlers
from millstream.servers.tls import CertificateWatch
from millstream.storage.files.names import METADATA_FILE
from millstream.storage.store import Store
from millstream.tracing import Tracer

logger = logging.getLogger(__name__)


ETCD_RETRY_SECONDS = 1.0
"""Time between attempts to reach etcd when the node starts."""


async def open_cluster(
    config: NodeConfig,
    store: Store,
    metadata: LeasedMetadata | None,
    *,
    clock: Clock,
    on_wait: Callable[[str | None], None],
    tracer: Tracer | None = None,
) -> NodeCluster:
    """Connect to the metadata of the cluster, load its state, and listen for peers.

    Waits as long as etcd cannot be reached; `on_wait` is told why, and None when it is over.
    """
    check_directory(config.data)
    store.check_formats()
    if metadata is None:
        metadata = await _open_etcd(config, store, on_wait)
    try:
        await check_adoption(metadata, store)
        cluster = NodeCluster(config, store, metadata, clock=clock, tracer=tracer)
        await cluster.open()
    except BaseException:
        await metadata.close()
        raise
    return cluster


async def _open_etcd(
    config: NodeConfig, store: Store, on_wait: Callable[[str | None], None]
) -> LeasedMetadata:
    settings = config.cluster
    while True:
        try:
            opened = await EtcdMetadata.open_configured(settings, store.path)
        except Unavailable as error:
            reason = f"etcd cannot be reached at {', '.join(settings.etcd)}: {error}"
            logger.warning("%s; trying again", reason)
            on_wait(reason)
            await asyncio.sleep(ETCD_RETRY_SECONDS)
        else:
            on_wait(None)
            opened.on_wait = on_wait
            return opened


def check_directory(data: str) -> None:
    """Raise `InvalidConfig` if a directory belongs to a lone node: its topics are not in etcd."""
    names = os.listdir(data) if os.path.isdir(data) else []
    if METADATA_FILE in names and CLUSTER_FILE not in names:
        raise InvalidConfig(
            f"{data} belongs to a node without a cluster, whose topics are in {METADATA_FILE};"
            " make it the first node of a cluster with `millstream cluster adopt`, use an empty"
            " data directory, or start without cluster.etcd"
        )


async def check_adoption(metadata: LeasedMetadata, store: Store) -> None:
    """Raise `InvalidConfig` if the adoption of this directory was interrupted.

    A node with another directory waits for its end when it registers.
    """
    adopting = await metadata.get(ADOPTING_KEY)
    if adopting is None:
        return
    row = decode_adoption(ADOPTING_KEY, adopting.value)
    if row.directory == store.store_id:
        raise InvalidConfig(
            f"the adoption of {store.path} was interrupted; run `millstream cluster adopt` again"
        )


class PoolLinks:
    """`PeerLinks` of the pool of a node."""

    def __init__(self, peers: PeerPool, node_id: int) -> None:
        self._peers = peers
        self._node_id = node_id

    def link(self, node_id: int) -> PeerLink:
        breaker = self._peers.breaker_states().get(node_id)
        return PeerLink(
            drift_ms=0 if node_id == self._node_id else self._peers.drifts_ms().get(node_id),
            breaker=None if breaker is None else breaker.value,
        )

    def trip(self, node_id: int) -> None:
        self._peers.trip(node_id)

    def reset(self, node_id: int) -> None:
        self._peers.reset(node_id)


class NodeCluster:
    """Cluster services of one node. Opened before its broker, started after its servers."""

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        metadata: LeasedMetadata,
        *,
        clock: Clock,
        chance: Callable[[], float] = random.random,
        tracer: Tracer | None = None,
    ) -> None:
        cluster = config.cluster
        self.config = config
        self.metadata = metadata
        self.clock = clock
        self.hlc = HybridClock()
        self.identity = PeerIdentity(
            cluster.name, config.broker.node_id, uuid.UUID(store.store_id), __version__
        )
        self._certificates = PeerCertificates.configured(cluster)
        certificates = self._certificates
        self._certificate_watch: CertificateWatch | None = None
        self.peers = PeerPool(
            self.identity,
            address_of=self._address_of,
            clock=clock,
            hlc=self.hlc,
            random=chance,
            ssl_context=None if certificates is None else certificates.client_context,
            tracer=tracer,
        )
        self.member = ClusterMember(
            metadata,
            node_id=config.broker.node_id,
            cluster=cluster.name,
            data=config.data,
            filesystem=store.filesystem,
            ttl_seconds=-(-cluster.lease_ttl_ms // 1000),
            peers=self.peers,
            background=LoopThreads(),
            clock=clock,
            policy=IsrPolicy(
                lag_seconds_min=cluster.replica_lag_ms_max / 1000,
                change_interval_seconds=cluster.isr_change_interval_ms / 1000,
            ),
            resync=ResyncPolicy(
                bytes_min=cluster.resync_bytes_min,
                bytes_per_second=cluster.resync_bytes_per_second_max,
            ),
            replicas_default=cluster.replicas,
        )
        self.member.administrator.links = PoolLinks(self.peers, config.broker.node_id)
        self.member.drifts_ms = self.peers.drifts_ms
        self.listener = PeerListener(
            self.identity,
            authorize=self._authorize,
            clock=clock,
            hlc=self.hlc,
            ssl_context=None if certificates is None else certificates.server_context,
            is_insecure=config.is_insecure,
            tracer=tracer,
        )
        self.listener.serve(PeerFetchRequest, self._fetch)
        segments = self.member.replicas.segments
        self.listener.serve(SegmentManifestRequest, lambda request, _: segments.manifest(request))
        self.listener.serve(SegmentChunkRequest, lambda request, _: segments.chunk(request))
        self._broker_epochs: dict[int, int] = {}
        """Broker epochs of the nodes that connections belong to."""
        self.forwards = ForwardCounters()
        self.address = cluster.peer
        """Address of the peer listener, with the port that the system picked."""

    async def open(self) -> None:
        """Load the state of the cluster, and listen for peers."""
        self.member.state.on_node.append(self._on_node)
        await self.member.open()
        host, port = self.config.cluster.peer
        self._check_advertised()
        self.address = Endpoint(host, await self.listener.listen(host, port))
        if self._certificates is not None:
            self._certificate_watch = CertificateWatch(self._certificates, self._use_certificates)

    def _check_advertised(self) -> None:
        cluster = self.config.cluster
        host = (cluster.peer_advertised or cluster.peer).host
        if is_unspecified(host):
            raise InvalidConfig(
                f"other nodes cannot connect to {host}, which is not the address of a machine; set"
                " the address that they use with --advertise-peer HOST:PORT"
            )

    def _use_certificates(self) -> None:
        certificates = self._certificates
        assert certificates is not None
        self.listener.use_tls(certificates.server_context)
        self.peers.ssl_context = certificates.client_context

    def reload_certificates(self) -> None:
        """Look now whether the certificates for peers have changed."""
        if self._certificate_watch is not None:
            self._certificate_watch.check_now()

    async def start(self, broker: Broker, *, kafka: Endpoint, http: Endpoint) -> None:
        """Register the node at these addresses, and take part."""
        peer = self.config.cluster.peer_advertised or self.address
        transactions = TransactionServer(broker)
        serve = self.listener.serve
        serve(WriteMarkersRequest, lambda request, _: transactions.write_markers(request))
        serve(
            CommitTransactionOffsetsRequest, lambda request, _: transactions.commit_offsets(request)
        )
        serve(VerifyTransactionRequest, lambda request, _: transactions.verify(request))
        serve(AppendBatchRequest, AppendHandler(broker.topics, self.clock, PeerGate(broker.access)))
        reads = PeerReadHandlers(broker.topics, broker.timers)
        serve(FetchBatchesRequest, reads.fetch)
        serve(FindOffsetRequest, reads.find)
        serve(DeleteBeforeRequest, reads.delete)
        broker.appends.forwarder = AppendForwarder(
            broker.node_id, self.peers, broker.timers, self.forwards
        )
        await self.member.start(
            broker,
            kafka=kafka,
            http=http,
            is_http_tls=self.config.tls.is_on,
            peer=peer,
            rack=self.config.cluster.rack,
            selects_by_rack=self.config.cluster.replica_selector is ReplicaSelector.RACK,
            directory=str(self.identity.incarnation),
            release=__version__,
            started_ms=int(time.time() * 1000),
        )
        if isinstance(self.metadata, EtcdMetadata):
            self.metadata.on_wait = None

    def request_forwarder(self) -> RequestForwarder:
        """Return what sends HTTP requests to the nodes that are responsible for them."""
        config = self.config.http_server
        return RequestForwarder(
            self.config.broker.node_id,
            self.peers,
            self.forwards,
            body_size_max=config.append_size_max,
            heartbeat_seconds=config.heartbeat_ms / 1000,
        )

    def serve_http(self, app: ASGIApp) -> None:
        """Let the HTTP application process the requests that other nodes forward."""
        self.listener.serve(ForwardRequest, ForwardedRequests(app))

    async def hand_over(self) -> None:
        """Hand leaderships to other nodes, while clients are still served."""
        await self.member.hand_over()

    async def stop(self) -> None:
        """Stop taking part: give up leaderships and the registration."""
        if self._certificate_watch is not None:
            self._certificate_watch.stop()
        await self.member.stop()
        self.listener.abort()
        self.peers.close()

    async def close(self) -> None:
        """Close the metadata, after the broker."""
        await self.metadata.close()

    # Peers.

    def _address_of(self, node_id: int) -> Endpoint | None:
        row = self.member.state.nodes.get(node_id)
        return None if row is None else row.peer_endpoint

    def _on_node(self, node_id: int, row: NodeRow | None) -> None:
        """Begin again with a node that has left or was started again.

        What was known of its former life, such as failed attempts to connect, says nothing about
        the new one.
        """
        broker_epoch = 0 if row is None else row.broker_epoch
        if self._broker_epochs.get(node_id, 0) != broker_epoch:
            self._broker_epochs[node_id] = broker_epoch
            self.peers.forget(node_id)
            self.listener.recheck()
            if row is not None and node_id == self.identity.node_id:
                # Others have refused this node while it was not registered. Their breakers would
                # keep it from fetching long after it is.
                self.peers.forgive()

    def _authorize(self, peer: ConnectingPeer) -> PeerErrorCode:
        """Allow nodes that are registered, from the directory that they registered with."""
        row = self.member.state.nodes.get(peer.identity.node_id)
        if row is None:
            return PeerErrorCode.UNKNOWN_NODE
        if row.directory != str(peer.identity.incarnation):
            return PeerErrorCode.DUPLICATE_NODE
        host = row.peer_endpoint.host
        if self._certificates is not None and not names_host(peer.certificate_names, host):
            return PeerErrorCode.UNTRUSTED
        return PeerErrorCode.NONE

    def _fetch(self, request: PeerFetchRequest, context: PeerContext) -> Any:
        def end() -> None:
            fetch.end()

        response = DeferredResponse(end)
        server = self.member.replicas.server
        fetch = server.fetch(request, context.node_id, response.finish)
        return response
