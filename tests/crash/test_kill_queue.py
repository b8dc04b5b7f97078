"""A node with a queue is killed again and again under twenty workers: no job is lost or done twice.

Every job whose append was acknowledged ends as acked or dead, once; no job is handed out after its
ack was answered; counts of deliveries never fall; every dead job is in the dead-letter topic once.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.crash.broker_load import PATIENCE_S, Load, delays
from tests.crash.broker_process import BrokerProcess
from tests.crash.test_kill_broker import read

from .queue_history import QueueHistory
from .queue_load import (
    LEASE_MS,
    QUEUE,
    HttpProducer,
    KafkaProducer,
    PushedWorker,
    ReconnectingClient,
    Worker,
)

ROUNDS = 500 if os.environ.get("MILLSTREAM_LONG") else 8
SEED = 6
WORKERS = 20
DELIVERIES_MAX = 8
DEAD = f"{QUEUE}-dead"


@pytest.fixture
def node(tmp_path: Path):
    process = BrokerProcess(tmp_path)
    yield process
    process.close()


@pytest.mark.timeout(ROUNDS * 20 + 120)
def test_no_job_is_lost_or_done_twice_though_the_node_is_killed(node: BrokerProcess) -> None:
    node.start()
    node.wait_until_ready()
    make_queue(node)
    books = QueueHistory()
    producers: list[Load] = [
        HttpProducer(node.http, books, "web"),
        KafkaProducer(node.bootstrap, books, "kafka"),
    ]
    workers: list[Load] = [
        (PushedWorker if number % 5 == 0 else Worker)(node.http, books, number)
        for number in range(WORKERS)
    ]
    loads = producers + workers
    for load in loads:
        load.start()

    kill_again_and_again(node, loads)

    finish(producers)
    counts = wait_until_empty(node, workers)
    finish(workers)
    books.check()
    check_all_jobs(node, books, counts)
    check_all_was_tried(books)
    node.stop()
    node.verify()


def finish(loads: list[Load]) -> None:
    for load in loads:
        load.ask_to_finish()
    for load in loads:
        load.finish()


def make_queue(node: BrokerProcess) -> None:
    settings = {"lease_ms": LEASE_MS, "deliveries_max": DELIVERIES_MAX, "dead_letter": DEAD}
    with ReconnectingClient(node.http) as client:
        status, answer = client.ask("PUT", f"/v1/queues/{QUEUE}", settings)
    assert status == 201, answer


def kill_again_and_again(node: BrokerProcess, loads: list[Load]) -> None:
    for seconds, seconds_in_recovery in delays(SEED, ROUNDS):
        time.sleep(seconds)
        node.kill()
        if seconds_in_recovery is not None:
            node.start()
            time.sleep(seconds_in_recovery)
            node.kill()
        node.start()
        node.wait_until_ready()
        check_sum(described(node))
        for load in loads:
            load.check()


def described(node: BrokerProcess) -> dict[str, Any]:
    with ReconnectingClient(node.http) as client:
        status, answer = client.ask("GET", f"/v1/queues/{QUEUE}")
    assert status == 200, answer
    return answer


def check_sum(counts: dict[str, Any]) -> None:
    """Fail unless every job is in one place."""
    places = ("acked", "dead", "ready", "delayed", "leased")
    assert counts["enqueued"] == sum(counts[place] for place in places), counts


def wait_until_empty(node: BrokerProcess, workers: list[Load]) -> dict[str, Any]:
    """Return the counts once every job is done or dead."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        counts = described(node)
        check_sum(counts)
        if not counts["ready"] + counts["delayed"] + counts["leased"]:
            return counts
        assert time.monotonic() < deadline, counts
        for worker in workers:
            worker.check()
        time.sleep(0.05)


def check_all_jobs(node: BrokerProcess, books: QueueHistory, counts: dict[str, Any]) -> None:
    jobs = {offset: name_of(value) for offset, value in read_all(node, QUEUE).items()}
    dead = [name_of(value) for value in read_all(node, DEAD).values()]
    assert len(set(jobs.values())) == len(jobs), "a job was appended twice"
    acked = {jobs[offset] for offset in books.acked}
    twice = [name for name, count in Counter(dead).items() if count > 1]
    assert not twice, "a job died twice"
    assert not acked & set(dead), "a job is done and dead"
    assert acked | set(dead) == set(jobs.values()), "a job is neither done nor dead"
    assert books.appended <= set(jobs.values()), "an acknowledged job was lost"
    assert counts["enqueued"] == len(jobs)
    assert counts["acked"] == len(acked)
    assert counts["dead"] == len(dead)
    assert counts["delivered"] >= sum(map(len, books.deliveries.values()))


def read_all(node: BrokerProcess, topic: str) -> dict[int, str]:
    return read(node.bootstrap, TopicPartition(topic, 0, 0))


def name_of(value: str) -> str:
    return json.loads(value)["name"]


def check_all_was_tried(books: QueueHistory) -> None:
    """Fail where a run shows nothing, because something that it is about did not happen."""
    kinds = ("ack", "nack", "release", "extend", "crash", "stall", "twice", "pushed", "stale ack")
    assert all(books.done[kind] for kind in kinds), books.done
    assert len(books.appended) > 20 * ROUNDS
    assert len(books.acked) > 10 * ROUNDS
