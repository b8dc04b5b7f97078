"""A store: one directory, one owner, many independent logs."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.errors import (
    CorruptFile,
    DamagedRecords,
    DiskFull,
    InvalidConfig,
    InvalidName,
    LogClosed,
    LogOffline,
    MillstreamError,
    StorageFailed,
    StoreLocked,
    UnknownFormat,
    UnknownLog,
)
from millstream.records.record import Record
from millstream.storage.disk.filesystem import File, Filesystem, OsFile, OsFilesystem
from millstream.storage.files.document import encode_document
from millstream.storage.log import Log
from millstream.storage.store import CLOSE_IDLE_RETRY_SECONDS, Store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.in_loop import in_loop

pytestmark = pytest.mark.timeout(60)

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=128)
DISK = LogConfig(durability=Durability.DISK)
EPHEMERAL = LogConfig(durability=Durability.EPHEMERAL)
PARTITION = "/data/topics/a/0"


def make_store(
    filesystem: Filesystem, *, config: StoreConfig | None = None, log_config: LogConfig = SMALL
) -> Store:
    return Store(
        "/data",
        config=config,
        log_config=log_config,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(0),
    )


async def append(log: Log, *values: bytes) -> None:
    for value in values:
        await log.append_records([Record(value)])


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


async def filled_disk(*topics: str, count: int = 3) -> SimulatedFilesystem:
    """A disk with a store that was closed cleanly."""
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        for topic in topics:
            await append(await store.log(topic), *(b"%d" % number for number in range(count)))
    return disk


async def crashed_disk(*topics: str, count: int = 3) -> SimulatedFilesystem:
    """A disk whose store lost power: its logs have no seal."""
    disk = SimulatedFilesystem()
    store = make_store(disk)
    store.open()
    for topic in topics:
        await append(await store.log(topic), *(b"%d" % number for number in range(count)))
    return disk.crash()


def add_file(disk: SimulatedFilesystem, path: str, content: bytes) -> None:
    disk.create(path).close()
    disk.replace_content(path, content)


# One owner.


@in_loop
async def test_a_second_open_of_the_same_directory_is_refused_until_the_first_is_closed(tmp_path):
    path = str(tmp_path / "data")
    first, second = Store(path), Store(path)
    first.open()
    with pytest.raises(StoreLocked, match=path):
        second.open()
    await append(await first.log("a"), b"0")
    await first.close()
    second.open()
    assert values(await second.log("a")) == [b"0"]
    await second.close()


OPEN = """
import sys, millstream
try:
    with millstream.open(sys.argv[1]) as store:
        print("open", flush=True)
        sys.stdin.read()
except millstream.MillstreamError as error:
    print(type(error).__name__)
