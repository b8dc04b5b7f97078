"""kafka-python 3 writes, reads, shares partitions, writes in transactions and administers."""

from __future__ import annotations

import threading
import time
import warnings

import pytest

from millstream.records.compression import Codec

from .conftest import TIMEOUT_S

with warnings.catch_warnings():
    # kafka-python loads its schemas through a part of the standard library that is on its way out.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import (
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        OffsetAndMetadata,
        TopicPartition,
    )
    from kafka import errors as kafka_errors
    from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture
def connect(bootstrap):
    """Create clients that are closed after the test: `connect(KafkaProducer, acks=1)`."""
    clients = []

    def start(kind, *topics, **settings):
        if kind is KafkaConsumer:
            settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False} | settings
            if settings.get("group_id"):
                settings = {
                    "session_timeout_ms": 6000,
                    "heartbeat_interval_ms": 200,
                    # A leader that divides the partitions before it has heard of any looks again.
                    "metadata_max_age_ms": 500,
                } | settings
        client = kind(*topics, bootstrap_servers=bootstrap, retry_backoff_ms=20, **settings)
        clients.append(client)
        return client

    yield start
    for client in reversed(clients):
        client.close()


@pytest.fixture
def operator(connect):
    return connect(KafkaAdminClient)


def send(producer, topic, *values, **more):
    futures = [producer.send(topic, value, **more) for value in values]
    return [future.get(TIMEOUT_S) for future in futures]


def read(consumer, count):
    records = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        for batch in consumer.poll(timeout_ms=200, max_records=count - len(records)).values():
            records += batch
    return records


def read_all(connect, topic, partition=0, **settings):
    """Return all records from the start to the present end."""
    consumer = connect(KafkaConsumer, **settings)
    place = TopicPartition(topic, partition)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    (end,) = consumer.end_offsets([place]).values()
    records = []
    deadline = time.monotonic() + TIMEOUT_S
    while consumer.position(place) < end:
        assert time.monotonic() < deadline, f"{consumer.position(place)} of {end} was reached"
        for batch in consumer.poll(timeout_ms=200).values():
            records += batch
    return records


def values(records):
    return [record.value for record in records]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_records_are_read_as_they_were_written(connect, new_topic, codec, acks):
    topic = new_topic()
    producer = connect(
        KafkaProducer, acks=acks, compression_type=codec, enable_idempotence=False, linger_ms=20
    )
    sent = [b"value %d" % number * 30 for number in range(50)]
    headers = [("a", b"1"), ("a", b"2"), ("empty", b"")]
    reports = send(producer, topic, *sent, key=b"key", headers=headers, timestamp_ms=1234)
    assert codec is None or codec in {each.name.lower() for each in Codec}
    if acks != 0:
        assert [report.offset for report in reports] == list(range(50))
    consumer = connect(KafkaConsumer, topic)
    records = read(consumer, 50)
    assert values(records) == sent
    assert {record.key for record in records} == {b"key"}
    assert {record.timestamp for record in records} == {1234}
    assert list(records[0].headers) == headers


def test_an_idempotent_producer_keeps_its_order(connect, new_topic):
    topic = new_topic()
    producer = connect(KafkaProducer, enable_idempotence=True, batch_size=200)
    sent = [b"%d" % number for number in range(500)]
    reports = send(producer, topic, *sent, partition=0)
    assert [report.offset for report in reports] == list(range(500))
    assert values(read_all(connect, topic)) == sent


def test_a_record_that_is_too_large_is_refused(connect, new_topic):
    producer = connect(KafkaProducer, max_request_size=5_000_000)
    with pytest.raises(kafka_errors.MessageSizeTooLargeError):
        send(producer, new_topic(), b"x" * 1_100_000)


