"""The listener of the peer server: its socket and all connections of other nodes."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from millstream.clock import Clock
from millstream.cluster.hlc import HybridClock
from millstream.config.schema import PeerConfig, is_loopback
from millstream.errors import InvalidConfig
from millstream.protocols.peer.apis import API_OF_REQUEST, PEER_APIS
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.handshake import HandshakeRequest, Purpose
from millstream.protocols.peer.identity import PeerIdentity
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from millstream.servers.acceptor import Acceptor
from millstream.servers.block_pool import BlockPool
from millstream.servers.connection_set import ConnectionSet
from millstream.servers.frame_listener import FrameListener
from millstream.servers.peer.access_table import PEER_NEEDS
from millstream.servers.peer.counters import PeerRequestCounter, PeerServerCounters
from millstream.servers.peer.peer_context import ConnectingPeer
from millstream.servers.peer.peer_protocol import PeerProtocol
from millstream.servers.peer.pending_call import PeerHandler
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.tracing import Tracer

Authorize = Callable[[ConnectingPeer], PeerErrorCode]
"""Decides whether a node of the right cluster may connect: whether its id is registered, with this
incarnation (`UNKNOWN_NODE`, `DUPLICATE_NODE`), and whether the certificate is its own
(`UNTRUSTED`). `NONE` admits it.
"""


class PeerListener(FrameListener[PeerProtocol]):
    """The listener of the peer server of a node."""

    config: PeerConfig
    counters: PeerServerCounters

    def __init__(
        self,
        local: PeerIdentity,
        *,
        authorize: Authorize,
        clock: Clock,
        hlc: HybridClock,
        config: PeerConfig | None = None,
        ssl_context: ssl.SSLContext | None = None,
        is_insecure: bool = False,
        tracer: Tracer | None = None,
    ) -> None:
        """Create a listener that does not listen yet.

        With an `ssl_context` that requires certificates, or if the operator allows it
        (`is_insecure`), other machines can connect.
        """
        self.local = local
        self.config = config or PeerConfig()
        self.counters = PeerServerCounters(
            requests={api.name: PeerRequestCounter() for api in PEER_APIS.values()}
        )
        self.blocks = BlockPool(bytes_max=self.config.receive_bytes_max)
        self.tasks = BackgroundTasks()
        self.handlers: dict[type[Any], PeerHandler] = {PingRequest: _ping}
        """Handlers of requests, by the class of the request."""
        self.slow: set[PeerProtocol] = set()
        """Connections whose peers do not read as fast as responses are sent."""
        self.tracer = tracer
        self._authorize = authorize
        self._clock = clock
        self._hlc = hlc
        self._is_mutual = ssl_context is not None and ssl_context.verify_mode is ssl.CERT_REQUIRED
        self._is_insecure = is_insecure
        connections: ConnectionSet[PeerProtocol] = ConnectionSet()
        acceptor = Acceptor(
            self.config,
            connections,
            lambda: PeerProtocol(self),
            on_refused=self._note_refused,
            ssl_context=ssl_context,
            ssl_seconds_max=self.config.handshake_ms_max / 1000,
        )
        super().__init__(connections, acceptor)

    def serve(self, request: type[Any], handler: PeerHandler) -> None:
        """Let `handler` process requests of this class."""
        if request not in API_OF_REQUEST:
            raise TypeError(f"{request.__name__} is not a request between peers")
        if API_OF_REQUEST[request].key not in PEER_NEEDS:
            raise TypeError(f"{request.__name__} has no row in the table of needs")
        self.handlers[request] = handler

    # Connections.

    async def listen(self, host: str, port: int) -> int:
        """Accept connections at `host`; return the port, which the system picks for 0."""
        if not (is_loopback(host) or self._is_mutual or self._is_insecure):
            raise InvalidConfig(
                f"peer listener at {host} can be reached from other machines: that needs mutual"
                " TLS (cluster.peer_ca_file, cluster.peer_cert_file, cluster.peer_key_file), or has"
                " to be allowed with --insecure"
            )
        return await super().listen(host, port)

    def unsent_bytes(self) -> int:
        """Return the bytes of responses that wait to be read by peers, about."""
        return sum(connection.unsent_bytes for connection in self.slow)

    def forget(self, connection: PeerProtocol) -> None:
        """Remove a connection that has ended."""
        super().forget(connection)
        self.slow.discard(connection)

    def check_handshake(
        self, request: HandshakeRequest, address: str, certificate_names: tuple[str, ...]
    ) -> tuple[ConnectingPeer, PeerErrorCode, str]:
        """Return who connects, and why it may not, if it may not."""
        identity = PeerIdentity(
            request.cluster_id, request.node_id, request.incarnation, request.software_version
        )
        try:
            purpose = Purpose(request.purpose)
        except ValueError:
            purpose, code = Purpose.ADMIN, PeerErrorCode.UNSUPPORTED_VERSION
            text = f"purpose of a connection must be between 1 and 3, got {request.purpose}"
        else:
            code, text = PeerErrorCode.NONE, ""
        peer = ConnectingPeer(identity, purpose, address, certificate_names)
        if code is PeerErrorCode.NONE:
            code, text = self._judge(peer, request.target_node_id)
        return peer, code, text

    def _judge(self, peer: ConnectingPeer, target_node_id: int) -> tuple[PeerErrorCode, str]:
        """Return why a peer may not connect. The text must not reveal anything of the cluster."""
        local, identity = self.local, peer.identity
        if identity.cluster_id != local.cluster_id:
            return PeerErrorCode.WRONG_CLUSTER, "this node belongs to another cluster"
        if target_node_id != local.node_id:
            text = f"this is not node {target_node_id}"
            return PeerErrorCode.WRONG_NODE, text
        if identity.node_id == local.node_id:
            return PeerErrorCode.DUPLICATE_NODE, f"this node has the id {identity.node_id} too"
        if self.is_draining:
            return PeerErrorCode.STOPPING, "the node is shutting down"
        code = self._authorize(peer)
        if code is not PeerErrorCode.NONE:
            return code, f"node {identity.node_id} may not connect"
        return code, ""

    def recheck(self) -> None:
        """Close the connections of nodes that may not connect any more: members changed."""
        for connection in list(self._connections):
            peer = connection.peer
            if peer is not None:
                code = self._authorize(peer)
                if code is not PeerErrorCode.NONE:
                    connection.close(f"the node may not connect any more: {code.name}")

    # Time.

    def timestamp(self) -> int:
        """Return a timestamp of the hybrid clock for a frame that is sent."""
        return self._hlc.now(self._clock.wall_ms())

    def observe(self, hlc: int) -> int:
        """Take note of the timestamp of a peer; return how far it is ahead, in milliseconds."""
        return self._hlc.observe(hlc, self._clock.wall_ms())

    # Stopping.

    async def drain(self) -> None:
        """Start no more requests, and wait until the peers have closed their connections.

        They do so when their requests in flight have ended: a request that was sent before the peer
        knew is refused, with a code that says that nothing was done.
        """
        self.is_draining = True
        self.stop_accepting()
        for connection in list(self._connections):
            connection.go_away()
        await self._connections.wait_until_none()


def _ping(request: PingRequest, _context: object) -> PingResponse:
    return PingResponse(nonce=request.nonce)
