"""The access log: one event for each response, if `http.access_log` is on.

It is written through `logging` like every other event, so text chosen by clients is escaped, and
the node never waits for the reader of its log. The query is not logged, because values that users
search for are in it.
"""

from __future__ import annotations

import logging

from starlette.types import Scope

logger = logging.getLogger(__name__)

TEXT_LENGTH_MAX = 1024
"""Characters of a path that are logged."""


def log_response(scope: Scope, route: str, status: int, seconds: float) -> None:
    """Log a response at its start; a long poll or a live connection counts until then."""
    client = scope.get("client")
    logger.info(
        "request",
        extra={
            "method": scope["method"],
            "path": scope["path"][:TEXT_LENGTH_MAX],
            "route": route,
            "status": int(status),
            "took_ms": round(seconds * 1000, 3),
            "client": client[0] if client else None,
        },
    )
