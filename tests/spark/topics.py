"""Helpers that fill and read topics with confluent-kafka."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)


def create(node, topic, *, partitions=1, **config):
    """Create a topic; `segment_bytes=...` sets `segment.bytes`."""
    config = {name.replace("_", "."): str(value) for name, value in config.items()}
    new = NewTopic(topic, partitions, config=config)
    admin = AdminClient({"bootstrap.servers": node.bootstrap})  # It has to outlive its future.
    admin.create_topics([new])[topic].result()


def produce(node, topic, values, *, partition=0, keys=None, **settings):
    """Produce values in order, to one partition or by key."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 5, **settings})
    for number, value in enumerate(values):
        if keys is None:
            producer.produce(topic, value, partition=partition)
        else:
            producer.produce(topic, value, key=keys[number])
    assert producer.flush(30) == 0


def transaction(node, topic, values, *, is_committed, transactional_id, partition=0):
    """Produce values in one transaction."""
    settings = {"bootstrap.servers": node.bootstrap, "transactional.id": transactional_id}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush()
    if is_committed:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def consume(node, topic, *, partitions=1, isolation="read_committed"):
    """Return all messages up to the end, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
        }
    )
    found = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(30)) is not None:
                if message.error():
                    break
                found.append(message)
            else:
                raise AssertionError("no end of the partition within 30 s")
    finally:
        consumer.close()
    return found


def values(node, topic, **options):
    """Return the values of every message, sorted."""
    return sorted(message.value() for message in consume(node, topic, **options))


def evict(node, topic):
    """Have retention delete all records of the first partition; return its new start offset."""
    _configure(node, topic, "1")
    partition = node.server.broker.topics.partition(topic, 0)
    while partition.log_start_offset < partition.high_watermark:
        node.run(node.server.broker.store.maintenance.run_once(is_forced=True))
    _configure(node, topic, "-1")
    return partition.log_start_offset


def _configure(node, topic, retention_ms):
    entry = ConfigEntry("retention.ms", retention_ms, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result()
