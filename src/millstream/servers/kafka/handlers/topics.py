"""Topics: create, add partitions, delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import TypeVar
from uuid import UUID

from millstream.broker.access.resources import Operation
from millstream.broker.access.resources import topic as topic_resource
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.configs.topic_settings import TOPIC_CONFIGS
from millstream.broker.topics.topic import NO_ID, Topic
from millstream.broker.topics.topics import DEFAULT_REPLICATION, Replication
from millstream.errors import (
    InvalidAssignment,
    InvalidReplication,
    InvalidRequest,
    MillstreamError,
    QuotaExceeded,
)
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    CreateTopicsResponseConfig,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
)
from millstream.servers.kafka.handlers.configs import source_of
from millstream.servers.kafka.request_context import RequestContext

K = TypeVar("K", bound=Hashable)

NOT_SPECIFIED = -1
"""As a number of partitions or replicas: the default of the node."""

DELETES_BY_ID_SINCE = 6

CREATE_TOPICS_STRICT_SINCE = 6
DELETE_TOPICS_STRICT_SINCE = 5
CREATE_PARTITIONS_STRICT_SINCE = 3
"""From this version on, clients know the error of an exceeded quota; older ones are throttled."""

# Creating.


async def create_topics(
    request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    """Create topics, each on its own."""
    repeated = _repeated(topic.name for topic in request.topics)
    results = []
    for requested in request.topics:
        try:
            if requested.name in repeated:
                raise InvalidRequest(f"topic {requested.name!r} is repeated")
            context.require_creation(requested.name)
            topic = await _create(requested, request, context)
            if topic.is_created:
                context.note_change(topic_resource(topic.name))
            results.append(_created(topic, context))
        except MillstreamError as error:
            code, message = _answer(error)
            results.append(
                CreateTopicsResponseTopic(
                    name=requested.name, error_code=code, error_message=message, configs=None
                )
            )
    return CreateTopicsResponse(throttle_time_ms=context.throttle_ms, topics=tuple(results))


async def _create(
    requested: CreateTopicsRequestTopic, request: CreateTopicsRequest, context: RequestContext
) -> Topic:
    configs = {config.name: config.value for config in requested.configs}
    if len(configs) < len(requested.configs):
        raise InvalidRequest(f"topic {requested.name!r} sets a config twice")
    partitions, replication = _partitions_of(requested)
    _check_mutations(context, strict_since=CREATE_TOPICS_STRICT_SINCE)
    topic = await context.broker.topics.create(
        requested.name,
        partitions=partitions,
        configs=configs,
        replication=replication,
        is_validate_only=request.validate_only,
        creator=context.caller,
    )
    if topic.is_created:
        context.charge(QuotaKind.MUTATION, topic.partition_count)
    return topic


def _partitions_of(requested: CreateTopicsRequestTopic) -> tuple[int | None, Replication]:
    """Return the number of partitions, and the replicas that the client wants."""
    factor = requested.replication_factor
    if requested.assignments:
        if (requested.num_partitions, factor) != (NOT_SPECIFIED, NOT_SPECIFIED):
            raise InvalidRequest(
                f"with assignments, partitions and replicas must be {NOT_SPECIFIED},"
                f" got {requested.num_partitions} and {factor}"
            )
        chosen = sorted((item.partition_index, item.broker_ids) for item in requested.assignments)
        if [index for index, _ in chosen] != list(range(len(chosen))):
            raise InvalidAssignment("assigned partitions must be 0, 1, 2 and so on, each once")
        factors = {len(replicas) for _, replicas in chosen}
        if len(factors) > 1:
            raise InvalidAssignment(
                f"all partitions must have the same number of replicas, got {sorted(factors)}"
            )
        assignments = tuple(replicas for _, replicas in chosen)
        return len(chosen), Replication(factors.pop(), assignments)
    if factor != NOT_SPECIFIED and factor < 1:
        raise InvalidReplication(
            f"replication factor must be at least 1, or {NOT_SPECIFIED} for the default, got"
            f" {factor}"
        )
    count = requested.num_partitions
    return (
        None if count == NOT_SPECIFIED else count,
        DEFAULT_REPLICATION if factor == NOT_SPECIFIED else Replication(factor),
    )


def _created(topic: Topic, context: RequestContext) -> CreateTopicsResponseTopic:
    config = topic.config
    if not context.may(Operation.DESCRIBE_CONFIGS, topic_resource(topic.name)):
        return CreateTopicsResponseTopic(
            name=topic.name,
            topic_id=topic.id,
            topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            configs=None,
        )
    return CreateTopicsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        num_partitions=topic.partition_count,
        replication_factor=_factor_of(topic, context),
        configs=tuple(
            CreateTopicsResponseConfig(
                name=name, value=config.value(name), config_source=source_of(config, name)
            )
            for name in TOPIC_CONFIGS
        ),
    )


def _factor_of(topic: Topic, context: RequestContext) -> int:
    """Return the replicas that each partition has, or would have."""
    cluster = context.broker.cluster
    if topic.is_created and (replicas := cluster.placement(topic.name, 0).replicas):
        return len(replicas)
    return topic.row.replication_factor or cluster.default_replication_factor


# Adding partitions.


async def create_partitions(
    request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    """Add partitions to topics, each on its own."""
    repeated = _repeated(topic.name for topic in request.topics)
    results = []
    for requested in request.topics:
        code, message = ErrorCode.NONE, None
        try:
            if requested.name in repeated:
                raise InvalidRequest(f"topic {requested.name!r} is repeated")
            context.require_topic(requested.name)
            await _grow(requested, context, is_validate_only=request.validate_only)
        except MillstreamError as error:
            code, message = _answer(error)
        results.append(
            CreatePartitionsResponseTopic(
                name=requested.name, error_code=code, error_message=message
            )
        )
    return CreatePartitionsResponse(throttle_time_ms=context.throttle_ms, results=tuple(results))


async def _grow(
    requested: CreatePartitionsRequestTopic, context: RequestContext, *, is_validate_only: bool
) -> None:
    topics = context.broker.topics
    before = topics.get(requested.name).partition_count
    assignments = None
    if requested.assignments is not None:
        assignments = tuple(assignment.broker_ids for assignment in requested.assignments)
    _check_mutations(context, strict_since=CREATE_PARTITIONS_STRICT_SINCE)
    await topics.add_partitions(
        requested.name,
        requested.count,
        assignments=assignments,
        is_validate_only=is_validate_only,
    )
    if not is_validate_only:
        context.charge(QuotaKind.MUTATION, requested.count - before)
        context.note_change(topic_resource(requested.name))


# Deleting.


async def delete_topics(
    request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    """Delete topics, each on its own. No client sees them after the response."""
    requested = request.topics
    if context.version < DELETES_BY_ID_SINCE:
        requested = tuple(
            DeleteTopicsRequestTopic(name=name, topic_id=NO_ID) for name in request.topic_names
        )
    repeated = _repeated((topic.name, topic.topic_id) for topic in requested)
    results = []
    for topic in requested:
        name, topic_id = topic.name, topic.topic_id
        code, message = ErrorCode.NONE, None
        try:
            if (name, topic_id) in repeated:
                raise InvalidRequest("a topic is repeated")
            name, topic_id = _find(name, topic_id, context)
            _check_mutations(context, strict_since=DELETE_TOPICS_STRICT_SINCE)
            deleted = await context.broker.topics.delete(name, topic_id=topic_id)
            context.note_change(topic_resource(name))
            context.charge(QuotaKind.MUTATION, deleted.partition_count)
        except MillstreamError as error:
            code, message = _answer(error)
        results.append(
            DeleteTopicsResponseTopic(
                name=name, topic_id=topic_id, error_code=code, error_message=message
            )
        )
    return DeleteTopicsResponse(throttle_time_ms=context.throttle_ms, responses=tuple(results))


def _find(name: str | None, topic_id: UUID, context: RequestContext) -> tuple[str, UUID]:
    """Return name and id of a topic that is given by one of them."""
    if name is None and topic_id == NO_ID:
        raise InvalidRequest("a topic needs a name or an id")
    if name is not None and topic_id != NO_ID:
        raise InvalidRequest(f"topic {name!r} must be given by name or by id, got both")
    topics = context.broker.topics
    if name is None:
        topic = topics.by_id(topic_id)
        context.require_topic_by_id(topic)
    else:
        context.require_topic(name)
        topic = topics.get(name)
    return topic.name, topic.id


# Shared.


def _repeated(keys: Iterable[K]) -> set[K]:
    return {key for key, count in Counter(keys).items() if count > 1}


def _check_mutations(context: RequestContext, *, strict_since: int) -> None:
    """Reject the request if the client exceeded its quota, and knows that error."""
    quotas = context.broker.quotas
    if quotas.is_empty or context.version < strict_since:
        return
    now = context.broker.clock.monotonic()
    wait_ms = quotas.wait_ms(QuotaKind.MUTATION, context.principal.name, context.client_id, now)
    if wait_ms > 0:
        context.throttle_ms = max(context.throttle_ms, wait_ms)
        raise QuotaExceeded(QuotaKind.MUTATION.value, wait_ms)


def _answer(error: MillstreamError) -> tuple[ErrorCode, str]:
    """Return code and message of an error."""
    return code_of(error), str(error)
