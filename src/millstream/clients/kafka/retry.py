"""Retry rules of the Kafka client.

A request is retried if the error code of the node allows it, or if the connection was lost and
repeating is harmless. Pauses double up to a second, and all attempts end at one deadline, with the
last error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from millstream.clients.kafka.deadline import Deadline
from millstream.errors import MillstreamError, NodeUnreachable
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import error_of

T = TypeVar("T")

PAUSE_S_MIN = 0.02
PAUSE_S_MAX = 1.0

RETRIABLE = frozenset(
    {
        # The leader moved, or there is none right now.
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_CONTROLLER,
        # The cached metadata may be stale; if the topic is deleted, fresh metadata says so.
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        # The node is busy.
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        # The coordinator moved, is starting, or is ending the previous transaction.
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
"""Error codes after which the same request may succeed."""


class RetriableError(Exception):
    """The request may succeed later. Internal: `error` is raised when time is up."""

    def __init__(self, error: MillstreamError) -> None:
        super().__init__(str(error))
        self.error = error


def raise_for_code(code: int, message: str) -> None:
    """Raise the error for a Kafka error code, as `RetriableError` if it is retriable."""
    if not code:
        return
    error = error_of(code, message)
    if code in RETRIABLE:
        raise RetriableError(error)
    raise error


class Backoff:
    """Growing pauses between attempts."""

    def __init__(self, deadline: Deadline, *, pause: Callable[[float], None]) -> None:
        self._deadline = deadline
        self._pause = pause
        self._next_s = PAUSE_S_MIN

    def wait(self) -> bool:
        """Wait before the next attempt; return false immediately if there is no time for one."""
        if self._next_s >= self._deadline.left_s():
            return False
        self._pause(self._next_s)
        self._next_s = min(self._next_s * 2, PAUSE_S_MAX)
        return True


def call_with_retries(
    work: Callable[[], T],
    *,
    backoff: Backoff,
    before_next: Callable[[], None],
    is_repeatable: bool = True,
) -> T:
    """Call `work` and return its result, retrying while that may help.

    Unless `is_repeatable`, a request that may have been executed is not sent again.
    """
    while True:
        try:
            return work()
        except RetriableError as again:
            error = again.error
        except NodeUnreachable as lost:
            if lost.may_be_done and not is_repeatable:
                raise
            error = lost
        if not backoff.wait():
            raise error
        before_next()
