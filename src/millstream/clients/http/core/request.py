"""A request of the HTTP API, and what happens if it is sent twice."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Idempotency(Enum):
    """Effect of sending a request twice."""

    NONE = "none"
    """The request changes nothing."""
    SAME = "same"
    """Sending it twice has the same effect as sending it once."""
    EACH = "each"
    """Each request has an effect: repeat it only if the first one was certainly not executed."""


class Request(NamedTuple):
    method: str
    path: str
    """Path and query, as sent."""
    effect: Idempotency = Idempotency.NONE
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    wait_s: float = 0.0
    """How long the request asks the node to wait before it responds."""
