"""confluent-kafka (librdkafka) as an operator: topics, settings, groups, records, the cluster."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from .conftest import TIMEOUT_S
from .librdkafka import (
    consumer,
    error_code,
    member,
    poll_until,
    producer,
    read,
    read_all,
    send,
    values,
)


def done(futures):
    """Return the result of the only future in a response."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def create(admin, name, partitions=1, configs=None, **settings):
    done(admin.create_topics([NewTopic(name, partitions, 1, config=configs or {})], **settings))
    if not settings:
        poll_until([], lambda: name in admin.list_topics(timeout=TIMEOUT_S).topics)


def refusal(call, *arguments, **settings):
    """Return the code of the error that the call must raise."""
    with pytest.raises(KafkaException) as raised:
        call(*arguments, **settings)
    return error_code(raised)


def settings_of(admin, topic):
    return done(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))


# Topics


def test_a_topic_is_there_once_it_is_created_and_gone_once_it_is_deleted(admin, name):
    create(admin, name, 4)
    found = admin.list_topics(timeout=TIMEOUT_S).topics[name]
    assert sorted(found.partitions) == [0, 1, 2, 3]
    done(admin.delete_topics([name]))
    poll_until([], lambda: name not in admin.list_topics(timeout=TIMEOUT_S).topics)


def test_a_topic_that_is_created_anew_is_empty_and_another(bootstrap, admin, name):
    ids = set()
    for _ in range(2):
        create(admin, name)
        described = done(admin.describe_topics(TopicCollection([name])))
        ids.add(str(described.topic_id))
        assert read_all(bootstrap, name) == []
        send(producer(bootstrap), name, [b"old"])
        done(admin.delete_topics([name]))
        poll_until([], lambda: name not in admin.list_topics(timeout=TIMEOUT_S).topics)
    assert len(ids) == 2


def test_a_topic_that_exists_cannot_be_created(admin, new_topic):
    assert refusal(create, admin, new_topic()) == KafkaError.TOPIC_ALREADY_EXISTS


def test_names_that_differ_in_dot_and_underscore_only_collide(admin, name):
    create(admin, f"{name}.a_b")
    assert refusal(create, admin, f"{name}_a.b") == KafkaError.TOPIC_EXCEPTION
    admin.delete_topics([f"{name}.a_b"])


@pytest.mark.parametrize("bad", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
def test_a_name_that_is_not_allowed_is_refused(admin, bad):
    assert refusal(create, admin, bad) == KafkaError.TOPIC_EXCEPTION


def test_a_topic_needs_a_partition(admin, name):
    assert refusal(create, admin, name, 0) == KafkaError.INVALID_PARTITIONS


def test_more_replicas_than_brokers_are_refused(admin, name):
    call = admin.create_topics([NewTopic(name, 1, 3)])
    assert refusal(done, call) == KafkaError.INVALID_REPLICATION_FACTOR


def test_without_a_number_the_broker_decides_on_partitions(admin, name):
    create(admin, name, -1)
    described = done(admin.describe_topics(TopicCollection([name])))
    assert len(described.partitions) >= 1
    admin.delete_topics([name])


def test_validation_alone_creates_nothing(admin, name):
    create(admin, name, validate_only=True)
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics
    assert refusal(create, admin, "a b", validate_only=True) == KafkaError.TOPIC_EXCEPTION


def test_a_topic_that_is_not_there_cannot_be_deleted(admin, name):
    assert refusal(done, admin.delete_topics([name])) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_each_topic_of_a_request_has_its_own_answer(admin, name, new_topic):
    taken = new_topic()
    answers = admin.create_topics([NewTopic(topic, 1, 1) for topic in (taken, name, "a b")])
    assert refusal(answers[taken].result, TIMEOUT_S) == KafkaError.TOPIC_ALREADY_EXISTS
    assert refusal(answers["a b"].result, TIMEOUT_S) == KafkaError.TOPIC_EXCEPTION
    assert answers[name].result(TIMEOUT_S) is None
    admin.delete_topics([name])


def test_a_topic_is_described(admin, new_topic):
    topic = new_topic(3)
    described = done(admin.describe_topics(TopicCollection([topic])))
    assert described.name == topic
    assert not described.is_internal
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    for partition in described.partitions:
        assert partition.leader is not None
        assert [node.id for node in partition.isr] == [partition.leader.id]
        assert [node.id for node in partition.replicas] == [partition.leader.id]


def test_a_topic_that_is_not_there_cannot_be_described(admin, name):
    answer = admin.describe_topics(TopicCollection([name]))
    assert refusal(done, answer) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_partitions_can_be_added_and_not_removed(bootstrap, admin, new_topic):
    topic = new_topic(2)
    done(admin.create_partitions([NewPartitions(topic, 5)]))
    poll_until(
        [], lambda: len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == 5
    )
    send(producer(bootstrap), topic, [b"new"], partition=4)
    assert values(read_all(bootstrap, topic, partition=4)) == [b"new"]
    for count in (5, 3):
        answer = admin.create_partitions([NewPartitions(topic, count)])
        assert refusal(done, answer) == KafkaError.INVALID_PARTITIONS
    answer = admin.create_partitions([NewPartitions("nowhere", 3)])
    assert refusal(done, answer) == KafkaError.UNKNOWN_TOPIC_OR_PART


# Settings


def test_settings_are_described_with_their_defaults(admin, new_topic):
    topic = new_topic(configs={"retention.ms": "1000000", "cleanup.policy": "compact"})
    found = settings_of(admin, topic)
    assert found["cleanup.policy"].value == "compact"
    assert found["cleanup.policy"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert found["retention.ms"].value == "1000000"
    assert not found["retention.ms"].is_default
    for setting, value in {
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "compression.type": "producer",
        "retention.bytes": "-1",
        "delete.retention.ms": "86400000",
    }.items():
        assert found[setting].value == value, setting
        assert found[setting].is_default, setting
        assert not found[setting].is_read_only
        assert not found[setting].is_sensitive


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "burn"),
        ("message.timestamp.type", "Now"),
        ("max.message.bytes", "-1"),
        ("compression.type", "rar"),
        ("min.insync.replicas", "0"),
        ("no.such.setting", "1"),
    ],
)
def test_a_bad_setting_is_refused_wherever_it_comes_from(admin, name, new_topic, setting, value):
    configs = {setting: value}
    assert refusal(create, admin, name, configs=configs) == KafkaError.INVALID_CONFIG
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics
    topic = new_topic()
    before = {key: entry.value for key, entry in settings_of(admin, topic).items()}
    assert refusal(change, admin, topic, configs) == KafkaError.INVALID_CONFIG
    assert {key: entry.value for key, entry in settings_of(admin, topic).items()} == before


