"""Error codes between peers: the one table of them.

A code that Kafka has too keeps Kafka's number, so that a code of a partition can be passed on to a
Kafka client as it is. Codes that only peers use start at 1000.
"""

from __future__ import annotations

import enum


class PeerErrorCode(enum.IntEnum):
    """Why a peer refused a handshake, a request, or a part of it."""

    UNKNOWN_SERVER_ERROR = -1
    """The handler failed; what it did until then is unknown."""
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REPLICA_NOT_AVAILABLE = 9
    COORDINATOR_LOAD_IN_PROGRESS = 14
    NOT_COORDINATOR = 16
    NOT_ENOUGH_REPLICAS = 19
    UNKNOWN_MEMBER_ID = 25
    ILLEGAL_GENERATION = 22
    UNSUPPORTED_VERSION = 35
    """The protocol version of the handshake, or the version of a request."""
    INVALID_REQUEST = 42
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    """The offset is above what this replica may show now."""
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_NODE = 101
    """Another node has this id: this one, or another incarnation of the caller."""
    UNKNOWN_NODE = 102
    """The node is not registered in the cluster, or not with this incarnation."""
    WRONG_CLUSTER = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120

    WRONG_NODE = 1000
    """The caller wanted to reach another node."""
    UNTRUSTED = 1001
    """The certificate is not that of the node."""
    UNAVAILABLE = 1002
    """Nothing was done; the same request may succeed later."""
    STOPPING = 1003
    """Nothing was done: the node is shutting down."""
    BUSY = 1004
    """Nothing was done: a limit of requests or memory is reached."""
    EXPIRED = 1005
    """Nothing was done: the deadline had passed before the request was started."""
    DEADLINE_EXCEEDED = 1006
    """The deadline passed while the request was worked on; what was done is unknown."""
    CANCELLED = 1007
    """The caller cancelled the request; what was done is unknown."""
    NOT_SERVED = 1008
    """Nothing was done: this node, or a connection of this purpose, does not serve the API."""
    SEGMENT_NOT_FOUND = 1009
    """The segment, or this generation of it, is gone: ask for the manifest again."""
    OUT_OF_HOPS = 1010
    """The request was forwarded already, and is not forwarded again."""
    TOO_LARGE = 1011
    """Nothing was done: the request, or what it asks for, exceeds a limit."""
    REFUSED = 1012
    """The request cannot be fulfilled as it is, for a reason that has no code of its own."""
    OUTCOME_UNKNOWN = 1013
    """Something further away failed, and what it did is unknown."""
