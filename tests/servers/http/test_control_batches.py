"""Control batches of any type are neither records nor jobs, on pages, in feeds and in files."""

from __future__ import annotations

from pathlib import Path

from millstream import Client
from millstream.records.control import build_control_batch
from millstream.records.decision import CleaningDecision, DeletionDecision, build_decision
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.verify_store import verify_store
from millstream.testing.broker import RunningBroker, running_broker


def write_control(broker: RunningBroker, topic: str) -> None:
    """Append a decision and a control batch of a type that nobody knows."""
    deletion = DeletionDecision(KeyMatch(b"k", is_prefix=False))

    async def write() -> None:
        partition = broker.server.broker.topics.partition(topic, 0)
        await partition.open()
        for batch in (
            build_decision(deletion, now_ms=5),
            build_decision(CleaningDecision(1, 0), now_ms=5),
            build_control_batch(0x4DFF, b"?", now_ms=5),
        ):
            await partition.log.append(batch)

    broker.run(write())


def test_pages_and_live_feeds_pass_over_control_batches(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, Client(broker.url) as client:
        client.append("t", "a")
        write_control(broker, "t")
        client.append("t", "b")
        write_control(broker, "t")
        assert [record.value for record in client.read("t")] == ["a", "b"]
        assert [record.value for record in client.read("t", from_=5)] == []
        with client.follow("t", from_="earliest") as feed:
            assert [next(feed).value for _ in range(2)] == ["a", "b"]
            client.append("t", "c")
            assert next(feed).value == "c"
    assert list(verify_store(OsFilesystem(), str(tmp_path))) == []


def test_a_control_batch_is_no_job(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, Client(broker.url) as client:
        queue = client.create_queue("q")
        write_control(broker, "q")
        queue.put("a")
        write_control(broker, "q")
        queue.put("b")
        write_control(broker, "q")
        jobs = queue.claim(10)
        assert [job.value for job in jobs] == ["a", "b"]
        for job in jobs:
            job.ack()
        assert queue.claim(10) == []
        assert queue.counts().ready == 0
