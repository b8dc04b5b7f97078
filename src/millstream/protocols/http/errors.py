"""Error messages over HTTP, and the mapping between error classes and codes.

    {"error": {"code": "unknown_topic", "message": "topic 'orders' does not exist", "detail": null}}

The code is the name of the error class in snake case. A code without a class here, from a newer
node or from a proxy, becomes `NodeRefused`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct

from millstream import errors
from millstream.errors import (
    BACKPRESSURE_KINDS,
    BackpressureKind,
    DamagedRecords,
    DeadlineExceeded,
    MillstreamError,
    NodeRefused,
    OffsetNotAvailable,
    OffsetOutOfRange,
    QuotaExceeded,
    StaleReceipt,
)

_OTHERS = (
    errors.NodeUnreachable,
    errors.NodeRefused,
    errors.MemberIdNeeded,
    errors.StreamClosed,
    errors.StaleStreamProducer,
    errors.StreamProducerGap,
)
"""Errors that cannot be created from a message: those of clients, of the Kafka protocol, and of
streams, which have clients of their own.
"""


class ErrorShape(Struct, kw_only=True):
    """A code for programs, a message for people, and details if there are any."""

    code: str
    message: str
    detail: dict[str, Any] | None = None


class ErrorAnswer(Struct, kw_only=True):
    """The body of every error response."""

    error: ErrorShape


BEHIND = "behind"
"""The code of `OffsetNotAvailable`: short, because people meet it in a cluster."""


def code_of(kind: type[Exception]) -> str:
    """Return the code of an error class: its name in snake case.

    For a class outside `millstream.errors`, that is the name of its nearest ancestor there.
    """
    if kind is errors.OffsetNotAvailable:
        return BEHIND
    known = next((base for base in kind.__mro__ if base.__module__ == errors.__name__), kind)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", known.__name__).lower()


KINDS: Mapping[str, type[MillstreamError]] = MappingProxyType(
    {
        code_of(kind): kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, MillstreamError) and kind not in _OTHERS
    }
)
"""The error class of each code."""


_MakeError: TypeAlias = Callable[[int, ErrorShape, dict[str, Any]], MillstreamError]


def _backpressure_kind(detail: dict[str, Any]) -> BackpressureKind | None:
    """Return the kind of backpressure; None if it is missing or unknown to this release."""
    return next((kind for kind in BACKPRESSURE_KINDS if kind == detail.get("kind")), None)


def _out_of_range(status: int, shape: ErrorShape, detail: dict[str, Any]) -> MillstreamError:
    values = [detail.get(name) for name in ("offset", "start", "end")]
    match values:
        case [int(offset), int(start), int(end)]:
            return OffsetOutOfRange(offset, start=start, end=end)
    return NodeRefused(status, shape.code, shape.message)


def _damaged_records(status: int, shape: ErrorShape, detail: dict[str, Any]) -> MillstreamError:
    match detail:
        case {"from": int(from_offset), "to": int(to_offset)}:
            return DamagedRecords(
                "node", shape.message, from_offset=from_offset, to_offset=to_offset
            )
    return NodeRefused(status, shape.code, shape.message)


def _stale_receipt(status: int, shape: ErrorShape, detail: dict[str, Any]) -> MillstreamError:
    match detail:
        case {"stale": [*receipts], "done": int(done)} if all(
            isinstance(receipt, str) for receipt in receipts
        ):
            return StaleReceipt(receipts, done=done)
    return NodeRefused(status, shape.code, shape.message)


def _quota_exceeded(status: int, shape: ErrorShape, detail: dict[str, Any]) -> MillstreamError:
    match detail:
        case {"quota": str(quota), "throttle_ms": int(throttle_ms)}:
            return QuotaExceeded(quota, throttle_ms)
    return NodeRefused(status, shape.code, shape.message)


def _deadline_exceeded(_: int, shape: ErrorShape, detail: dict[str, Any]) -> MillstreamError:
    return DeadlineExceeded(shape.message, _backpressure_kind(detail))


def _offset_not_available(_: int, shape: ErrorShape, detail: dict[str, Any]) -> MillstreamError:
    end = detail.get("end")
    return OffsetNotAvailable(shape.message, end=end if isinstance(end, int) else -1)


_WITH_DETAIL: Mapping[type[MillstreamError], _MakeError] = {
    OffsetOutOfRange: _out_of_range,
    DamagedRecords: _damaged_records,
    StaleReceipt: _stale_receipt,
    QuotaExceeded: _quota_exceeded,
    DeadlineExceeded: _deadline_exceeded,
    OffsetNotAvailable: _offset_not_available,
}
"""Errors that have more than a message."""


def error_of(status: int, shape: ErrorShape) -> MillstreamError:
    """Return the error that a response describes."""
    kind = KINDS.get(shape.code)
    if kind is None:
        return NodeRefused(status, shape.code, shape.message)
    if (make := _WITH_DETAIL.get(kind)) is not None:
        return make(status, shape, shape.detail or {})
    return kind(shape.message)