def test_offsets_are_found_by_place_and_by_time(connect, new_topic):
    topic = new_topic()
    producer = connect(KafkaProducer)
    for number in range(10):
        send(producer, topic, b"%d" % number, timestamp_ms=1000 + 10 * number)
    consumer = connect(KafkaConsumer)
    place = TopicPartition(topic, 0)
    assert consumer.beginning_offsets([place]) == {place: 0}
    assert consumer.end_offsets([place]) == {place: 10}
    found = consumer.offsets_for_times({place: 1035})[place]
    assert (found.offset, found.timestamp) == (4, 1040)
    assert consumer.offsets_for_times({place: 5000}) == {place: None}
    consumer.assign([place])
    consumer.seek(place, 7)
    assert values(read(consumer, 3)) == [b"7", b"8", b"9"]
    assert consumer.position(place) == 10


def test_two_members_share_and_the_last_takes_all(connect, new_topic, name):
    topic = new_topic(4)
    members = [connect(KafkaConsumer, topic, group_id=name) for _ in range(2)]
    poll_until(members, lambda: [len(each.assignment()) for each in members] == [2, 2])
    shares = [each.assignment() for each in members]
    assert shares[0] | shares[1] == {TopicPartition(topic, number) for number in range(4)}
    members.pop().close()
    poll_until(members, lambda: len(members[0].assignment()) == 4)


def poll_until(consumers, is_done):
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        # A member waits inside its poll until all have joined, so each polls in a thread; and it
        # forgets what it is assigned where its poll ends just before the answer.
        threads = [threading.Thread(target=each.poll, args=(1500,)) for each in consumers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_a_member_goes_on_where_the_one_before_committed(connect, new_topic, name):
    topic = new_topic()
    send(connect(KafkaProducer), topic, b"0", b"1", b"2", b"3")
    place = TopicPartition(topic, 0)
    first = connect(KafkaConsumer, topic, group_id=name)
    assert values(read(first, 2)) == [b"0", b"1"]
    first.commit({place: OffsetAndMetadata(2, "half", -1)})
    first.close()
    second = connect(KafkaConsumer, topic, group_id=name)
    assert second.committed(place, metadata=True).metadata == "half"
    assert values(read(second, 2)) == [b"2", b"3"]


def test_a_transaction_is_seen_whole_or_not_at_all(connect, new_topic, name):
    topic = new_topic(2)
    producer = connect(KafkaProducer, transactional_id=name)
    producer.init_transactions()
    for number in range(4):
        producer.begin_transaction()
        for partition in (0, 1):
            send(producer, topic, b"%d" % number, partition=partition)
        if number == 1:
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    for partition in (0, 1):
        committed = read_all(connect, topic, partition, isolation_level="read_committed")
        assert values(committed) == [b"0", b"2", b"3"]
        everything = read_all(connect, topic, partition, isolation_level="read_uncommitted")
        assert values(everything) == [b"0", b"1", b"2", b"3"]


def test_a_producer_is_fenced_by_the_next_of_its_name(connect, new_topic, name):
    topic = new_topic()
    zombie, successor = (connect(KafkaProducer, transactional_id=name) for _ in range(2))
    zombie.init_transactions()
    zombie.begin_transaction()
    send(zombie, topic, b"of the zombie")
    successor.init_transactions()
    with pytest.raises(kafka_errors.KafkaError):
        zombie.commit_transaction()
    assert read_all(connect, topic, isolation_level="read_committed") == []


def test_results_and_the_place_of_the_input_are_committed_together(connect, new_topic, name):
    source, target = new_topic(), new_topic()
    send(connect(KafkaProducer), source, b"0", b"1", b"2")
    consumer = connect(KafkaConsumer, source, group_id=name)
    producer = connect(KafkaProducer, transactional_id=name)
    producer.init_transactions()
    place = TopicPartition(source, 0)
    for is_commit in (False, True):
        producer.begin_transaction()
        records = read(consumer, 2)
        send(producer, target, *values(records))
        producer.send_offsets_to_transaction(
            {place: OffsetAndMetadata(2, "", -1)}, consumer.group_metadata()
        )
        if is_commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
            consumer.seek(place, 0)
    assert consumer.committed(place) == 2
    assert values(read_all(connect, target, isolation_level="read_committed")) == [b"0", b"1"]


def test_an_operator_sees_transactions_and_producers(connect, new_topic, name, operator):
    topic = new_topic()
    producer = connect(KafkaProducer, transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    send(producer, topic, b"value")
    described = operator.describe_transactions([name])[name]
    assert described.state.value == "Ongoing"
    assert described.topic_partitions == {TopicPartition(topic, 0)}
    (listed,) = (
        each
        for listing in operator.list_transactions().values()
        for each in listing
        if each.transactional_id == name
    )
    assert listed.producer_id == described.producer_id
    place = TopicPartition(topic, 0)
    (state,) = operator.describe_producers([place])[place].active_producers
    assert state.producer_id == described.producer_id
    assert state.last_sequence == 0
    assert state.current_transaction_start_offset == 0
    producer.commit_transaction()
    with pytest.raises(kafka_errors.TransactionalIdNotFoundError):
        operator.describe_transactions([f"{name}-other"])


def test_an_operator_makes_changes_and_deletes_topics(operator, name):
    operator.create_topics(
        {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "9999"}}},
        wait_for_metadata=True,
    )
    assert name in operator.list_topics()
    with pytest.raises(kafka_errors.TopicAlreadyExistsError):
        operator.create_topics([name])
    operator.create_partitions({name: 3})
    wait_for(lambda: len(operator.describe_topics([name])[0]["partitions"]) == 3)
    resource = ConfigResource(ConfigResourceType.TOPIC, name, {"cleanup.policy": "compact"})
    operator.alter_configs([resource])
    found = operator.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    settings = found["topic"][name]
    assert settings["retention.ms"]["value"] == "9999"
    assert settings["cleanup.policy"]["value"] == "compact"
    operator.delete_topics([name])
    wait_for(lambda: name not in operator.list_topics())


