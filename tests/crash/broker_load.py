"""Clients that go on while their broker is killed, and remember what it promised them.

All are made of librdkafka, which retries by itself for as long as it takes. Each runs in a thread
of its own until it is told to finish; an error that no retry can heal ends it, and the test.
"""

from __future__ import annotations

import abc
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

PARTITIONS = 3
PATIENCE_S = 60
QUIET = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "error_cb": lambda _: None,  # That a broker is down is no news here.
}


class Load(abc.ABC):
    """Something that a client does repeatedly."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None
        self._is_finishing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_finish(self) -> None:
        """Start nothing more."""
        self._is_finishing.set()

    def finish(self) -> None:
        """Wait until it has finished; raise its error if there is one."""
        self.ask_to_finish()
        self._thread.join(PATIENCE_S)
        self.check()
        assert not self._thread.is_alive(), f"{self.name} does not come to its end"

    def check(self) -> None:
        """Raise the error so far, if there is one."""
        if self.error is not None:
            raise AssertionError(f"{self.name}: {self.error!r}") from self.error

    def _run(self) -> None:
        try:
            while not self._is_finishing.is_set():
                self.step()
            self.end()
        except BaseException as error:  # noqa: BLE001 - Raised again in the thread of the test.
            self.error = error

    @abc.abstractmethod
    def step(self) -> None: ...

    @abc.abstractmethod
    def end(self) -> None: ...


class IdempotentWriter(Load):
    """Writes increasing numbers to one partition, with several requests in flight."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        super().__init__(name)
        self._topic = topic
        self._producer = Producer(
            QUIET
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 10 * PATIENCE_S * 1000,
                "linger.ms": 1,
                "batch.num.messages": 10,
                "queue.buffering.max.messages": 1000,
            }
        )
        self.sent = 0
        self.acked: dict[int, int] = {}
        """Offset by number."""

    def step(self) -> None:
        for _ in range(30):
            try:
                self._producer.produce(
                    self._topic, f"{self.name} {self.sent}", partition=0, on_delivery=self._take
                )
            except BufferError:  # It waits for its broker.
                break
            self.sent += 1
        self._producer.poll(0.02)

    def end(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def _take(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.acked[int(message.value().split()[1])] = message.offset()


class TransactionalWriter(Load):
    """Writes the same number to all partitions in one transaction; every fifth is aborted."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        super().__init__(name)
        self._topic = topic
        self._settings = QUIET | {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 60_000,
        }
        self._producer: Producer | None = None
        self._number = 0
        self.committed: set[int] = set()
        self.aborted: set[int] = set()
        self.unknown: set[int] = set()
        """Those that their producer could not end; the next of its name made an end of them."""

    def step(self) -> None:
        if self._producer is None:
            self._producer = Producer(self._settings)
            self._again(self._producer.init_transactions)
        number, self._number = self._number, self._number + 1
        try:
            self._write(self._producer, number)
        except KafkaException as raised:
            self._give_up(self._producer, number, raised.args[0])

    def _write(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(self._topic, f"{self.name} {number}", partition=partition)
        if number % 5 == 4:
            producer.flush(PATIENCE_S)
            self._again(producer.abort_transaction)
            self.aborted.add(number)
        else:
            self._again(producer.commit_transaction)
            self.committed.add(number)

    def _give_up(self, producer: Producer, number: int, error: KafkaError) -> None:
        if not error.txn_requires_abort():
            self.unknown.add(number)
            self._producer = None
            return
        try:
            self._again(producer.abort_transaction)
            self.aborted.add(number)
        except KafkaException:
            self.unknown.add(number)
            self._producer = None

    def end(self) -> None:
        """Every step ends what it began."""

    @staticmethod
    def _again(call: Callable[[float], None]) -> None:
        """Call until the broker is there to answer."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                call(5)
            except KafkaException as raised:
                if not raised.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


class OffsetCommitter(Load):
    """Commits increasing offsets of a group, and checks that none goes back."""

    def __init__(self, bootstrap: str, topic: str, name: str) -> None:
        super().__init__(name)
        self._place = TopicPartition(topic, 0)
        self._consumer = Consumer(QUIET | {"bootstrap.servers": bootstrap, "group.id": name})
        self.attempted = 0
        self.acked = 0
        self.seen = 0

    def step(self) -> None:
        self.attempted += 1
        place = TopicPartition(self._place.topic, 0, self.attempted)
        try:
            self._consumer.commit(offsets=[place], asynchronous=False)
            self.acked = self.attempted
            if self.attempted % 10 == 0:
                self._look()
        except KafkaException as raised:
            if raised.args[0].fatal():
                raise
        time.sleep(0.005)

    def end(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._look()
            except KafkaException:
                assert time.monotonic() < deadline
            else:
                break
        self._consumer.close()

    def _look(self) -> None:
        (found,) = self._consumer.committed([self._place], 5)
        assert found.error is None, found.error
        assert self.acked <= found.offset <= self.attempted, (self.acked, found, self.attempted)
        assert found.offset >= self.seen
        self.seen = found.offset


class CommittedReader(Load):
    """Reads committed records as they arrive, and remembers all of them."""

    def __init__(self, bootstrap: str, places: list[TopicPartition], name: str) -> None:
        super().__init__(name)
        self._consumer = Consumer(
            QUIET
            | {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
            }
        )
        self._consumer.assign(places)
        self.seen: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        """Value by offset, for each partition."""

    def step(self) -> None:
        for message in self._consumer.consume(500, 0.1):
            if message.error() is None:
                self._take(message)
            else:
                assert message.error().code() != KafkaError._AUTO_OFFSET_RESET, message.error()

    def _take(self, message: Message) -> None:
        seen = self.seen[message.topic(), message.partition()]
        assert message.offset() > max(seen, default=-1), "an offset came twice"
        seen[message.offset()] = message.value().decode()

    def end(self) -> None:
        self._consumer.close()


def delays(seed: int, count: int) -> list[tuple[float, float | None]]:
    """For each round: when to kill after the start was done, and when during the next start, if."""
    rng = random.Random(seed)
    return [
        (rng.uniform(0.05, 1.2), rng.uniform(0.0, 0.9) if rng.random() < 0.2 else None)
        for _ in range(count)
    ]
