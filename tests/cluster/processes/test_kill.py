"""A cluster of real processes: what was acknowledged survives the death of nodes."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.processes.node_process import ClusterProcesses, cluster_processes

PARTITIONS = 3
WAIT_SECONDS = 120.0


class AckedProducer:
    """An idempotent producer that counts what was acknowledged, in a thread of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: list[bytes] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._is_stopping = False
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": int(WAIT_SECONDS * 1000),
            }
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._is_stopping:
            self._producer.produce("t", key=str(number), value=str(number), callback=self._answered)
            number += 1
            self._producer.poll(0.001)
        self._producer.flush(WAIT_SECONDS)

    def _answered(self, error: KafkaError | None, message: Message) -> None:
        with self._changed:
            if error is not None:
                self.errors.append(str(error))
            else:
                self.acknowledged.append(message.value())
            self._changed.notify_all()

    def wait_for_more(self, count: int = 500) -> None:
        """Return when so many more records were acknowledged: writes go on."""
        with self._changed:
            end = len(self.acknowledged) + count
            assert self._changed.wait_for(
                lambda: len(self.acknowledged) >= end or self.errors, WAIT_SECONDS
            ), f"{end - len(self.acknowledged)} of {count} records were not acknowledged"
        assert not self.errors

    def stop(self) -> None:
        self._is_stopping = True
        self._thread.join()
        assert not self.errors


def create_topic(cluster: ClusterProcesses) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.create_topics([NewTopic("t", num_partitions=PARTITIONS)]).values():
        future.result(WAIT_SECONDS)
    return admin


def leader_of(admin: AdminClient, partition: int) -> int:
    leader: int = admin.list_topics("t", timeout=30).topics["t"].partitions[partition].leader
    return leader


def read_all(bootstrap: str, group: str, count: int) -> list[bytes]:
    """Read so many records as a consumer group does, and commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["t"])
    values: list[bytes] = []
    while len(values) < count:
        messages = consumer.consume(10_000, timeout=WAIT_SECONDS)
        assert messages, f"{len(values)} of {count} records were read"
        for message in messages:
            assert message.error() is None, message.error()
            values.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def check(acknowledged: list[bytes], values: list[bytes]) -> None:
    counts = Counter(values)
    assert not set(acknowledged) - counts.keys(), "acknowledged records are missing"
    assert max(counts.values()) == 1, "records are doubled"


def test_nothing_acknowledged_is_lost_or_doubled_by_kill_9(tmp_path: Path):
    with cluster_processes(tmp_path) as cluster:
        admin = create_topic(cluster)
        producer = AckedProducer(cluster.bootstrap)
        producer.wait_for_more()
        leader = leader_of(admin, 0)
        cluster.nodes[leader].kill()
        producer.wait_for_more()  # Another node leads, while that one is dead.
        cluster.nodes[leader].start()
        producer.wait_for_more()
        for node in cluster.nodes.values():
            node.kill()
        cluster.start()
        producer.wait_for_more()
        producer.stop()
        values = read_all(cluster.bootstrap, "g", len(producer.acknowledged))
        check(producer.acknowledged, values)
        positions = [TopicPartition("t", index) for index in range(PARTITIONS)]
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        committed = consumer.committed(positions, timeout=WAIT_SECONDS)
        assert sum(position.offset for position in committed) == len(values)
        consumer.close()
        for node in cluster.nodes.values():
            node.stop()


def test_a_transaction_over_several_leaders_is_read_as_a_whole_or_not_at_all(tmp_path: Path):
    with cluster_processes(tmp_path) as cluster:
        admin = create_topic(cluster)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x"})
        producer.init_transactions(WAIT_SECONDS)
        outcomes = {}
        for number in range(6):
            if number == 3:
                cluster.nodes[leader_of(admin, 1)].kill()
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce("t", value=str(number), partition=partition)
            outcomes[number] = number % 2 == 0
            if outcomes[number]:
                producer.commit_transaction(WAIT_SECONDS)
            else:
                producer.flush(WAIT_SECONDS)
                producer.abort_transaction(WAIT_SECONDS)
        expected = sum(outcomes.values()) * PARTITIONS
        values = Counter(read_all(cluster.bootstrap, "r", expected))
        assert values == {str(n).encode(): PARTITIONS for n, kept in outcomes.items() if kept}