"""


def other_process(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_directory_that_another_process_has_open_is_refused(tmp_path):
    path = tmp_path / "data"
    with other_process(path) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked):
            Store(str(path)).open()
        with other_process(path) as third:
            assert third.communicate()[0] == "StoreLocked\n"
        other.communicate()
    store = Store(str(path))
    store.open()
    with other_process(path) as other:
        assert other.communicate()[0] == "StoreLocked\n"
    asyncio.run(store.close())


def test_a_process_that_was_killed_leaves_no_lock_behind(tmp_path):
    path = tmp_path / "data"
    with other_process(path) as other:
        assert other.stdout.readline() == "open\n"
        other.send_signal(signal.SIGKILL)
        other.communicate()
    store = Store(str(path))
    store.open()
    asyncio.run(store.close())


@in_loop
async def test_opening_a_store_a_second_time_does_not_give_its_directory_away():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    store.open()
    with pytest.raises(MillstreamError):
        store.open()
    with pytest.raises(StoreLocked):
        make_store(disk).open()
    await store.close()


# A directory that is not ours, or not yet.


def node_of_a_newer_version(disk: SimulatedFilesystem) -> None:
    newer = encode_document("millstream-store", 2, {"store_id": "x"})
    disk.replace_content("/data/node.json", newer)


def node_of_another_kind(disk: SimulatedFilesystem) -> None:
    other = encode_document("millstream-partition", 1, {"store_id": "x"})
    disk.replace_content("/data/node.json", other)


def node_with_a_flipped_bit(disk: SimulatedFilesystem) -> None:
    disk.flip_bit("/data/node.json", 100)


def node_cut_to_nothing(disk: SimulatedFilesystem) -> None:
    disk.cut("/data/node.json", 0)


def node_gone(disk: SimulatedFilesystem) -> None:
    disk.remove("/data/node.json")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (node_of_a_newer_version, UnknownFormat),
        (node_of_another_kind, UnknownFormat),
        (node_with_a_flipped_bit, CorruptFile),
        (node_cut_to_nothing, CorruptFile),
        (node_gone, StorageFailed),
    ],
)
@in_loop
async def test_a_store_whose_format_is_in_doubt_is_refused_and_not_touched(damage, error):
    disk = await crashed_disk("a")
    add_file(disk, f"{PARTITION}/00000000000000000007.index", b"of a newer version, perhaps")
    add_file(disk, f"{PARTITION}/partition.json.tmp", b"half")
    damage(disk)
    before = disk.contents()
    with pytest.raises(error, match=r"node\.json"):
        make_store(disk).open()
    assert disk.contents() == before
    with pytest.raises(error):
        make_store(disk).open()  # Its lock is free again.


@pytest.mark.parametrize("name", ["letter.txt", "topics", "node.jso", ".hidden"])
def test_a_directory_that_holds_other_files_is_refused_and_they_are_not_touched(name):
    disk = SimulatedFilesystem({"/data": None, f"/data/{name}": b"dear", "/data/z": b"more"})
    before = disk.contents()
    with pytest.raises(StorageFailed, match=f"no node.json but contains '{name}'"):
        make_store(disk).open()
    after = {path: content for path, content in disk.contents().items() if path != "/data/lock"}
    assert after == before


@in_loop
async def test_a_directory_where_a_first_start_was_cut_short_is_taken():
    disk = SimulatedFilesystem({"/data": None, "/data/lock": b"", "/data/node.json.tmp": b"{"})
    async with make_store(disk) as store:
        await append(await store.log("a"), b"0")
    assert "/data/node.json.tmp" not in disk.paths()


@pytest.mark.parametrize("path", ["missing/data", "file", "file/data"])
def test_a_path_where_no_directory_can_be_is_refused_by_name(tmp_path, path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageFailed, match=f"{path} cannot be opened"):
        Store(str(tmp_path / path)).open()
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@in_loop
async def test_a_relative_path_works_where_the_process_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Store("data", log_config=DISK) as store:
        await append(await store.log("a"), b"0")
    assert (tmp_path / "data" / "topics" / "a" / "0" / "partition.json").exists()


@in_loop
async def test_a_store_keeps_its_id():
    disk = await filled_disk("a")
    before = disk.content("/data/node.json")
    async with make_store(disk):
        pass
    assert disk.content("/data/node.json") == before
    assert before != (await filled_disk("a")).content("/data/node.json")


# Names.


@pytest.mark.parametrize("name", ["", ".", "..", "../b", "a/b", "/a", "a\0", "%2e%2e", "ä", "a\n"])
@in_loop
async def test_an_unsafe_name_is_refused_and_makes_nothing(name):
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        before = disk.contents()
        with pytest.raises(InvalidName):
            await store.log(name)
        assert disk.contents() == before


@pytest.mark.parametrize("partition", [-1, 2**31])
@in_loop
async def test_an_impossible_partition_is_refused_and_makes_nothing(partition):
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        before = disk.contents()
        with pytest.raises(InvalidName):
            await store.log("a", partition)
        assert disk.contents() == before


@in_loop
async def test_a_log_that_is_not_open_is_unknown():
    async with make_store(await filled_disk("a")) as store:
        with pytest.raises(UnknownLog, match="a/0 is not open"):
            store.get("a")
        log = await store.log("a")
        assert store.get("a") is log
        assert await store.log("a") is log


@in_loop
async def test_a_log_that_many_ask_for_at_once_is_opened_once():
    async with make_store(SimulatedFilesystem()) as store:
        logs = await asyncio.gather(*(store.log("a") for _ in range(10)))
        assert len(set(map(id, logs))) == 1


@in_loop
async def test_all_logs_are_listed_open_or_not():
    async with make_store(await filled_disk("b", "a")) as store:
        await store.log("a", 10)
        await store.log("a", 2)
        assert store.names() == [("a", 0), ("a", 2), ("a", 10), ("b", 0)]
        assert {log.name for log in store.open_logs} == {"a/2", "a/10"}


@in_loop
async def test_files_that_are_no_logs_are_passed_over():
    disk = await filled_disk("a")
    for path in ("/data/topics/a/note", "/data/topics/a/00", "/data/topics/lost+found"):
        disk.make_directory(path)
    async with make_store(disk) as store:
        assert store.names() == [("a", 0)]


@in_loop
async def test_a_file_among_the_topics_does_not_keep_the_store_shut():
    disk = await filled_disk("a")
    add_file(disk, "/data/topics/.DS_Store", b"not ours")
    async with make_store(disk) as store:
        assert values(await store.log("a")) == [b"0", b"1", b"2"]


# Logs keep to themselves.


@in_loop
async def test_two_logs_do_not_see_each_others_records():
    disk = SimulatedFilesystem()
    names = [("a", 0), ("a", 1), ("b", 0)]
    async with make_store(disk) as store:
        logs = [await store.log(*name) for name in names]
        await asyncio.gather(*(append(log, log.name.encode(), b"x") for log in logs))
    async with make_store(disk) as store:
        for name in names:
            log = await store.log(*name)
            assert values(log) == [log.name.encode(), b"x"]


def log_with_a_flipped_bit(disk: SimulatedFilesystem) -> None:
    disk.flip_bit(f"{PARTITION}/00000000000000000000.log", 8 * 70)


def log_cut_short(disk: SimulatedFilesystem) -> None:
    disk.cut(f"{PARTITION}/00000000000000000000.log", 10)


def log_gone(disk: SimulatedFilesystem) -> None:
    disk.remove(f"{PARTITION}/00000000000000000000.log")


def partition_of_a_newer_version(disk: SimulatedFilesystem) -> None:
    newer = encode_document("millstream-partition", 7, {})
    disk.replace_content(f"{PARTITION}/partition.json", newer)


def partition_with_a_flipped_bit(disk: SimulatedFilesystem) -> None:
    disk.flip_bit(f"{PARTITION}/partition.json", 100)


def partition_is_a_file(disk: SimulatedFilesystem) -> None:
    add_file(disk, "/data/topics/a/1", b"")


def seal_with_a_flipped_bit(disk: SimulatedFilesystem) -> None:
    disk.flip_bit(f"{PARTITION}/00000000000000000000.seal", 100)


def checkpoint_of_noise(disk: SimulatedFilesystem) -> None:
    add_file(disk, f"{PARTITION}/checkpoint", b"x" * 64)


@pytest.mark.parametrize(
    "damage",
    [
        log_with_a_flipped_bit,
        log_cut_short,
        log_gone,
        partition_of_a_newer_version,
        partition_with_a_flipped_bit,
        partition_is_a_file,
        seal_with_a_flipped_bit,
        checkpoint_of_noise,
    ],
)
@in_loop
async def test_damage_in_one_log_leaves_the_others_usable(damage):
    disk = await filled_disk("a", "b")
    damage(disk)
    async with make_store(disk) as store:
        log = await store.log("b")
        assert values(log) == [b"0", b"1", b"2"]
        await append(log, b"3")
        assert values(log) == [b"0", b"1", b"2", b"3"]
    async with make_store(disk) as store:
        assert values(await store.log("b")) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "damage", [log_cut_short, log_gone, partition_of_a_newer_version, partition_with_a_flipped_bit]
)
@in_loop
async def test_damage_is_reported_under_the_name_of_its_log_alone(damage):
    disk = await filled_disk("a", "b")
    damage(disk)
    async with make_store(disk) as store:
        assert list(store.damage()) == [("a", 0)]
        assert all(PARTITION in str(error) for error in store.damage()["a", 0])


@in_loop
async def test_a_log_of_a_newer_version_raises_when_asked_for_and_is_not_touched():
    disk = await crashed_disk("a")
    add_file(disk, f"{PARTITION}/00000000000000000007.index", b"meant for a newer version")
    add_file(disk, f"{PARTITION}/partition.json.tmp", b"half")
    partition_of_a_newer_version(disk)
    before = disk.contents()
    async with make_store(disk) as store:
        for _ in range(2):
            with pytest.raises(UnknownFormat, match=r"partition\.json: .* version 7"):
                await store.log("a")
    assert disk.contents() == before


# Durability classes.


@pytest.mark.parametrize("kind", [Durability.MEMORY, Durability.DISK, Durability.FSYNC])
@in_loop
async def test_a_log_remembers_its_durability_class(kind):
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        await append(await store.log("a", config=LogConfig(durability=kind)), b"0")
    async with make_store(disk) as store:
        log = await store.log("a")
        assert log.config.durability is kind
        assert log.config.segment_bytes_max == SMALL.segment_bytes_max, "all else is the store's"


@in_loop
async def test_a_durability_class_can_be_changed_and_is_remembered_then():
    disk = await filled_disk("a")
    kinds = [Durability.DISK, Durability.MEMORY, Durability.FSYNC]
    for number, kind in enumerate(kinds, start=3):
        async with make_store(disk) as store:
            log = await store.log("a", config=LogConfig(durability=kind))
            assert log.config.durability is kind
            await append(log, b"%d" % number)
        async with make_store(disk) as store:
            assert (await store.log("a")).config.durability is kind
    async with make_store(disk) as store:
        assert values(await store.log("a")) == [b"0", b"1", b"2", b"3", b"4", b"5"]


@in_loop
async def test_a_changed_class_is_durable_before_the_log_is_used():
    disk = await filled_disk("a")
    store = make_store(disk)
    store.open()
    await store.log("a", config=DISK)
    async with make_store(disk.crash()) as again:
        assert (await again.log("a")).config.durability is Durability.DISK


@in_loop
async def test_a_new_log_is_there_after_a_power_cut_though_nothing_was_appended():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    store.open()
    await store.log("a", config=DISK)
    async with make_store(disk.crash()) as again:
        assert again.names() == [("a", 0)]
        assert (await again.log("a")).config.durability is Durability.DISK


# Ephemeral logs.


@in_loop
async def test_an_ephemeral_log_leaves_nothing_on_the_disk_and_is_gone_with_its_store(tmp_path):
    path = tmp_path / "data"
    async with Store(str(path), log_config=DISK) as store:
        log = await store.log("a", config=EPHEMERAL)
        await append(log, b"0", b"1")
        assert values(log) == [b"0", b"1"]
        assert list((path / "topics").iterdir()) == []
    assert list((path / "topics").iterdir()) == []
    async with Store(str(path)) as store:
        assert store.names() == []


@in_loop
async def test_an_ephemeral_log_reads_like_any_other_over_many_segments():
    async with make_store(SimulatedFilesystem()) as store:
        config = LogConfig(durability=Durability.EPHEMERAL, segment_bytes_max=1024)
        log = await store.log("a", config=config)
        wanted = [b"%03d" % number * 50 for number in range(50)]
        await append(log, *wanted)
        assert values(log) == wanted
        assert len(log.segments) > 5


@in_loop
async def test_ephemeral_logs_together_are_bounded():
    store = make_store(SimulatedFilesystem(), config=StoreConfig(ephemeral_bytes_max=10_000))
    store.open()
    logs = [await store.log(topic, config=EPHEMERAL) for topic in "ab"]
    appended = refused = 0
    while not refused:
        try:
            await append(logs[appended % 2], b"x" * 500)
            appended += 1
        except DiskFull:
            refused += 1
    assert 10 <= appended < 20
    assert sum(len(values(log)) for log in logs) == appended


@in_loop
async def test_a_full_memory_does_not_keep_the_store_from_closing_cleanly():
    """Nothing of an ephemeral log is worth a seal: it goes with the store."""
    config = StoreConfig(ephemeral_bytes_max=10_000)
    async with make_store(SimulatedFilesystem(), config=config) as store:
        log = await store.log("a", config=EPHEMERAL)
        with pytest.raises(DiskFull):
            await append(log, *[b"x" * 50] * 1_000)


@in_loop
async def test_a_full_memory_leaves_the_logs_on_the_disk_alone():
    config = StoreConfig(ephemeral_bytes_max=1024)
    async with make_store(SimulatedFilesystem(), config=config) as store:
        with pytest.raises(DiskFull):
            await append(await store.log("a", config=EPHEMERAL), b"x" * 5_000)
        log = await store.log("b")
        await append(log, b"x" * 5_000)
        assert len(values(log)) == 1


@in_loop
async def test_an_ephemeral_log_that_is_reopened_can_be_used():
    async with make_store(SimulatedFilesystem()) as store:
        await append(await store.log("a", config=EPHEMERAL), b"0")
        log = await store.reopen("a")
        await append(log, b"1")
        assert values(log) == [b"0", b"1"]


@in_loop
async def test_a_log_on_the_disk_cannot_become_ephemeral():
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        await append(await store.log("a"), b"0")
    async with make_store(disk) as store:
        with pytest.raises(InvalidConfig, match="a/0 is stored on disk"):
            await store.log("a", config=EPHEMERAL)
        assert values(await store.log("a")) == [b"0"]


# Descriptors and threads.


class UnsyncedFile(OsFile):
    def sync(self) -> None:
        pass


class UnsyncedFilesystem(OsFilesystem):
    """Real files and descriptors, without the wait for the disk."""

    def open(self, path: str) -> File:
        return UnsyncedFile(os.open(path, os.O_RDWR))

    def create(self, path: str) -> File:
        return UnsyncedFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def sync_directory(self, path: str) -> None:
        pass


def written_by_this_process(directory: Path) -> list[str]:
    """The files below `directory` that this process has open for writing."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{name}")
            flags = Path(f"/proc/self/fdinfo/{name}").read_text().split("flags:")[1].split()[0]
        except FileNotFoundError:
            continue
        if path.startswith(str(directory)) and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY:
            found.append(path)
    return [path for path in found if not path.endswith("/lock")]


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="counts in /proc")


