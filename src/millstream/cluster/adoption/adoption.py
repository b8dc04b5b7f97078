"""Adoption of a lone node's data directory as the first node of a cluster.

    metadata store                        data directory
                                          check: opened as a lone node does, nothing is wrong
    adopting, lives/<id>
                                          __adopt/: state logs, by partition
    all keys, partitions led by nobody
    read again and compared
                                          cluster.json          <- decides: no lone node from here
                                          topics/: what is in __adopt; high watermarks
    adopting -> adopted                                         <- nodes can register from here
                                          before-adoption/: meta.db and __state

Until `cluster.json` is written the directory is that of a lone node, which starts as ever; what is
in the metadata store counts for nothing, and the next attempt replaces it. From then on the
directory starts neither alone nor in the cluster until the adoption is finished, and another
attempt finishes it: everything that is left to do is in the directory, and can be done again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.broker.broker import Broker
from millstream.broker.dynamic_configs import is_node_key
from millstream.broker.dynamic_configs import node_key as node_configs_key
from millstream.broker.state.internal_partitions import QUEUE_PREFIX
from millstream.broker.topics.configs.topic_settings import DURABILITY
from millstream.broker.topics.topic import (
    TOPICS_PREFIX,
    TopicRow,
    decode_row,
    encode_row,
    make_topic_id,
    topic_key,
)
from millstream.clock import Clock, SystemClock
from millstream.cluster.adoption.internal_logs import (
    StateCounts,
    StateRecords,
    count_state,
    read_state,
    write_state,
)
from millstream.cluster.control.adoption_row import (
    ADOPTED_KEY,
    ADOPTING_KEY,
    AdoptionRow,
    decode_adoption,
    encode_adoption,
)
from millstream.cluster.control.cluster_state import CONTROLLER_KEY, PartitionId, partition_key
from millstream.cluster.control.node_identity import CLUSTER_FILE, IdentityFile
from millstream.cluster.control.node_row import NODES_PREFIX, life_key
from millstream.cluster.coordination.internal_topics import (
    CONFIGS,
    PARTITIONS,
    partition_count,
    topic_of,
)
from millstream.cluster.life import THIS_REVISION, LifeRecord, decode_life, encode_life
from millstream.cluster.replication_state import (
    NO_NODE,
    IsrMember,
    ReplicationState,
    encode_state,
)
from millstream.config.schema import Durability, NodeConfig
from millstream.errors import InvalidRequest, OutcomeUnknown, Unavailable
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    CompareCreated,
    Metadata,
    MetadataEntry,
    MetadataList,
)
from millstream.metadata.sqlite import SqliteMetadata
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join
from millstream.storage.files.names import (
    METADATA_FILE,
    STATE_DIRECTORY,
    TOPICS_DIRECTORY,
    WATERMARK_FILE,
    LogName,
)
from millstream.storage.files.watermark import WatermarkFile
from millstream.storage.store import Store

logger = logging.getLogger(__name__)

STAGING_DIRECTORY = "__adopt"
BACKUP_DIRECTORY = "before-adoption"

CHANGES_MAX = 100
BYTES_MAX = 512 * 1024
"""Changes and bytes of one transaction: below the limits of etcd, which has 128 and 1.5 MB."""


@dataclass(frozen=True, slots=True)
class AdoptionReport:
    """What was, or would be, adopted."""

    cluster: str
    node_id: int
    topics: int
    partitions: int
    keys: int
    """Keys in the metadata of the cluster."""
    state: StateCounts


class Adoption:
    """Adopts the data directory of a stopped node."""

    def __init__(
        self,
        config: NodeConfig,
        metadata: Metadata,
        *,
        filesystem: Filesystem | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`metadata` is that of the cluster."""
        self._config = config
        self._data = config.data
        self._cluster = config.cluster.name
        self._node_id = config.broker.node_id
        self._metadata = metadata
        self._filesystem = filesystem or OsFilesystem()
        self._clock = clock or SystemClock()

    async def run(self, *, is_dry_run: bool = False) -> AdoptionReport | None:
        """Adopt the directory; return what was adopted.

        `None` means that an earlier attempt had copied everything, and was finished now.
        With `is_dry_run`, check everything and change nothing in the metadata.
        """
        names = self._filesystem.list(self._data)
        if CLUSTER_FILE not in names and METADATA_FILE not in names:
            raise InvalidRequest(
                f"{self._data} has no {METADATA_FILE}, so it does not belong to a lone node; a node"
                " with an empty data directory joins the cluster when it starts"
            )
        if CLUSTER_FILE in names and is_dry_run:
            raise InvalidRequest(
                f"{self._data} belongs to a node of a cluster; if its adoption was interrupted, run"
                " the command without --dry-run to finish it"
            )
        async with self._store() as store:
            if CLUSTER_FILE in names:
                await self._finish(store)
                return None
            listed = await self._metadata.list("")
            self._check_free(listed, store.store_id)
        await self._check_lone_node()
        async with self._store() as store:
            return await self._adopt(store, listed, is_dry_run=is_dry_run)

    def _store(self) -> Store:
        return Store(
            self._data,
            config=replace(self._config.store, upkeep_interval_ms=0),
            log_config=self._config.log,
            filesystem=self._filesystem,
            clock=self._clock,
        )

    # Checking.

    def _check_free(self, listed: MetadataList, directory: str) -> None:
        """Raise unless the cluster is empty, or has the unfinished copy of this directory."""
        entries = {entry.key: entry for entry in listed}
        for key in (ADOPTING_KEY, ADOPTED_KEY):
            if key in entries:
                row = decode_adoption(key, entries[key].value)
                if (row.directory, key) == (directory, ADOPTING_KEY):
                    return
                is_same = row.directory == directory
                what = "is a copy of it from before" if is_same else "is another one"
                raise InvalidRequest(
                    f"cluster {self._cluster!r} in etcd was made from the directory of node"
                    f" {row.node_id}, and {self._data} {what}; choose another cluster.name, or"
                    " start this node with an empty data directory"
                )
        if entries:
            raise self._not_empty(listed)

    def _not_empty(self, listed: Sequence[MetadataEntry]) -> InvalidRequest:
        topics = sum(entry.key.startswith(TOPICS_PREFIX) for entry in listed)
        nodes = [
            entry.key.removeprefix(NODES_PREFIX)
            for entry in listed
            if entry.key.startswith(NODES_PREFIX)
        ]
        return InvalidRequest(
            f"cluster {self._cluster!r} in etcd must be empty, and has {len(listed)} keys with"
            f" {topics} topics; nodes {', '.join(nodes) or 'none'} are registered. Stop all nodes"
            " and remove its keys, or choose another cluster.name"
        )

    async def _check_lone_node(self) -> None:
        """Open the directory as a lone node does, which also brings it to the newest form."""
        config = self._config
        broker = await Broker.open(
            self._data,
            config=config.broker,
            log_config=config.log,
            store_config=replace(config.store, upkeep_interval_ms=0),
            clock=self._clock,
            filesystem=self._filesystem,
        )
        try:
            stored = broker.store.unsorted_names()
            for topic in broker.topics.all():
                if topic.config.durability is Durability.EPHEMERAL:
                    raise InvalidRequest(
                        f"topic {topic.name} is ephemeral, and a cluster has no ephemeral topics;"
                        f" delete it, or change its {DURABILITY}"
                    )
                if topic.config.is_tiered or _has_cold_segments(broker.store, topic.name):
                    raise InvalidRequest(
                        f"topic {topic.name} has or may have segments in a cold store, which a"
                        " cluster cannot read; copy and delete it first"
                    )
                if _is_reserved(topic.name):
                    raise InvalidRequest(
                        f"topic {topic.name} has a name that a cluster uses itself; copy and delete"
                        " it first"
                    )
                for partition in topic.partitions:
                    # Logs of an early release get the id of their topic when they are opened.
                    if LogName(topic.name, partition.index) in stored:
                        await partition.open()
            problems = [problem.message for problem in broker.problems()]
            if problems:
                others = f" (and {len(problems) - 1} other problems)" if len(problems) > 1 else ""
                raise InvalidRequest(f"the node is not well: {problems[0]}{others}")
        finally:
            await broker.close()

    # Copying.

    async def _adopt(
        self, store: Store, listed: MetadataList, *, is_dry_run: bool
    ) -> AdoptionReport:
        keys = await self._lone_keys()
        async with Store(join(self._data, STATE_DIRECTORY), filesystem=self._filesystem) as state:
            records = await read_state(state, self._clock, store.now_ms())
        rows = dict(decode_row(key, keys[key]) for key in keys if key.startswith(TOPICS_PREFIX))
        internal = _internal_rows(records, {row.id for row in rows.values()})
        keys |= {topic_key(name): encode_row(row) for name, row in internal.items()}
        rows |= internal
        report = AdoptionReport(
            cluster=self._cluster,
            node_id=self._node_id,
            topics=len(rows) - len(internal),
            partitions=sum(row.partitions for row in rows.values() if not row.is_internal),
            keys=len(keys) + sum(row.partitions for row in rows.values()),
            state=count_state(records),
        )
        if is_dry_run:
            return report
        token = uuid.uuid4().hex
        fence = await self._begin(store.store_id, token, listed)
        await self._stage(internal, records)
        keys |= self._partition_keys(store, rows, fence)
        await self._copy(keys, fence)
        # From here on, this is the directory of a node of the cluster.
        identity = IdentityFile(self._filesystem, self._data)
        identity.open(self._cluster, self._node_id)
        identity.store_tokens((token,))
        await self._finish(store)
        return report

    async def _lone_keys(self) -> dict[str, bytes]:
        """Return the metadata of the lone node as the cluster has it."""
        async with SqliteMetadata(join(self._data, METADATA_FILE), must_exist=True) as metadata:
            entries = {entry.key: entry.value for entry in await metadata.list("")}
        configs = [key for key in entries if is_node_key(key)]
        mine = node_configs_key(self._node_id)
        if len(configs) == 1 and mine not in entries:  # The node had another id.
            entries[mine] = entries.pop(configs[0])
        return entries

    def _partition_keys(
        self, store: Store, rows: Mapping[str, TopicRow], since: int
    ) -> Mapping[str, bytes]:
        """Return the states of all partitions: this node has them, and nobody leads them yet.

        `since` is the revision of the life in which it has all records.
        """
        keys = {}
        for name, row in rows.items():
            for number in range(row.partitions):
                recovered = store.recovered_log(LogName(name, number))
                state = ReplicationState(
                    leader=NO_NODE,
                    leader_broker_epoch=0,
                    leader_epoch=0 if recovered is None else recovered.partition.leader_epoch,
                    isr=(IsrMember(self._node_id, since),),
                    replicas=(self._node_id,),
                )
                keys[partition_key(PartitionId(row.id, number))] = encode_state(state)
        return keys

    async def _begin(self, directory: str, token: str, listed: MetadataList) -> int:
        """Keep nodes from registering; return the revision of that.

        Every further change compares it, and it is the first life of the node.
        """
        entries = {entry.key: entry for entry in listed}
        former = entries.get(ADOPTING_KEY)
        row = AdoptionRow(
            directory=directory, node_id=self._node_id, started_ms=self._clock.wall_ms()
        )
        life = life_key(self._node_id)
        fence = await self._metadata.transact(
            compares=[
                Compare(ADOPTING_KEY, ABSENT if former is None else former.revision),
                Compare(ADOPTED_KEY, ABSENT),
                CompareCreated(CONTROLLER_KEY, ABSENT),
            ],
            puts={
                ADOPTING_KEY: encode_adoption(row),
                life: encode_life(LifeRecord(token, THIS_REVISION)),
            },
        )
        if fence is None:
            raise Unavailable(
                f"cluster {self._cluster!r} was changed concurrently; nothing was adopted"
            )
        others = [
            entry
            for entry in await self._metadata.list("")
            if entry.key not in (ADOPTING_KEY, life)
        ]
        if others and former is None:  # A node has joined just before.
            await self._metadata.transact(
                compares=[Compare(ADOPTING_KEY, fence)], deletes=[ADOPTING_KEY, life]
            )
            raise self._not_empty(others)
        for chunk in _chunks({entry.key: b"" for entry in others}):
            await self._change(fence, deletes=list(chunk))
        return fence

    async def _copy(self, keys: Mapping[str, bytes], fence: int) -> None:
        for chunk in _chunks(keys):
            await self._change(fence, puts=chunk)
        copied = {entry.key: entry.value for entry in await self._metadata.list("")}
        own = (ADOPTING_KEY, life_key(self._node_id))
        different = {
            key
            for key in copied.keys() | keys.keys()
            if key not in own and copied.get(key) != keys.get(key)
        }
        if different:
            raise Unavailable(
                f"{len(different)} keys of cluster {self._cluster!r} are not as they were copied,"
                f" such as {min(different)}; nothing was adopted"
            )

    async def _change(
        self,
        fence: int,
        *,
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
    ) -> None:
        revision = await self._metadata.transact(
            compares=[Compare(ADOPTING_KEY, fence)], puts=puts or {}, deletes=deletes
        )
        if revision is None:
            raise Unavailable(
                f"cluster {self._cluster!r} is being adopted by another process; nothing was"
                " adopted"
            )

    async def _stage(self, internal: Mapping[str, TopicRow], records: StateRecords) -> None:
        """Write the internal partitions beside the topics, where a lone node does not look."""
        filesystem = self._filesystem
        path = join(self._data, STAGING_DIRECTORY)
        await asyncio.to_thread(filesystem.remove_tree, path)
        ids = {name: row.id for name, row in internal.items()}
        async with Store(path, filesystem=filesystem, clock=self._clock) as staging:
            written = await write_state(staging, records, ids)
        for name, end in written.items():
            directory = join(staging.topic_directory(name.topic), str(name.partition))
            _store_watermark(filesystem, directory, end)
        filesystem.sync_directory(self._data)

    # Finishing.

    async def _finish(self, store: Store) -> None:
        """Do what is left once the directory belongs to the cluster. May be repeated."""
        identity = IdentityFile(self._filesystem, self._data)
        identity.open(self._cluster, self._node_id)
        adopting = await self._metadata.get(ADOPTING_KEY)
        adopted = await self._metadata.get(ADOPTED_KEY)
        entry = adopting or adopted
        row = None if entry is None else decode_adoption(entry.key, entry.value)
        if entry is None or row is None or row.directory != store.store_id:
            raise InvalidRequest(
                f"{self._data} belongs to node {self._node_id} of cluster {self._cluster!r}"
                " already; start it"
            )
        if adopting is not None:
            await self._check_life(identity)
            await asyncio.to_thread(self._install, store)
            await self._complete(adopting, row)
        await asyncio.to_thread(self._put_aside)

    async def _check_life(self, identity: IdentityFile) -> None:
        """Raise unless the copy in the metadata is that of this directory, as it is now."""
        life = await self._metadata.get(life_key(self._node_id))
        if life is None or decode_life(life.value).token not in identity.tokens:
            raise InvalidRequest(
                f"{self._data} and cluster {self._cluster!r} in etcd are of different attempts to"
                " adopt; restore the newest state of etcd"
            )

    def _install(self, store: Store) -> None:
        """Move the internal partitions to the topics, and tell that all records are committed."""
        filesystem = self._filesystem
        topics = join(self._data, TOPICS_DIRECTORY)
        staged = join(self._data, STAGING_DIRECTORY, TOPICS_DIRECTORY)
        for topic in filesystem.list(staged):
            filesystem.rename(join(staged, topic), join(topics, topic))
        filesystem.sync_directory(topics)
        for name in store.names():
            end = store.end_offset_of(name)
            directory = join(store.topic_directory(name.topic), str(name.partition))
            if end is not None:
                _store_watermark(filesystem, directory, end)

    async def _complete(self, adopting: MetadataEntry, row: AdoptionRow) -> None:
        try:
            revision = await self._metadata.transact(
                compares=[Compare(ADOPTING_KEY, adopting.revision)],
                puts={ADOPTED_KEY: encode_adoption(row)},
                deletes=[ADOPTING_KEY],
            )
        except (Unavailable, OutcomeUnknown) as error:
            raise type(error)(f"{error}; run the command again to finish the adoption") from error
        if revision is None:
            raise Unavailable("another process finishes the adoption")

    def _put_aside(self) -> None:
        """Move what belonged to the lone node out of the way; an operator may remove it."""
        filesystem = self._filesystem
        backup = join(self._data, BACKUP_DIRECTORY)
        filesystem.make_directory(backup)
        kept = filesystem.list(backup)
        files = [name for name in filesystem.list(self._data) if name.startswith(METADATA_FILE)]
        # First the state: a directory without `meta.db` has been through this, and its state is
        # that of a node in the cluster.
        for name in [STATE_DIRECTORY, *files] if files else []:
            if name not in kept:
                filesystem.rename(join(self._data, name), join(backup, name))
        filesystem.remove_tree(join(self._data, STAGING_DIRECTORY))
        filesystem.sync_directory(backup)
        filesystem.sync_directory(self._data)


