"""HTTP clients: appends, queue workers, a watcher of events, and a producer of a stream."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import millstream
from millstream.clients.http.sync.queue import ClientJob, ClientQueue
from millstream.clients.http.sync.queue_worker import QueueWorker
from millstream.errors import MillstreamError, StaleReceipt
from millstream.testing.cluster.history import (
    JobCounts,
    JobDelivery,
    QueueHistory,
    SeenRecord,
    SentRecord,
    StreamHistory,
    WatchHistory,
    WriteHistory,
)
from millstream.testing.cluster.loads.confluent import PARTITIONS
from millstream.testing.cluster.loads.load import Load
from millstream.testing.cluster.reading import WAIT_SECONDS, read_content

PAUSE_SECONDS = 0.01
RETRY_SECONDS = 0.1
CONFIG = millstream.ClientConfig(timeout_s=WAIT_SECONDS)
CALL_SECONDS_MAX = 5.0
"""How long the streams' producer waits for one node before it asks another."""

SILENCE_SECONDS_MAX = 2.0
"""How long a watcher waits for the next event, before it connects to another node."""


class RequestRefused(Exception):
    """A node answered with a status that a client cannot retry."""


class AppendLoad(Load):
    """`millstream.Client.append`, over all nodes.

    An append that fails with an error of `tolerated` may or may not be stored; the load goes on.
    """

    def __init__(
        self,
        urls: Sequence[str],
        bootstrap: str,
        topic: str,
        *,
        tolerated: tuple[type[MillstreamError], ...] = (),
    ) -> None:
        super().__init__()
        self._urls = urls
        self._bootstrap = bootstrap
        self._topic = topic
        self._tolerated = tolerated
        self._sent: list[SentRecord] = []
        self._acknowledged: list[SeenRecord] = []

    def run(self) -> None:
        with millstream.Client(self._urls, config=CONFIG) as client:
            while not self.is_stopping:
                number = len(self._sent)
                record = SentRecord(number % PARTITIONS, str(number).encode())
                self._sent.append(record)
                try:
                    placed = client.append(self._topic, record.value, partition=record.partition)
                except self._tolerated:
                    time.sleep(RETRY_SECONDS)
                    continue
                self._acknowledged.append(SeenRecord(record.partition, placed.offset, record.value))
                self.succeeded()
                time.sleep(PAUSE_SECONDS)

    def history(self) -> WriteHistory:
        return WriteHistory(
            topic=self._topic,
            sent=self._sent,
            acknowledged=self._acknowledged,
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )


class QueueLoad(Load):
    """One thread puts jobs, two workers complete them, until none is left.

    A put or an acknowledgement that fails with an error of `tolerated` may or may not be done; the
    load goes on.
    """

    def __init__(
        self,
        urls: Sequence[str],
        queue: str,
        *,
        tolerated: tuple[type[MillstreamError], ...] = (),
    ) -> None:
        super().__init__()
        self._urls = urls
        self._queue = queue
        self._tolerated = tolerated
        self._sent: list[str] = []
        self._put: list[str] = []
        self._deliveries: list[JobDelivery] = []
        self._completed: list[JobDelivery] = []
        self._unanswered: list[JobDelivery] = []
        self._workers: set[QueueWorker] = set()
        self._is_done = False
        """Whether no job is left, and the workers can stop."""

    def run(self) -> None:
        with millstream.Client(self._urls, config=CONFIG) as client:
            queue = client.create_queue(self._queue, lease_ms=10_000, deliveries_max=1000)
            threads = [
                threading.Thread(target=self._work_safely, args=(queue, ahead), daemon=True)
                for ahead in (10, 1)
            ]
            for thread in threads:
                thread.start()
            try:
                self._put_jobs(queue)
                self._wait_until_empty(queue)
            finally:
                self._stop_workers()
                for thread in threads:
                    thread.join()

    def _put_jobs(self, queue: ClientQueue) -> None:
        while not self.is_stopping:
            job = f"job {len(self._sent)}"
            self._sent.append(job)
            try:
                queue.put(job)
            except self._tolerated:
                time.sleep(RETRY_SECONDS)
                continue
            self._put.append(job)
            time.sleep(PAUSE_SECONDS)

    def _wait_until_empty(self, queue: ClientQueue) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline and not self.has_failed:
            counts = queue.counts()
            if counts.ready == counts.leased == 0:
                return
            time.sleep(RETRY_SECONDS)

    def _stop_workers(self) -> None:
        with self._changed:
            self._is_done = True
            for worker in self._workers:
                worker.stop()

    def _work_safely(self, queue: ClientQueue, ahead: int) -> None:
        try:
            while not self._is_done:
                try:
                    self._work(queue, ahead)
                except self._tolerated:
                    time.sleep(RETRY_SECONDS)
        except Exception as error:  # noqa: BLE001 - raised by `stop`.
            self.failed(error)

    def _work(self, queue: ClientQueue, ahead: int) -> None:
        with queue.work(ahead=ahead, wait_ms=500) as jobs:
            with self._changed:
                if self._is_done:
                    return
                self._workers.add(jobs)
            try:
                for job in jobs:
                    self._complete(job)
            finally:
                with self._changed:
                    self._workers.remove(jobs)

    def _complete(self, job: ClientJob) -> None:
        delivery = JobDelivery(job.value, job.deliveries)
        with self._changed:
            self._deliveries.append(delivery)
        try:
            job.ack()
        except StaleReceipt:
            return  # Its lease has expired, so it is delivered again.
        except self._tolerated:
            with self._changed:
                self._unanswered.append(delivery)
            raise
        with self._changed:
            self._completed.append(delivery)
        self.succeeded()

    def history(self) -> QueueHistory:
        with millstream.Client(self._urls, config=CONFIG) as client:
            state = client.queue(self._queue).counts()
        return QueueHistory(
            queue=self._queue,
            sent=self._sent,
            put=self._put,
            deliveries=self._deliveries,
            completed=self._completed,
            unanswered=self._unanswered,
            counts=JobCounts(
                enqueued=state.enqueued,
                acked=state.acked,
                ready=state.ready,
                leased=state.leased,
                dead=state.dead,
            ),
        )


