"""A data directory read in place: visible and invisible records."""

from __future__ import annotations

import pytest

from millstream.clients.partition import OffsetBounds
from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    CorruptFile,
    DamagedRecords,
    OffsetOutOfRange,
    StorageFailed,
    UnknownTopic,
)
from millstream.records.topic_partition import TopicPartition
from millstream.spark.read import data_directory as directory_module
from millstream.spark.read.data_directory import DataDirectory
from millstream.storage.inspect import readonly_log as view_module
from millstream.storage.inspect.transaction_outcomes import StableOffsetTracker
from millstream.storage.segment.log_state import LogState
from millstream.testing.broker import running_broker
from tests.broker.partitions import DIRECTORY, SMALL_SEGMENTS, Bench, Config, append, batch, run
from tests.in_loop import in_loop
from tests.servers.kafka.client import RawClient, batch_of
from tests.servers.kafka.conftest import make_topic
from tests.servers.kafka.handlers.test_fetch import fetch, part, values
from tests.servers.kafka.handlers.test_produce import produce
from tests.servers.kafka.handlers.test_transactions import Producer
from tests.storage.logs import HeldSyncer, make_store, turns
from tests.storage.logs import batch_of as plain_batch

from .directories import ALL, COMMITTED, records, shown

WHERE = TopicPartition("t", 0)
COMPACTED = Config(
    cleanup_policy=frozenset({"compact"}),
    log=LogConfig(segment_bytes_max=1024, is_compacted=True, dirty_ratio_min=0.0),
)


def directory_of(bench: Bench) -> DataDirectory:
    return DataDirectory("/data", filesystem=bench.filesystem)


def bounds(
    directory: DataDirectory, where: TopicPartition = WHERE, *, isolation=COMMITTED
) -> OffsetBounds:
    return directory.bounds([where], isolation=isolation)[where]


# Beside a node.


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def broker(data):
    with running_broker(data) as running:
        yield running


@pytest.fixture
def client(broker):
    with RawClient(broker.bootstrap) as connected:
        yield connected


def test_it_shows_what_the_node_serves_while_that_runs(broker, client, data):
    topic = make_topic(client)
    where, directory = TopicPartition(topic, 0), DataDirectory(str(data))
    for number in range(3):
        produce(client, topic, batch_of(b"%d" % number, b"more"))
        served = values(fetch(client, topic, part()))
        assert [value for _, value in records(directory, where)] == served
        assert bounds(directory, where) == OffsetBounds(0, 2 * number + 2)


def test_open_and_aborted_transactions_are_left_out(broker, client, data):
    topic = make_topic(client)
    where, directory = TopicPartition(topic, 0), DataDirectory(str(data))
    committing, aborting, waiting = Producer(client), Producer(client), Producer(client)
    for producer in (committing, aborting):
        producer.write(topic, b"first of " + producer.name.encode())
    aborting.end(commit=False)
    committing.write(topic, b"second")
    committing.end(commit=True)
    waiting.write(topic, b"undecided")
    produce(client, topic, batch_of(b"behind it"))
    assert [offset for offset, _ in records(directory, where)] == [0, 3]
    assert bounds(directory, where) == OffsetBounds(0, 5)
    assert [offset for offset, _ in records(directory, where, isolation=ALL)] == [0, 1, 3, 5, 6]
    with pytest.raises(OffsetOutOfRange, match="offset must be between 0 and 5, got 7"):
        list(directory.chunks(where, 0, 7, isolation=COMMITTED))
    waiting.end(commit=True)
    assert [offset for offset, _ in records(directory, where)] == [0, 3, 5, 6]


def test_topics_are_what_has_files(broker, client, data):
    used, unused = make_topic(client, partitions=4), make_topic(client)
    produce(client, used, batch_of(b"x"), partition=2)
    directory = DataDirectory(str(data))
    found = directory.topics([used])
    assert found[used].partitions == 3
    assert used in directory.topics()
    assert unused not in directory.topics()
    with pytest.raises(UnknownTopic, match=unused):
        directory.topics([used, unused])
    assert bounds(directory, TopicPartition(used, 1)) == OffsetBounds(0, 0)
    assert list(directory.chunks(TopicPartition(used, 1), 0, 0, isolation=ALL)) == []
    with pytest.raises(UnknownTopic, match=f"{used}-3"):
        bounds(directory, TopicPartition(used, 3))
    with pytest.raises(UnknownTopic, match="no files"):
        directory.topics(["../topics"])


