"""Our own client: appends, queue workers, and a watcher of events."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import millstream
from millstream.errors import StaleReceipt
from tests.cluster.processes.loads.confluent import PARTITIONS, check_stored
from tests.cluster.processes.loads.load import Load
from tests.cluster.processes.reading import WAIT_SECONDS, read_topic

PAUSE_SECONDS = 0.01
CONFIG = millstream.ClientConfig(timeout_s=WAIT_SECONDS)


class AppendLoad(Load):
    """`millstream.Client.append`, over all nodes."""

    def __init__(self, urls: Sequence[str], bootstrap: str, topic: str) -> None:
        super().__init__()
        self._urls = urls
        self._bootstrap = bootstrap
        self._topic = topic
        self._sent = 0
        self._acknowledged: list[bytes] = []

    def run(self) -> None:
        with millstream.Client(self._urls, config=CONFIG) as client:
            while not self.is_stopping:
                value = str(self._sent).encode()
                self._sent += 1
                client.append(self._topic, value, partition=self._sent % PARTITIONS)
                self._acknowledged.append(value)
                self.succeeded()
                time.sleep(PAUSE_SECONDS)

    def check(self) -> None:
        check_stored(self._bootstrap, self._topic, self._acknowledged, self._sent)


class QueueLoad(Load):
    """One thread puts jobs, two workers complete them."""

    def __init__(self, urls: Sequence[str], queue: str) -> None:
        super().__init__()
        self._urls = urls
        self._queue = queue
        self._put: set[str] = set()
        self._delivered: dict[str, int] = {}
        """The number of the last delivery of each job."""
        self._completed: dict[str, int] = {}
        """The number of the delivery that was acknowledged."""

    def run(self) -> None:
        with millstream.Client(self._urls, config=CONFIG) as client:
            queue = client.create_queue(self._queue, lease_ms=10_000, deliveries_max=1000)
            with queue.work(ahead=10, wait_ms=500) as first, queue.work(wait_ms=500) as second:
                workers = [
                    threading.Thread(target=self._work_safely, args=(jobs,))
                    for jobs in (first, second)
                ]
                for worker in workers:
                    worker.start()
                self._put_jobs(queue)
                for jobs in (first, second):
                    jobs.stop()
                for worker in workers:
                    worker.join()

    def _put_jobs(self, queue: Any) -> None:
        for number in itertools.count():
            if self.is_stopping:
                break
            value = f"job {number}"
            queue.put(value)
            with self._changed:
                self._put.add(value)
            time.sleep(PAUSE_SECONDS)
        with self._changed:
            self._changed.wait_for(lambda: self._put <= self._completed.keys(), WAIT_SECONDS)

    def _work_safely(self, jobs: Any) -> None:
        try:
            for job in jobs:
                with self._changed:
                    last = self._delivered.get(job.value, 0)
                    self._delivered[job.value] = max(last, job.deliveries)
                try:
                    job.ack()
                except StaleReceipt:
                    continue  # Its lease has expired, so it is delivered again.
                with self._changed:
                    self._completed[job.value] = job.deliveries
                self.succeeded()
        except Exception as error:  # noqa: BLE001 - told to the test.
            self.failed(error)

    def check(self) -> None:
        assert self._put <= self._completed.keys(), "jobs were lost"
        again = [job for job, last in self._delivered.items() if last > self._completed[job]]
        assert not again, "completed jobs were delivered again"
        with millstream.Client(self._urls, config=CONFIG) as client:
            counts = client.queue(self._queue).counts()
        assert (counts.ready, counts.leased, counts.dead) == (0, 0, 0), counts
        assert counts.acked == counts.enqueued == len(self._put), counts


class WatchLoad(Load):
    """A browser's view: events with ids, and `Last-Event-ID` when it connects again."""

    def __init__(self, urls: Sequence[str], bootstrap: str, topic: str) -> None:
        super().__init__()
        self._servers = itertools.cycle([urlsplit(url).netloc for url in urls])
        self._bootstrap = bootstrap
        self._topic = topic
        self._last_id: str | None = None
        self._seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self._ids: list[str] = []
        self._refusals: Counter[int] = Counter()

    def run(self) -> None:
        while not self.is_stopping:
            try:
                self._watch(next(self._servers))
            except (OSError, http.client.HTTPException):
                time.sleep(0.1)

    def _watch(self, server: str) -> None:
        connection = http.client.HTTPConnection(server, timeout=2.0)
        headers = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        try:
            path = f"/v1/events?topic={quote(self._topic)}&from=earliest"
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                self._refusals[response.status] += 1
                time.sleep(0.1)
                return
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
            self._seen[page["partition"]] += [record["offset"] for record in page["records"]]
            self.succeeded()
        else:
            assert kind != "gap", data
        if event_id is not None:
            self._ids.append(event_id)
            self._last_id = event_id

    def check(self) -> None:
        ends = Counter(
            record.partition for record in read_topic(self._bootstrap, self._topic, PARTITIONS)
        )
        for partition, offsets in self._seen.items():
            assert offsets == list(range(len(offsets))), "a watcher missed or repeated records"
            assert len(offsets) <= ends[partition], "a watcher saw what is gone"
        assert self._refusals.keys() <= {409, 503}, self._refusals


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
