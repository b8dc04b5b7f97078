"""Events of the demo: clicks on the pages of a web site, over one day."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

TOPIC = "clicks"
PARTITIONS = 3
TIMEOUT_SECONDS = 60.0
PAGES = {"/": 14, "/docs": 11, "/pricing": 16, "/blog": 21}
"""Each page with its busiest hour."""

_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_HOURS = {
    page: [1.2 + math.cos((hour - busiest) * math.pi / 12) for hour in range(24)]
    for page, busiest in PAGES.items()
}


def clicks(first: int, last: int) -> Iterator[dict[str, str]]:
    """Generate events with consecutive numbers, the same in every run."""
    rng = random.Random(first)
    for number in range(first, last):
        page = rng.choices(list(PAGES), (4, 3, 1, 2))[0]
        hour = rng.choices(range(24), _HOURS[page])[0]
        at = _DAY + timedelta(hours=hour, seconds=rng.randrange(3_600))
        user = f"user-{rng.randrange(500)}"
        click = {"number": number, "user": user, "page": page, "at": at.isoformat()}
        yield {"key": user, "value": json.dumps(click)}


def make_producer(bootstrap: str) -> Producer:
    """Return a producer that stores every event once, whatever happens to the node."""
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )


def read_all(bootstrap: str, topic: str, partitions: int) -> list[Message]:
    """Return every committed record of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    messages: list[Message] = []
    ended = 0
    while ended < partitions:
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None, f"no message from {topic} for {TIMEOUT_SECONDS:.0f} s"
        if message.error() is None:
            messages.append(message)
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()  # noqa: SLF001
            ended += 1
    consumer.close()
    return messages
