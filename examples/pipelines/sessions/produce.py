"""Producer of clicks of a few users, in visits with long pauses between them.

    python produce.py [HOST:PORT]

The last click is two days later than the others: it closes all visits before it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

USERS = ("ada", "grace", "edsger")
VISITS = 4
PAGES = ("/", "/docs", "/pricing")
START = datetime(2026, 1, 1, tzinfo=UTC)


def clicks() -> Iterator[dict[str, str]]:
    """Generate visits of three clicks, a minute apart, every two hours for each user."""
    for visit in range(VISITS):
        for minute, page in enumerate(PAGES):
            for user in USERS:
                at = START + timedelta(hours=2 * visit, minutes=minute)
                yield {"user": user, "page": page, "at": at.isoformat()}
    yield {"user": "ada", "page": "/", "at": (START + timedelta(days=2)).isoformat()}


def main(bootstrap: str = "127.0.0.1:9092") -> None:
    """Send them all."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for click in clicks():
        producer.produce("clicks", json.dumps(click), key=click["user"])
    assert producer.flush(30) == 0
    print(f"{VISITS * len(USERS)} visits, and a click that closes them")


if __name__ == "__main__":
    main(*sys.argv[1:])