def test_a_directory_that_no_node_wrote_is_refused(tmp_path):
    with pytest.raises(StorageFailed, match="not a data directory"):
        DataDirectory(str(tmp_path))


def test_a_time_leads_to_the_first_record_that_is_as_late():
    async def scenario(bench: Bench) -> None:
        for number in range(5):
            await append(bench.partition, batch(b"v", timestamp_ms=1000 + number))
        directory = directory_of(bench)
        found = [directory.offsets_at([WHERE], at)[WHERE] for at in (0, 1002, 1005)]
        assert found == [0, 2, None]

    run(scenario, config=SMALL_SEGMENTS)


# Visible records of a log that is being written.


@in_loop
async def test_what_is_written_and_not_synced_is_not_seen():
    syncer = HeldSyncer()
    store = make_store(syncer=syncer)
    log = await store.log("t")
    await log.append(plain_batch(b"0"))  # The first commit makes file names durable in a thread.
    second = log.submit(plain_batch(b"1"))
    await turns()
    directory = DataDirectory("/data", filesystem=store_disk(store))
    assert records(directory, WHERE) == [(0, b"0")]
    syncer.sync_now()
    syncer.tell()
    await second
    assert records(directory, WHERE) == [(0, b"0"), (1, b"1")]
    await store.close()


@pytest.mark.parametrize("durability", [Durability.DISK, Durability.MEMORY])
@in_loop
async def test_of_a_weaker_class_all_is_seen_that_is_whole_in_its_file(durability):
    store = make_store(config=LogConfig(durability=durability))
    log = await store.log("t")
    for number in range(3):
        await log.append(plain_batch(b"%d" % number))
    await turns()
    disk = store_disk(store)
    directory = DataDirectory("/data", filesystem=disk)
    assert len(records(directory, WHERE)) == 3
    path = f"{DIRECTORY}/{0:020d}.log"
    copy = disk.copy()
    copy.cut(path, copy.size(path) - 1)
    assert len(records(DataDirectory("/data", filesystem=copy), WHERE)) == 2
    await store.close()


def store_disk(store):
    return store._filesystem


def test_a_torn_tail_is_not_seen_and_no_error():
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"whole"))
        disk = bench.filesystem.copy()
        path = f"{DIRECTORY}/{0:020d}.log"
        for torn in (b"\0" * 100, batch(b"never synced"), batch(b"cut")[:70]):
            disk.replace_content(path, disk.content(path) + torn)
            assert records(DataDirectory("/data", filesystem=disk), WHERE) == [(0, b"whole")]

    run(scenario)


def test_after_a_power_cut_it_shows_no_more_than_the_node_will():
    async def scenario(bench: Bench) -> None:
        for number in range(20):
            await append(bench.partition, batch(b"%d" % number * 50))
        for seed in range(20):
            disk = bench.filesystem.crash(seed)
            seen = records(DataDirectory("/data", filesystem=disk), WHERE)
            again = Bench(disk, config=SMALL_SEGMENTS)
            await again.partition.open()
            assert again.partition.high_watermark == 20
            assert seen == records(directory_of(again), WHERE)[: len(seen)]
            assert len(seen) >= 14, "sealed segments are seen whatever becomes of the checkpoint"

    run(scenario, config=SMALL_SEGMENTS)


def test_a_clean_stop_and_opening_again_hide_nothing():
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"0"))
        again = await bench.again(is_clean=True)
        directory = directory_of(again)
        assert records(directory, WHERE) == [(0, b"0")]
        await append(again.partition, batch(b"1"))  # Appends to the sealed segment.
        assert records(directory, WHERE) == [(0, b"0"), (1, b"1")]
        await append(again.partition, batch(b"2"))
        await again.close()
        assert len(records(directory, WHERE)) == 3

    run(scenario)


# Deleted records.


