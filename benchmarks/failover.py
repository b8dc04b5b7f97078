"""How long writes pause when the leader of a partition is killed.

    python benchmarks/failover.py --kills 10
    python benchmarks/failover.py --kills 10 --client millstream

Starts etcd and three nodes, as processes on this machine, with default settings. A client writes to
one partition all the time: an idempotent producer of confluent-kafka, or `millstream.Client`. The
leader is killed with SIGKILL; the pause ends with the first acknowledgement of a record that was
sent after the kill. Then the node is started again, and the next kill waits until all replicas are
in sync.

The pause has two parts: that of the cluster, until the lease of the node has ended and another one
leads, and that of the client until it finds the new leader. librdkafka looks for it once a second.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import threading
import time

from confluent_kafka import KafkaError, Message, Producer

import millstream
from millstream.clients.kafka.client import KafkaClient
from millstream.config.schema import ClusterConfig
from millstream.testing.cluster import RunningCluster, running_cluster

CONFLUENT, MILLSTREAM = "confluent-kafka", "millstream"
TOPIC = "t"
SEND_SECONDS = 0.005
WAIT_SECONDS = 60.0


class SteadyProducer:
    """Sends a record every few milliseconds; knows when which of them was acknowledged."""

    def __init__(self, cluster: RunningCluster, client: str) -> None:
        self._cluster = cluster
        self._changed = threading.Condition()
        self._sent = 0
        self._acknowledged = -1
        self._acknowledged_at = 0.0
        self._is_stopping = False
        work = self._run_confluent if client == CONFLUENT else self._run_millstream
        self._thread = threading.Thread(target=work)
        self._thread.start()

    def _run_confluent(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "enable.idempotence": True,
                "log_level": 0,
            }
        )
        while not self._is_stopping:
            producer.produce(TOPIC, str(self._sent), on_delivery=self._on_delivery)
            self._sent += 1
            producer.poll(SEND_SECONDS)
        producer.flush(WAIT_SECONDS)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self._on_acknowledged(int(message.value()))

    def _run_millstream(self) -> None:
        with millstream.Client(self._cluster.urls) as client:
            for number in itertools.count():
                if self._is_stopping:
                    return
                self._sent = number + 1
                client.append(TOPIC, number)
                self._on_acknowledged(number)
                time.sleep(SEND_SECONDS)

    def _on_acknowledged(self, number: int) -> None:
        with self._changed:
            self._acknowledged = number
            self._acknowledged_at = time.monotonic()
            self._changed.notify_all()

    def next_acknowledgement(self) -> float:
        """Return when the first record that is sent from now on was acknowledged."""
        number = self._sent
        with self._changed:
            assert self._changed.wait_for(lambda: self._acknowledged >= number, WAIT_SECONDS)
            return self._acknowledged_at

    def stop(self) -> None:
        """Send no more records, and wait for those in flight."""
        self._is_stopping = True
        self._thread.join()


def pause_of_a_kill(cluster: RunningCluster, producer: SteadyProducer) -> float:
    """Kill the leader; return after how many seconds a new record was acknowledged."""
    producer.next_acknowledgement()
    leader = cluster.nodes[cluster.leader(TOPIC, 0)]
    killed_at = time.monotonic()
    leader.kill()
    pause = producer.next_acknowledgement() - killed_at
    leader.start()
    cluster.wait_until_in_sync()
    return pause


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10, metavar="N")
    parser.add_argument("--client", choices=(CONFLUENT, MILLSTREAM), default=CONFLUENT)
    arguments = parser.parse_args()
    kills = arguments.kills
    with (
        tempfile.TemporaryDirectory(prefix="millstream-") as directory,
        running_cluster(directory) as cluster,
    ):
        with KafkaClient(cluster.bootstrap) as client:
            client.create_topic(TOPIC, partitions=1)
        cluster.wait_until_in_sync()
        producer = SteadyProducer(cluster, arguments.client)
        pauses = []
        for number in range(kills):
            pauses.append(pause_of_a_kill(cluster, producer))
            print(f"kill {number + 1}: {pauses[-1]:.2f} s", flush=True)
        producer.stop()
        cluster.stop()
    ttl = ClusterConfig().lease_ttl_ms / 1000
    print(
        f"{arguments.client}, {kills} kills, lease of {ttl:g} s:"
        f" median {statistics.median(pauses):.2f} s, shortest {min(pauses):.2f} s,"
        f" longest {max(pauses):.2f} s"
    )


if __name__ == "__main__":
    main()
