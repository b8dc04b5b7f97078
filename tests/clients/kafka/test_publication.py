"""Many producers, one commit: as the driver of a Spark job does for its tasks."""

from __future__ import annotations

import pytest

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.clients.kafka.publication import PublishResult, TransactionToPublish, publish
from millstream.errors import InvalidRequest, MillstreamError
from millstream.records.topic_partition import TopicPartition
from tests.clients.proxy import Limits

from .samples import read, write


def attempt(node, topic, task, *, partition=0, number=0):
    """Write in a task's own transaction, and return the transaction to publish."""
    name = f"{topic}/{task}/{number}"
    with TransactionalProducer(node, name, timeout_ms=60_000) as producer:
        write(producer, TopicPartition(topic, partition), [b"%d %d" % (task, number)])
        producer.flush()
        return TransactionToPublish(name, producer.identity)


def values(node, topic, partition=0):
    return [value for _, _, value in read(node, TopicPartition(topic, partition))]


def test_all_chosen_transactions_are_seen_at_once_and_the_others_never(node, new_topic):
    topic = new_topic(2)
    lost = attempt(node, topic, 0, number=0)
    chosen = [attempt(node, topic, 0, number=1), attempt(node, topic, 1, partition=1)]
    assert values(node, topic) == values(node, topic, 1) == []
    done = publish(node, publisher=topic, sequence=7, prefix=f"{topic}/", transactions=chosen)
    assert done == PublishResult(is_repeated=False, last_sequence=7)
    assert values(node, topic) == [b"0 1"]
    assert values(node, topic, 1) == [b"1 0"]
    assert lost not in chosen


def test_what_was_published_is_not_published_again(node, topic):
    publish(node, publisher=topic, sequence=0, transactions=[attempt(node, topic, 0)])
    again = attempt(node, topic, 0, number=1)
    found = publish(node, publisher=topic, sequence=0, prefix=f"{topic}/", transactions=[again])
    assert found == PublishResult(is_repeated=True, last_sequence=0)
    assert values(node, topic) == [b"0 0"]


def test_a_number_that_is_given_up_commits_nothing(node, topic):
    chosen = [attempt(node, topic, 0)]
    found = publish(
        node, publisher=topic, sequence=3, prefix=f"{topic}/", transactions=chosen, committed=False
    )
    assert found == PublishResult(is_repeated=False, last_sequence=-1)
    assert values(node, topic) == []


def test_what_the_node_refuses_is_raised_with_its_reason(node, topic):
    with pytest.raises(InvalidRequest, match=f"on publishing 0 of '{topic}': prefix 'other'"):
        publish(node, publisher=topic, sequence=0, prefix="other", transactions=[])
    nobody = TransactionToPublish("nobody", attempt(node, topic, 0).identity)
    with pytest.raises(MillstreamError):
        publish(node, publisher=topic, sequence=0, transactions=[nobody])


@pytest.mark.parametrize("lost", [1, 8, 20, 300])
def test_a_lost_answer_is_asked_for_again_and_nothing_is_there_twice(node, proxy, topic, lost):
    """The last bytes sent to the client are those of the publication's response."""

    def publish_through(sequence, *limits):
        chosen = [attempt(node, topic, task, number=sequence) for task in range(2)]
        before = proxy.sent
        proxy.limits[:] = limits
        with KafkaClient(proxy.bootstrap, pause=lambda _: None) as cut:
            done = publish(cut, publisher=topic, sequence=sequence, transactions=chosen)
        return done, proxy.sent - before

    done, size = publish_through(0)
    assert not done.is_repeated
    done, _ = publish_through(1, Limits(to_client=size - lost))
    assert done == PublishResult(is_repeated=lost <= 20, last_sequence=1)
    assert proxy.cut == 1
    assert sorted(values(node, topic)) == [b"0 0", b"0 1", b"1 0", b"1 1"]
