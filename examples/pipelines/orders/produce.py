"""Producer of customers, their orders, and some invalid records.

python produce.py [HOST:PORT]
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

from confluent_kafka import Producer

CUSTOMERS = ((1, "Ada", "UK"), (2, "Grace", "US"), (3, "Edsger", "NL"), (3, "Edsger", "US"))
"""The last is a change: Edsger moved."""

ORDERS = 30
BROKEN = ('{"order_id": "seven"', "no order at all")
START = datetime(2026, 1, 1, tzinfo=UTC)


def main(bootstrap: str = "127.0.0.1:9092") -> None:
    """Send all records. Customer 4 has orders, but no record in the topic of customers."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, name, country in CUSTOMERS:
        customer = {"customer_id": number, "name": name, "country": country}
        producer.produce("customers", json.dumps(customer), key=str(number))
    assert producer.flush(30) == 0
    for number in range(ORDERS):
        order = {
            "order_id": number,
            "customer_id": number % 4 + 1,
            "amount": number * 1.5,
            "at": (START + timedelta(minutes=number)).isoformat(),
        }
        producer.produce("orders", json.dumps(order), key=str(number))
    for value in BROKEN:
        producer.produce("orders", value)
    assert producer.flush(30) == 0
    print(f"{len(CUSTOMERS)} customers, {ORDERS} orders, {len(BROKEN)} invalid records")


if __name__ == "__main__":
    main(*sys.argv[1:])
