"""Table of all APIs between peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from millstream.protocols.kafka.codec.declaration import Versions, versions_of
from millstream.protocols.peer.handshake import HandshakeApi, Purpose
from millstream.protocols.peer.messages.append_batch import (
    AppendBatchRequest,
    AppendBatchResponse,
)
from millstream.protocols.peer.messages.delete_before import (
    DeleteBeforeRequest,
    DeleteBeforeResponse,
)
from millstream.protocols.peer.messages.fetch_batches import (
    FetchBatchesRequest,
    FetchBatchesResponse,
)
from millstream.protocols.peer.messages.find_offset import FindOffsetRequest, FindOffsetResponse
from millstream.protocols.peer.messages.forward import ForwardRequest, ForwardResponse
from millstream.protocols.peer.messages.peer_fetch import PeerFetchRequest, PeerFetchResponse
from millstream.protocols.peer.messages.peer_transactions import (
    CommitTransactionOffsetsRequest,
    CommitTransactionOffsetsResponse,
    VerifyTransactionRequest,
    VerifyTransactionResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from millstream.protocols.peer.messages.ping import PingRequest, PingResponse
from millstream.protocols.peer.messages.segments import (
    SegmentChunkRequest,
    SegmentChunkResponse,
    SegmentManifestRequest,
    SegmentManifestResponse,
)


@dataclass(frozen=True, slots=True)
class PeerApi:
    """One API between peers: its key, versions, request and response."""

    key: int
    name: str
    request: type[Any]
    response: type[Any]
    versions: Versions
    purposes: frozenset[Purpose]
    """Purposes of the connections that may use it: a bulkhead of one is not used for another."""
    has_views: bool
    """Whether the decoded request refers to the bytes of its frame, which must stay in memory."""


_EVERY = frozenset(Purpose)
_REPLICATION = frozenset({Purpose.REPLICATION})
_FORWARDING = frozenset({Purpose.FORWARDING})
_HTTP = frozenset({Purpose.FORWARDING, Purpose.ADMIN})
_ROWS: tuple[tuple[int, type[Any], type[Any], frozenset[Purpose]], ...] = (
    (1, PingRequest, PingResponse, _EVERY),
    (2, PeerFetchRequest, PeerFetchResponse, _REPLICATION),
    # 3 was EpochEnd: a PeerFetch tells where epochs end.
    (4, SegmentManifestRequest, SegmentManifestResponse, _REPLICATION),
    (5, SegmentChunkRequest, SegmentChunkResponse, _REPLICATION),
    (6, ForwardRequest, ForwardResponse, _HTTP),
    (7, FetchBatchesRequest, FetchBatchesResponse, _FORWARDING),
    (8, WriteMarkersRequest, WriteMarkersResponse, _FORWARDING),
    (9, CommitTransactionOffsetsRequest, CommitTransactionOffsetsResponse, _FORWARDING),
    (10, VerifyTransactionRequest, VerifyTransactionResponse, _FORWARDING),
    (11, AppendBatchRequest, AppendBatchResponse, _FORWARDING),
    (12, FindOffsetRequest, FindOffsetResponse, _FORWARDING),
    (13, DeleteBeforeRequest, DeleteBeforeResponse, _FORWARDING),
)

PEER_APIS: Mapping[int, PeerApi] = MappingProxyType(
    {
        key: PeerApi(
            key,
            request.__name__.removesuffix("Request"),
            request,
            response,
            versions_of(request),
            purposes,
            has_views=request in (ForwardRequest, AppendBatchRequest),
        )
        for key, request, response, purposes in _ROWS
    }
)
"""All APIs, by key. A key is never used again for another API."""

API_OF_REQUEST: Mapping[type[Any], PeerApi] = MappingProxyType(
    {api.request: api for api in PEER_APIS.values()}
)

ANNOUNCED: tuple[HandshakeApi, ...] = tuple(
    HandshakeApi(key=api.key, first=api.versions.first, last=api.versions.last)
    for api in PEER_APIS.values()
)
"""What a handshake says of them."""
