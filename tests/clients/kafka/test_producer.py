"""Producing complete batches: in order, once, and visible when committed."""

from __future__ import annotations

import dataclasses

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.coordinator import ClientProducerId, TransactionProtocol
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.errors import (
    BatchTooLarge,
    InvalidBatch,
    InvalidConfig,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTransactionTimeout,
    NotEnoughReplicas,
    OutOfOrderSequence,
    ProducerFenced,
    UnknownTopic,
)
from millstream.protocols.kafka.codec.message import decode
from millstream.protocols.kafka.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from millstream.protocols.kafka.messages.producers import InitProducerIdResponse
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.etcd import free_ports

from .fake_node import FakeNode
from .samples import UNCOMMITTED, batch_for, confluent_read, read, write

PRODUCE, METADATA = 0, 3


@pytest.fixture
def where(topic):
    return TopicPartition(topic, 0)


@pytest.fixture
def producer(node, topic):
    with TransactionalProducer(node, topic, timeout_ms=60_000) as made:
        yield made


def deliver(producer, where, values):
    """Send values and wait until they are acknowledged."""
    write(producer, where, values)
    producer.flush()


def values(node, where, **more):
    return [value for _, _, value in read(node, where, **more)]


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(broker, node, where, producer):
    for number in range(6):
        for each in range(3):
            write(producer, where, [b"%d %d" % (number, each)] * 2)
        if number % 2:
            producer.abort()
        else:
            producer.commit()
    expected = [b"%d %d" % (number, each) for number in (0, 2, 4) for each in (0, 0, 1, 1, 2, 2)]
    assert values(node, where) == expected
    assert read(node, where) == confluent_read(broker.bootstrap, where.topic)


def test_nothing_is_seen_before_the_commit(node, where, producer):
    write(producer, where, [b"a", b"b"])
    producer.flush()
    assert values(node, where) == []
    assert values(node, where, isolation=UNCOMMITTED) == [b"a", b"b"]
    producer.commit()
    assert values(node, where) == [b"a", b"b"]


def test_many_batches_to_many_partitions_keep_their_order(node, new_topic):
    topic = new_topic(3)
    with TransactionalProducer(node, topic, timeout_ms=60_000) as producer:
        for number in range(60):
            write(producer, TopicPartition(topic, number % 3), [b"%d" % number])
        producer.commit()
    for partition in range(3):
        found = values(node, TopicPartition(topic, partition))
        assert found == [b"%d" % number for number in range(partition, 60, 3)]


def test_a_producer_without_transactions_is_seen_at_once(node, where):
    with TransactionalProducer(node, None, timeout_ms=60_000) as producer:
        for number in range(20):
            write(producer, where, [b"%d" % number], is_transactional=False)
        producer.flush()
        assert values(node, where) == [b"%d" % number for number in range(20)]
        for end in (producer.commit, producer.abort):
            with pytest.raises(InvalidRequest, match="has no transactions"):
                end()


def test_an_end_without_a_beginning_does_nothing(producer):
    before = producer.identity
    producer.commit()
    producer.abort()
    assert producer.identity == before


def test_every_transaction_has_an_epoch_and_sequences_of_its_own(where, producer):
    first = producer.identity
    write(producer, where, [b"a", b"b"])
    assert producer.next_sequence(*where) == 2
    producer.commit()
    assert producer.identity == first._replace(producer_epoch=first.producer_epoch + 1)
    assert producer.next_sequence(*where) == 0


def test_who_comes_later_under_the_same_id_fences_who_was_there(node, where, producer):
    write(producer, where, [b"old"])
    producer.flush()
    with TransactionalProducer(node, where.topic, timeout_ms=60_000) as successor:
        with pytest.raises(InvalidProducerEpoch):
            deliver(producer, where, [b"too late"])
        with pytest.raises(InvalidProducerEpoch):
            producer.commit()
        with pytest.raises(ProducerFenced):
            producer.abort()
        write(successor, where, [b"new"])
        successor.commit()
    assert values(node, where) == [b"new"]


