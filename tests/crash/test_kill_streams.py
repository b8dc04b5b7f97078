"""A node is killed under producers of streams that retry: each append is stored once, in order."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.broker_process import BrokerProcess
from tests.servers.http.calls import Answer, ask

KILLS = 4
SEED = 3
PATIENCE_S = 60.0
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path)
    yield process
    process.close()


class Client:
    """Asks again until it is answered, whatever happens to the node meanwhile."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = ask(
                    f"http://{self._broker.http}", method, f"/v1/streams/{path}", body, headers
                )
            except (OSError, http.client.HTTPException):
                assert time.monotonic() < deadline, "the node did not come back"
                continue
            if answer.status < 500:
                return answer


class Writer(threading.Thread):
    """A producer that appends numbers until it is told to end, and then closes its stream."""

    def __init__(self, broker: BrokerProcess, path: str) -> None:
        super().__init__(daemon=True)
        self._client = Client(broker)
        self._path = path
        self.is_last = threading.Event()
        self.acked = 0
        self.refused: Answer | None = None

    def run(self) -> None:
        while self.refused is None:
            is_last = self.is_last.is_set()
            headers = JSON | {
                "Producer-Id": "w",
                "Producer-Epoch": "0",
                "Producer-Seq": str(self.acked),
                "Stream-Closed": str(is_last).lower(),
            }
            answer = self._client.ask("POST", self._path, b"[%d]" % self.acked, headers)
            if answer.status not in (200, 204):
                self.refused = answer
            self.acked += 1
            if is_last:
                return


@pytest.mark.timeout(180)
def test_streams_of_a_node_that_is_killed_have_everything_once(broker: BrokerProcess) -> None:
    chance = random.Random(SEED)
    broker.start()
    broker.wait_until_ready()
    client = Client(broker)
    writers = []
    for path in ("plain", "with/slashes", "a%20b"):
        assert client.ask("PUT", path, None, JSON).status == 201
        writers.append(Writer(broker, path))
    for writer in writers:
        writer.start()
    for number in range(KILLS):
        reached = [writer.acked + chance.randrange(5, 60) for writer in writers]
        while any(writer.acked < goal for writer, goal in zip(writers, reached, strict=True)):
            assert all(writer.refused is None for writer in writers)
            time.sleep(0.001)
        if number == KILLS // 2:
            fork = {"Stream-Forked-From": "/v1/streams/plain"}
            assert client.ask("PUT", "fork", None, fork).status in (200, 201)
        broker.kill()
        broker.start()
        broker.wait_until_ready()
    for writer in writers:
        writer.is_last.set()
        writer.join(PATIENCE_S)
        assert writer.refused is None
    broker.kill()
    broker.start()
    broker.wait_until_ready()
    for writer in writers:
        answer = client.ask("GET", writer._path)
        assert answer.headers["stream-closed"] == "true"
        assert json.loads(answer.body) == list(range(writer.acked))
    inherited = json.loads(client.ask("GET", "fork").body)
    assert inherited == list(range(len(inherited)))
    assert inherited
    broker.stop()
    broker.verify()