def limited_store(path: Path, *, writers: int = 5) -> Store:
    return Store(
        str(path),
        config=StoreConfig(writers_open_max=writers),
        filesystem=UnsyncedFilesystem(),
    )


@needs_proc
@in_loop
async def test_fifty_logs_with_room_for_five_hold_about_five_descriptors(tmp_path):
    async with limited_store(tmp_path / "data") as store:
        logs = [await store.log("a", number) for number in range(50)]
        for turn in range(3):
            for log in logs:
                await append(log, b"%d" % turn)
            assert len(written_by_this_process(tmp_path)) <= 2 * 5 + 2, "a log and its checkpoint"
        assert all(values(log) == [b"0", b"1", b"2"] for log in logs)
    assert written_by_this_process(tmp_path) == []


@needs_proc
@in_loop
async def test_a_burst_over_fifty_logs_gives_its_descriptors_back(tmp_path):
    async with limited_store(tmp_path / "data") as store:
        logs = [await store.log("a", number) for number in range(50)]
        await asyncio.gather(*(append(log, b"0") for log in logs))
        await append(await store.log("b"), b"0")
        assert len(written_by_this_process(tmp_path)) <= 2 * 5 + 2
        assert all(values(log) == [b"0"] for log in logs)


@needs_proc
@in_loop
async def test_logs_that_were_busy_together_give_their_descriptors_back_without_another(tmp_path):
    async with limited_store(tmp_path / "data") as store:
        logs = [await store.log("a", number) for number in range(50)]
        await asyncio.gather(*(append(log, b"0") for log in logs))
        while len(written_by_this_process(tmp_path)) > 2 * 5 + 2:  # noqa: ASYNC110 - no event tells.
            await asyncio.sleep(CLOSE_IDLE_RETRY_SECONDS / 10)


