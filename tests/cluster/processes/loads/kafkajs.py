"""KafkaJS: an idempotent producer and a group, in a process of their own (`kafkajs.js`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.cluster.processes.loads.confluent import check_stored
from tests.cluster.processes.loads.load import Load
from tests.cluster.processes.reading import WAIT_SECONDS, read_topic

SCRIPT = Path(__file__).with_name("kafkajs.js")
MODULES = Path(__file__).parents[3] / "compat" / "kafkajs" / "node_modules"


class KafkaJsLoad(Load):
    def __init__(self, bootstrap: str, topic: str, logs: Path) -> None:
        """`logs` is the directory for what the client logs."""
        super().__init__()
        self._log = logs / f"{topic}.log"
        assert (MODULES / "kafkajs").exists(), "run `make clients`"
        self._bootstrap = bootstrap
        self._topic = topic
        self._acknowledged: list[bytes] = []
        self._seen: dict[tuple[int, int], bytes] = {}
        self._process: subprocess.Popen[str] | None = None

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

    def _take(self, line: dict[str, object]) -> None:
        if "acknowledged" in line:
            self._acknowledged.append(str(line["acknowledged"]).encode())
            return
        key, value = (int(str(line["partition"])), int(str(line["offset"]))), str(line["read"])
        before = self._seen.setdefault(key, value.encode())
        assert before == value.encode(), f"{key} had {before!r}, has {value!r}"
        self.succeeded()

    def check(self) -> None:
        sent = len(self._acknowledged) + 1
        check_stored(self._bootstrap, self._topic, self._acknowledged, sent)
        stored = {
            (record.partition, record.offset): record.value
            for record in read_topic(self._bootstrap, self._topic)
        }
        assert self._seen.items() <= stored.items(), "what was read is gone or changed"
