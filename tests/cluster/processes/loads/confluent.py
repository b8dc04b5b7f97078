"""confluent-kafka: an idempotent producer, transactions, and groups of both protocols."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.cluster.processes.loads.load import Load
from tests.cluster.processes.reading import WAIT_SECONDS, read_topic

PARTITIONS = 3
TIMEOUT_MS = int(WAIT_SECONDS * 1000)
PAUSE_SECONDS = 0.005


def file_logger(path: Path) -> logging.Logger:
    """Return a logger that writes to a file, for what a client has to say of a failure."""
    logger = logging.getLogger(str(path))
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


def check_stored(bootstrap: str, topic: str, acknowledged: list[bytes], sent: int) -> None:
    """Check that acknowledged records are there, nothing is doubled, and offsets are dense."""
    records = read_topic(bootstrap, topic, PARTITIONS)
    counts = Counter(record.value for record in records)
    assert not set(acknowledged) - counts.keys(), "acknowledged records are missing"
    assert max(counts.values()) == 1, "records are doubled"
    assert counts.keys() <= {str(number).encode() for number in range(sent)}
    for partition in range(PARTITIONS):
        offsets = [record.offset for record in records if record.partition == partition]
        assert offsets == list(range(len(offsets))), "offsets have gaps"


class IdempotentLoad(Load):
    """Numbered records to all partitions with `acks=all`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._topic = topic
        self._sent = 0
        self.acknowledged: list[bytes] = []

    def run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": TIMEOUT_MS,
                "log_level": 0,
            }
        )
        while not self.is_stopping:
            number = self._sent
            producer.produce(
                self._topic, str(number), partition=number % PARTITIONS, callback=self._answered
            )
            self._sent += 1
            producer.poll(PAUSE_SECONDS)
        assert producer.flush(WAIT_SECONDS) == 0

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed(KafkaException(error))
        else:
            self.acknowledged.append(message.value())
            self.succeeded()

    def check(self) -> None:
        check_stored(self._bootstrap, self._topic, self.acknowledged, self._sent)


class TransactionLoad(Load):
    """Transactions over all partitions; every third one is aborted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._topic = topic
        self._committed: list[int] = []
        self._unknown: list[int] = []
        self._sent = 0

    def run(self) -> None:
        producer = self._new()
        while not self.is_stopping:
            number = self._sent
            self._sent += 1
            try:
                self._transact(producer, number)
            except KafkaException as error:
                reason = error.args[0]
                if reason.txn_requires_abort():
                    producer.abort_transaction(WAIT_SECONDS)
                    continue
                # Fatal: only a producer with the next epoch knows more.
                self._unknown.append(number)
                producer = self._new()
                continue
            self.succeeded()

    def _new(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._topic,
                "transaction.timeout.ms": 60_000,
                "message.timeout.ms": 60_000,
                "log_level": 0,
            }
        )
        _until_done(lambda: producer.init_transactions(WAIT_SECONDS))
        return producer

    def _transact(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self._topic, str(number), partition=partition)
        if number % 3 == 2:
            producer.flush(WAIT_SECONDS)
            _until_done(lambda: producer.abort_transaction(WAIT_SECONDS))
        else:
            _until_done(lambda: producer.commit_transaction(WAIT_SECONDS))
            self._committed.append(number)

    def check(self) -> None:
        counts = Counter(
            record.value for record in read_topic(self._bootstrap, self._topic, PARTITIONS)
        )
        assert set(counts.values()) <= {PARTITIONS}, "a transaction is torn or doubled"
        committed = {str(number).encode() for number in self._committed}
        unknown = {str(number).encode() for number in self._unknown}
        assert committed <= counts.keys(), "a committed transaction is missing"
        assert counts.keys() <= committed | unknown, "an aborted transaction is visible"


def _until_done(call: object) -> None:
    """Repeat a call that may be repeated, as librdkafka's documentation says."""
    assert callable(call)
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class GroupLoad(Load):
    """A consumer of a group that commits what it has read. `protocol`: classic or consumer."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, logs: Path) -> None:
        """`logs` is the directory for what the client logs."""
        super().__init__()
        self._bootstrap = bootstrap
        self._topic = topic
        self._protocol = protocol
        self._group = f"{topic}-{protocol}"
        self._logger = file_logger(logs / f"{self._group}.log")
        self._seen: dict[tuple[int, int], bytes] = {}
        self._committed: dict[int, int] = {}
        """The greatest committed offset of each partition that was acknowledged."""

    def __str__(self) -> str:
        return f"GroupLoad({self._protocol})"

    def run(self) -> None:
        consumer = self._consumer()
        consumer.subscribe([self._topic])
        while not self.is_stopping:
            messages = consumer.consume(500, timeout=0.2)
            for message in messages:
                if message.error() is None:
                    self._take(message)
                else:
                    assert not message.error().fatal(), message.error()
            if messages:
                self._commit(consumer)
        consumer.close()

    def _consumer(self) -> Consumer:
        settings = {"session.timeout.ms": 20_000} if self._protocol == "classic" else {}
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._group,
                "group.protocol": self._protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "debug": "cgrp",
                **settings,
            },
            logger=self._logger,
        )

    def _take(self, message: Message) -> None:
        key = message.partition(), message.offset()
        before = self._seen.setdefault(key, message.value())
        assert before == message.value(), f"{key} had {before!r}, has {message.value()!r}"

    def _commit(self, consumer: Consumer) -> None:
        try:
            positions = consumer.commit(asynchronous=False)
        except KafkaException:
            return  # Committed with the next records, or read again.
        for position in positions:
            if position.error is None and position.offset >= 0:
                last = self._committed.get(position.partition, 0)
                self._committed[position.partition] = max(last, position.offset)
        self.succeeded()

    def check(self) -> None:
        consumer = self._consumer()
        asked = [TopicPartition(self._topic, partition) for partition in range(PARTITIONS)]
        for position in consumer.committed(asked, timeout=WAIT_SECONDS):
            last = self._committed.get(position.partition, 0)
            assert position.offset >= last, f"{position} fell below {last}"
        consumer.close()
        stored = {
            (record.partition, record.offset): record.value
            for record in read_topic(self._bootstrap, self._topic, PARTITIONS)
        }
        gone = [key for key, value in self._seen.items() if stored.get(key) != value]
        assert not gone, "records that were consumed are gone or changed"
        for partition, end in self._committed.items():
            missing = [at for at in range(end) if (partition, at) not in self._seen]
            assert not missing, f"partition {partition} was committed without {missing[:5]}"
