"""What a span tells of a Kafka request: which it is, whose, and of how many topics."""

from __future__ import annotations

from typing import Any

from millstream.tracing import Span

TEXT_LENGTH_MAX = 256
"""Characters of what clients choose, as their id: the rest is cut off."""


def describe(span: Span, api: str, version: int, client_id: str, host: str) -> None:
    """Say which request it is, and whose."""
    span.rename(f"Kafka {api}")
    span.set_attribute("messaging.system", "kafka")
    span.set_attribute("messaging.operation.name", api)
    span.set_attribute("kafka.api_version", version)
    span.set_attribute("messaging.client.id", client_id[:TEXT_LENGTH_MAX])
    span.set_attribute("client.address", host)


def describe_topics(span: Span, request: Any) -> None:
    """Say of how many topics it is, and of which, where it is one."""
    topics = getattr(request, "topic_data", None) or getattr(request, "topics", None)
    if not isinstance(topics, tuple):
        return
    span.set_attribute("kafka.topic_count", len(topics))
    if len(topics) == 1:
        name = getattr(topics[0], "name", None) or getattr(topics[0], "topic", None)
        if isinstance(name, str):
            span.set_attribute("messaging.destination.name", name[:TEXT_LENGTH_MAX])
