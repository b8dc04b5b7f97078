"""A Faust application with a stream and a table: it adds up amounts by customer.

Run as `python -m tests.compat.faust_app BOOTSTRAP NAME DIRECTORY`. It reads the topic NAME-orders,
keeps its sums in a table, and writes each sum to NAME-sums.
"""

from __future__ import annotations

import sys

import faust


class Order(faust.Record):
    customer: str
    amount: int


def build(bootstrap: str, name: str, directory: str) -> faust.App:
    app = faust.App(
        name,
        broker=f"kafka://{bootstrap}",
        datadir=directory,
        store="memory://",
        web_enabled=False,
        topic_partitions=2,
        topic_replication_factor=1,
        topic_disable_leader=True,
        broker_session_timeout=6.0,
        broker_heartbeat_interval=0.3,
        broker_commit_interval=0.1,
        stream_wait_empty=False,
    )
    orders = app.topic(f"{name}-orders", value_type=Order, partitions=2)
    results = app.topic(f"{name}-sums", value_serializer="json", partitions=2)
    sums = app.Table("sums", default=int, partitions=2)

    @app.agent(orders)
    async def add_up(stream: faust.Stream[Order]) -> None:
        async for order in stream:
            sums[order.customer] += order.amount
            await results.send(
                key=order.customer, value={"who": order.customer, "sum": sums[order.customer]}
            )

    return app


if __name__ == "__main__":
    application = build(*sys.argv[1:])
    sys.argv[1:] = ["worker", "--without-web", "--loglevel", "warn"]
    application.main()