def test_a_gap_in_the_sequence_is_fatal_up_to_the_abort(node, where, producer):
    write(producer, where, [b"a"])
    producer.flush()
    producer._sequences[where] = 5
    with pytest.raises(OutOfOrderSequence, match=f"on producing to {where}"):
        deliver(producer, where, [b"gap"])
    for call in (producer.flush, producer.commit):
        with pytest.raises(OutOfOrderSequence):
            call()
    producer.abort()
    write(producer, where, [b"again"])
    producer.commit()
    assert values(node, where) == [b"again"]


BAD = {
    "producer": lambda identity: {"producer_id": identity.producer_id + 1},
    "epoch": lambda identity: {"producer_epoch": identity.producer_epoch + 1},
    "sequence": lambda identity: {"base_sequence": 1},
    "no transaction": lambda identity: {"is_transactional": False},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_batch_of_somebody_else_is_not_sent(where, producer, change):
    fields = {
        "producer_id": producer.identity.producer_id,
        "producer_epoch": producer.identity.producer_epoch,
        "base_sequence": 0,
        "is_transactional": True,
    } | change(producer.identity)
    batch = build_batch([Record(b"v")], now_ms=0, **fields)
    with pytest.raises(InvalidBatch, match="expected"):
        producer.send(*where, batch, 1)


def test_bytes_that_are_not_one_batch_are_not_sent(where, producer):
    batch = batch_for(producer, where, [b"v"])
    for wrong in (b"", batch[:-1], batch + b"!", b"x" * 100):
        with pytest.raises(InvalidBatch, match=str(where)):
            producer.send(*where, wrong, 1)
    with pytest.raises(InvalidBatch):
        producer.send(*where, batch, 2)


def test_what_the_node_refuses_is_raised_as_it_is(node, new_topic):
    topic = new_topic(max_message_bytes="1000")
    where = TopicPartition(topic, 0)
    with TransactionalProducer(node, topic, timeout_ms=60_000) as producer:
        write(producer, where, [b"small"])
        with pytest.raises(BatchTooLarge, match="limit is 1000"):
            deliver(producer, where, [b"x" * 2000])
        producer.abort()
        with pytest.raises(UnknownTopic):
            write(producer, TopicPartition("no-such", 0), [b"v"])
        producer.abort()
        write(producer, where, [b"fits"])
        producer.commit()
    assert values(node, where) == [b"fits"]


def test_settings_that_make_no_sense_are_refused(node):
    for in_flight in (0, 6):
        with pytest.raises(
            InvalidConfig, match=f"in_flight_max must be between 1 and 5, got {in_flight}"
        ):
            TransactionalProducer(node, "x", timeout_ms=1000, in_flight_max=in_flight)
    with pytest.raises(InvalidTransactionTimeout):
        TransactionalProducer(node, "x", timeout_ms=2**31 - 1)


def test_transactions_work_as_before_kafka_4_where_the_cluster_has_no_more(
    broker, node, new_topic, monkeypatch
):
    """Without KIP-890, partitions are added first and the epoch is kept."""
    monkeypatch.setattr("millstream.clients.kafka.coordinator._FEATURE_LEVEL", 99)
    topic = new_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with TransactionalProducer(node, topic, timeout_ms=60_000) as producer:
        assert producer._protocol is TransactionProtocol.EPOCH_KEPT
        identity = producer.identity
        for number in range(4):
            write(producer, first, [b"%d" % number] * 2)
            write(producer, second, [b"%d" % number])
            if number == 2:
                producer.abort()
                assert producer.identity > identity
                assert producer.next_sequence(*first) == 0
            else:
                producer.commit()
        assert producer.next_sequence(*first) == 2
    assert values(node, first) == [b"0", b"0", b"1", b"1", b"3", b"3"]
    assert values(node, second) == [b"0", b"1", b"3"]
    assert read(node, first) == confluent_read(broker.bootstrap, topic)


# A node that returns retriable errors.


class Refusing:
    """A node that answers the n-th produce request with the n-th error code, then with success."""

    def __init__(self, *codes):
        self.codes = list(codes)
        self.sequences = []
        self.fake = None

    def __call__(self, header, body):
        if header.api_key == METADATA:
            part = MetadataResponsePartition(partition_index=0, leader_id=0)
            return MetadataResponse(
                brokers=(MetadataResponseBroker(node_id=0, host="127.0.0.1", port=self.fake.port),),
                controller_id=0,
                topics=(MetadataResponseTopic(name="t", partitions=(part,)),),
            )
        if header.api_key == PRODUCE:
            request = decode(ProduceRequest, body, header.api_version)
            records = request.topic_data[0].partition_data[0].records
            self.sequences.append(int.from_bytes(records[53:57], "big"))
            code = self.codes.pop(0) if self.codes else 0
            part = ProduceResponsePartition(index=0, error_code=code)
            return ProduceResponse(
                responses=(ProduceResponseTopic(name="t", partition_responses=(part,)),)
            )
        return InitProducerIdResponse(producer_id=5, producer_epoch=0)


def produce_to(refusing, *, count=4, **settings):
    with (
        FakeNode(refusing) as refusing.fake,
        KafkaClient(refusing.fake.bootstrap, **({"pause": lambda _: None} | settings)) as node,
        TransactionalProducer(node, None, timeout_ms=1000) as producer,
    ):
        assert producer.identity == ClientProducerId(5, 0)
        where = TopicPartition("t", 0)
        for number in range(count):
            write(producer, where, [b"%d" % number], is_transactional=False)
        producer.flush()


def test_the_first_batch_goes_alone_until_it_is_taken():
    """If the node refused the first batch, it would accept the second one as the first."""
    refusing = Refusing(6, 51, 19)
    produce_to(refusing)
    assert refusing.sequences == [0, 0, 0, 0, 1, 2, 3]


def test_all_from_the_refused_batch_on_are_sent_again_in_order():
    refusing = Refusing(0, 0, 7)
    produce_to(refusing)
    assert refusing.sequences[:3] == [0, 1, 2]
    assert refusing.sequences[-2:] == [2, 3]


def test_a_batch_that_is_there_already_is_no_error():
    refusing = Refusing(0, 46, 46)
    produce_to(refusing)
    assert refusing.sequences == [0, 1, 2, 3]


def test_a_node_that_refuses_for_ever_is_given_up():
    clock = ManualClock()
    with pytest.raises(NotEnoughReplicas):
        produce_to(Refusing(*[19] * 100), timeout_s=3.0, clock=clock, pause=clock.advance)
    assert clock.monotonic() < 3.0


def test_the_next_leader_is_found_although_the_dead_one_stays_dead():
    """Fresh metadata names the dead node at first, as until another node is elected."""

    class Elected(Refusing):
        asked = 0

        def __call__(self, header, body):
            answer = super().__call__(header, body)
            if header.api_key != METADATA:
                return answer
            self.asked += 1
            dead = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=free_ports(1)[0])
            part = MetadataResponsePartition(partition_index=0, leader_id=int(self.asked < 5))
            topics = (MetadataResponseTopic(name="t", partitions=(part,)),)
            return dataclasses.replace(answer, brokers=(*answer.brokers, dead), topics=topics)

    elected, clock = Elected(), ManualClock()
    produce_to(elected, timeout_s=30.0, clock=clock, pause=clock.advance)
    assert elected.sequences == [0, 1, 2, 3]


