"""A response of the HTTP API, not yet decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SHOWN_MAX = 200
"""Bytes of a malformed response that an error message quotes."""

RETRY_AFTER_S_MAX = 3_600.0
"""Upper limit for the pause that a node asks for."""


class ClientResponse(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """Header names are in lower case."""
    body: bytes

    @property
    def retry_after_s(self) -> float:
        """Pause that the node asks for before the next attempt; 0 if it does not."""
        text = self.headers.get("retry-after", "")
        return min(float(text), RETRY_AFTER_S_MAX) if text.isascii() and text.isdigit() else 0.0
