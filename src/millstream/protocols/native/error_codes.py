"""Error codes of the native protocol."""

from __future__ import annotations

import enum


class NativeErrorCode(enum.IntEnum):
    """What an error frame says to programs."""

    UNKNOWN_OPERATION = 0x01
    BAD_MAGIC = 0x02
    TOO_LARGE = 0x03
    MALFORMED = 0x04
    BAD_CRC = 0x05
    BAD_VERSION = 0x06
    UNKNOWN_TOPIC = 0x10
    TOPIC_EXISTS = 0x11
    INVALID_TOPIC_NAME = 0x12
    TOPIC_DELETED = 0x13
    NOT_LEADER = 0x20
    NO_QUORUM = 0x21
    LEADER_UNKNOWN = 0x22
    CLUSTER_NOT_READY = 0x23
    RATE_LIMITED = 0x30
    BACKPRESSURE = 0x31
    TOO_MANY_CONNECTIONS = 0x32
    LOGIN_NEEDED = 0x40
    LOGIN_FAILED = 0x41
    DENIED = 0x42
    BAD_OFFSET = 0x50
    OUT_OF_RANGE = 0x51
    UNKNOWN_CONSUMER = 0x52
    INTERNAL = 0x60
    STORAGE = 0x61
    TIMEOUT = 0x62


RETRIABLE = frozenset(
    {
        NativeErrorCode.NOT_LEADER,
        NativeErrorCode.NO_QUORUM,
        NativeErrorCode.LEADER_UNKNOWN,
        NativeErrorCode.CLUSTER_NOT_READY,
        NativeErrorCode.RATE_LIMITED,
        NativeErrorCode.BACKPRESSURE,
        NativeErrorCode.TIMEOUT,
    }
)
"""The same request may succeed later, perhaps at another node."""

NOT_SENT = frozenset(
    {
        NativeErrorCode.BAD_MAGIC,
        NativeErrorCode.BAD_CRC,
        NativeErrorCode.BAD_VERSION,
        NativeErrorCode.TOO_MANY_CONNECTIONS,
        NativeErrorCode.LOGIN_FAILED,
        NativeErrorCode.BAD_OFFSET,
        NativeErrorCode.UNKNOWN_CONSUMER,
    }
)
"""Codes that this node never sends: after a frame that is none, and beyond the limit of
connections, the connection is closed without an answer; a failed login has an answer of its own;
every offset is in range or not; and consumers need no subscription.
"""
