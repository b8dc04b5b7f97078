"""A node whose metadata is older than its logs, or gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.broker.broker import Broker
from millstream.broker.problems import ProblemCode
from millstream.broker.transactions.producer_ids import BLOCK_SIZE
from millstream.config.schema import BrokerConfig
from millstream.errors import CorruptFile
from tests.broker.partitions import append, batch
from tests.in_loop import in_loop

METADATA = ("meta.db", "meta.db-checkpoint", "meta.db-journal")


async def produce(broker: Broker, topic: str, producer_id: int) -> None:
    partition = broker.topics.get(topic).partitions[0]
    await partition.open()
    await append(partition, batch(b"kept", producer_id=producer_id))


def metadata_of(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in METADATA}


def restore(path: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (path / name).write_bytes(content)


async def node_with_a_backup_of_its_metadata(path: Path) -> dict[str, bytes]:
    """Create topic `old`, save the metadata, and create topic `new`; return what was saved."""
    broker = await Broker.open(str(path))
    await broker.topics.create("old")
    await produce(broker, "old", await broker.producer_ids.take())
    await broker.close()
    saved = metadata_of(path)
    broker = await Broker.open(str(path))
    await broker.topics.create("new", configs={"retention.ms": "1000000"})
    await produce(broker, "new", await broker.producer_ids.take())
    await broker.close()
    return saved


@in_loop
async def test_older_metadata_is_refused_and_its_files_are_not_changed(tmp_path):
    saved = await node_with_a_backup_of_its_metadata(tmp_path)
    (tmp_path / "meta.db").write_bytes(saved["meta.db"])
    before = metadata_of(tmp_path)
    with pytest.raises(CorruptFile, match=r"meta\.db has revision .* later changes are lost"):
        await Broker.open(str(tmp_path))
    assert metadata_of(tmp_path) == before


@pytest.mark.parametrize("names", [METADATA[:1], METADATA])
def test_a_node_without_its_metadata_does_not_start(tmp_path, names):
    @in_loop
    async def run() -> None:
        await node_with_a_backup_of_its_metadata(tmp_path)
        for name in names:
            (tmp_path / name).unlink()
        with pytest.raises(CorruptFile, match=r"meta\.db is missing or empty, but .* restore"):
            await Broker.open(str(tmp_path))

    run()


@in_loop
async def test_topics_that_restored_metadata_does_not_have_are_a_problem_of_the_node(tmp_path):
    restore(tmp_path, await node_with_a_backup_of_its_metadata(tmp_path))
    broker = await Broker.open(str(tmp_path))
    assert [topic.name for topic in broker.topics.all()] == ["old"]
    problems = [p for p in broker.problems() if p.code is ProblemCode.TOPIC_UNKNOWN]
    assert len(problems) == 1
    assert f"{tmp_path}/topics/new belongs to the topic with id" in problems[0].message
    assert not problems[0].code.is_blocking
    await broker.close()


@in_loop
async def test_an_operator_can_continue_with_what_is_left(tmp_path):
    await node_with_a_backup_of_its_metadata(tmp_path)
    for name in METADATA:
        (tmp_path / name).unlink()
    broker = await Broker.open(str(tmp_path), config=BrokerConfig(adopt_topics=True))
    assert [topic.name for topic in broker.topics.all()] == ["new", "old"]
    assert not list(broker.problems())
    await broker.close()
    broker = await Broker.open(str(tmp_path))
    assert [topic.name for topic in broker.topics.all()] == ["new", "old"]
    await broker.close()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_producer_id_in_a_log_or_snapshot_is_not_assigned_again(
    tmp_path, is_killed, has_snapshot
):
    @in_loop
    async def run() -> None:
        path = tmp_path / "data"
        saved = await node_with_a_backup_of_its_metadata(path)
        broker = await Broker.open(str(path))
        greatest = 7 * BLOCK_SIZE + 3
        await produce(broker, "old", greatest)
        shutil.copytree(path, tmp_path / "killed")
        await broker.close()
        data = tmp_path / "killed" if is_killed else path
        if not has_snapshot:
            for snapshot in data.glob("topics/*/*/producers.snapshot"):
                snapshot.unlink()
        restore(data, saved)
        broker = await Broker.open(str(data))
        assert await broker.producer_ids.take() == greatest + 1
        await broker.close()

    run()


@in_loop
async def test_the_producer_id_of_a_transactional_id_is_not_assigned_again(tmp_path):
    saved = await node_with_a_backup_of_its_metadata(tmp_path)
    for _ in range(2):  # The second block of ids is reserved.
        broker = await Broker.open(str(tmp_path))
        producer = await broker.transactions.init_producer("t", timeout_ms=1000)
        await broker.close()
    restore(tmp_path, saved)
    broker = await Broker.open(str(tmp_path))
    assert await broker.producer_ids.take() > producer.id
    await broker.close()
