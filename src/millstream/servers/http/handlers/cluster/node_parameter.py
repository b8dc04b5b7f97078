"""The node id in a path."""

from __future__ import annotations

from millstream.errors import MalformedRequest
from millstream.protocols.http.mismatch import NAME_LENGTH_MAX
from millstream.servers.http.routing.request import HttpRequest

NODE_DIGITS_MAX = 10


def node_of(request: HttpRequest) -> int:
    """Return the node id in the path of a request."""
    text = request.path_params["node"]
    if not (text.isascii() and text.isdigit() and len(text) <= NODE_DIGITS_MAX):
        raise MalformedRequest(f"node must be a number, got {text[:NAME_LENGTH_MAX]!r}")
    return int(text)