def test_sequences_begin_again_at_zero_after_the_last_number():
    counting, where = Refusing(), TopicPartition("t", 0)
    with (
        FakeNode(counting) as counting.fake,
        KafkaClient(counting.fake.bootstrap) as node,
        TransactionalProducer(node, None, timeout_ms=1000) as producer,
    ):
        producer._sequences[where] = 2**31 - 2
        for _ in range(2):
            write(producer, where, [b"a", b"b", b"c"], is_transactional=False)
        producer.flush()
        assert producer.next_sequence(*where) == 4
    assert counting.sequences == [2**31 - 2, 1]


def test_no_more_than_so_many_are_on_their_way():
    seen = []

    class Counting(Refusing):
        def __call__(self, header, body):
            answer = super().__call__(header, body)
            if header.api_key == PRODUCE:
                leaders = producing[0]._sender._leaders.values()
                seen.append(max(len(leader.in_flight) for leader in leaders))
            return answer

    producing = []
    counting = Counting()
    with (
        FakeNode(counting) as counting.fake,
        KafkaClient(counting.fake.bootstrap) as node,
        TransactionalProducer(node, None, timeout_ms=1000, in_flight_max=2) as producer,
    ):
        producing.append(producer)
        for number in range(20):
            write(producer, TopicPartition("t", 0), [b"%d" % number], is_transactional=False)
        producer.flush()
    assert max(seen) <= 2