def test_what_was_evicted_is_out_of_range():
    async def scenario(bench: Bench) -> None:
        for number in range(12):
            await append(bench.partition, batch(b"%d" % number * 100))
        directory = directory_of(bench)
        reading = directory.chunks(WHERE, 0, 12, isolation=COMMITTED)
        next(reading)
        await bench.store.get("t").evict_before(8)
        with pytest.raises(OffsetOutOfRange, match="between 8 and 12"):
            list(reading)
        assert bounds(directory) == OffsetBounds(8, 12)
        with pytest.raises(OffsetOutOfRange, match="offset must be between 8 and 12, got 7"):
            list(directory.chunks(WHERE, 7, 7, isolation=COMMITTED))
        with pytest.raises(OffsetOutOfRange, match="offset must be between 8 and 12, got 7"):
            list(directory.chunks(WHERE, 7, 12, isolation=COMMITTED))

    run(with_small_chunks(scenario), config=SMALL_SEGMENTS)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_what_was_deleted_by_key_is_gone_at_once(is_sealed):
    async def scenario(bench: Bench) -> None:
        for number in range(6):
            await append(bench.partition, batch(b"%d" % number, key=b"k%d" % (number % 2)))
        if is_sealed:
            await bench.store.get("t").roll()
        directory = directory_of(bench)
        assert len(records(directory, WHERE)) == 6
        reading = directory.chunks(WHERE, 0, 6, isolation=COMMITTED)
        assert b"k0" in bytes(next(reading).data)
        assert await bench.partition.delete_keys(key=b"k1") == 3
        assert b"k1" not in b"".join(bytes(chunk.data) for chunk in reading)
        assert [offset for offset, _ in records(directory, WHERE)] == [0, 2, 4]
        await bench.upkeep(is_forced=True)  # Rewrites, and drops the rule.
        assert [offset for offset, _ in records(directory, WHERE)] == [0, 2, 4]

    run(with_small_chunks(scenario))


def test_nothing_is_written_not_even_an_index_that_is_missing():
    async def scenario(bench: Bench) -> None:
        for number in range(12):
            await append(bench.partition, batch(b"%d" % number * 100, key=b"k%d" % number))
        await bench.store.get("t").roll()
        await bench.partition.delete_keys(key=b"k3")
        disk = bench.filesystem.copy()
        for path in disk.paths():
            if path.endswith((".index", ".keys")):
                disk.remove(path)
        before = disk.contents()
        assert len(records(DataDirectory("/data", filesystem=disk), WHERE)) == 11
        assert disk.contents() == before

    run(scenario, config=SMALL_SEGMENTS)


def with_small_chunks(scenario):
    """Run a scenario with chunks of a few batches, so that things can happen between two."""

    async def go(bench: Bench) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(directory_module, "CHUNK_BYTES", 80)
            patch.setattr(view_module, "_MAPS_MAX", 1)
            await scenario(bench)

    return go


# Rewritten while it is being read.


async def write_transactions(bench: Bench) -> None:
    """Write with two producers in turns, one of which commits and the other aborts."""
    for turn in range(8):
        for producer_id in (1, 2):
            await append(
                bench.partition,
                batch(
                    b"%d" % turn * 100,
                    key=b"k%d" % turn,
                    producer_id=producer_id,
                    sequence=turn,
                    is_transactional=True,
                ),
            )
        for producer_id, is_commit in ((1, True), (2, False)):
            await bench.partition.appender.append_marker(
                producer_id, 0, is_commit=is_commit, coordinator_epoch=0
            )
    await bench.store.get("t").roll()


@pytest.mark.parametrize("taken", range(1, 24, 4))
def test_a_reader_goes_on_in_what_was_rewritten_meanwhile(taken):
    async def scenario(bench: Bench) -> None:
        await write_transactions(bench)
        directory = directory_of(bench)
        expected = records(directory, WHERE)
        assert [offset for offset, _ in expected] == list(range(0, 32, 4))
        reading = directory.chunks(WHERE, 0, 32, isolation=COMMITTED)
        chunks = [next(reading) for _ in range(taken)]
        chunks = [chunk._replace(data=bytes(chunk.data)) for chunk in chunks]
        await bench.upkeep(is_forced=True)
        assert any(".1.log" in path for path in bench.filesystem.paths())
        chunks += [chunk._replace(data=bytes(chunk.data)) for chunk in reading]
        seen = [pair for chunk in chunks for pair in shown(chunk, 0, 32)]
        assert seen == expected

    run(with_small_chunks(scenario), config=COMPACTED)


@pytest.mark.parametrize("is_committed_only", [False, True])
def test_a_file_that_went_is_looked_up_again(is_committed_only):
    async def scenario(bench: Bench) -> None:
        await write_transactions(bench)
        view, stable = view_module.ReadOnlyLog(bench.filesystem, DIRECTORY), StableOffsetTracker()
        view.reload()
        await bench.upkeep(is_forced=True)

        def ask(contents: LogState) -> int:
            if is_committed_only:
                return stable.update(contents.snapshot)
            found = contents.read(31, size_max=1, records_max=None, is_checked=True)
            return found.next_offset

        assert view.query(ask) == 32

    run(scenario, config=COMPACTED)


