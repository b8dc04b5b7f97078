"""Producers and workers of a queue that go on while their node is killed.

All speak plain HTTP, but for a producer that is a Kafka client. A request without an answer may
have taken effect: an ack is repeated until it is answered, an append is left in doubt, jobs of a
claim that nobody was told of come back when their leases have run out.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.crash.broker_load import PATIENCE_S, QUIET, Load

from .queue_history import QueueHistory

QUEUE = "mail"
LEASE_MS = 800
REQUEST_S = 10
SILENCE_S = 1
"""How long a worker listens to a silent stream before it connects again."""
Job = dict[str, Any]


class UnknownOutcome(Exception):
    """It is not known whether a request took effect."""


class ReconnectingClient:
    """A connection that is opened again after it broke."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return status and body; raise `UnknownOutcome` if there is no answer."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._address, timeout=REQUEST_S)
        try:
            self._connection.request(method, path, json.dumps(body) if body is not None else None)
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise UnknownOutcome(repr(error)) from error
        return answer.status, json.loads(data) if data else None

    def stream(self, path: str) -> http.client.HTTPResponse:
        """Return a response that does not end, to be read line by line."""
        connection = http.client.HTTPConnection(self._address, timeout=SILENCE_S)
        try:
            connection.request("GET", path, headers={"Connection": "close"})
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnknownOutcome(repr(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class HttpProducer(Load):
    """Appends jobs over HTTP."""

    def __init__(self, address: str, books: QueueHistory, name: str) -> None:
        super().__init__(name)
        self._door = ReconnectingClient(address)
        self._books = books
        self._number = 0

    def step(self) -> None:
        names = [f"{self.name} {self._number + row}" for row in range(5)]
        self._number += 5
        records = [{"key": name, "value": {"name": name}} for name in names]
        try:
            status, answer = self._door.ask(
                "POST", f"/v1/topics/{QUEUE}/records", {"records": records}
            )
        except UnknownOutcome:
            time.sleep(0.05)
        else:
            assert status in (201, 503), answer
            if status == 201:
                self._books.note_appended(names)
            time.sleep(0.02)

    def end(self) -> None:
        self._door.close()


class KafkaProducer(Load):
    """Appends jobs through the Kafka server."""

    def __init__(self, bootstrap: str, books: QueueHistory, name: str) -> None:
        super().__init__(name)
        self._books = books
        self._number = 0
        self._producer = Producer(
            QUIET
            | {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 10 * PATIENCE_S * 1000,
                "queue.buffering.max.messages": 1000,
            }
        )

    def step(self) -> None:
        name = f"{self.name} {self._number}"
        value = json.dumps({"name": name})
        try:
            self._producer.produce(QUEUE, value, key=name, on_delivery=self._take)
        except BufferError:
            pass
        else:
            self._number += 1
        self._producer.poll(0.01)

    def end(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0

    def _take(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        self._books.note_appended([message.key().decode()])


class Worker(Load):
    """Claims jobs and does something random with each; at the end, only what is right."""

    def __init__(self, address: str, books: QueueHistory, number: int) -> None:
        super().__init__(f"worker-{number}")
        self._door = ReconnectingClient(address)
        self._books = books
        self._chance = random.Random(number)

    def step(self) -> None:
        asked = self._books.moment()
        jobs = self._claim()
        self._books.note_jobs(self.name, asked, jobs)
        self._treat(jobs)

    def _claim(self) -> list[Job]:
        wanted = {"max": self._chance.randint(1, 8), "wait_ms": 300, "worker": self.name}
        try:
            status, answer = self._door.ask("POST", f"/v1/queues/{QUEUE}/claim", wanted)
        except UnknownOutcome:
            time.sleep(0.05)
            return []
        assert status in (200, 503), answer
        return answer["jobs"] if status == 200 else []

    def _treat(self, jobs: list[Job]) -> None:
        """Process all jobs of a claim; poison jobs fail every time."""
        poison = [job for job in jobs if is_poison(job)]
        rest = [job for job in jobs if not is_poison(job)]
        if poison:
            self._settle("nack", poison, delay_ms=self._chance.choice((0, 50)))
        if not rest:
            return
        kind = self._chance.choices(
            ("ack", "nack", "release", "extend", "crash", "stall", "twice"),
            (60, 8, 8, 8, 8, 6, 10),
        )[0]
        self._books.note(kind)
        getattr(self, f"_{kind}")(rest)

    def _ack(self, jobs: list[Job]) -> None:
        self._books.note_acks(self._settle("ack", jobs))

    def _nack(self, jobs: list[Job]) -> None:
        self._settle("nack", jobs, delay_ms=self._chance.choice((0, 20, 200)))

    def _release(self, jobs: list[Job]) -> None:
        self._settle("release", jobs)

    def _extend(self, jobs: list[Job]) -> None:
        kept = self._settle("extend", jobs, lease_ms=2 * LEASE_MS)
        if kept:
            self._ack(kept)

    def _crash(self, _: list[Job]) -> None:
        """Forget the jobs, and continue as another worker."""
        self._door.close()

    def _stall(self, jobs: list[Job]) -> None:
        """Take longer than the lease lasts; the job may be lost by then."""
        time.sleep(LEASE_MS / 1000 * self._chance.uniform(0.8, 1.5))
        self._ack(jobs)

    def _twice(self, jobs: list[Job]) -> None:
        """Ack twice: a receipt that was answered 200 is answered 200 again."""
        done = self._settle("ack", jobs)
        self._books.note_acks(done)
        if done:
            again = self._settle("ack", done)
            assert again == done, f"an ack that had succeeded was refused: {done}, {again}"

    def _settle(self, what: str, jobs: list[Job], **more: Any) -> list[Job]:
        """Report the outcome of jobs until that is answered; return those that were accepted."""
        body = {"receipts": [job["receipt"] for job in jobs], **more}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline, f"{what} is not answered"
            try:
                status, answer = self._door.ask("POST", f"/v1/queues/{QUEUE}/{what}", body)
            except UnknownOutcome:
                time.sleep(0.05)
                continue
            if status == 503:
                continue
            if status == 409:
                stale = set(answer["error"]["detail"]["stale"])
                self._books.note(f"stale {what}", len(stale))
                return [job for job in jobs if job["receipt"] not in stale]
            assert status == 200, answer
            return jobs

    def end(self) -> None:
        self._door.close()


class PushedWorker(Worker):
    """Receives pushed jobs; reads for a while, then connects again."""

    def step(self) -> None:
        asked = self._books.moment()
        try:
            stream = self._door.stream(f"/v1/queues/{QUEUE}/work?max=5&worker={self.name}")
        except UnknownOutcome:
            time.sleep(0.05)
            return
        with stream:
            assert stream.status in (200, 503), stream.read()
            for _ in range(self._chance.randint(1, 10)):
                jobs = self._next_jobs(stream)
                if jobs is None or self._is_finishing.is_set():
                    break
                # They may have come long before they were read here.
                self._books.note_jobs(self.name, asked, jobs)
                self._treat(jobs)

    def _next_jobs(self, stream: http.client.HTTPResponse) -> list[Job] | None:
        """Return the jobs of the next event; none at the end of the stream."""
        event = ""
        try:
            for line in stream:
                name, _, text = line.decode().strip().partition(": ")
                if name == "event":
                    event = text
                elif name == "data" and event == "jobs":
                    self._books.note("pushed")
                    return json.loads(text)["jobs"]
        except (OSError, http.client.HTTPException):
            pass
        return None


def is_poison(job: Job) -> bool:
    """Return whether the job always fails."""
    return int(job["value"]["name"].split()[1]) % 20 == 7
