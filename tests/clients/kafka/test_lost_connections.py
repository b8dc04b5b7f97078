"""Connections that break at any byte: no record is lost or duplicated.

A proxy cuts the first connections after a given number of bytes in one direction. The tests use
many such numbers, so that cuts fall into every part of the exchange.
"""

from __future__ import annotations

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.errors import NodeUnreachable
from millstream.records.topic_partition import TopicPartition
from millstream.testing.clocks.manual_clock import ManualClock
from tests.clients.proxy import Limits

from .samples import COMMITTED, confluent_producer, read, write

READ_CUTS = {
    "to_client": (0, 1, 7, 100, 450, 520, 600, 800, 1100, 1600, 2500, 4000),
    "to_node": (0, 1, 7, 50, 90, 120, 160, 200, 300, 500, 900),
}
PRODUCE_CUTS = {
    "to_client": (0, 1, 100, 450, 500, 540, 580, 620, 700, 900, 1300, 2000),
    "to_node": (0, 1, 50, 100, 150, 250, 400, 700, 1000, 1500, 3000, 9000),
}


def each(cuts):
    """Return every direction with each of its byte counts."""
    return [(direction, size) for direction, sizes in cuts.items() for size in sizes]


def through(proxy, **settings):
    return KafkaClient(proxy.bootstrap, **({"pause": lambda _: None} | settings))


@pytest.fixture(scope="module")
def filled(broker):
    """A partition with 200 records in about 20 batches."""
    with KafkaClient(broker.bootstrap) as node:
        node.create_topic("filled", partitions=1)
    producer = confluent_producer(broker.bootstrap, batch_num_messages=10)
    for number in range(200):
        producer.produce("filled", b"%d" % number * 10, partition=0)
    assert producer.flush(30) == 0
    return TopicPartition("filled", 0)


@pytest.mark.parametrize(("direction", "size"), each(READ_CUTS))
def test_a_reading_goes_on_where_it_was_cut(broker, node, proxy, filled, direction, size):
    expected = read(node, filled)
    proxy.limits += [Limits(**{direction: size + more}) for more in (0, 50, 3000)]
    with through(proxy, fetch_size_max=900) as cut:
        assert read(cut, filled) == expected
    assert proxy.cut >= 1


@pytest.mark.parametrize(("direction", "size"), each(PRODUCE_CUTS))
def test_what_is_produced_is_there_once(node, proxy, new_topic, direction, size):
    topic = new_topic(2)
    proxy.limits += [Limits(**{direction: size + more}) for more in (0, 50, 1500)]
    with through(proxy) as cut, TransactionalProducer(cut, topic, timeout_ms=60_000) as producer:
        for end in (producer.commit, producer.abort, producer.commit):
            for number in range(12):
                where = TopicPartition(topic, number % 2)
                write(producer, where, [b"%d" % number, end.__name__.encode() + b"!" * 100])
            end()
    assert proxy.cut >= 1
    for partition in range(2):
        found = [value for _, _, value in read(node, TopicPartition(topic, partition))]
        once = [
            value
            for number in range(partition, 12, 2)
            for value in (b"%d" % number, b"commit" + b"!" * 100)
        ]
        assert found == once * 2


def test_a_node_that_is_gone_for_good_is_given_up(broker, proxy, filled):
    clock = ManualClock()
    with through(proxy, timeout_s=3.0, clock=clock, pause=clock.advance, fetch_size_max=900) as cut:
        reading = cut.chunks(filled, 0, 200, isolation=COMMITTED)
        next(reading)
        proxy.limits += [Limits(to_client=0)] * 1000
        proxy.cut_all()
        with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1"):
            list(reading)
    assert clock.monotonic() < 3.0


def test_a_producer_whose_node_is_gone_for_good_gives_up(broker, proxy, new_topic):
    topic = new_topic()
    clock = ManualClock()
    with (
        through(proxy, timeout_s=3.0, clock=clock, pause=clock.advance) as cut,
        TransactionalProducer(cut, topic, timeout_ms=60_000) as producer,
    ):
        write(producer, TopicPartition(topic, 0), [b"a"])
        producer.flush()
        proxy.limits += [Limits(to_client=0)] * 1000
        proxy.cut_all()
        write(producer, TopicPartition(topic, 0), [b"b"])
        with pytest.raises(NodeUnreachable, match=r"127\.0\.0\.1"):
            producer.flush()
        with pytest.raises(NodeUnreachable):
            producer.flush()
    assert clock.monotonic() < 3.0
