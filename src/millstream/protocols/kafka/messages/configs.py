"""Configs of topics and nodes."""

from __future__ import annotations

from millstream.protocols.kafka.codec.message import Versions, message, struct, wire
from millstream.protocols.kafka.codec.primitives import (
    ARRAY,
    BOOL,
    INT8,
    INT16,
    INT32,
    NULLABLE_ARRAY,
    NULLABLE_STRING,
    STRING,
)

DESCRIBE_CONFIGS = Versions(first=1, last=4, flexible=4)
ALTER_CONFIGS = Versions(first=0, last=2, flexible=2)
INCREMENTAL_ALTER_CONFIGS = Versions(first=0, last=1, flexible=1)
LIST_CONFIG_RESOURCES = Versions(first=0, last=1, flexible=0)


@struct
class DescribeConfigsRequestResource:
    """One topic or node; all its configs if the keys are null."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configuration_keys: tuple[str, ...] | None = wire(NULLABLE_ARRAY(STRING), default=None)


@message(DESCRIBE_CONFIGS)
class DescribeConfigsRequest:
    """Ask for the configs of topics and nodes."""

    resources: tuple[DescribeConfigsRequestResource, ...] = wire(
        ARRAY(DescribeConfigsRequestResource)
    )
    include_synonyms: bool = wire(BOOL, default=False)
    include_documentation: bool = wire(BOOL, since=3, default=False)


@struct
class DescribeConfigsResponseSynonym:
    """A possible source of the value, the most specific first."""

    name: str = wire(STRING)
    value: str | None = wire(NULLABLE_STRING, default=None)
    source: int = wire(INT8)


@struct
class DescribeConfigsResponseConfig:
    """One config with its value and source."""

    name: str = wire(STRING)
    value: str | None = wire(NULLABLE_STRING, default=None)
    read_only: bool = wire(BOOL, default=False)
    config_source: int = wire(INT8, default=-1)
    is_sensitive: bool = wire(BOOL, default=False)
    synonyms: tuple[DescribeConfigsResponseSynonym, ...] = wire(
        ARRAY(DescribeConfigsResponseSynonym), default=()
    )
    config_type: int = wire(INT8, since=3, default=0)
    documentation: str | None = wire(NULLABLE_STRING, since=3, default=None)


@struct
class DescribeConfigsResponseResult:
    """The configs of one topic or node."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[DescribeConfigsResponseConfig, ...] = wire(
        ARRAY(DescribeConfigsResponseConfig), default=()
    )


@message(DESCRIBE_CONFIGS)
class DescribeConfigsResponse:
    """The configs of the request."""

    throttle_time_ms: int = wire(INT32, default=0)
    results: tuple[DescribeConfigsResponseResult, ...] = wire(
        ARRAY(DescribeConfigsResponseResult), default=()
    )


@struct
class AlterConfigsRequestConfig:
    """One config."""

    name: str = wire(STRING)
    value: str | None = wire(NULLABLE_STRING)


@struct
class AlterConfigsRequestResource:
    """The complete configs of one topic or node."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[AlterConfigsRequestConfig, ...] = wire(ARRAY(AlterConfigsRequestConfig))


@message(ALTER_CONFIGS)
class AlterConfigsRequest:
    """Replace all configs of topics and nodes."""

    resources: tuple[AlterConfigsRequestResource, ...] = wire(ARRAY(AlterConfigsRequestResource))
    validate_only: bool = wire(BOOL, default=False)


@struct
class AlterConfigsResponseResource:
    """Result for one topic or node."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@message(ALTER_CONFIGS)
class AlterConfigsResponse:
    """Results for all topics and nodes."""

    throttle_time_ms: int = wire(INT32, default=0)
    responses: tuple[AlterConfigsResponseResource, ...] = wire(
        ARRAY(AlterConfigsResponseResource), default=()
    )


@struct
class IncrementalAlterConfigsRequestConfig:
    """One change: set, delete, append or subtract."""

    name: str = wire(STRING)
    config_operation: int = wire(INT8)
    value: str | None = wire(NULLABLE_STRING)


@struct
class IncrementalAlterConfigsRequestResource:
    """The changes to one topic or node."""

    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)
    configs: tuple[IncrementalAlterConfigsRequestConfig, ...] = wire(
        ARRAY(IncrementalAlterConfigsRequestConfig)
    )


@message(INCREMENTAL_ALTER_CONFIGS)
class IncrementalAlterConfigsRequest:
    """Change single configs of topics and nodes; the others keep their values."""

    resources: tuple[IncrementalAlterConfigsRequestResource, ...] = wire(
        ARRAY(IncrementalAlterConfigsRequestResource)
    )
    validate_only: bool = wire(BOOL, default=False)


@struct
class IncrementalAlterConfigsResponseResource:
    """Result for one topic or node."""

    error_code: int = wire(INT16, default=0)
    error_message: str | None = wire(NULLABLE_STRING, default=None)
    resource_type: int = wire(INT8)
    resource_name: str = wire(STRING)


@message(INCREMENTAL_ALTER_CONFIGS)
class IncrementalAlterConfigsResponse:
    """Results for all topics and nodes."""

    throttle_time_ms: int = wire(INT32, default=0)
    responses: tuple[IncrementalAlterConfigsResponseResource, ...] = wire(
        ARRAY(IncrementalAlterConfigsResponseResource), default=()
    )


@message(LIST_CONFIG_RESOURCES)
class ListConfigResourcesRequest:
    """Ask for the resources that have configs: of these types, or of all if there are none."""

    resource_types: tuple[int, ...] = wire(ARRAY(INT8), since=1, default=())


@struct
class ListConfigResourcesResponseResource:
    """A resource that has configs."""

    resource_name: str = wire(STRING)
    resource_type: int = wire(INT8, since=1, default=16)


@message(LIST_CONFIG_RESOURCES)
class ListConfigResourcesResponse:
    """The resources that have configs."""

    throttle_time_ms: int = wire(INT32, default=0)
    error_code: int = wire(INT16, default=0)
    config_resources: tuple[ListConfigResourcesResponseResource, ...] = wire(
        ARRAY(ListConfigResourcesResponseResource), default=()
    )
