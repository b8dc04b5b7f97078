"""confluent-kafka: an idempotent producer, transactions, and groups of both protocols."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.testing.cluster.history import (
    GroupHistory,
    ObservedCommit,
    Outcome,
    SeenRecord,
    SentRecord,
    TransactionHistory,
    WriteHistory,
)
from millstream.testing.cluster.loads.load import Load
from millstream.testing.cluster.reading import WAIT_SECONDS, read_content

PARTITIONS = 3
TIMEOUT_MS = int(WAIT_SECONDS * 1000)
PAUSE_SECONDS = 0.005
ABORT_EVERY = 3
CONSUME_SECONDS = 0.1
"""How long a consumer gathers records before it commits them."""


class IdempotentLoad(Load):
    """Numbered records to all partitions with `acks=all`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self._bootstrap = bootstrap
        self._topic = topic
        self._sent: list[SentRecord] = []
        self._acknowledged: list[SeenRecord] = []

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
            number = len(self._sent)
            record = SentRecord(number % PARTITIONS, str(number).encode())
            self._sent.append(record)
            producer.produce(
                self._topic, record.value, partition=record.partition, callback=self._answered
            )
            producer.poll(PAUSE_SECONDS)
        if unanswered := producer.flush(WAIT_SECONDS):
            raise TimeoutError(f"{unanswered} records were not answered in {WAIT_SECONDS:g} s")

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed(KafkaException(error))
        else:
            self._acknowledged.append(
                SeenRecord(message.partition(), message.offset(), message.value())
            )
            self.succeeded()

    def history(self) -> WriteHistory:
        return WriteHistory(
            topic=self._topic,
            sent=self._sent,
            acknowledged=self._acknowledged,
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )


class TransactionLoad(Load):
    """Transactions over all partitions; every third one is aborted."""

    def __init__(self, bootstrap: str, topic: str, logs: Path) -> None:
        """`logs` is the directory for what the client logs."""
        super().__init__()
        self._logger = _file_logger(logs / f"{topic}.log")
        self._bootstrap = bootstrap
        self._topic = topic
        self._outcomes: dict[bytes, Outcome] = {}

    def run(self) -> None:
        producer = self._new()
        while not self.is_stopping:
            number = len(self._outcomes)
            value = str(number).encode()
            self._outcomes[value] = Outcome.UNKNOWN
            try:
                self._outcomes[value] = self._transact(producer, number)
            except KafkaException as error:
                if error.args[0].txn_requires_abort() and self._abort(producer):
                    self._outcomes[value] = Outcome.ABORTED
                else:
                    # Fatal: only a producer with the next epoch can continue, and it does not know
                    # the outcome.
                    producer = self._new()
            else:
                self.succeeded()
            producer.poll(0)  # It logs only then.

    def _abort(self, producer: Producer) -> bool:
        try:
            _until_done(lambda: producer.abort_transaction(WAIT_SECONDS))
        except KafkaException:
            return False
        return True

    def _new(self) -> Producer:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._topic,
                "transaction.timeout.ms": 60_000,
                "message.timeout.ms": 60_000,
                "debug": "eos,msg",
            },
            logger=self._logger,
        )
        _until_done(lambda: producer.init_transactions(WAIT_SECONDS))
        return producer

    def _transact(self, producer: Producer, number: int) -> Outcome:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self._topic, str(number), partition=partition)
        if number % ABORT_EVERY == ABORT_EVERY - 1:
            producer.flush(WAIT_SECONDS)
            _until_done(lambda: producer.abort_transaction(WAIT_SECONDS))
            return Outcome.ABORTED
        _until_done(lambda: producer.commit_transaction(WAIT_SECONDS))
        return Outcome.COMMITTED

    def history(self) -> TransactionHistory:
        return TransactionHistory(
            topic=self._topic,
            partitions=PARTITIONS,
            outcomes=self._outcomes,
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )


def _until_done(call: Callable[[], object]) -> None:
    """Repeat a call that may be repeated, as librdkafka's documentation says."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


def _file_logger(path: Path) -> logging.Logger:
    """Return a logger that writes to a file, for what a client has to say of a failure."""
    logger = logging.getLogger(str(path))
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return logger


class GroupLoad(Load):
    """A consumer of a group that commits what it has read. `protocol`: classic or consumer."""

    def __init__(self, bootstrap: str, topic: str, protocol: str, logs: Path) -> None:
        """`logs` is the directory for what the client logs."""
        super().__init__()
        self._bootstrap = bootstrap
        self._topic = topic
        self._protocol = protocol
        self._group = f"{topic}-{protocol}"
        self._logger = _file_logger(logs / f"{self._group}.log")
        self._seen: list[SeenRecord] = []
        self._committed: list[ObservedCommit] = []

    def __str__(self) -> str:
        return f"GroupLoad({self._protocol})"

    def run(self) -> None:
        consumer = self._consumer()
        consumer.subscribe([self._topic])
        while not self.is_stopping:
            messages = consumer.consume(500, timeout=CONSUME_SECONDS)
            for message in messages:
                if message.error() is None:
                    self._seen.append(
                        SeenRecord(message.partition(), message.offset(), message.value())
                    )
                elif message.error().fatal():
                    raise KafkaException(message.error())
            if messages:
                self._commit(consumer)
        consumer.close()

    def _consumer(self) -> Consumer:
        settings: dict[str, Any] = {}
        if self._protocol == "classic":
            settings["session.timeout.ms"] = 20_000
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

    def _commit(self, consumer: Consumer) -> None:
        try:
            positions = consumer.commit(asynchronous=False)
        except KafkaException:
            return  # Committed with the next records, or read again.
        self._note(positions)
        self.succeeded()

    def _note(self, positions: list[TopicPartition]) -> None:
        self._committed += [
            ObservedCommit(position.partition, position.offset)
            for position in positions
            if position.error is None and position.offset >= 0
        ]

    def history(self) -> GroupHistory:
        consumer = self._consumer()
        partitions = [TopicPartition(self._topic, index) for index in range(PARTITIONS)]
        # None of them is committed below what was acknowledged, not even with "no offset" (-1001).
        self._committed += [
            ObservedCommit(position.partition, max(position.offset, 0))
            for position in consumer.committed(partitions, timeout=WAIT_SECONDS)
        ]
        consumer.close()
        return GroupHistory(
            group=self._group,
            seen=self._seen,
            committed=self._committed,
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )
