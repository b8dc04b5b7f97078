"""Client quotas."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
)

DESCRIBE_CLIENT_QUOTAS = Versions(first=0, last=1, flexible=1)
ALTER_CLIENT_QUOTAS = Versions(first=0, last=1, flexible=1)


@struct
class DescribeClientQuotasRequestComponent:
    """A condition on the name of a user, a client or an address."""

    entity_type: str = wire(STRING)
    match_type: int = wire(INT8)
    match: str | None = wire(NULLABLE_STRING)


@message(DESCRIBE_CLIENT_QUOTAS)
class DescribeClientQuotasRequest:
    """Ask for the quotas of the users, clients and addresses that match."""

    components: tuple[DescribeClientQuotasRequestComponent, ...] = wire(
        ARRAY(DescribeClientQuotasRequestComponent)
    )
    strict: bool = wire(BOOL, default=False)


@struct
class DescribeClientQuotasResponseEntity:
    """One part of an entity; a null name stands for the default."""

    entity_type: str = wire(STRING)
    entity_name: str | None = wire(NULLABLE_STRING)


@struct
class DescribeClientQuotasResponseValue:
    """One quota."""

    key: str = wire(STRING)
    value: float = wire(FLOAT64)


@struct
class DescribeClientQuotasResponseEntry:
    """The quotas of one entity."""

    entity: tuple[DescribeClientQuotasResponseEntity, ...] = wire(
        ARRAY(DescribeClientQuotasResponseEntity), default=()
    )
    values: tuple[DescribeClientQuotasResponseValue, ...] = wire(
        ARRAY(DescribeClientQuotasResponseValue), default=()
    )


@message(DESCRIBE_CLIENT_QUOTAS)
class DescribeClientQuotasResponse:
    """The quotas that match."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    entries: tuple[DescribeClientQuotasResponseEntry, ...] | None = wire(
        NULLABLE_ARRAY(DescribeClientQuotasResponseEntry), default=()
    )


@struct
class AlterClientQuotasRequestEntity:
    """One part of an entity; a null name stands for the default."""

    entity_type: str = wire(STRING)
    entity_name: str | None = wire(NULLABLE_STRING)


@struct
class AlterClientQuotasRequestOp:
    """One quota to set or remove."""

    key: str = wire(STRING)
    value: float = wire(FLOAT64)
    remove: bool = wire(BOOL, default=False)


@struct
class AlterClientQuotasRequestEntry:
    """The changes for one entity."""

    entity: tuple[AlterClientQuotasRequestEntity, ...] = wire(ARRAY(AlterClientQuotasRequestEntity))
    ops: tuple[AlterClientQuotasRequestOp, ...] = wire(ARRAY(AlterClientQuotasRequestOp))


@message(ALTER_CLIENT_QUOTAS)
class AlterClientQuotasRequest:
    """Set or remove quotas."""

    entries: tuple[AlterClientQuotasRequestEntry, ...] = wire(ARRAY(AlterClientQuotasRequestEntry))
    validate_only: bool = wire(BOOL, default=False)


@struct
class AlterClientQuotasResponseEntity:
    """One part of an entity; a null name stands for the default."""

    entity_type: str = wire(STRING)
    entity_name: str | None = wire(NULLABLE_STRING)


@struct
class AlterClientQuotasResponseEntry:
    """Result for one entity."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    entity: tuple[AlterClientQuotasResponseEntity, ...] = wire(
        ARRAY(AlterClientQuotasResponseEntity), default=()
    )


@message(ALTER_CLIENT_QUOTAS)
class AlterClientQuotasResponse:
    """Results for all entities."""

    throttle_time_ms: int = wire(INT32, default=0)
    entries: tuple[AlterClientQuotasResponseEntry, ...] = wire(
        ARRAY(AlterClientQuotasResponseEntry), default=()
    )
