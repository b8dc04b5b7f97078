"""Client ids of pipelines, which show people who writes.

    pipeline:clicks/by-hour          pipeline, and target

The id of a publisher is unique, but means nothing to people. The client id is sent with every
request, is meant for people, and has no other effect.
"""

from __future__ import annotations

CLIENT_ID_PREFIX = "pipeline:"

CLIENT_ID_LENGTH_MAX = 249
"""Characters of a client id: as many as a topic name may have."""


def pipeline_client_id(pipeline: str, target: str) -> str:
    """Return the client id of a pipeline that writes to a target."""
    return f"{CLIENT_ID_PREFIX}{pipeline}/{target}"[:CLIENT_ID_LENGTH_MAX]


def pipeline_of(client_id: str) -> str | None:
    """Return the pipeline and target in a client id; `None` if it has none."""
    if not client_id.startswith(CLIENT_ID_PREFIX):
        return None
    return client_id.removeprefix(CLIENT_ID_PREFIX) or None
