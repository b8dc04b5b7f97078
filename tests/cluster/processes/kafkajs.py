"""KafkaJS: an idempotent producer and a group, in a process of their own (`kafkajs.js`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from millstream.testing.cluster.checker import check_history
from millstream.testing.cluster.history import (
    GroupHistory,
    SeenRecord,
    SentRecord,
    WriteHistory,
)
from millstream.testing.cluster.loads.confluent import PARTITIONS
from millstream.testing.cluster.loads.load import HistoryBroken, Load
from millstream.testing.cluster.reading import WAIT_SECONDS, read_content

SCRIPT = Path(__file__).with_name("kafkajs.js")
MODULES = Path(__file__).parents[2] / "compat" / "kafkajs" / "node_modules"


class KafkaJsLoad(Load):
    def __init__(self, bootstrap: str, topic: str, logs: Path) -> None:
        """`logs` is the directory for what the client logs."""
        super().__init__()
        self._log = logs / f"{topic}.log"
        assert (MODULES / "kafkajs").exists(), "run `make clients`"
        self._bootstrap = bootstrap
        self._topic = topic
        self._acknowledged: list[SeenRecord] = []
        self._seen: list[SeenRecord] = []

    def run(self) -> None:
        with subprocess.Popen(
            ["node", str(SCRIPT), self._bootstrap, self._topic, str(self._log)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NODE_PATH": str(MODULES)},
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            for line in process.stdout:
                self._take(json.loads(line))
                if self.is_stopping and not process.stdin.closed:
                    process.stdin.close()
            status = process.wait(WAIT_SECONDS)
            assert status == 0, process.stderr.read()

    def _take(self, line: dict[str, Any]) -> None:
        record = SeenRecord(line["partition"], line["offset"], line["value"].encode())
        if line["kind"] == "acknowledged":
            self._acknowledged.append(record)
        else:
            self._seen.append(record)
            self.succeeded()

    def history(self) -> WriteHistory:
        """Return the history of the producer. It sends one record at a time, so it knows all."""
        number = len(self._acknowledged)
        last = SentRecord(number % PARTITIONS, str(number).encode())
        return WriteHistory(
            topic=self._topic,
            sent=[SentRecord(ack.partition, ack.value) for ack in self._acknowledged] + [last],
            acknowledged=self._acknowledged,
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )

    def check(self) -> None:
        super().check()
        group = GroupHistory(
            group=self._topic,
            seen=self._seen,
            committed=[],
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )
        if broken := check_history(group):
            raise HistoryBroken("\n".join(broken))
