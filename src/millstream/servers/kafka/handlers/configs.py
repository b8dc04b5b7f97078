"""Configs of topics, of the node and of its groups: shown and changed."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from millstream.broker.access.resources import CLUSTER, Resource
from millstream.broker.access.resources import group as group_resource
from millstream.broker.access.resources import topic as topic_resource
from millstream.broker.dynamic_configs import ALL_NODES, group_key, node_key
from millstream.broker.groups.group import check_group_id
from millstream.broker.topics.configs.node_settings import (
    NodeSetting,
    group_settings,
    listener_settings,
    node_settings,
)
from millstream.broker.topics.configs.topic_config import (
    AlterConfigOperation,
    ConfigChange,
    TopicConfig,
)
from millstream.broker.topics.configs.topic_setting import SettingType
from millstream.broker.topics.configs.topic_settings import MIN_INSYNC_REPLICAS, TOPIC_CONFIGS
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest, MillstreamError
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsRequestResource,
    AlterConfigsResponse,
    AlterConfigsResponseResource,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeConfigsResponseSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListConfigResourcesResponseResource,
)
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.files.names import check_topic

AnyResource = AlterConfigsRequestResource | IncrementalAlterConfigsRequestResource
R = TypeVar("R", AlterConfigsRequestResource, IncrementalAlterConfigsRequestResource)
K = TypeVar("K", bound=Hashable)


class ConfigResourceType(enum.IntEnum):
    """Resources that have configs. The numbers are Kafka's."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """Sources of a value. The numbers are Kafka's."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


KINDS: Mapping[SettingType, int] = MappingProxyType(
    {
        SettingType.BOOLEAN: 1,
        SettingType.STRING: 2,
        SettingType.INT: 3,
        SettingType.LONG: 5,
        SettingType.DOUBLE: 6,
        SettingType.LIST: 7,
    }
)
"""Kafka's numbers for the types of values."""

OPERATIONS: Mapping[int, AlterConfigOperation] = MappingProxyType(
    {
        0: AlterConfigOperation.SET,
        1: AlterConfigOperation.DELETE,
        2: AlterConfigOperation.APPEND,
        3: AlterConfigOperation.SUBTRACT,
    }
)
"""Kafka's numbers for the operations of a change."""


# Describing.


def describe_configs(
    request: DescribeConfigsRequest, context: RequestContext
) -> DescribeConfigsResponse:
    """Return the configs of each resource: all, or those that the request names."""
    return DescribeConfigsResponse(
        results=tuple(_describe(resource, request, context) for resource in request.resources)
    )


def _describe(
    resource: DescribeConfigsRequestResource,
    request: DescribeConfigsRequest,
    context: RequestContext,
) -> DescribeConfigsResponseResult:
    code, message = ErrorCode.NONE, None
    configs: Sequence[DescribeConfigsResponseConfig] = ()
    try:
        configs = _configs_of(resource, request, context)
    except MillstreamError as error:
        code, message = code_of(error), str(error)
    requested = resource.configuration_keys
    return DescribeConfigsResponseResult(
        error_code=code,
        error_message=message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=tuple(config for config in configs if not requested or config.name in requested),
    )


def _configs_of(
    resource: DescribeConfigsRequestResource,
    request: DescribeConfigsRequest,
    context: RequestContext,
) -> Sequence[DescribeConfigsResponseConfig]:
    broker, name = context.broker, resource.resource_name
    _check_rights(resource.resource_type, name, context)
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            return _describe_topic(broker.topics.get(check_topic(name)), request, context)
        case ConfigResourceType.BROKER:
            configs = broker.configs
            for_all = (configs.of(ALL_NODES), ConfigSource.DYNAMIC_DEFAULT_BROKER)
            settings = [
                *node_settings(
                    broker.config,
                    context.config,
                    broker.topics.log_config,
                    default_factor=broker.cluster.default_replication_factor,
                ),
                *listener_settings(broker.listener, broker.advertised),
            ]
            if not name:  # Only what is set for all nodes.
                settings = [setting for setting in settings if setting.name in for_all[0]]
                return _describe_settings(settings, request, for_all)
            _check_node(name, context)
            own = (configs.of(node_key(broker.node_id)), ConfigSource.DYNAMIC_BROKER)
            return _describe_settings(settings, request, own, for_all)
        case ConfigResourceType.GROUP:
            own = (broker.configs.of(_group_key(name)), ConfigSource.GROUP)
            return _describe_settings(group_settings(broker.config), request, own)
        case _:
            raise _no_configs(resource.resource_type)


def _describe_topic(
    topic: Topic, request: DescribeConfigsRequest, context: RequestContext
) -> Sequence[DescribeConfigsResponseConfig]:
    config = topic.config
    # Without a setting, it depends on the number of replicas.
    min_insync = str(context.broker.cluster.min_insync_replicas(topic.name))
    is_default = MIN_INSYNC_REPLICAS not in config.overrides
    computed = {MIN_INSYNC_REPLICAS: min_insync} if is_default else {}
    return [
        DescribeConfigsResponseConfig(
            name=setting.name,
            value=computed.get(setting.name) or config.value(setting.name),
            config_source=source_of(config, setting.name),
            synonyms=_topic_synonyms(config, setting.name) if request.include_synonyms else (),
            config_type=KINDS[setting.kind],
            documentation=setting.meaning if request.include_documentation else None,
        )
        for setting in TOPIC_CONFIGS.values()
    ]


