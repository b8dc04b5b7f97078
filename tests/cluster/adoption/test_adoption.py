"""Adoption of a lone node's directory: everything survives, and it may be interrupted anywhere."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import urllib.error
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.broker import Broker
from millstream.broker.loop_timers import LoopTimers
from millstream.broker.state.internal_partitions import GROUPS, STREAMS, TRANSACTIONS
from millstream.broker.state.routing import index_of_group
from millstream.broker.state.state_clock import StateClock
from millstream.broker.state.state_log import StateLog
from millstream.broker.topics.topic import topic_key
from millstream.cluster.adoption import adoption
from millstream.cluster.adoption.adoption import Adoption, AdoptionReport
from millstream.cluster.adoption.internal_logs import group_of, read_state, transactional_id_of
from millstream.cluster.control.adoption_row import ADOPTED_KEY, ADOPTING_KEY
from millstream.config.schema import BrokerConfig, ClusterConfig, NodeConfig
from millstream.errors import (
    CoordinatorLoading,
    InvalidConfig,
    InvalidRequest,
    MillstreamError,
    NotCoordinator,
    OutcomeUnknown,
    UnknownFormat,
)
from millstream.metadata.interface import Metadata
from millstream.node import Node
from millstream.records.record import Record
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.memory_metadata import MetadataServer
from tests.cluster.adoption import lone_node
from tests.cluster.local_cluster import ANY_PORT, local_cluster, until, values_of
from tests.in_loop import in_loop

NODE_ID = 4


def config_of(data: Path, node_id: int = NODE_ID) -> NodeConfig:
    return NodeConfig(
        data=str(data),
        kafka=ANY_PORT,
        http=ANY_PORT,
        broker=BrokerConfig(node_id=node_id),
        cluster=ClusterConfig(name="test", peer=ANY_PORT, lease_ttl_ms=2_000),
    )


async def adopt(
    data: Path, metadata: Metadata, *, filesystem: OsFilesystem | None = None, **options: Any
) -> AdoptionReport | None:
    return await Adoption(config_of(data), metadata, filesystem=filesystem).run(**options)


@asynccontextmanager
async def running(data: Path, server: MetadataServer | None) -> AsyncIterator[Node]:
    """Run a node on a directory: in the cluster of a server, or alone."""
    node = Node(config_of(data), metadata=None if server is None else server.connect())
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def check_everything(node: Node) -> None:
    """Check that a node has all that the lone node had."""
    broker = node.broker
    if node.peer is None:  # A lone node opens partitions when they are used.
        for topic in broker.topics.all():
            for partition in topic.partitions:
                await partition.open()
    await until(lambda: is_ready(node))
    orders = [values_of(broker.topics.partition("orders", number)) for number in range(2)]
    assert sorted(map(int, orders[0] + orders[1])) == list(range(lone_node.ORDERS))
    for group, offset in lone_node.GROUPS.items():
        committed = broker.groups.of(group).fetch(group)
        assert [found.offset for found in committed.values()] == [offset], group  # type: ignore[union-attr]
    stored = {item.transactional_id: item.producer.epoch for item in broker.transactions.all()}
    assert stored == {name: count - 1 for name, count in lone_node.TRANSACTIONS.items()}
    counts = broker.queues.get("mail").store.counts()
    assert counts.ready + counts.leased == 3  # The lease ends some time.
    config = broker.configs.group_config("billing-1")
    assert config.consumer_session_timeout_ms == 50_000
    # A repeated append of a known writer is known, and stored once.
    assert await append(node, lone_node.STREAM[1], sequence=1) == 204
    assert await append(node, "", sequence=7) == 409
    assert not list(broker.problems())


async def append(node: Node, text: str, *, sequence: int) -> int:
    class Address:
        url = f"http://{node.http}"

    def send() -> int:
        try:
            return lone_node.append(Address, "POST", text.encode() or b"x", sequence=sequence)
        except urllib.error.HTTPError as error:
            return error.code

    return await asyncio.to_thread(send)


def is_ready(node: Node) -> bool:
    """Whether the node leads everything, and has loaded all state."""
    broker = node.broker
    try:
        for topic in broker.topics.all():
            for partition in topic.partitions:
                partition.check_leader()
                assert partition.is_open
        for kind in (broker.groups, broker.transactions, broker.streams):
            if len(kind.coordinators.loaded()) < kind.coordinators.count:
                return False
        broker.queues.get("mail")
    except (MillstreamError, AssertionError):
        return False
    return True


@in_loop
async def test_an_adopted_node_has_everything_that_the_lone_node_had(tmp_path: Path):
    data, server = lone_node.unpack(tmp_path), MetadataServer(LoopTimers())
    report = await adopt(data, server.connect())
    assert report is not None
    assert (report.topics, report.state.groups, report.state.transactional_ids) == (3, 20, 20)
    assert (report.state.queues, report.state.streams) == (1, 1)
    async with running(data, server) as node:
        await check_everything(node)
    async with running(data, server) as node:  # And again in its second life.
        await check_everything(node)


@in_loop
async def test_other_nodes_become_replicas_of_an_adopted_one(tmp_path: Path):
    async with local_cluster(tmp_path / "cluster", count=0) as cluster:
        data = lone_node.unpack(tmp_path)
        config = config_of(data, 1)
        await Adoption(config, cluster.server.connect()).run()
        (tmp_path / "cluster").mkdir()
        shutil.move(data, tmp_path / "cluster" / "1")
        for node_id in (1, 2, 3):
            await cluster.start_node(node_id)
        admin = cluster.nodes[1].broker.admin
        for number in range(2):
            await admin.reassign("orders", number, [1, 2, 3])
        await until(
            lambda: all(
                len(state.isr) == 3
                for key, state in cluster.member(1).state.partitions.items()
                if _topic_of(cluster.nodes[1], key.topic_id).startswith(("orders", "__groups"))
            )
        )
        await cluster.stop_node(1)
        await until(lambda: cluster.leader_of("orders", 0) is not None)
        await until(lambda: cluster.leader_of("orders", 1) is not None)
        for node_id in (2, 3):
            values = [values_of(cluster.partition(node_id, "orders", n)) for n in range(2)]
            assert sorted(map(int, values[0] + values[1])) == list(range(lone_node.ORDERS))
        for group, offset in lone_node.GROUPS.items():
            await until(lambda group=group: _committed(cluster, group) is not None)  # type: ignore[misc]
            assert _committed(cluster, group) == offset


def _topic_of(node: Node, topic_id: Any) -> str:
    return node.broker.topics.by_id(topic_id).name


def _committed(cluster: Any, group: str) -> int | None:
    for node in cluster.nodes.values():
        try:
            offsets = node.broker.groups.of(group).fetch(group)
        except (NotCoordinator, CoordinatorLoading):
            continue
        return next((found.offset for found in offsets.values()), None)
    return None


# Refusals.


@in_loop
async def test_the_cluster_must_be_empty(tmp_path: Path):
    data, server = lone_node.unpack(tmp_path), MetadataServer(LoopTimers())
    await server.connect().transact(puts={topic_key("other"): b"{}"})
    with pytest.raises(InvalidRequest, match="must be empty, and has 1 keys with 1 topics"):
        await adopt(data, server.connect())
    assert [entry.key for entry in await server.connect().list("")] == [topic_key("other")]
    async with running(data, None) as node:
        await check_everything(node)


@in_loop
async def test_a_second_directory_is_not_adopted_into_the_same_cluster(tmp_path: Path):
    server = MetadataServer(LoopTimers())
    await adopt(lone_node.unpack(tmp_path), server.connect())
    other = tmp_path / "other"
    async with _lone(other):
        pass
    with pytest.raises(InvalidRequest, match="was made from the directory of node 4"):
        await adopt(other, server.connect())


@asynccontextmanager
async def _lone(data: Path) -> AsyncIterator[Broker]:
    broker = await Broker.open(str(data))
    try:
        yield broker
    finally:
        await broker.close()


@in_loop
async def test_a_directory_that_is_empty_or_does_not_exist_is_not_adopted(tmp_path: Path):
    server = MetadataServer(LoopTimers())
    with pytest.raises(InvalidRequest, match=r"has no meta\.db"):
        await adopt(tmp_path / "nothing", server.connect())
    assert not (tmp_path / "nothing").exists()
    assert not await server.connect().list("")


@pytest.mark.parametrize(
    ("name", "configs", "words"),
    [
        ("quick", {"millstream.durability": "ephemeral"}, "a cluster has no ephemeral topics"),
        ("__groups", {}, "has a name that a cluster uses itself"),
        ("__queue-1", {}, "has a name that a cluster uses itself"),
    ],
)
def test_topics_that_a_cluster_cannot_have_are_named_before_anything_is_copied(
    tmp_path: Path, name: str, configs: dict[str, str], words: str
) -> None:
    async def work() -> None:
        data, server = tmp_path / "data", MetadataServer(LoopTimers())
        async with _lone(data) as broker:
            await broker.topics.create(name, configs=configs)
        with pytest.raises(InvalidRequest, match=words):
            await adopt(data, server.connect())
        assert not await server.connect().list("")

    asyncio.run(work())


@in_loop
async def test_a_dry_run_changes_nothing(tmp_path: Path):
    data, server = lone_node.unpack(tmp_path), MetadataServer(LoopTimers())
    report = await adopt(data, server.connect(), is_dry_run=True)
    assert report is not None
    assert report.topics == 3
    assert not await server.connect().list("")
    assert not {"cluster.json", "__adopt", "before-adoption"} & set(os.listdir(data))


@in_loop
async def test_a_running_node_is_not_adopted(tmp_path: Path):
    data, server = lone_node.unpack(tmp_path), MetadataServer(LoopTimers())
    async with running(data, None) as node:
        with pytest.raises(MillstreamError, match="lock"):
            await adopt(data, server.connect())
        await check_everything(node)


# Interruptions.


class InterruptedFilesystem(OsFilesystem):
    """Fails from its n-th change of names on."""

    def __init__(self, changes: int) -> None:
        self.left = changes

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EIO, "interrupted")

    def rename(self, source: str, target: str) -> None:
        self._change()
        super().rename(source, target)

    def create(self, path: str) -> Any:
        self._change()
        return super().create(path)

    def remove_tree(self, path: str) -> None:
        self._change()
        super().remove_tree(path)


class InterruptedMetadata:
    """Ends at its n-th change, or after it was made."""

    def __init__(self, inner: Metadata, changes: int, *, is_made: bool) -> None:
        self._inner = inner
        self.left = changes
        self._is_made = is_made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def transact(self, **change: Any) -> int | None:
        self.left -= 1
        if self.left < 0:
            if self._is_made:
                await self._inner.transact(**change)
            raise OutcomeUnknown("interrupted")
        return await self._inner.transact(**change)


async def start_alone_if_possible(data: Path) -> bool:
    """Start the directory as a lone node, which must have everything; return whether it was."""
    try:
        async with running(data, None) as node:
            await check_everything(node)
    except InvalidConfig:
        return False
    return True


async def recover(data: Path, server: MetadataServer, *, is_alone: bool) -> None:
    """Check what an interrupted attempt left, adopt again, and check the cluster."""
    entries = {entry.key for entry in await server.connect().list("")}
    if is_alone:
        was_alone = await start_alone_if_possible(data)
        if not was_alone and ADOPTED_KEY not in entries:
            with pytest.raises(InvalidConfig, match="run `millstream cluster adopt` again"):
                async with running(data, server):
                    pass
    await adopt(data, server.connect())
    async with running(data, server) as node:
        await check_everything(node)
    names = set(os.listdir(data))
    assert not {"meta.db", "__adopt"} & names
    keys = {entry.key for entry in await server.connect().list("")}
    assert ADOPTED_KEY in keys
    assert ADOPTING_KEY not in keys


@pytest.mark.parametrize("is_made", [False, True])
def test_an_adoption_may_end_at_every_change_of_the_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    monkeypatch.setattr(adoption, "CHANGES_MAX", 12)  # In several transactions.

    async def attempt(changes: int) -> bool:
        folder = tmp_path / str(changes)
        data, server = lone_node.unpack(folder), MetadataServer(LoopTimers())
        metadata = InterruptedMetadata(server.connect(), changes, is_made=is_made)
        try:
            await adopt(data, metadata)  # type: ignore[arg-type]
        except OutcomeUnknown:
            await recover(data, server, is_alone=True)
            return False
        return True

    changes = 0
    while not asyncio.run(attempt(changes)):
        changes += 1
    assert changes > 4


def test_an_adoption_may_end_at_changes_of_the_directory(tmp_path: Path) -> None:
    async def attempt(changes: int, *, is_alone: bool) -> int:
        """Adopt with so many changes, then without limits; return how many were left."""
        data, server = lone_node.unpack(tmp_path / str(changes)), MetadataServer(LoopTimers())
        filesystem = InterruptedFilesystem(changes)
        try:
            await adopt(data, server.connect(), filesystem=filesystem)
        except (MillstreamError, OSError):
            if filesystem.left >= 0:
                raise
        await recover(data, server, is_alone=is_alone)
        return filesystem.left

    total = 10**9 - asyncio.run(attempt(10**9, is_alone=False))
    # Each of the last changes, which decide; of the many files before, every fortieth.
    points = [*range(0, total - 20, 40), *range(total - 20, total)]
    for number, changes in enumerate(points):
        assert asyncio.run(attempt(changes, is_alone=number % 2 == 0)) < 0, changes


@in_loop
async def test_what_a_lone_node_wrote_after_an_interrupted_attempt_is_adopted_too(tmp_path: Path):
    data, server = lone_node.unpack(tmp_path), MetadataServer(LoopTimers())
    metadata = InterruptedMetadata(server.connect(), 1, is_made=True)
    with pytest.raises(OutcomeUnknown):
        await adopt(data, metadata)  # type: ignore[arg-type]
    async with running(data, None) as node:
        await node.broker.topics.create("later")
        await node.broker.topics.delete("mail")
    await adopt(data, server.connect())
    async with running(data, server) as node:
        names = {topic.name for topic in node.broker.topics.all() if not topic.is_internal}
    assert {"later", "orders"} <= names
    assert "mail" not in names


@in_loop
async def test_no_node_registers_while_a_directory_is_being_adopted(tmp_path: Path):
    data, server = lone_node.unpack(tmp_path), MetadataServer(LoopTimers())
    metadata = InterruptedMetadata(server.connect(), 1, is_made=False)
    with pytest.raises(OutcomeUnknown):
        await adopt(data, metadata)  # type: ignore[arg-type]
    other = Node(config_of(tmp_path / "other", 5), metadata=server.connect())
    starting = asyncio.create_task(other.start())
    await until(lambda: "is being adopted" in (other.waits_for or ""))
    assert not await server.connect().list("nodes/")
    await adopt(data, server.connect())
    await starting
    await other.stop()


# Routing.


def test_every_entry_of_a_group_goes_where_the_group_is_looked_up() -> None:
    keys = [
        b'["offset","g1","t",0]',
        b'["pending",17,"g1","t",0]',
        b'["classic","g1"]',
        b'["consumer","g1","member","m"]',
    ]
    assert {group_of(key) for key in keys} == {"g1"}
    assert index_of_group("g1", 16) in range(16)
    with pytest.raises(UnknownFormat):
        group_of(b'["share","g1"]')


def test_a_publisher_goes_where_its_transactions_are() -> None:
    assert transactional_id_of(b"\xffpublication:spark/7") == "spark/7"
    assert transactional_id_of(b"spark/7/0/1") == "spark/7/0/1"


@in_loop
async def test_ages_of_publishers_and_streams_go_on_from_the_time_of_the_lone_node() -> None:
    clock = ManualClock()
    state = Store("/state", filesystem=SimulatedFilesystem(), clock=clock)
    state.open()
    for name, key in ((GROUPS, b'["classic","g1"]'), (TRANSACTIONS, b"id"), (STREAMS, b"spath")):
        log = await StateLog.open(state, name, clock=clock)
        await log.put([(key, b"{}")])
        await log.close()
    records = await read_state(state, clock, now_ms=77_000)
    await state.close()
    dated = {
        partition.name: StateClock(_loaded(found), clock).now_ms()
        for partition, found in records.items()
    }
    assert dated == {"groups": 0, "transactions": 77_000, "streams": 77_000}


def _loaded(records: list[Record]) -> Any:
    """Return what a coordinator finds after these records."""
    return SimpleNamespace(entries={record.key: record.value for record in records})
