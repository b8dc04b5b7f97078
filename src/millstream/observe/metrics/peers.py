"""Metrics of the connections between the nodes of a cluster.

A lone node has none, and does not load the peer server and client for their sake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from millstream.clients.peer.counters import CALL_OUTCOMES
from millstream.cluster.circuit_breaker import BreakerState
from millstream.cluster.forwarding.counters import (
    FORWARD_APIS,
    FORWARD_OUTCOMES,
    ForwardCounters,
)
from millstream.observe.metrics.metric import (
    LabelledSources,
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    counter_by,
    gauge,
    gauge_by,
)
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import HANDSHAKE_REFUSALS
from millstream.servers.peer.counters import REQUEST_OUTCOMES, PeerRequestCounter

if TYPE_CHECKING:
    from millstream.clients.peer.pool import PeerPool
    from millstream.servers.peer.listener import PeerListener

HANDSHAKE_OUTCOMES: dict[str, PeerErrorCode | None] = {
    "accepted": None,
    **{code.name.lower(): code for code in PeerErrorCode if code in HANDSHAKE_REFUSALS},
}
"""The reason of the refusal, by outcome of a handshake."""

PEER_SERVER_METRICS: Sequence[MetricDeclaration[PeerListener]] = (
    gauge(
        "millstream_peer_connections",
        "Open connections of other nodes of the cluster.",
        lambda server: server.connection_count,
    ),
    MetricDeclaration(
        name="millstream_peer_accepted_connections_total",
        kind=MetricKind.COUNTER,
        help="Connections of peers, by whether they were accepted: there are limits, and TLS may"
        " fail.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("taken",), read=lambda server: server.counters.accepted),
            MetricSample(labels=("refused",), read=lambda server: server.counters.refused.total()),
        ),
    ),
    counter_by(
        "outcome",
        HANDSHAKE_OUTCOMES,
        "millstream_peer_handshakes_total",
        "Handshakes of peers that connected, by outcome: `accepted`, or the reason of the refusal.",
        lambda server, outcome: (
            server.counters.handshakes
            if (code := HANDSHAKE_OUTCOMES[outcome]) is None
            else server.counters.refused_handshakes[code]
        ),
    ),
    counter(
        "millstream_peer_closed_connections_total",
        "Connections of peers that this node closed: nonsense, too slow, or idle.",
        lambda server: server.counters.closed_by_us,
    ),
    counter(
        "millstream_peer_nonsense_connections_total",
        "Connections closed because of bytes that no peer sends.",
        lambda server: server.counters.nonsense,
    ),
    counter(
        "millstream_peer_received_bytes_total",
        "Bytes of requests received from peers.",
        lambda server: server.counters.received_bytes,
    ),
    counter(
        "millstream_peer_sent_bytes_total",
        "Bytes of responses sent to peers.",
        lambda server: server.counters.sent_bytes,
    ),
    gauge(
        "millstream_peer_request_memory_bytes",
        "Memory used by requests of peers that are arriving or in flight.",
        lambda server: server.blocks.used_bytes,
    ),
    gauge(
        "millstream_peer_unsent_bytes",
        "Bytes of responses that wait for peers that read slowly.",
        lambda server: server.unsent_bytes(),
    ),
)

PEER_REQUEST_METRICS: Sequence[MetricDeclaration[PeerRequestCounter]] = (
    counter_by(
        "outcome",
        REQUEST_OUTCOMES,
        "millstream_peer_requests_total",
        "Requests of peers, by outcome: `answered`, `refused` (nothing was done), `late` (by"
        " its deadline), `cancelled` (by its caller), or `failed`.",
        lambda requests, outcome: requests.outcomes[outcome],
    ),
    counter(
        "millstream_peer_request_seconds_total",
        "Total time from a request of a peer to its response; a fetch may wait on purpose.",
        lambda requests: requests.seconds,
    ),
)

FORWARD_METRICS: Sequence[MetricDeclaration[ForwardCounters]] = (
    MetricDeclaration(
        name="millstream_peer_forwards_total",
        kind=MetricKind.COUNTER,
        help="Batches (`append`) and HTTP requests (`request`) sent to the nodes that are"
        " responsible for them, by outcome: `answered`, `refused` (the request is wrong),"
        " `unavailable` (nothing was done), or `unknown`.",
        labels=("api", "outcome"),
        samples=tuple(
            MetricSample(
                labels=(api, outcome),
                read=lambda forwards, api=api, outcome=outcome: forwards.outcomes[api, outcome],  # type: ignore[misc]
            )
            for api in FORWARD_APIS
            for outcome in FORWARD_OUTCOMES
        ),
    ),
    counter_by(
        "api",
        FORWARD_APIS,
        "millstream_peer_forward_retries_total",
        "Batches and HTTP requests that were refused by a node that named another one, and"
        " sent there.",
        lambda forwards, api: forwards.retries[api],
    ),
)

PEER_CLIENT_METRICS: Sequence[MetricDeclaration[PeerPool]] = (
    gauge(
        "millstream_peer_client_connections",
        "Open connections to other nodes of the cluster.",
        lambda pool: pool.connection_count,
    ),
    MetricDeclaration(
        name="millstream_peer_client_connects_total",
        kind=MetricKind.COUNTER,
        help="Attempts to connect to peers, by outcome; a refused handshake is a failure.",
        labels=("outcome",),
        samples=(
            MetricSample(labels=("connected",), read=lambda pool: pool.counters.connects),
            MetricSample(labels=("failed",), read=lambda pool: pool.counters.failed_connects),
        ),
    ),
    counter(
        "millstream_peer_client_nonsense_connections_total",
        "Connections to peers closed because of bytes that no peer sends.",
        lambda pool: pool.counters.nonsense,
    ),
    counter(
        "millstream_peer_client_received_bytes_total",
        "Bytes of responses received from peers.",
        lambda pool: pool.counters.received_bytes,
    ),
    counter(
        "millstream_peer_client_sent_bytes_total",
        "Bytes of requests sent to peers.",
        lambda pool: pool.counters.sent_bytes,
    ),
    counter(
        "millstream_peer_clock_refusals_total",
        "Timestamps of peers that were too far ahead to be adopted.",
        lambda pool: pool.hlc.refused,
    ),
)

PEER_CALL_METRICS: Sequence[MetricDeclaration[Counter[str]]] = (
    counter_by(
        "outcome",
        CALL_OUTCOMES,
        "millstream_peer_calls_total",
        "Requests to peers, by outcome: `answered`, `refused` (nothing was done), `unknown`"
        " (it may have been done), `unsent`, or `cancelled`.",
        lambda calls, outcome: calls[outcome],
    ),
)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """One peer, as this node sees it."""

    breaker: BreakerState
    openings: int
    drift_ms: int


PEER_METRICS: Sequence[MetricDeclaration[PeerStatus]] = (
    gauge_by(
        "state",
        (state.value for state in BreakerState),
        "millstream_peer_breaker_flag",
        "1 for the state of the circuit breaker of a peer: `closed`, `open`, `half_open`, or"
        " `tripped` by an operator.",
        lambda peer, state: peer.breaker.value == state,
    ),
    counter(
        "millstream_peer_breaker_openings_total",
        "How often the circuit breaker of a peer has opened since the peer was started.",
        lambda peer: peer.openings,
    ),
    gauge(
        "millstream_peer_clock_drift_seconds",
        "How far the clock of a peer is ahead of ours, as of its last response.",
        lambda peer: peer.drift_ms / 1000,
    ),
)

PEER_SERVER = MetricSection(metrics=PEER_SERVER_METRICS)
PEER_REQUESTS = MetricSection(metrics=PEER_REQUEST_METRICS, labels=("api",))
PEER_CLIENT = MetricSection(metrics=PEER_CLIENT_METRICS)
PEER_CALLS = MetricSection(metrics=PEER_CALL_METRICS, labels=("api",))
PEERS = MetricSection(metrics=PEER_METRICS, labels=("node",))
FORWARDS = MetricSection(metrics=FORWARD_METRICS)


def listed_peer_requests(server: PeerListener) -> LabelledSources[PeerRequestCounter]:
    """Return the counters of each API."""
    return [((name,), requests) for name, requests in server.counters.requests.items()]


def listed_peer_calls(pool: PeerPool) -> LabelledSources[Counter[str]]:
    """Return the counters of each API."""
    return [((name,), calls) for name, calls in pool.counters.calls.items()]


def listed_peers(pool: PeerPool) -> LabelledSources[PeerStatus]:
    """Return every peer that this node has called, by its id."""
    drifts_ms, openings = pool.drifts_ms(), pool.openings()
    return [
        ((str(node_id),), PeerStatus(state, openings[node_id], drifts_ms.get(node_id, 0)))
        for node_id, state in sorted(pool.breaker_states().items())
    ]