def _has_cold_segments(store: Store, topic: str) -> bool:
    recovered = (
        store.recovered_log(name) for name in store.unsorted_names() if name.topic == topic
    )
    return any(log is not None and log.partition.is_tiered for log in recovered)


def _is_reserved(topic: str) -> bool:
    """Return whether a cluster has an internal topic whose name is this one, or could be."""
    names = [topic_of(name) for name in PARTITIONS]
    plain = topic.replace(".", "_")
    return plain in names or plain.startswith(topic_of(QUEUE_PREFIX))


def _internal_rows(records: StateRecords, taken: set[uuid.UUID]) -> dict[str, TopicRow]:
    """Return the rows of the internal topics: those of every cluster, and those of the queues."""
    rows: dict[str, TopicRow] = {}
    for name in sorted({*PARTITIONS, *(partition.name for partition in records)}):
        topic_id = make_topic_id(taken.__contains__, uuid.uuid4)
        taken.add(topic_id)
        rows[topic_of(name)] = TopicRow(
            id=topic_id,
            partitions=partition_count(name),
            configs=dict(CONFIGS),
            is_internal=True,
        )
    return rows


def _chunks(keys: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    """Divide changes into transactions."""
    chunk: dict[str, bytes] = {}
    size = 0
    for key, value in keys.items():
        length = len(key) + len(value)
        if chunk and (len(chunk) >= CHANGES_MAX or size + length > BYTES_MAX):
            yield chunk
            chunk, size = {}, 0
        chunk[key] = value
        size += length
    if chunk:
        yield chunk


def _store_watermark(filesystem: Filesystem, directory: str, end: int) -> None:
    """Store a high watermark durably: without it, a start would read the whole log."""
    WatermarkFile(filesystem, directory).write(end)
    file = filesystem.open(join(directory, WATERMARK_FILE))
    try:
        file.sync()
    finally:
        file.close()
    filesystem.sync_directory(directory)
