"""Producer of changes of customers. A deletion is a record without a value.

python produce.py [HOST:PORT]
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Producer

CHANGES = (
    ("1", {"name": "Ada", "city": "London"}),
    ("2", {"name": "Grace", "city": "New York"}),
    ("3", {"name": "Edsger", "city": "Rotterdam"}),
    ("3", {"name": "Edsger", "city": "Austin"}),
    ("2", None),
    ("4", {"name": "Barbara", "city": "Los Angeles"}),
)


def main(bootstrap: str = "127.0.0.1:9092") -> None:
    """Send them all."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, row in CHANGES:
        value = None if row is None else json.dumps(row)
        producer.produce("customer-changes", value, key=key)
    assert producer.flush(30) == 0
    print(f"{len(CHANGES)} changes")


if __name__ == "__main__":
    main(*sys.argv[1:])
