"""How a publisher says what a person calls it: by the client id of its requests.

    pipeline:clicks/by-hour          pipeline, and target

A publisher's own name tells it from all others and means nothing to anyone. Client ids are for
people, travel with every request, and decide nothing.
"""

from __future__ import annotations

CLIENT_ID_PREFIX = "pipeline:"

CLIENT_ID_LENGTH_MAX = 249
"""Characters of a client id: as many as the name of a topic may have."""


def pipeline_client_id(pipeline: str, target: str) -> str:
    """Return the client id for what a pipeline writes into a target."""
    return f"{CLIENT_ID_PREFIX}{pipeline}/{target}"[:CLIENT_ID_LENGTH_MAX]


def pipeline_of(client_id: str) -> str | None:
    """Return pipeline and target that a client id names; `None` where it names none."""
    if not client_id.startswith(CLIENT_ID_PREFIX):
        return None
    return client_id.removeprefix(CLIENT_ID_PREFIX) or None
