"""Attributes of the spans of Kafka requests: API, client, number of topics."""

from __future__ import annotations

from typing import Any

from millstream.tracing import Span

TEXT_LENGTH_MAX = 256
"""Characters of texts that clients choose, such as their id; longer ones are cut."""


def describe(span: Span, api: str, version: int, client_id: str, host: str) -> None:
    """Record the API and the client."""
    span.rename(f"Kafka {api}")
    span.set_attribute("messaging.system", "kafka")
    span.set_attribute("messaging.operation.name", api)
    span.set_attribute("kafka.api_version", version)
    span.set_attribute("messaging.client.id", client_id[:TEXT_LENGTH_MAX])
    span.set_attribute("client.address", host)


def describe_topics(span: Span, request: Any) -> None:
    """Record the number of topics, and the name if there is only one."""
    topics = getattr(request, "topic_data", None) or getattr(request, "topics", None)
    if not isinstance(topics, tuple):
        return
    span.set_attribute("kafka.topic_count", len(topics))
    if len(topics) == 1:
        name = getattr(topics[0], "name", None) or getattr(topics[0], "topic", None)
        if isinstance(name, str):
            span.set_attribute("messaging.destination.name", name[:TEXT_LENGTH_MAX])
