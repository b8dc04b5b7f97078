"""Leaves two data directories of a node with state of every kind, one stopped and one killed.

python -m tests.crash.full_node DIRECTORY
"""

from __future__ import annotations

import shutil
import sys
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

import millstream
from millstream import LogConfig
from millstream.testing.broker import RunningBroker, running_broker


def fill(broker: RunningBroker) -> None:
    """Use topics, producers, transactions, groups, queues, streams and quotas."""
    bootstrap = {"bootstrap.servers": broker.bootstrap}
    with millstream.Client(broker.url) as client:
        client.create_topic("orders", partitions=1)
        jobs = client.create_queue("jobs")
        for number in range(20):
            client.append("orders", {"number": number, "text": "." * 200}, key=f"key-{number}")
            jobs.put({"number": number})
        jobs.claim(3)[0].ack()
    request = urllib.request.Request(f"{broker.url}/v1/streams/events", data=b"first", method="PUT")
    urllib.request.urlopen(request).close()
    producer = Producer({**bootstrap, "transactional.id": "t"})
    producer.init_transactions(30)
    for is_committed in (True, False):
        producer.begin_transaction()
        producer.produce("orders", b"transactional")
        producer.flush(30)
        (producer.commit_transaction if is_committed else producer.abort_transaction)(30)
    consumer = Consumer({**bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
    consumer.close()


def main() -> None:
    path = Path(sys.argv[1])
    log = LogConfig(segment_bytes_max=2048, index_interval_bytes=256)
    with running_broker(path / "stopped", log=log) as broker:
        fill(broker)
    with running_broker(path / "running", log=log) as broker:
        fill(broker)
        # What a kill leaves: the files as they are, without an orderly end.
        shutil.copytree(path / "running", path / "killed")


if __name__ == "__main__":
    main()
