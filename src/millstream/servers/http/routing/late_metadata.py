"""Topics and queues that another node has created, and of which this one learns in a moment.

A client that has created a topic may use it through any node at once. So before a node of a cluster
answers that something does not exist, it asks the metadata.
"""

from __future__ import annotations

from millstream.errors import UnknownQueue, UnknownTopic
from millstream.servers.http.routing.request import HttpRequest


async def is_known_by_now(request: HttpRequest, unknown: UnknownTopic | UnknownQueue) -> bool:
    """Return whether what a request names was unknown, exists, and is known here now."""
    broker, named = request.context.broker, request.path_params
    if isinstance(unknown, UnknownQueue):
        name = named.get("queue")
        if name is None or broker.queues.knows(name):
            return False
        return await broker.topics.appears(name) and await broker.queues.appears(name)
    names = [named["topic"]] if "topic" in named else request.query_params.getlist("topic")
    missing = [name for name in names if broker.topics.find(name) is None]
    if not missing:
        return False
    for name in missing:
        if not await broker.topics.appears(name):
            return False
    return True
