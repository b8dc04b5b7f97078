"""FindCoordinator: looks up the coordinators of groups and transactions."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    INT8,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
)

FIND_COORDINATOR = Versions(first=0, last=6, flexible=3)


@message(FIND_COORDINATOR)
class FindCoordinatorRequest:
    """Ask for coordinators: of one key up to version 3, of several from then on."""

    key: str = wire(STRING, until=3, default="")
    key_type: int = wire(INT8, since=1, default=0)
    coordinator_keys: tuple[str, ...] = wire(ARRAY(STRING), since=4, default=())


@struct
class FindCoordinatorResponseCoordinator:
    """The coordinator of one key."""

    key: str = wire(STRING)
    node_id: int = wire(INT32, default=-1)
    host: str = wire(STRING, default="")
    port: int = wire(INT32, default=-1)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)


@message(FIND_COORDINATOR)
class FindCoordinatorResponse:
    """The coordinators of the keys."""

    throttle_time_ms: int = wire(INT32, since=1, default=0)
    error_code: int = wire(INT16, until=3, default=0)
    error_message: str | None = wire(NULLABLE_STRING, since=1, until=3, default=None)
    node_id: int = wire(INT32, until=3, default=-1)
    host: str = wire(STRING, until=3, default="")
    port: int = wire(INT32, until=3, default=-1)
    coordinators: tuple[FindCoordinatorResponseCoordinator, ...] = wire(
        ARRAY(FindCoordinatorResponseCoordinator), since=4, default=()
    )
