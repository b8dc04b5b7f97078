"""Who may send each message between peers, and on whose behalf: one row per API.

All of them need a connection of a registered peer: its cluster, id, directory and certificate are
checked when it connects, and again when the members change. Rows say what is checked beyond that.

A message on behalf of a client names the client as the first node has found out, by principal, id
of the token and address, never by a secret. This node checks the rights of that client again, by
its own rules. Handlers name the topic, and the row names the operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from millstream.broker.access.resources import Operation


class PeerNeeds(NamedTuple):
    """What a message needs, beside the connection of a registered peer."""

    topic: Operation | None = None
    """What the client that the message names must be allowed to do to the topic. A message that
    names no client is about the work of the nodes."""
    is_http: bool = False
    """Whether it is an HTTP request, which needs what its operation needs."""
    why_no_client: str = ""
    """Why the message is about the work of the nodes alone, in words."""


def _nodes(why_no_client: str) -> PeerNeeds:
    return PeerNeeds(why_no_client=why_no_client)


PEER_NEEDS: Mapping[int, PeerNeeds] = MappingProxyType(
    {
        1: _nodes("nodes look whether others are alive"),  # Ping.
        2: _nodes("replicas follow their leader"),  # PeerFetch.
        4: _nodes("replicas copy segments"),  # SegmentManifest.
        5: _nodes("replicas copy segments"),  # SegmentChunk.
        6: PeerNeeds(is_http=True),  # Forward.
        # FetchBatches: one read is shared by all readers at the other node, and their rights may
        # change while it waits. Each of them is checked there.
        7: _nodes("readers at the other node share what it reads"),
        8: _nodes("the coordinator ends a transaction"),  # WriteMarkers.
        9: _nodes("the coordinator ends a transaction"),  # CommitTransactionOffsets.
        10: _nodes("a leader asks for the state of a producer"),  # VerifyTransaction.
        11: PeerNeeds(topic=Operation.WRITE),  # AppendBatch.
        12: _nodes("readers at the other node share what it reads"),  # FindOffset.
        13: _nodes("a queue deletes letters that it has moved"),  # DeleteBefore.
    }
)
"""The needs of every API, by key."""
