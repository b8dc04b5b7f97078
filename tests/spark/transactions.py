"""Helpers that leave a transaction open."""

from __future__ import annotations

import contextlib

from confluent_kafka import Producer


@contextlib.contextmanager
def an_open_transaction(node, topic, values, transactional_id, *, partition=0):
    """Produce values in a transaction that stays open; yield its producer."""
    settings = {"bootstrap.servers": node.bootstrap, "transactional.id": transactional_id}
    producer = Producer(settings)
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    yield producer
