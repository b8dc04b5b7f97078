"""Who a node of a cluster is."""

from __future__ import annotations

import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a node says of itself in a handshake."""

    cluster_id: str
    node_id: int
    incarnation: uuid.UUID
    """Id of its data directory: an empty or older directory is another incarnation."""
    software_version: str