def wait_for(is_done):
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < deadline, "what was waited for did not happen"


def test_an_operator_sees_and_deletes_groups_and_their_offsets(connect, operator, new_topic, name):
    topic = new_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    member = connect(KafkaConsumer, topic, group_id=name)
    poll_until([member], lambda: len(member.assignment()) == 2)
    member.commit({place: OffsetAndMetadata(0, "", -1) for place in (first, second)})
    assert name in {group["group_id"] for group in operator.list_groups()}
    described = operator.describe_groups([name])[name]
    assert described["group_state"] == "Stable"
    assert len(described["members"]) == 1
    answer = operator.delete_group_offsets(name, [first])
    assert answer[first] is kafka_errors.GroupSubscribedToTopicError
    member.close()
    assert operator.delete_group_offsets(name, [first])[first] is kafka_errors.NoError
    assert set(operator.list_group_offsets({name: None})[name]) == {second}
    operator.alter_group_offsets(name, {first: OffsetAndMetadata(0, "again", -1)})
    found = operator.list_group_offsets({name: None})[name]
    assert found[first].metadata == "again"
    operator.delete_groups([name])
    assert name not in {group["group_id"] for group in operator.list_groups()}


def test_an_operator_deletes_records_and_looks_up_offsets(connect, operator, new_topic):
    topic = new_topic()
    producer = connect(KafkaProducer)
    for number in range(5):
        send(producer, topic, b"%d" % number, timestamp_ms=5000 - number)
    place = TopicPartition(topic, 0)
    newest = operator.list_partition_offsets({place: OffsetSpec.MAX_TIMESTAMP})[place]
    assert (newest.offset, newest.timestamp) == (0, 5000)
    operator.delete_records({place: 2})
    assert operator.list_partition_offsets({place: OffsetSpec.EARLIEST})[place].offset == 2
    assert operator.list_partition_offsets({place: OffsetSpec.LATEST})[place].offset == 5


def test_the_cluster_and_its_features_are_described(bootstrap, operator):
    described = operator.describe_cluster()
    (broker,) = described["brokers"]
    assert f"{broker['host']}:{broker['port']}" == bootstrap
    features = operator.describe_features()
    assert features["group.version"]["finalized"] == (1, 1)
    assert features["transaction.version"]["finalized"] == (2, 2)