@needs_proc
@in_loop
async def test_a_store_that_crashed_with_fifty_logs_is_opened_with_few_descriptors(tmp_path):
    disk = SimulatedFilesystem({"/data": None})
    crashed = make_store(disk)
    crashed.open()
    for number in range(50):
        await append(await crashed.log("a", number), b"0")
    for path, content in disk.contents().items():
        target = tmp_path / path[1:]
        target.mkdir() if content is None else target.write_bytes(content)
    store = limited_store(tmp_path / "data")
    store.open()
    held = len(written_by_this_process(tmp_path))
    assert all([values(await store.log("a", number)) == [b"0"] for number in range(50)])
    held = max(held, len(written_by_this_process(tmp_path)))
    await store.close()
    assert held <= 2 * 5 + 2


@needs_proc
@in_loop
async def test_two_thousand_partitions_are_open_with_few_threads_and_descriptors(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    path = tmp_path / "data"
    async with limited_store(path, writers=20) as store:
        for number in range(2_000):
            await store.log("a", number)
        for number in range(0, 2_000, 100):
            await append(store.get("a", number), b"%d" % number)
        assert len(store.open_logs) == 2_000
        assert threading.active_count() - threads <= 10
        assert len(os.listdir("/proc/self/fd")) - before <= 60
    async with limited_store(path) as store:
        assert len(store.names()) == 2_000
        assert values(await store.log("a", 1_900)) == [b"1900"]
        assert len(os.listdir("/proc/self/fd")) - before <= 20


@needs_proc
@in_loop
async def test_closing_gives_every_descriptor_back(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    async with Store(str(tmp_path / "data")) as store:
        await append(await store.log("a"), b"0", b"1")
    assert len(os.listdir("/proc/self/fd")) == before


@needs_proc
def test_a_store_that_is_refused_gives_every_descriptor_back(tmp_path):
    """Otherwise a process that retries would run out of them."""
    path = tmp_path / "data"
    path.mkdir()
    (path / "letter.txt").write_bytes(b"dear")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(StorageFailed):
            Store(str(path)).open()
    assert len(os.listdir("/proc/self/fd")) == before


# What a commit costs.


@in_loop
async def test_a_commit_syncs_the_directory_only_while_a_name_in_it_is_new():
    disk = FaultyFilesystem(SimulatedFilesystem(), Fault(call=1_000_000))
    store = make_store(disk)
    store.open()
    log = await store.log("a")
    await append(log, b"0")
    before = len(disk.calls)
    await append(log, b"1", b"2", b"3")
    calls = [call.name for call in disk.calls[before:]]
    assert calls.count("sync") == 3
    assert calls.count("sync_directory") == 0
    await store.close()


# The way back from offline.


async def offline_log(fault: Fault) -> tuple[Store, Log]:
    """A store with an open log `a`, one of whose syncs failed."""
    disk = FaultyFilesystem(await filled_disk("a", "b"), fault)
    store = make_store(disk)
    store.open()
    log = await store.log("a")
    await append(log, b"3")
    with pytest.raises(LogOffline):
        await append(log, b"lost")
    assert fault.hits
    return store, log


def second_sync_fails() -> Fault:
    """The first sync of the log succeeds, the second does not."""
    return Fault(call=2, only={"sync"}, path="a/0/00000000000000000000.log")


@in_loop
async def test_reopening_brings_an_offline_log_back():
    store, log = await offline_log(second_sync_fails())
    with pytest.raises(LogOffline, match="until it is opened again"):
        await append(log, b"refused")
    again = await store.reopen("a")
    assert again is not log
    assert again is store.get("a")
    assert again.offline is None
    kept = values(again)
    assert kept[:4] == [b"0", b"1", b"2", b"3"]
    assert kept[4:] in ([], [b"lost"]), "a failed append may or may not have been kept"
    await append(again, b"4")
    assert values(again) == [*kept, b"4"]
    with pytest.raises(LogClosed):
        await append(log, b"through the old one")
    await store.close()


@in_loop
async def test_what_a_reopened_log_acknowledges_survives_a_power_cut():
    fault = second_sync_fails()
    disk = await filled_disk("a")
    store = make_store(FaultyFilesystem(disk, fault))
    store.open()
    log = await store.log("a")
    await append(log, b"3")
    with pytest.raises(LogOffline):
        await append(log, b"lost")
    again = await store.reopen("a")
    await append(again, b"4")
    wanted = values(again)
    async with make_store(disk.crash()) as after:
        assert values(await after.log("a")) == wanted


@in_loop
async def test_reopening_sees_what_was_mended_on_the_disk():
    disk = await filled_disk("a")
    path = f"{PARTITION}/00000000000000000000.log"
    sound = disk.content(path)
    disk.flip_bit(path, 8 * 65)
    async with make_store(disk) as store:
        log = await store.log("a")
        with pytest.raises(DamagedRecords):
            values(log)
        disk.replace_content(path, sound)
        assert values(await store.reopen("a")) == [b"0", b"1", b"2"]


@in_loop
async def test_an_offline_log_leaves_the_others_alone_and_lets_the_store_close():
    store, log = await offline_log(second_sync_fails())
    other = await store.log("b")
    await append(other, b"3")
    assert values(other) == [b"0", b"1", b"2", b"3"]
    assert values(log) == [b"0", b"1", b"2", b"3"], "what was committed can be read"
    await store.close()


@in_loop
async def test_a_log_that_is_not_open_cannot_be_reopened():
    async with make_store(SimulatedFilesystem()) as store:
        with pytest.raises(UnknownLog):
            await store.reopen("a")


def list_fails(nth: int) -> Fault:
    return Fault(call=nth, only={"list"}, path="topics/a/0", error=errno.EIO)


@in_loop
async def test_a_reopening_that_failed_can_be_repeated():
    fault = list_fails(2)
    store = make_store(FaultyFilesystem(await filled_disk("a"), fault))
    store.open()
    await store.log("a")
    with pytest.raises(StorageFailed):
        await store.reopen("a")
    assert fault.hits
    log = await store.reopen("a")
    await append(log, b"3")
    assert values(log) == [b"0", b"1", b"2", b"3"]
    await store.close()


@in_loop
async def test_a_reopening_that_failed_does_not_keep_the_store_from_closing():
    fault = list_fails(2)
    disk = await crashed_disk("a", "b")
    store = make_store(FaultyFilesystem(disk, fault))
    store.open()
    await append(await store.log("b"), b"3")
    await store.log("a")
    with pytest.raises(StorageFailed):
        await store.reopen("a")
    await store.close()
    async with make_store(disk) as again:
        assert values(await again.log("b")) == [b"0", b"1", b"2", b"3"]


# Closing.


@in_loop
async def test_closing_twice_is_fine():
    store = make_store(SimulatedFilesystem())
    store.open()
    await append(await store.log("a"), b"0")
    await store.close()
    await store.close()


@in_loop
async def test_a_store_that_was_never_opened_can_be_closed():
    await make_store(SimulatedFilesystem()).close()


@in_loop
async def test_a_closed_log_takes_nothing_and_a_closed_store_gives_no_log():
    store = make_store(SimulatedFilesystem())
    store.open()
    log = await store.log("a")
    await append(log, b"0")
    await store.close()
    with pytest.raises(LogClosed, match="a/0 is closed"):
        await append(log, b"1")
    with pytest.raises(LogClosed):
        await log.wait_for(1)
    with pytest.raises(LogClosed):
        await log.begin_epoch(1)
    with pytest.raises(LogClosed, match="/data is closed"):
        await store.log("a")
    with pytest.raises(LogClosed):
        await store.log("b")


@in_loop
async def test_a_clean_close_leaves_every_segment_sealed_and_nothing_to_repair():
    disk = await filled_disk("a", "b", count=30)
    for topic in "ab":
        names = disk.list(f"/data/topics/{topic}/0")
        logs = {name.removesuffix(".log") for name in names if name.endswith(".log")}
        assert len(logs) > 1
        assert logs == {name.removesuffix(".seal") for name in names if name.endswith(".seal")}
        assert logs == {name.removesuffix(".index") for name in names if name.endswith(".index")}
        assert "checkpoint" not in names
    store = make_store(disk)
    store.open()
    assert (store.recovered(), store.damage()) == ({}, {})
    assert (await store.log("a")).recovered.scanned_bytes == 0
    await store.close()


@in_loop
async def test_closing_seals_logs_that_were_recovered_and_never_used():
    disk = await crashed_disk("a", "b")
    assert not any(path.endswith(".seal") for path in disk.paths())
    async with make_store(disk) as store:
        assert store.open_logs == []
    for topic in "ab":
        assert f"/data/topics/{topic}/0/00000000000000000000.seal" in disk.paths()
        assert f"/data/topics/{topic}/0/checkpoint" not in disk.paths()
    async with make_store(disk) as store:
        assert store.recovered() == {}
        assert values(await store.log("b")) == [b"0", b"1", b"2"]


@in_loop
async def test_a_log_that_cannot_be_closed_cleanly_does_not_keep_the_others_from_it():
    disk = await filled_disk("a", "b")
    fault = Fault(call=1, only={"rename"}, path="a/0/00000000000000000000.seal")
    store = make_store(FaultyFilesystem(disk, fault))
    store.open()
    for topic in "ab":
        await append(await store.log(topic), b"3")
    with pytest.raises(StorageFailed, match="a/0 was not closed cleanly"):
        await store.close()
    async with make_store(disk) as again:
        assert list(again.recovered()) in ([("a", 0)], []), "b was closed cleanly"
        for topic in "ab":
            assert values(await again.log(topic)) == [b"0", b"1", b"2", b"3"]


@in_loop
async def test_closing_waits_for_what_was_admitted():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    store.open()
    log = await store.log("a")
    futures = [
        asyncio.ensure_future(log.append_records([Record(b"%d" % number)])) for number in range(5)
    ]
    await asyncio.sleep(0)
    await store.close()
    assert [(await future).offset for future in futures] == [0, 1, 2, 3, 4]
    async with make_store(disk) as again:
        assert values(await again.log("a")) == [b"0", b"1", b"2", b"3", b"4"]


@in_loop
async def test_whoever_opens_next_may_do_so_as_soon_as_closing_returned():
    disk = SimulatedFilesystem()
    for life in range(3):
        async with make_store(disk) as store:
            await append(await store.log("a"), b"%d" % life)
            with pytest.raises(StoreLocked):
                make_store(disk).open()
