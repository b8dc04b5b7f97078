"""The topics of a node.

Metadata defines which topics exist, one row for each; the logs follow it. Rules:

1. Creating a topic writes its row, durably, and nothing else: a log is created when it is first
   used.
2. Deleting a topic marks its row, durably, and from then on the topic does not exist for anyone;
   then its logs are deleted, then its row. A marked row that is found at the start is finished.
3. A log without a row, or beyond the partitions of its row, and without a topic id, was created by
   an embedded store: the row follows it. Its retention is unknown, so such a topic keeps its
   records forever, until it is configured otherwise.
4. A log with the id of a topic that has no row shows that metadata was lost. It is reported and
   left alone, and its name cannot be used, until an operator restores the metadata, removes the
   directory, or has it adopted (`topics.adopt`) under its id.

5. In a cluster, several nodes change the rows. Each node applies the changes of the others as it
   learns of them. A deleted topic has no row; the nodes that have its records delete them by and by
   (`deleted_topics.py`). A log without a row is always reported, never adopted.

Changes of one topic run one after the other, each to its end, even if its caller disconnects. State
in memory is changed only after that on the disk.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from millstream.broker.access.caller import Caller
from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.problems import Problem, ProblemCode
from millstream.broker.topics.configs.topic_config import NO_LIMIT, ConfigChange, TopicConfig
from millstream.broker.topics.configs.topic_settings import (
    DURABILITY,
    MIN_INSYNC_REPLICAS,
    REMOTE_STORAGE_ENABLE,
    RETENTION_MS,
)
from millstream.broker.topics.deleted_topics import DeletedTopics, deletion_puts
from millstream.broker.topics.topic import (
    NO_ID,
    TOPICS_PREFIX,
    Topic,
    TopicChange,
    TopicEvent,
    TopicRow,
    decode_row,
    encode_row,
    make_topic_id,
    topic_key,
)
from millstream.broker.topics.topic_caps import GUARD_KEY, TopicCaps, TopicGrowth, owner_of
from millstream.config.schema import BrokerConfig, Durability, LogConfig
from millstream.errors import (
    CorruptFile,
    InvalidAssignment,
    InvalidConfig,
    InvalidName,
    InvalidPartitions,
    InvalidReplication,
    MillstreamError,
    TopicExists,
    Unavailable,
    UnknownTopic,
    UnknownTopicId,
)
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    Metadata,
    MetadataChange,
    Watch,
)
from millstream.storage.files.names import LogName, check_topic
from millstream.storage.log import Log
from millstream.storage.store import Store

if TYPE_CHECKING:
    from millstream.broker.partition.partition import Partition

logger = logging.getLogger(__name__)

KAFKA_INTERNAL_TOPICS = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
"""Topics in which Kafka keeps what this node keeps in state logs: they cannot be created."""

PartitionFactory = Callable[[Topic, int], "Partition"]


class Replication(NamedTuple):
    """How a client wants a new topic to be replicated."""

    factor: int | None = None
    """Replicas of each partition; None for the default."""
    assignments: tuple[tuple[int, ...], ...] | None = None
    """The nodes of each partition, if the client chose them."""


DEFAULT_REPLICATION = Replication()


APPEARANCE_SECONDS_MAX = 5.0
"""How long a node waits to learn of a topic that another one has created."""


class SharedTopics(Protocol):
    """What `Topics` needs to know of the cluster whose nodes share the topics."""

    deleted: DeletedTopics

    @property
    def default_replicas(self) -> int:
        """Replicas of a topic that was created without a number."""
        ...

    def check(self, name: str, config: TopicConfig) -> None:
        """Raise unless the cluster can replicate a topic with this config."""
        ...

    def check_replicas(self, row: TopicRow, first: int) -> None:
        """Raise unless the partitions from `first` on can have the replicas that the row wants."""
        ...

    async def wait_until_led(self, topic: Topic) -> None:
        """Return when every partition has a leader, or after a while."""
        ...

    async def nodes_with_records(self, topic: Topic) -> Collection[int]:
        """Return the nodes that may have records of a topic, and have to be told to delete them."""
        ...


class _ConcurrentChange(Unavailable):
    """Another node has changed the topic; this one learns of it in a moment."""

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name} was changed concurrently")


class Topics:
    """All topics of a node, on top of metadata and logs. One event loop owns them."""

    def __init__(
        self,
        *,
        metadata: Metadata,
        store: Store,
        config: BrokerConfig,
        make_partition: PartitionFactory,
        draw_id: Callable[[], uuid.UUID] = uuid.uuid4,
        shared: SharedTopics | None = None,
    ) -> None:
        """Make the topics; `shared` if other nodes of a cluster change them too."""
        self._metadata = metadata
        self._store = store
        self._config = config
        self._make_partition = make_partition
        self._draw_id = draw_id
        self._topics: dict[str, Topic] = {}
        self._names: list[str] = []
        """Names of all topics, sorted."""
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._colliding: dict[str, set[str]] = {}
        """Names of topics by their name with every dot replaced by an underscore."""
        self._partition_count = 0
        self._reserved: dict[str, int] = {}
        """Topics that are being created or extended, and the number of their new partitions."""
        self._deleting: dict[str, int] = {}
        """Deleted topics whose rows still exist, with the revisions of these."""
        self.unknown: dict[str, str] = {}
        """Topics on the disk that are not in the metadata, with an explanation for each."""
        self._locks = KeyedLocks()
        self._caps = TopicCaps(config, metadata)
        self._callbacks: list[Callable[[TopicChange], None]] = []
        self.vetoes: list[Callable[[Topic, TopicConfig], None]] = []
        """Called before a config change; each may reject it by raising."""
        self._shared = shared
        self._watch: Watch | None = None

    # Opening and closing.

    async def open(self) -> None:
        """Load all rows, finish interrupted deletions, and adopt logs of an embedded store."""
        if self._shared is not None:
            await self._finish_deletions(self._shared)
            self._watch = self._metadata.watch(TOPICS_PREFIX, self._on_row_change)
        for entry in await self._metadata.list(TOPICS_PREFIX):
            name, row = decode_row(entry.key, entry.value)
            if row.state == "live":
                await self._load(name, row, entry.revision)
                continue
            self._deleting[name] = entry.revision
            try:
                await self._finish_deletion(name)
            except MillstreamError as error:  # The row stays marked, and the deletion is retried.
                logger.error("topic %s was deleted, but some of its data is left: %s", name, error)  # noqa: TRY400
        await self._adopt()

    async def _load(self, name: str, row: TopicRow, revision: int) -> None:
        try:
            config = self._parse(row.configs)
        except InvalidConfig as error:
            raise InvalidConfig(f"topic {name}: {error}") from error
        if config.durability is Durability.EPHEMERAL and self._shared is None:
            # Its records are lost and its offsets start again, so it gets a new id.
            row = msgspec.structs.replace(row, id=self.new_id())
            revision = await self._put(name, row, revision)
        self._add(Topic(name, row, revision, config))

    async def _adopt(self) -> None:
        logs: dict[str, list[int]] = {}
        for log_name in self._store.names():
            logs.setdefault(log_name.topic, []).append(log_name.partition)
        for name, partitions in logs.items():
            if name in self._deleting:
                continue
            topic = self._topics.get(name)
            count = max(partitions) + 1
            topic_id = self._id_on_disk(name, partitions)
            if self._shared is not None:
                if topic is None or topic.id != topic_id:
                    self._report_unknown(name, topic_id, topic)
                continue
            if topic_id is not None and (topic is None or topic.id != topic_id):
                if not self._config.adopt_topics:
                    self._report_unknown(name, topic_id, topic)
                    continue
                if topic is not None:
                    topic = await self._replace_id(topic, topic_id)
            try:
                if topic is None:
                    self._check_partition_limit(name, count)
                    await self._adopt_topic(name, partitions, topic_id)
                elif count > topic.partition_count:
                    await self._add_partitions(name, count, is_validate_only=False)
            except InvalidPartitions as error:
                logger.error("cannot adopt the logs of %s: %s", name, error)  # noqa: TRY400

    def _id_on_disk(self, name: str, partitions: Sequence[int]) -> uuid.UUID | None:
        """Return the id of the topic by which a broker created its logs, if one did."""
        logs = (self._store.recovered_log(LogName(name, number)) for number in partitions)
        ids = (log.partition.topic_id for log in logs if log is not None)
        return next(filter(None, ids), None)

    def _report_unknown(self, name: str, topic_id: uuid.UUID | None, topic: Topic | None) -> None:
        """Report logs whose topic the metadata does not have: it is not up to date."""
        found = "no topic of that name" if topic is None else f"id {topic.id} for that name"
        owner = "no topic" if topic_id is None else f"the topic with id {topic_id}"
        remedy = (
            "restore meta.db, or remove the directory while the node is stopped, or start once with"
            " topics.adopt = true"
            if self._shared is None
            else "the cluster has not recorded that it was deleted. If it was, or another node has"
            " the records, remove the directory while the node is stopped"
        )
        self.unknown[name] = (
            f"{self._store.topic_directory(name)} belongs to {owner}, but the metadata has {found};"
            f" {remedy}"
        )
        logger.error("%s", self.unknown[name])

    async def _adopt_topic(
        self, name: str, partitions: Sequence[int], topic_id: uuid.UUID | None
    ) -> None:
        count = max(partitions) + 1
        log = await self._any_log(name, partitions)
        node = self._store.log_config.durability
        kept = node if log is None else log.config.durability
        configs = {RETENTION_MS: str(NO_LIMIT)}
        if kept is not node:
            configs[DURABILITY] = kept.value
        is_free = topic_id is not None and topic_id not in self._by_id
        row = TopicRow(
            id=topic_id if topic_id and is_free else self._adopted_id(log),
            partitions=count,
            configs=configs,
        )
        topic = Topic(name, row, await self._put(name, row, ABSENT), self._parse(configs))
        if log is not None:
            await log.reconfigure(topic.config.log_config())
        self._add(topic)
        logger.info("adopted topic %s with %d partitions", name, count)

    async def _replace_id(self, topic: Topic, topic_id: uuid.UUID) -> Topic:
        """Give a topic the id that its logs have: its row is from before it was created again."""
        row = msgspec.structs.replace(topic.row, id=topic_id)
        revision = await self._put(topic.name, row, topic.revision)
        self._remove(topic)
        replaced = Topic(topic.name, row, revision, topic.config)
        self._add(replaced)
        return replaced

    def _adopted_id(self, log: Log | None) -> uuid.UUID:
        """Return the id that the logs of a topic have, or a new one: cursors stay valid."""
        stored = [] if log is None or log.topic_id is None else [log.topic_id]
        ids = itertools.chain(stored, iter(self._draw_id, None))
        return make_topic_id(self._by_id.__contains__, ids.__next__)

    async def _any_log(self, name: str, partitions: Sequence[int]) -> Log | None:
        """Return the first healthy log of a topic: it knows its durability class."""
        for partition in partitions:
            try:
                log = await self._store.log(name, partition, is_managed=True)
            except MillstreamError as error:
                logger.warning("cannot open log %s/%d: %s", name, partition, error)
                continue
            if log.offline is None and not log.recovered.damage:
                return log
        return None

    async def close(self) -> None:
        """Complete the changes that were started, and close all partitions."""
        if self._watch is not None:
            self._watch.cancel()
        await self._locks.close()
        await _close_all(
            partition for topic in self._topics.values() for partition in topic.partitions
        )

    # Lookup.

    def get(self, name: str) -> Topic:
        """Return a topic; raises `UnknownTopic` if it does not exist."""
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name[:300]!r} does not exist")
        return topic

    def problems(self) -> Iterator[Problem]:
        """Yield topics without metadata, and partitions whose retention waits for the lake."""
        for unknown in self.unknown.values():
            yield Problem(ProblemCode.TOPIC_UNKNOWN, unknown)
        for topic in self._topics.values():
            if topic.config.lake_positions is None:
                continue
            for partition in topic.partitions:
                if partition.is_waiting_for_lake:
                    position = topic.config.lake_position(partition.index)
                    yield Problem(
                        ProblemCode.LAKE_BEHIND,
                        f"{partition}: retention waits for the lake table, which has the records"
                        f" before offset {position}",
                    )

    def find(self, name: str) -> Topic | None:
        """Return a topic, or None if it does not exist."""
        return self._topics.get(name)

    def is_internal(self, name: str) -> bool:
        """Return whether there is a topic of that name, and it belongs to the cluster itself."""
        topic = self._topics.get(name)
        return topic is not None and topic.is_internal

    def by_id(self, topic_id: uuid.UUID) -> Topic:
        """Return the topic with this id; raises `UnknownTopicId` if it does not exist."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicId(f"topic with id {topic_id} does not exist")
        return topic

    async def is_deleted(self, name: str, topic_id: uuid.UUID | None) -> bool:
        """Return whether a topic was deleted, also if another has its name now.

        In a cluster this node may not know a topic yet: there the metadata decide.
        """
        topic = self._topics.get(name)
        if topic is not None and topic_id in (None, topic.id):
            return False
        if self._shared is None:
            return True
        entry = await self._metadata.get(topic_key(name))
        row = None if entry is None else decode_row(entry.key, entry.value)[1]
        return row is None or row.state != "live" or topic_id not in (None, row.id)

    async def appears(self, name: str) -> bool:
        """Return whether there is a topic of this name; wait for one that others have created."""
        if name in self._topics:
            return True
        if self._shared is None:
            return False
        known = asyncio.Event()
        unwatch = self.on_change(lambda change: known.set() if change.topic.name == name else None)
        try:
            if await self.is_deleted(name, None):
                return False
            async with asyncio.timeout(APPEARANCE_SECONDS_MAX):
                while name not in self._topics:
                    await known.wait()
                    known.clear()
        except TimeoutError:
            return False
        finally:
            unwatch()
        return True

    def partition(self, name: str, index: int) -> Partition:
        """Return a partition; raises `UnknownTopic` if it does not exist."""
        return self.get(name).partition(index)

    def all(self) -> list[Topic]:
        """Return all topics, sorted by name."""
        return [self._topics[name] for name in self._names]

    def page(self, after: str, count_max: int) -> list[Topic]:
        """Return at most `count_max` topics whose names come after `after`, sorted by name."""
        start = bisect.bisect_right(self._names, after)
        return [self._topics[name] for name in self._names[start : start + count_max]]

    def log_config_of(self, name: LogName) -> LogConfig | None:
        """Return the config of a log; None if it belongs to no topic, and is not maintained."""
        topic = self._topics.get(name.topic)
        if topic is None or name.partition >= len(topic.partitions):
            return None
        replica = topic.partitions[name.partition].replica
        if replica is not None and replica.is_following:
            return None  # Its leader decides what is deleted.
        return topic.log_config

    async def open_log(self, name: LogName) -> Log:
        """Open the partition of a log, which sets its removal hooks, and return the log."""
        await self.partition(name.topic, name.partition).open()
        return self._store.get(name.topic, name.partition)

    @property
    def log_config(self) -> LogConfig:
        """The node's default config of logs."""
        return self._store.log_config

    @property
    def count(self) -> int:
        return len(self._topics)

    @property
    def partition_count(self) -> int:
        """The number of partitions of all topics."""
        return self._partition_count

    def on_change(self, callback: Callable[[TopicChange], None]) -> Callable[[], None]:
        """Call `callback` on the event loop after each change; return a function that stops it.

        At the callback, a deleted topic can no longer be found, and a created one can. A callback
        must not raise.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # Creating.

    async def create(
        self,
        name: str,
        *,
        partitions: int | None = None,
        configs: Mapping[str, str | None] | None = None,
        topic_id: uuid.UUID | None = None,
        replication: Replication = DEFAULT_REPLICATION,
        is_internal: bool = False,
        is_validate_only: bool = False,
        creator: Caller | None = None,
    ) -> Topic:
        """Create a topic, or only validate that it could be created.

        It belongs to its `creator`, whose caps are checked (`CapExceeded`); None is the node.

        Its id is random, unless the caller passes one that it needs to know before. Raises
        `TopicExists`, `InvalidName` (also if another topic's name differs only in dots and
        underscores), `InvalidPartitions` or `InvalidConfig`. A topic that was only validated has
        the id 0 and no partitions.
        """
        _check_new(name, partitions)
        config = self._parse(configs or {})
        topic = await self._locks.run(
            name,
            self._create(
                name,
                partitions,
                config,
                topic_id,
                replication=replication,
                is_internal=is_internal,
                is_validate_only=is_validate_only,
                creator=creator,
            ),
        )
        if self._shared is not None and topic.is_created:
            await self._shared.wait_until_led(topic)
        return topic

    async def _create(
        self,
        name: str,
        partitions: int | None,
        config: TopicConfig,
        topic_id: uuid.UUID | None,
        *,
        replication: Replication = DEFAULT_REPLICATION,
        is_internal: bool = False,
        is_validate_only: bool = False,
        creator: Caller | None = None,
    ) -> Topic:
        if name in self._topics:
            raise TopicExists(f"topic {name!r} already exists")
        if name in self.unknown:
            raise CorruptFile(self.unknown[name])
        self._check_collision(name)
        count = self._config.num_partitions if partitions is None else partitions
        row = TopicRow(
            id=NO_ID,
            partitions=count,
            configs=dict(config.overrides),
            replication_factor=replication.factor,
            assignments=replication.assignments,
            is_internal=is_internal,
            owner=owner_of(creator),
        )
        self._check_config(name, config)
        self._check_replicas(row, 0)
        growth = None if creator is None else TopicGrowth(1, count, row.owner)
        with self._reserve(name, count):
            if is_validate_only:
                if growth is not None and self._caps.concern(growth):
                    await self._caps.check(name, growth)
                return Topic(name, row, ABSENT, config)
            if name in self._deleting:
                await self._finish_deletion(name)
            row = msgspec.structs.replace(row, id=topic_id or self.new_id())
            try:
                topic = Topic(name, row, await self._put(name, row, ABSENT, growth), config)
            except _ConcurrentChange:
                await self._apply_stored(name)
                raise
        self._add(topic)
        self._notify(topic, TopicEvent.CREATED)
        return topic

    async def ensure(self, name: str, *, creator: Caller | None = None) -> Topic:
        """Return a topic, which is created with the node's defaults if it does not exist."""
        if topic := self._topics.get(name):
            return topic
        if name in KAFKA_INTERNAL_TOPICS:
            return self.get(name)  # Tools look for these; an empty topic would mislead them.
        try:
            return await self.create(name, creator=creator)
        except (TopicExists, _ConcurrentChange):  # Another caller was faster.
            return self.get(name)

    async def put(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        changes: Sequence[ConfigChange] = (),
        is_create_only: bool = False,
        creator: Caller | None = None,
    ) -> tuple[Topic, bool]:
        """Create a topic, or apply changes to an existing one; also return whether it is new.

        All of it is applied, durably, or nothing. Raises like `create`, with `TopicExists` only if
        `is_create_only`; the partitions of an existing topic can be increased, not reduced, and it
        keeps its replicas.
        """
        _check_new(name, partitions)
        topic, is_new = await self._locks.run(
            name,
            self._create_or_change(
                name, partitions, replicas, changes, creator, is_create_only=is_create_only
            ),
        )
        if self._shared is not None:
            await self._shared.wait_until_led(topic)
        return topic, is_new

    async def _create_or_change(
        self,
        name: str,
        partitions: int | None,
        replicas: int | None,
        changes: Sequence[ConfigChange],
        creator: Caller | None,
        *,
        is_create_only: bool,
    ) -> tuple[Topic, bool]:
        topic = self._topics.get(name)
        if topic is None or is_create_only:
            config = self._parse({}).changed(changes)
            replication = Replication(factor=replicas)
            created = self._create(
                name, partitions, config, None, replication=replication, creator=creator
            )
            return await created, True
        if replicas not in (None, topic.row.replication_factor or self._default_replicas):
            raise InvalidReplication(
                f"replicas of topic {name!r} are changed by `millstream cluster reassign`; it was"
                f" created with {topic.row.replication_factor or self._default_replicas}, got"
                f" {replicas}"
            )
        config = topic.config.changed(changes)
        self._check_successor(topic, config)
        count = topic.partition_count if partitions is None else partitions
        if count < topic.partition_count:
            raise _cannot_shrink(topic, count)
        await self._change(topic, count, config)
        return topic, False

    async def add_partitions(
        self,
        name: str,
        count: int,
        *,
        assignments: tuple[tuple[int, ...], ...] | None = None,
        is_validate_only: bool = False,
    ) -> Topic:
        """Increase the partitions of a topic to `count`, or only validate that.

        `assignments` are the nodes of each new partition, if the client chose them.
        """
        topic = await self._locks.run(
            name,
            self._add_partitions(name, count, assignments, is_validate_only=is_validate_only),
        )
        if self._shared is not None and not is_validate_only:
            await self._shared.wait_until_led(topic)
        return topic

    async def _add_partitions(
        self,
        name: str,
        count: int,
        assignments: tuple[tuple[int, ...], ...] | None = None,
        *,
        is_validate_only: bool,
    ) -> Topic:
        topic = self.get(name)
        before = topic.partition_count
        if count <= before:
            raise _cannot_shrink(topic, count)
        if assignments is not None and len(assignments) != count - before:
            raise InvalidAssignment(
                f"{len(assignments)} assignments for {count - before} new partitions"
            )
        row = topic.row
        if assignments is not None:
            # Partitions that exist keep the replicas that they have.
            chosen = (row.assignments or ())[:before]
            chosen += ((),) * (before - len(chosen))
            row = msgspec.structs.replace(row, assignments=chosen + assignments)
        self._check_replicas(row, before)
        if is_validate_only:
            self._check_partition_limit(name, count - before)
            growth = TopicGrowth(0, count - before, row.owner)
            if self._caps.concern(growth):
                await self._caps.check(name, growth)
        else:
            await self._change(topic, count, topic.config, row.assignments)
        return topic

    def _check_collision(self, name: str) -> None:
        """Reject a name that differs from another only in dots and underscores, as Kafka does.

        Kafka's metrics cannot distinguish the two.
        """
        colliding = self._colliding.get(_collision_key(name), set()) | {
            other for other in self._reserved if _collision_key(other) == _collision_key(name)
        }
        if others := colliding - {name}:
            raise InvalidName(
                f"topic name {name!r} differs from {min(others)!r} only in dots and underscores"
            )

    def _check_partition_limit(self, name: str, more: int) -> None:
        total = self._partition_count + sum(self._reserved.values()) + more
        if total > self._config.partitions_max:
            raise InvalidPartitions(
                f"{more} more partitions for {name} make {total} on this node,"
                f" limit is {self._config.partitions_max}"
            )

    @contextmanager
    def _reserve(self, name: str, more: int) -> Iterator[None]:
        """Reserve the name, and the number of partitions, while they are created."""
        self._check_partition_limit(name, more)
        self._reserved[name] = more
        try:
            yield
        finally:
            del self._reserved[name]

    # Configuration.

    async def alter(
        self, name: str, configs: Mapping[str, str | None], *, is_validate_only: bool = False
    ) -> Topic:
        """Replace all configs of a topic by these, or only validate that."""
        return await self._locks.run(
            name,
            self._alter(name, lambda _: self._parse(configs), is_validate_only=is_validate_only),
        )

    async def change_configs(
        self, name: str, changes: Sequence[ConfigChange], *, is_validate_only: bool = False
    ) -> Topic:
        """Change some configs of a topic, or only validate that."""
        return await self._locks.run(
            name,
            self._alter(name, lambda old: old.changed(changes), is_validate_only=is_validate_only),
        )

    async def _alter(
        self, name: str, make: Callable[[TopicConfig], TopicConfig], *, is_validate_only: bool
    ) -> Topic:
        topic = self.get(name)
        config = make(topic.config)
        self._check_successor(topic, config)
        if not is_validate_only:
            await self._change(topic, topic.partition_count, config)
        return topic

    # Deleting.

    async def delete(
        self, name: str, *, topic_id: uuid.UUID | None = None, is_internal: bool = False
    ) -> Topic:
        """Delete a topic and all its records; it does not exist for anyone when this returns.

        With an id, only the topic with that id is deleted, not one that was created under its name
        since. If this raises `StorageFailed`, the topic is deleted too, and the rest of its data is
        deleted when the node starts again, or before the name is used again.
        """
        return await self._locks.run(name, self._delete(name, topic_id, is_internal=is_internal))

    async def _delete(self, name: str, topic_id: uuid.UUID | None, *, is_internal: bool) -> Topic:
        topic = self.get(name)
        if topic.is_internal != is_internal:
            raise InvalidName(f"topic {name} is internal to the cluster and cannot be deleted")
        if topic_id not in (None, topic.id):
            raise UnknownTopicId(f"topic {name!r} has id {topic.id}, got {topic_id}")
        if self._shared is not None:
            await self._delete_shared(topic, self._shared)
            return topic
        row = msgspec.structs.replace(topic.row, state="deleting")
        self._deleting[name] = await self._put(name, row, topic.revision)
        await self._retire(topic)
        await self._finish_deletion(name)
        return topic

    async def _retire(self, topic: Topic) -> None:
        """Forget a topic that was deleted, durably."""
        self._remove(topic)
        for partition in topic.partitions:
            partition.delete()
        self._notify(topic, TopicEvent.DELETED)
        # Callers that are opening a partition get as far as the store, which then waits for them;
        # later, they would create the log of a deleted topic.
        await asyncio.sleep(0)

    async def _finish_deletion(self, name: str) -> None:
        await self._store.delete(name)
        compare = Compare(topic_key(name), self._deleting[name])
        if await self._metadata.transact(compares=[compare], deletes=[compare.key]) is None:
            raise Unavailable(f"topic {name} was changed concurrently")
        del self._deleting[name]

    # Changes by other nodes of the cluster.

    async def _delete_shared(self, topic: Topic, shared: SharedTopics) -> None:
        key = topic_key(topic.name)
        nodes = await shared.nodes_with_records(topic)
        revision = await self._metadata.transact(
            compares=[Compare(key, topic.revision)],
            puts=deletion_puts(topic.id, topic.name, nodes),
            deletes=[key],
        )
        if revision is None:
            raise _ConcurrentChange(topic.name)
        await self._retire(topic)
        await self._delete_records(topic.name, topic.id, shared)

    async def _delete_records(self, name: str, topic_id: uuid.UUID, shared: SharedTopics) -> None:
        """Delete the records of a deleted topic on this node, and let the cluster know."""
        try:
            await self._store.delete(name)
            await shared.deleted.confirm(topic_id)
        except MillstreamError as error:  # The row stays, and the next start finishes this.
            logger.error("topic %s was deleted, but some of its data is left: %s", name, error)  # noqa: TRY400

    async def _finish_deletions(self, shared: SharedTopics) -> None:
        """Delete records of topics that were deleted while this node was down."""
        on_disk: dict[str, list[int]] = {}
        for log_name in self._store.names():
            on_disk.setdefault(log_name.topic, []).append(log_name.partition)
        for topic_id, name in (await shared.deleted.pending()).items():
            if name in on_disk and self._id_on_disk(name, on_disk[name]) == topic_id:
                await self._delete_records(name, topic_id, shared)
            else:
                await shared.deleted.confirm(topic_id)

    def _on_row_change(self, change: MetadataChange) -> None:
        """Apply a change after those of this node that run now; the lock keeps the order."""
        name = change.key.removeprefix(TOPICS_PREFIX)
        self._locks.start(name, self._apply(name, change))

    async def _apply_stored(self, name: str) -> None:
        """Apply the row that another node has just put: its notification is on the way."""
        entry = await self._metadata.get(topic_key(name))
        if entry is not None and self._shared is not None:
            await self._apply(name, MetadataChange(entry.key, entry.value, entry.revision))

    async def _apply(self, name: str, change: MetadataChange) -> None:
        topic = self._topics.get(name)
        if topic is not None and change.revision <= topic.revision:
            return  # A change that this node made itself, or learned in another way.
        row = None
        if change.value is not None:
            _, row = decode_row(change.key, change.value)
        if topic is not None and (row is None or row.id != topic.id):
            await self._retire(topic)
            if self._shared is not None:
                await self._delete_records(name, topic.id, self._shared)
            topic = None
        if row is None:
            return
        config = self._parse(row.configs)
        if topic is None:
            topic = Topic(name, row, change.revision, config)
            self._add(topic)
            self._notify(topic, TopicEvent.CREATED)
            return
        more = row.partitions - topic.partition_count
        is_altered = config != topic.config
        topic.row, topic.config, topic.revision = row, config, change.revision
        if more > 0:
            self._partition_count += more
            self._create_partitions(topic)
            self._notify(topic, TopicEvent.GROWN)
        if is_altered:
            await self._reconfigure(topic, config)
            self._notify(topic, TopicEvent.ALTERED)

    # Shared by all changes.

    def _check_successor(self, topic: Topic, config: TopicConfig) -> None:
        """Raise unless the topic can get `config`, and nobody objects."""
        if topic.is_internal:
            raise InvalidName(f"topic {topic.name} is internal to the cluster, and is not changed")
        topic.config.check_successor(config)
        self._check_config(topic.name, config)
        for veto in self.vetoes:
            veto(topic, config)

    @property
    def _default_replicas(self) -> int:
        return 1 if self._shared is None else self._shared.default_replicas

    def _check_replicas(self, row: TopicRow, first: int) -> None:
        """Raise unless the partitions from `first` on can have the replicas that the row wants."""
        if self._shared is not None:
            self._shared.check_replicas(row, first)
            return
        for replicas in (row.assignments or ())[first:]:
            if replicas != (self._config.node_id,):
                raise InvalidAssignment(
                    f"replicas must be on nodes [{self._config.node_id}], got {list(replicas)}"
                )
        if (row.replication_factor or 1) != 1:
            raise InvalidReplication(
                f"replication factor must be 1, got {row.replication_factor}: there is one node"
            )

    def _check_config(self, name: str, config: TopicConfig) -> None:
        """Raise unless partitions can be replicated with this config."""
        if self._shared is not None:
            self._shared.check(name, config)
            return
        if config.is_tiered and not self._store.has_tier:
            raise InvalidConfig(
                f"topic {name}: {REMOTE_STORAGE_ENABLE} must be false on a node without tier.store,"
                " got true"
            )
        min_insync = config.overrides.get(MIN_INSYNC_REPLICAS, "1")
        if int(min_insync) > 1:
            raise InvalidConfig(
                f"{MIN_INSYNC_REPLICAS} must be 1 on a lone node, where a partition has one"
                f" replica, got {min_insync}"
            )

    async def _change(
        self,
        topic: Topic,
        count: int,
        config: TopicConfig,
        assignments: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        """Set the number of partitions and the config of a topic in one step."""
        more = count - topic.partition_count
        is_altered = config != topic.config
        if more:
            with self._reserve(topic.name, more):
                await self._replace_row(topic, count, config, assignments)
            self._partition_count += more
            self._create_partitions(topic)
            self._notify(topic, TopicEvent.GROWN)
        elif is_altered:
            await self._replace_row(topic, count, config)
        if is_altered:
            await self._reconfigure(topic, config)
            self._notify(topic, TopicEvent.ALTERED)
            if self._store.health.full():  # The change may be meant to free space.
                self._store.maintenance.trim_now()

    async def _replace_row(
        self,
        topic: Topic,
        count: int,
        config: TopicConfig,
        assignments: tuple[tuple[int, ...], ...] | None = None,
    ) -> None:
        row = msgspec.structs.replace(
            topic.row,
            partitions=count,
            configs=dict(config.overrides),
            assignments=assignments or topic.row.assignments,
        )
        more = count - topic.partition_count
        growth = TopicGrowth(0, more, row.owner) if more > 0 else None
        topic.revision = await self._put(topic.name, row, topic.revision, growth)
        topic.row, topic.config = row, config

    async def _reconfigure(self, topic: Topic, config: TopicConfig) -> None:
        for partition in topic.partitions:
            try:
                await partition.reconfigure(config)
            except MillstreamError as error:  # It gets the config when it is opened again.
                logger.warning("%s: cannot apply the new config yet: %s", partition, error)

    async def _put(
        self, name: str, row: TopicRow, revision: int, growth: TopicGrowth | None = None
    ) -> int:
        """Replace the row of a topic if it has `revision`; return its new revision.

        With `growth`, caps are checked.
        """
        key = topic_key(name)
        compares, puts = [Compare(key, revision)], {key: encode_row(row)}
        if growth is None or not self._caps.concern(growth):
            new_revision = await self._metadata.transact(compares=compares, puts=puts)
        else:
            new_revision = await self._put_counted(name, growth, compares, puts)
        if new_revision is None:
            raise _ConcurrentChange(name)
        return new_revision

    async def _put_counted(
        self,
        name: str,
        growth: TopicGrowth,
        compares: list[Compare],
        puts: dict[str, bytes],
    ) -> int | None:
        """Put rows if the caps allow it; None if the row of the topic was changed meanwhile."""
        while True:
            guard = await self._caps.check(name, growth)
            revision = await self._metadata.transact(
                compares=[*compares, guard], puts={**puts, GUARD_KEY: b"{}"}
            )
            if revision is not None:
                return revision
            # Another topic has grown since these were counted, or this one was changed.
            entry = await self._metadata.get(compares[0].key)
            if not compares[0].holds(entry):
                return None

    def _parse(self, configs: Mapping[str, str | None]) -> TopicConfig:
        return TopicConfig.parse(configs, self._store.log_config)

    def new_id(self) -> uuid.UUID:
        """Return an id that no topic has, for `create`."""
        return make_topic_id(self._by_id.__contains__, self._draw_id)

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        bisect.insort(self._names, topic.name)
        self._by_id[topic.id] = topic
        self._colliding.setdefault(_collision_key(topic.name), set()).add(topic.name)
        self._partition_count += topic.partition_count
        self._create_partitions(topic)

    def _create_partitions(self, topic: Topic) -> None:
        """Create the partitions that a topic does not have yet."""
        for index in range(len(topic.partitions), topic.partition_count):
            topic.partitions.append(self._make_partition(topic, index))

    def _remove(self, topic: Topic) -> None:
        del self._topics[topic.name]
        del self._names[bisect.bisect_left(self._names, topic.name)]
        del self._by_id[topic.id]
        colliding = self._colliding[_collision_key(topic.name)]
        colliding.discard(topic.name)
        if not colliding:
            del self._colliding[_collision_key(topic.name)]
        self._partition_count -= topic.partition_count

    def _notify(self, topic: Topic, event: TopicEvent) -> None:
        for callback in list(self._callbacks):
            callback(TopicChange(topic, event))


def _check_new(name: str, partitions: int | None) -> None:
    """Raise if a topic cannot have this name or number of partitions."""
    check_topic(name)
    if name in KAFKA_INTERNAL_TOPICS:
        raise InvalidName(f"topic name {name} is reserved for Kafka's internal use")
    if partitions is not None and partitions < 1:
        raise InvalidPartitions(f"partitions of {name} must be at least 1, got {partitions}")


def _cannot_shrink(topic: Topic, count: int) -> InvalidPartitions:
    return InvalidPartitions(
        f"{topic.name} has {topic.partition_count} partitions, got {count}:"
        " the number can only increase"
    )


def _collision_key(name: str) -> str:
    return name.replace(".", "_")


async def _close_all(partitions: Iterable[Partition]) -> None:
    """Close all open partitions, even if one fails; then raise the first error."""
    results = await asyncio.gather(
        *(partition.close() for partition in partitions if partition.is_open),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException):
            raise result