def source_of(config: TopicConfig, name: str) -> ConfigSource:
    """Return the source of the value of a topic's config."""
    if name in config.overrides:
        return ConfigSource.TOPIC
    setting = TOPIC_CONFIGS[name]
    is_default = setting.default_of(config.node) == setting.default
    return ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER


def _topic_synonyms(config: TopicConfig, name: str) -> tuple[DescribeConfigsResponseSynonym, ...]:
    """Return the possible sources of the value: the topic, the node, and the built-in default."""
    setting = TOPIC_CONFIGS[name]
    synonyms = []
    if (own := config.overrides.get(name)) is not None:
        synonyms.append((name, own, ConfigSource.TOPIC))
    if setting.server_name is not None:
        on_node = setting.default_of(config.node)
        if on_node != setting.default:
            synonyms.append((setting.server_name, on_node, ConfigSource.STATIC_BROKER))
        synonyms.append((setting.server_name, setting.default, ConfigSource.DEFAULT))
    return tuple(
        DescribeConfigsResponseSynonym(name=name, value=value, source=source)
        for name, value, source in synonyms
    )


def _describe_settings(
    settings: Iterable[NodeSetting],
    request: DescribeConfigsRequest,
    *changed: tuple[Mapping[str, str], ConfigSource],
) -> Sequence[DescribeConfigsResponseConfig]:
    """Describe settings; `changed` are those that clients have set, the first ones precede."""
    described = []
    for setting in sorted(settings, key=lambda setting: setting.name):
        synonyms = _setting_synonyms(setting, changed)
        described.append(
            DescribeConfigsResponseConfig(
                name=setting.name,
                value=synonyms[0].value,
                read_only=not setting.is_dynamic,
                config_source=synonyms[0].source,
                synonyms=synonyms if request.include_synonyms else (),
                config_type=KINDS[setting.kind],
                documentation=setting.meaning if request.include_documentation else None,
            )
        )
    return described


def _setting_synonyms(
    setting: NodeSetting, changed: Sequence[tuple[Mapping[str, str], ConfigSource]]
) -> tuple[DescribeConfigsResponseSynonym, ...]:
    """Return the possible sources of a value, the one that counts first."""
    values = [(configs[setting.name], src) for configs, src in changed if setting.name in configs]
    if setting.value != setting.default:
        values.append((setting.value, ConfigSource.STATIC_BROKER))
    values.append((setting.default, ConfigSource.DEFAULT))
    return tuple(
        DescribeConfigsResponseSynonym(name=setting.name, value=value, source=source)
        for value, source in values
    )


def list_config_resources(
    request: ListConfigResourcesRequest, context: RequestContext
) -> ListConfigResourcesResponse:
    """List the resources that have configs: topics, nodes, and groups with configs of their own.

    Version 0 asks for subscriptions to client metrics only. There are none, and no loggers.
    """
    listed = request.resource_types if context.version > 0 else (ConfigResourceType.CLIENT_METRICS,)
    if any(kind not in list(ConfigResourceType) for kind in listed):
        return ListConfigResourcesResponse(
            throttle_time_ms=context.throttle_ms, error_code=ErrorCode.UNSUPPORTED_VERSION
        )
    if (refusal := context.cluster_refusal()) is not None:
        return ListConfigResourcesResponse(
            throttle_time_ms=context.throttle_ms, error_code=code_of(refusal)
        )
    broker = context.broker
    names = {
        ConfigResourceType.TOPIC: [topic.name for topic in broker.topics.all()],
        ConfigResourceType.BROKER: [str(node.node_id) for node in broker.cluster.nodes()],
        ConfigResourceType.GROUP: broker.configs.groups(),
    }
    return ListConfigResourcesResponse(
        throttle_time_ms=context.throttle_ms,
        config_resources=tuple(
            ListConfigResourcesResponseResource(resource_name=name, resource_type=kind)
            for kind, found in names.items()
            if not listed or kind in listed
            for name in found
        ),
    )


# Changing.