class WatchLoad(Load):
    """A browser's view: events with ids, and `Last-Event-ID` when it connects again."""

    def __init__(self, urls: Sequence[str], bootstrap: str, topic: str) -> None:
        super().__init__()
        self._servers = itertools.cycle([urlsplit(url).netloc for url in urls])
        self._bootstrap = bootstrap
        self._topic = topic
        self._last_id: str | None = None
        self._seen: list[SeenRecord] = []

    def run(self) -> None:
        while not self.is_stopping:
            try:
                self._watch(next(self._servers))
            except (OSError, http.client.HTTPException):
                time.sleep(RETRY_SECONDS)

    def _watch(self, server: str) -> None:
        connection = http.client.HTTPConnection(server, timeout=SILENCE_SECONDS_MAX)
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        try:
            path = f"/v1/events?topic={quote(self._topic)}&from=earliest"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            if response.status in (http.HTTPStatus.CONFLICT, http.HTTPStatus.SERVICE_UNAVAILABLE):
                time.sleep(RETRY_SECONDS)
                return
            if response.status != http.HTTPStatus.OK:
                raise RequestRefused(f"{response.status}: {response.read()!r}")
            for kind, event_id, data in _events(response):
                if kind == "end":
                    return
                self._take(kind, event_id, data)
                if self.is_stopping:
                    return
        finally:
            connection.close()

    def _take(self, kind: str, event_id: str | None, data: str) -> None:
        if kind == "records":
            page = json.loads(data)
            self._seen += [
                SeenRecord(page["partition"], record["offset"], b"") for record in page["records"]
            ]
            self.succeeded()
        elif kind == "gap":
            raise RequestRefused(f"a gap in a topic that nothing is deleted from: {data}")
        if event_id is not None:
            self._last_id = event_id

    def history(self) -> WatchHistory:
        return WatchHistory(
            topic=self._topic,
            seen=self._seen,
            content=read_content(self._bootstrap, self._topic, PARTITIONS),
        )


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, str | None, str]]:
    """Yield kind, id and data of each event."""
    kind, event_id, data = "", None, ""
    while line := response.readline():
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            event_id = value
        elif name == "data":
            data = value
        elif not name:
            if data:
                yield kind, event_id, data
            kind, event_id, data = "", None, ""


class _Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class StreamLoad(Load):
    """A producer of a durable stream that repeats an append until it is answered, at any node."""

    def __init__(self, urls: Sequence[str], stream: str) -> None:
        super().__init__()
        self._servers = itertools.cycle([urlsplit(url).netloc for url in urls])
        self._path = f"/v1/streams/{quote(stream)}"
        self._stream = stream
        self._sent = 0
        self._acknowledged = 0

    def run(self) -> None:
        self._call("PUT", None, {"Content-Type": "application/json"})
        while not self.is_stopping:
            number = self._acknowledged
            self._sent = number + 1
            headers = {
                "Content-Type": "application/json",
                "Producer-Id": "load",
                "Producer-Epoch": "0",
                "Producer-Seq": str(number),
            }
            self._call("POST", b"[%d]" % number, headers)
            self._acknowledged = number + 1
            self.succeeded()
            time.sleep(PAUSE_SECONDS)

    def _call(
        self, method: str, body: bytes | None, headers: dict[str, str], query: str = ""
    ) -> _Answer:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                answer = self._ask(method, self._path + query, body, headers)
            except (OSError, http.client.HTTPException) as error:
                reason = str(error)
            else:
                if answer.status < http.HTTPStatus.MULTIPLE_CHOICES:
                    return answer
                reason = f"{answer.status}: {answer.body!r}"
                if answer.status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise RequestRefused(reason)
            if time.monotonic() > deadline:
                raise TimeoutError(f"not answered in {WAIT_SECONDS:g} s, last: {reason}")
            time.sleep(RETRY_SECONDS)

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> _Answer:
        connection = http.client.HTTPConnection(next(self._servers), timeout=CALL_SECONDS_MAX)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return _Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def history(self) -> StreamHistory:
        content: list[int] = []
        offset = "-1"
        while True:
            answer = self._call("GET", None, {}, f"?offset={quote(offset)}")
            content += json.loads(answer.body)
            offset = answer.headers["Stream-Next-Offset"]
            if answer.headers["Stream-Up-To-Date"] == "true":
                break
        return StreamHistory(
            stream=self._stream,
            sent=self._sent,
            acknowledged=self._acknowledged,
            content=content,
        )