def test_an_end_that_was_compacted_away_is_not_waited_for():
    async def scenario(bench: Bench) -> None:
        fields = {"producer_id": 1, "is_transactional": True, "key": b"k"}
        await append(bench.partition, batch(b"0" * 1000, sequence=0, **fields))
        directory = directory_of(bench)
        assert bounds(directory) == OffsetBounds(0, 0)
        await bench.partition.appender.append_marker(1, 0, is_commit=True, coordinator_epoch=0)
        await append(bench.partition, batch(b"2", sequence=1, **fields))
        await bench.partition.appender.append_marker(1, 0, is_commit=True, coordinator_epoch=0)
        await append(bench.partition, batch(b"4", key=b"k"))
        await bench.store.get("t").roll()
        await bench.upkeep(is_forced=True)
        assert bounds(directory) == OffsetBounds(0, 5)

    run(scenario, config=COMPACTED)


# Damage.


def test_a_damaged_batch_is_reported_with_file_and_position():
    async def scenario(bench: Bench) -> None:
        for number in range(12):
            await append(bench.partition, batch(b"%d" % number * 100))
        disk = bench.filesystem.copy()
        path = f"{DIRECTORY}/{0:020d}.log"
        disk.flip_bit(path, 8 * 400)
        directory = DataDirectory("/data", filesystem=disk)
        assert bounds(directory) == OffsetBounds(0, 12)
        with pytest.raises(DamagedRecords, match=rf"{path}: byte \d+: batch checksum is"):
            list(directory.chunks(WHERE, 0, 12, isolation=COMMITTED))

    run(scenario, config=SMALL_SEGMENTS)


def test_a_damaged_end_is_reported_to_who_asks_where_it_is():
    async def scenario(bench: Bench) -> None:
        for number in range(3):
            await append(bench.partition, batch(b"%d" % number * 100))
        disk = bench.filesystem.copy()
        path = f"{DIRECTORY}/{0:020d}.log"
        disk.flip_bit(path, 8 * (disk.size(path) - 10))
        directory = DataDirectory("/data", filesystem=disk)
        for isolation in (ALL, COMMITTED):
            assert bounds(directory, isolation=isolation) == OffsetBounds(0, 3), "no shorter log"
        assert len(list(directory.chunks(WHERE, 0, 2, isolation=COMMITTED))) == 1
        with pytest.raises(DamagedRecords, match=rf"{path}: byte \d+: .*offset 2 is lost"):
            list(directory.chunks(WHERE, 0, 3, isolation=COMMITTED))
        with pytest.raises(DamagedRecords, match="offset 2 is lost"):
            directory.offsets_at([WHERE], 2**60)

    run(scenario)


def test_nothing_is_shown_where_it_cannot_be_told_what_was_deleted():
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"x", key=b"k"))
        disk = bench.filesystem.copy()
        disk.flip_bit(f"{DIRECTORY}/partition.json", 200)
        with pytest.raises(CorruptFile, match=r"partition\.json"):
            bounds(DataDirectory("/data", filesystem=disk))
        disk.remove(f"{DIRECTORY}/partition.json")
        with pytest.raises(CorruptFile, match=r"partition\.json: is missing"):
            bounds(DataDirectory("/data", filesystem=disk))

    run(scenario)


@pytest.mark.parametrize("is_rewritten", [False, True])
def test_a_segment_that_has_lost_its_seal_is_read_all_the_same(is_rewritten):
    async def scenario(bench: Bench) -> None:
        await write_transactions(bench)
        if is_rewritten:
            await bench.upkeep(is_forced=True)
        expected = records(directory_of(bench), WHERE)
        disk = bench.filesystem.copy()
        seals = [path for path in disk.paths() if path.endswith(".seal")]
        disk.flip_bit(seals[0], 100)
        directory = DataDirectory("/data", filesystem=disk)
        assert records(directory, WHERE) == expected
        assert records(directory, WHERE) == expected

    run(scenario, config=COMPACTED)


@in_loop
async def test_a_topic_that_was_deleted_meanwhile_is_unknown():
    store = make_store()
    log = await store.log("t")
    await log.append(plain_batch(b"0"))
    directory = DataDirectory("/data", filesystem=store_disk(store))
    assert bounds(directory) == OffsetBounds(0, 1)
    await store.delete("t")
    with pytest.raises(UnknownTopic, match="partition t-0 was deleted"):
        bounds(directory)
    await store.close()