async def alter_configs(
    request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    """Replace the configs of each resource by these."""
    results = await _alter_all(
        request.resources,
        lambda resource: _alter(resource, context, is_validate_only=request.validate_only),
    )
    return AlterConfigsResponse(
        responses=tuple(
            AlterConfigsResponseResource(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, (code, message) in zip(request.resources, results, strict=True)
        )
    )


async def _alter(
    resource: AlterConfigsRequestResource, context: RequestContext, *, is_validate_only: bool
) -> None:
    key = _check_changes(resource, context, [config.value for config in resource.configs])
    configs = {config.name: config.value or "" for config in resource.configs}
    if key is not None:
        await context.broker.configs.put(key, configs, is_validate_only=is_validate_only)
    else:
        name = resource.resource_name
        await context.broker.topics.alter(name, configs, is_validate_only=is_validate_only)
    if not is_validate_only:
        context.note_change(_access_resource(resource))


async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    """Apply changes to the configs of each resource: all changes of a resource, or none."""
    results = await _alter_all(
        request.resources,
        lambda resource: _change(resource, context, is_validate_only=request.validate_only),
    )
    return IncrementalAlterConfigsResponse(
        responses=tuple(
            IncrementalAlterConfigsResponseResource(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, (code, message) in zip(request.resources, results, strict=True)
        )
    )


async def _change(
    resource: IncrementalAlterConfigsRequestResource,
    context: RequestContext,
    *,
    is_validate_only: bool,
) -> None:
    changes = [_change_of(config) for config in resource.configs]
    values = [
        change.value for change in changes if change.operation is not AlterConfigOperation.DELETE
    ]
    key = _check_changes(resource, context, values)
    if key is not None:
        await context.broker.configs.change(key, changes, is_validate_only=is_validate_only)
    else:
        await context.broker.topics.change_configs(
            resource.resource_name, changes, is_validate_only=is_validate_only
        )
    if not is_validate_only:
        context.note_change(_access_resource(resource))


def _access_resource(resource: AnyResource) -> Resource:
    """Return the resource to which the right to alter the configs is given."""
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            return topic_resource(resource.resource_name)
        case ConfigResourceType.GROUP:
            return group_resource(resource.resource_name)
        case _:
            return CLUSTER


def _change_of(config: IncrementalAlterConfigsRequestConfig) -> ConfigChange:
    operation = OPERATIONS.get(config.config_operation)
    if operation is None:
        allowed = ", ".join(f"{number} {kind.value}" for number, kind in OPERATIONS.items())
        raise InvalidRequest(f"operation must be one of {allowed}, got {config.config_operation}")
    return ConfigChange(config.name, operation, config.value)


# Shared.


async def _alter_all(
    resources: Sequence[R], alter: Callable[[R], Awaitable[None]]
) -> list[tuple[ErrorCode, str | None]]:
    """Alter each resource on its own, and return the results."""
    repeated = _repeated((resource.resource_type, resource.resource_name) for resource in resources)
    results: list[tuple[ErrorCode, str | None]] = []
    for resource in resources:
        try:
            if (resource.resource_type, resource.resource_name) in repeated:
                raise InvalidRequest(f"resource {resource.resource_name[:300]!r} is repeated")
            await alter(resource)
        except MillstreamError as error:
            results.append((code_of(error), str(error)))
        else:
            results.append((ErrorCode.NONE, None))
    return results


def _check_rights(kind: int, name: str, context: RequestContext) -> None:
    """Raise unless the caller may do to a resource what the API does."""
    match kind:
        case ConfigResourceType.TOPIC:
            context.require_topic(name)
        case ConfigResourceType.GROUP:
            context.require_group(name)
        case _:
            context.require_cluster()


def _check_changes(
    resource: AnyResource, context: RequestContext, values: Iterable[str | None]
) -> str | None:
    """Reject contradictory changes, and resources that cannot be changed.

    Returns the key of the configs of a node or a group, and None for a topic.
    """
    _check_rights(resource.resource_type, resource.resource_name, context)
    repeated = _repeated(config.name for config in resource.configs)
    if repeated:
        raise InvalidRequest(f"config {min(repeated)!r} is repeated")
    if None in values:
        raise InvalidRequest("a config has no value: to remove it, delete it")
    name = resource.resource_name
    match resource.resource_type:
        case ConfigResourceType.TOPIC:
            if not name:
                raise InvalidRequest(
                    "a topic name is required: there are no configs for all topics"
                )
            return None
        case ConfigResourceType.BROKER:
            if not name:
                return ALL_NODES
            _check_node(name, context)
            return node_key(context.broker.node_id)
        case ConfigResourceType.GROUP:
            return _group_key(name)
        case _:
            raise _no_configs(resource.resource_type)


def _group_key(name: str) -> str:
    if not name:
        raise InvalidRequest("a group name is required")
    return group_key(check_group_id(name))


def _check_node(name: str, context: RequestContext) -> None:
    broker = context.broker
    if name == str(broker.node_id):
        return
    other = broker.cluster.node(int(name)) if name.isascii() and name.isdigit() else None
    where = "" if other is None else f"; ask node {name} at {other.kafka} for its own"
    raise InvalidRequest(f"node must be {broker.node_id}, got {name[:100]!r}{where}")


def _no_configs(kind: int) -> InvalidRequest:
    known = {resource.value: resource.name for resource in ConfigResourceType}
    allowed = ", ".join(
        f"{resource.value} {resource.name}"
        for resource in (
            ConfigResourceType.TOPIC,
            ConfigResourceType.BROKER,
            ConfigResourceType.GROUP,
        )
    )
    return InvalidRequest(
        f"resource type must be one of {allowed}, got {kind} {known.get(kind, 'unknown')}"
    )


def _repeated(keys: Iterable[K]) -> set[K]:
    return {key for key, count in Counter(keys).items() if count > 1}
