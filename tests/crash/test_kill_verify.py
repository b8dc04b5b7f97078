"""A node is killed under load from clients that note what it acknowledged: nothing of it is lost.

What `millstream verify` says is asked each time, of the files that were left, and of the node that
was started on them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import AcknowledgementFile
from tests.crash.broker_load import PATIENCE_S, QUIET, Load, delays
from tests.crash.broker_process import BrokerProcess

ROUNDS = 100 if os.environ.get("MILLSTREAM_LONG") else 2
SEED = 7


@pytest.fixture
def broker(tmp_path: Path):
    process = BrokerProcess(tmp_path)
    yield process
    process.close()


class NotingWriter(Load):
    """Writes to all partitions without ever waiting for an answer, and notes those that come."""

    def __init__(self, bootstrap: str, topic: str, file: AcknowledgementFile) -> None:
        super().__init__("noting")
        self._topic = topic
        self._file = file
        self._number = 0
        self._producer = Producer(
            QUIET
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 10 * PATIENCE_S * 1000,
                "linger.ms": 1,
                "batch.num.messages": 20,
                "queue.buffering.max.messages": 1000,
            }
        )

    def step(self) -> None:
        for _ in range(30):
            headers = [("number", b"%d" % self._number)]
            try:
                self._producer.produce(
                    self._topic,
                    f"value {self._number}",
                    key=f"key {self._number % 100}",
                    headers=headers,
                    on_delivery=self._file.on_delivery_of(headers),
                )
            except BufferError:  # It waits for its node.
                break
            self._number += 1
        self._producer.poll(0.02)

    def end(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0


class NotingTransactor(Load):
    """Writes transactions, and notes them when their commit was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, file: AcknowledgementFile) -> None:
        super().__init__("transactor")
        self._topic = topic
        self._file = file
        self._settings = QUIET | {
            "bootstrap.servers": bootstrap,
            "transactional.id": "transactor",
            "transaction.timeout.ms": 60_000,
        }
        self._producer: Producer | None = None

    def step(self) -> None:
        try:
            if self._producer is None:
                self._producer = Producer(self._settings)
                self._producer.init_transactions(5)
            held = self._file.transaction()
            self._producer.begin_transaction()
            for number in range(10):
                self._producer.produce(self._topic, f"{number}", on_delivery=held.on_delivery)
            self._producer.commit_transaction(5)
        except KafkaException as raised:
            if raised.args[0].fatal() and "fenced" not in str(raised).lower():
                raise
            self._producer = None  # The next of its name makes an end of what this one began.
        else:
            held.committed()

    def end(self) -> None:
        """Every step ends what it began."""


@pytest.mark.timeout(ROUNDS * 60)
def test_what_a_killed_node_acknowledged_is_in_its_files_and_on_its_server(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    broker.start()
    broker.wait_until_ready()
    admin = AdminClient(QUIET | {"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic("plain", 3, 1), NewTopic("whole", 2, 1)]).values():
        future.result(PATIENCE_S)
    paths = [str(tmp_path / name) for name in ("plain.acknowledged", "whole.acknowledged")]
    with AcknowledgementFile(paths[0]) as plain, AcknowledgementFile(paths[1]) as whole:
        loads = [
            NotingWriter(broker.bootstrap, "plain", plain),
            NotingTransactor(broker.bootstrap, "whole", whole),
        ]
        for load in loads:
            load.start()
        for seconds, _ in delays(SEED, ROUNDS):
            time.sleep(seconds)
            broker.kill()
            plain.flush()
            whole.flush()
            check(broker.verify_acknowledged(*paths))
            broker.start()
            broker.wait_until_ready()
            check(broker.verify_acknowledged(*paths))
            for load in loads:
                load.check()
        for load in loads:
            load.finish()
        assert plain.count > ROUNDS
        assert whole.count > ROUNDS
        assert plain.unplaced == 0
    found = broker.verify_acknowledged(*paths)
    check(found)
    assert found["total"] == plain.count + whole.count
    broker.stop()
    check(broker.verify_acknowledged(*paths))


def check(found: dict[str, int]) -> None:
    assert found["lost"] == found["different"] == found["aborted"] == 0
    assert found["found"] == found["total"]
