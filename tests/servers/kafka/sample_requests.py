"""A sample request of every API and version, which names one resource of each type."""

from __future__ import annotations

import dataclasses
import types
import typing
import uuid
from typing import Any

from millstream.broker.access.resources import ResourceType
from millstream.protocols.kafka.apis import APIS
from millstream.records.build import build_batch
from millstream.records.record import Record

TOPIC, GROUP, TRANSACTIONAL_ID, USER = "orders", "readers", "writer-1", "User:bob"

GROUP_FIELDS = {"group_id", "groups", "group_ids", "groups_names"}
TRANSACTION_FIELDS = {
    "transactional_id", "transactional_ids", "v3_and_below_transactional_id", "publisher",
}  # fmt: skip
TOPIC_FIELDS = {"name", "topic", "topic_name", "subscribed_topic_names", "topic_names"}
FILLED = {
    "topics", "groups", "transactions", "v3_and_below_topics", "topic_names", "resources",
    "partitions", "transactional_id", "coordinator_keys", "subscribed_topic_names", "topic_id",
    "name", "topic", "v3_and_below_transactional_id", "group_id", "partition_indexes",
}  # fmt: skip
"""Optional fields that the sample has."""

CONFIG_TYPES = {ResourceType.TOPIC: 2, ResourceType.GROUP: 32, ResourceType.CLUSTER: 4}
COORDINATOR_TYPES = {ResourceType.GROUP: 0, ResourceType.TRANSACTIONAL_ID: 1}
NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: TRANSACTIONAL_ID,
    ResourceType.CLUSTER: "1",
}
NUMBERS = {"acks": -1, "timeout_ms": 1000, "partition_max_bytes": 1000, "count": 2, "min_bytes": 0,
           "session_timeout_ms": 10_000, "transaction_timeout_ms": 1000, "member_epoch": 0,
           "committed_offset": 0, "producer_id": 1, "timestamp": -1, "rebalance_timeout_ms": 10_000,
           "num_partitions": 1, "replication_factor": 1}  # fmt: skip


def sample(key: int, version: int, kind: ResourceType | None, topic_id: uuid.UUID) -> Any:
    """Return a request of an API that names a resource of the type `kind`, and others."""
    request = _filled(APIS[key].request, version, topic_id)
    change = dataclasses.replace
    if key in (32, 33, 44) and kind is not None:
        name = NAMES[kind]
        resource = change(
            request.resources[0], resource_type=CONFIG_TYPES[kind], resource_name=name
        )
        return change(request, resources=(resource,))
    if key == 10 and kind is not None:
        name = NAMES[kind]
        key_type = COORDINATOR_TYPES[kind]
        return change(request, key=name, key_type=key_type, coordinator_keys=(name,))
    if key == 22:
        is_named = kind is ResourceType.TRANSACTIONAL_ID
        return change(request, transactional_id=TRANSACTIONAL_ID if is_named else None)
    if key == 0:
        is_named = kind is ResourceType.TRANSACTIONAL_ID
        return change(request, transactional_id=TRANSACTIONAL_ID if is_named else None)
    if key in (29, 31):
        return _acl_filter(request, key)
    if key == 30:
        acl = change(
            request.creations[0], resource_type=2, resource_name=TOPIC, principal=USER, host="*",
            operation=3, permission_type=3,
        )  # fmt: skip
        return change(request, creations=(acl,))
    if key == 20:
        return _deletion(request, version, topic_id)
    return change(request, validate_only=True) if key in (19, 37) else request


def _deletion(request: Any, version: int, topic_id: uuid.UUID) -> Any:
    if version < 6:
        return request
    topic = dataclasses.replace(request.topics[0], name=None, topic_id=topic_id)
    return dataclasses.replace(request, topics=(topic,))


def _acl_filter(request: Any, key: int) -> Any:
    everything = {"resource_type_filter": 1, "pattern_type_filter": 3, "operation": 1,
                  "permission_type": 1, "resource_name_filter": None}  # fmt: skip
    if key == 29:
        return dataclasses.replace(request, **everything)
    wanted = dataclasses.replace(request.filters[0], **{**everything, "principal_filter": USER})
    return dataclasses.replace(request, filters=(wanted,))


def _filled(kind: type, version: int, topic_id: uuid.UUID) -> Any:
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        is_optional = field.default is not dataclasses.MISSING
        if is_optional and field.name not in FILLED:
            continue
        if field.name == "name" and "topic_id" in hints and version >= 12:
            continue  # Metadata has either.
        values[field.name] = _value(field.name, hints[field.name], version, topic_id)
    return kind(**values)


def _value(name: str, hint: Any, version: int, topic_id: uuid.UUID) -> Any:
    if isinstance(hint, types.UnionType):
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is tuple:
        return (_value(name, typing.get_args(hint)[0], version, topic_id),)
    if dataclasses.is_dataclass(hint):
        return _filled(hint, version, topic_id)
    if hint is uuid.UUID:
        return topic_id
    if hint is str:
        return text_of(name)
    if name == "records":
        return memoryview(build_batch([Record(b"v")], now_ms=0))
    if hint in (bytes, memoryview):
        return b""
    return NUMBERS.get(name, 0) if hint is int else False


def text_of(name: str) -> str:
    """Return the text of a field."""
    if name in GROUP_FIELDS:
        return GROUP
    if name in TRANSACTION_FIELDS:
        return TRANSACTIONAL_ID
    return TOPIC if name in TOPIC_FIELDS else ""