def change(admin, topic, configs, operation=AlterConfigOpType.SET, **settings):
    entries = [
        ConfigEntry(setting, value, incremental_operation=operation)
        for setting, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    return done(admin.incremental_alter_configs([resource], **settings))


def test_settings_change_one_by_one(admin, new_topic):
    topic = new_topic(configs={"retention.ms": "1000000"})
    change(admin, topic, {"max.message.bytes": "5000", "cleanup.policy": "delete"})
    change(admin, topic, {"cleanup.policy": "compact"}, AlterConfigOpType.APPEND)
    found = settings_of(admin, topic)
    assert found["retention.ms"].value == "1000000"
    assert found["max.message.bytes"].value == "5000"
    assert sorted(found["cleanup.policy"].value.split(",")) == ["compact", "delete"]
    change(admin, topic, {"cleanup.policy": "delete"}, AlterConfigOpType.SUBTRACT)
    change(admin, topic, {"max.message.bytes": None}, AlterConfigOpType.DELETE)
    found = settings_of(admin, topic)
    assert found["cleanup.policy"].value == "compact"
    assert (found["max.message.bytes"].value, found["max.message.bytes"].is_default) == (
        "1048588",
        True,
    )


def test_a_change_that_is_only_validated_changes_nothing(admin, new_topic):
    topic = new_topic()
    change(admin, topic, {"max.message.bytes": "5000"}, validate_only=True)
    assert settings_of(admin, topic)["max.message.bytes"].value == "1048588"


def test_a_setting_works_from_its_change_on(bootstrap, admin, new_topic):
    topic = new_topic()
    writer = producer(bootstrap)
    send(writer, topic, [b"x" * 6000])
    change(admin, topic, {"max.message.bytes": "5000"})
    assert refusal(send, writer, topic, [b"x" * 6000]) == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_old_way_to_change_settings_replaces_them_all(admin, new_topic):
    topic = new_topic(configs={"retention.ms": "1000000"})
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "7000"})
    done(admin.alter_configs([resource]))
    found = settings_of(admin, topic)
    assert found["max.message.bytes"].value == "7000"
    assert found["retention.ms"].is_default


def test_settings_of_a_topic_that_is_not_there_are_an_error(admin, name):
    assert refusal(settings_of, admin, name) == KafkaError.UNKNOWN_TOPIC_OR_PART
    changes = {"max.message.bytes": "5000"}
    assert refusal(change, admin, name, changes) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_the_broker_has_settings(admin):
    (broker,) = admin.list_topics(timeout=TIMEOUT_S).brokers
    found = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]))
    assert int(found["num.partitions"].value) >= 1
    assert found["auto.create.topics.enable"].value == "true"


