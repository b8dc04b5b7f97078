"""JSON responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

JSON = "application/json"

_encode = msgspec.json.Encoder().encode


def json_response(
    message: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a message; bytes are taken as JSON that is already encoded."""
    content = message if isinstance(message, bytes) else _encode(message)
    return Response(content, status, headers, JSON)
