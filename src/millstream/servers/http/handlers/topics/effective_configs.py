"""Handler that lists the effective configs of a topic."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.topics.configs.topic_settings import TOPIC_CONFIGS
from millstream.protocols.http.topics import TopicConfigsAnswer, TopicConfigShape
from millstream.servers.http.handlers.records import topic_of
from millstream.servers.http.routing.operation_access import topic_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response


async def list_configs(request: HttpRequest) -> Response:
    """List all configs of a topic: the effective value, and whether the topic sets it."""
    config = topic_of(request).config
    return json_response(
        TopicConfigsAnswer(
            configs=[
                TopicConfigShape(
                    name=name,
                    value=config.value(name),
                    default=setting.default_of(config.node),
                    is_set=name in config.overrides,
                    effect=setting.effect.value,
                    allowed=setting.allowed,
                    meaning=setting.meaning,
                )
                for name, setting in sorted(TOPIC_CONFIGS.items())
            ]
        )
    )


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/configs",
        list_configs,
        "List the effective configs of a topic",
        {HTTPStatus.OK: TopicConfigsAnswer},
        answer_example={
            "configs": [
                {
                    "name": "retention.ms",
                    "value": "86400000",
                    "default": "604800000",
                    "is_set": True,
                    "effect": "applied",
                    "allowed": "between -1 and 9223372036854775807",
                    "meaning": "Minimum time that records are kept.",
                }
            ]
        },
        access=topic_access(Operation.DESCRIBE_CONFIGS),
    ),
)
