"""Resources, and the operations on them. Pure. The numbers are Kafka's.

A queue is a resource of the type group, under its own name, as the share groups of Kafka are. So
Kafka's tools administer the rights to queues too. What belongs to no topic, group or transactional
id belongs to the cluster.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class ResourceType(enum.IntEnum):
    """What rights can be given to. Of Kafka's types, delegation tokens and users are not used."""

    ANY = 1
    """In a filter: all types."""
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(enum.IntEnum):
    """What a principal wants to do to a resource."""

    ANY = 1
    """In a filter: all operations."""
    ALL = 2
    """In an ACL: all operations."""
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class PatternType(enum.IntEnum):
    """How the name in an ACL is compared with that of a resource."""

    ANY = 1
    """In a filter: the name is compared literally, with patterns of all types."""
    MATCH = 2
    """In a filter: all patterns that apply to the resource of that name."""
    LITERAL = 3
    PREFIXED = 4


class Resource(NamedTuple):
    """Something that principals do operations on."""

    kind: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{WORDS[self.kind]} {self.name!r}" if self.kind in NAMED else "the cluster"


NAMED = frozenset({ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID})

WORDS: Mapping[ResourceType, str] = MappingProxyType(
    {
        ResourceType.TOPIC: "topic",
        ResourceType.GROUP: "group",
        ResourceType.CLUSTER: "cluster",
        ResourceType.TRANSACTIONAL_ID: "transactional id",
    }
)

CLUSTER_NAME = "kafka-cluster"
"""Kafka's name of the one resource of the type cluster."""

CLUSTER = Resource(ResourceType.CLUSTER, CLUSTER_NAME)

OPERATIONS: Mapping[ResourceType, tuple[Operation, ...]] = MappingProxyType(
    {
        ResourceType.TOPIC: (
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        ResourceType.GROUP: (
            Operation.READ,
            Operation.DELETE,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        ),
        ResourceType.CLUSTER: (
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        ),
        ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    }
)
"""The operations that there are on each type of resource."""


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, name)
