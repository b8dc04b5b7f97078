"""Helpers for tests with confluent-kafka, the Python client on librdkafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from .conftest import TIMEOUT_S

Settings = dict[str, Any]

_QUIET: Settings = {"log_level": 0}
_SETTINGS: Settings = _QUIET | {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "check.crcs": True,
    # A client may look for its coordinator, and for new topics, at once rather than after a while.
    "topic.metadata.refresh.interval.ms": 1000,
    "coordinator.query.interval.ms": 1000,
    "reconnect.backoff.ms": 20,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
}
GROUP_SETTINGS = {
    # The shortest session that Kafka's broker allows by default.
    "classic": {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200},
    # Here the broker says how often to beat.
    "consumer": {"group.protocol": "consumer"},
}


def producer(bootstrap: str, settings: Settings | None = None) -> Producer:
    return Producer(_QUIET | {"bootstrap.servers": bootstrap, "linger.ms": 0} | (settings or {}))


def consumer(bootstrap: str, settings: Settings | None = None, *, group: str = "none") -> Consumer:
    return Consumer(
        _SETTINGS | {"bootstrap.servers": bootstrap, "group.id": group} | (settings or {})
    )


def member(
    bootstrap: str, group: str, protocol: str = "classic", settings: Settings | None = None
) -> Consumer:
    """Return a consumer that joins a group with one of the two protocols."""
    return consumer(bootstrap, GROUP_SETTINGS[protocol] | (settings or {}), group=group)


class Reports(list[Message]):
    """Delivery reports, in order of arrival."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self.append(message)


def send(producer: Producer, topic: str, values: Iterable[Any], **more: Any) -> list[Message]:
    """Write `values` and wait until each is acknowledged; an error is raised."""
    reports = Reports()
    for value in values:
        producer.produce(topic, value, on_delivery=reports, **more)
    assert producer.flush(TIMEOUT_S) == 0
    return reports


def read(consumer: Consumer, count: int, *, timeout_s: float = TIMEOUT_S) -> list[Message]:
    """Return the next `count` messages; raise errors, and if it takes too long."""
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        for message in consumer.consume(count - len(messages), 1):
            if message.error() is not None:
                raise KafkaException(message.error())
            messages.append(message)
    return messages


def read_all(
    bootstrap: str,
    topic: str,
    settings: Settings | None = None,
    *,
    partition: int = 0,
    offset: int = 0,
) -> list[Message]:
    """Return all records of a partition from its start, or from an offset, to its end."""
    at_end = {"enable.partition.eof": True, "fetch.wait.max.ms": 20}
    reader = consumer(bootstrap, at_end | (settings or {}))
    reader.assign([TopicPartition(topic, partition, offset)])
    messages: list[Message] = []
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            for message in reader.consume(1000, 0.05):
                if message.error() is None:
                    messages.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    return messages
                else:
                    raise KafkaException(message.error())
    finally:
        reader.close()
    raise AssertionError(f"the end of {topic}-{partition} was not reached in {TIMEOUT_S} s")


def values(messages: Iterable[Message]) -> list[bytes | None]:
    return [message.value() for message in messages]


def poll_until(
    consumers: Sequence[Consumer],
    is_done: Callable[[], bool],
    on_message: Callable[[Consumer, Message], None] = lambda *_: None,
) -> None:
    """Poll all consumers in turn until `is_done`, and yield their messages."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        for each in consumers:
            message = each.poll(0.02)
            if message is not None and message.error() is None:
                on_message(each, message)


def error_code(raised: Any) -> int:
    """Return the code of a `KafkaException` that `pytest.raises` caught."""
    return raised.value.args[0].code()