# Groups


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_listed_described_and_deleted(bootstrap, admin, new_topic, name, protocol):
    topic = new_topic(2)
    reader = member(bootstrap, name, protocol, {"client.id": "the reader"})
    reader.subscribe([topic])
    poll_until([reader], lambda: len(reader.assignment()) == 2)

    listed = {group.group_id: group for group in all_groups(admin)}
    assert listed[name].state == ConsumerGroupState.STABLE
    assert listed[name].type == ConsumerGroupType[protocol.upper()]

    described = done(admin.describe_consumer_groups([name]))
    assert described.state == ConsumerGroupState.STABLE
    assert described.partition_assignor == ("range" if protocol == "classic" else "uniform")
    (found,) = described.members
    assert found.client_id == "the reader"
    assert found.host.endswith("127.0.0.1")
    places = {(p.topic, p.partition) for p in found.assignment.topic_partitions}
    assert places == {(topic, 0), (topic, 1)}

    assert refusal(done, admin.delete_consumer_groups([name])) == KafkaError.NON_EMPTY_GROUP
    reader.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    reader.close()
    assert done(admin.describe_consumer_groups([name])).state == ConsumerGroupState.EMPTY
    done(admin.delete_consumer_groups([name]))
    assert name not in {group.group_id for group in all_groups(admin)}
    assert refusal(done, admin.delete_consumer_groups([name])) == KafkaError.GROUP_ID_NOT_FOUND


def all_groups(admin, **settings):
    answer = admin.list_consumer_groups(**settings).result(TIMEOUT_S)
    assert answer.errors == []
    return answer.valid


def test_groups_are_listed_by_state_and_by_kind(bootstrap, admin, new_topic, name):
    topic = new_topic()
    reader = member(bootstrap, name)
    reader.subscribe([topic])
    poll_until([reader], lambda: len(reader.assignment()) == 1)
    empty = consumer(bootstrap, group=f"{name}-empty")
    empty.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)

    def names(**settings):
        return {g.group_id for g in all_groups(admin, **settings) if g.group_id.startswith(name)}

    assert names() == {name, f"{name}-empty"}
    assert names(states={ConsumerGroupState.STABLE}) == {name}
    assert names(states={ConsumerGroupState.EMPTY}) == {f"{name}-empty"}
    assert names(types={ConsumerGroupType.CLASSIC}) == {name, f"{name}-empty"}
    assert names(types={ConsumerGroupType.CONSUMER}) == set()
    reader.close()
    empty.close()


def test_a_group_that_is_not_there_is_described_as_dead(admin, name):
    described = done(admin.describe_consumer_groups([name]))
    assert described.state == ConsumerGroupState.DEAD
    assert described.members == []


def test_offsets_of_a_group_are_listed_and_set_while_it_is_empty(bootstrap, admin, new_topic, name):
    topic = new_topic(3)
    for partition in range(3):
        send(producer(bootstrap), topic, [b"0", b"1", b"2"], partition=partition)
    places = [TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 1)]
    done(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, places)]))

    def listed(partitions=None):
        request = ConsumerGroupTopicPartitions(name, partitions)
        answer = done(admin.list_consumer_group_offsets([request]))
        return {p.partition: p.offset for p in answer.topic_partitions if p.error is None}

    assert listed() == {0: 2, 1: 1}
    assert listed([TopicPartition(topic, 1), TopicPartition(topic, 2)]) == {1: 1, 2: -1001}
    reader = member(bootstrap, name)
    reader.subscribe([topic])
    assert sorted(values(read(reader, 6))) == [b"0", b"1", b"1", b"2", b"2", b"2"]
    change = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(name, places)])
    for place in done(change).topic_partitions:
        assert place.error.code() == KafkaError.UNKNOWN_MEMBER_ID
    reader.close()


# Records and the cluster


def test_records_are_deleted_up_to_an_offset(bootstrap, admin, new_topic):
    topic = new_topic()
    send(producer(bootstrap), topic, [b"%d" % number for number in range(10)], partition=0)
    deleted = done(admin.delete_records([TopicPartition(topic, 0, 6)]))
    assert deleted.low_watermark == 6
    assert values(read_all(bootstrap, topic)) == [b"6", b"7", b"8", b"9"]
    past_the_end = admin.delete_records([TopicPartition(topic, 0, 11)])
    assert refusal(done, past_the_end) == KafkaError.OFFSET_OUT_OF_RANGE
    assert done(admin.delete_records([TopicPartition(topic, 0, -1)])).low_watermark == 10
    assert read_all(bootstrap, topic) == []


def test_the_cluster_is_described(bootstrap, admin):
    found = admin.describe_cluster().result(TIMEOUT_S)
    (node,) = found.nodes
    assert f"{node.host}:{node.port}" == bootstrap
    assert found.controller.id == node.id
    assert found.cluster_id == admin.list_topics(timeout=TIMEOUT_S).cluster_id
