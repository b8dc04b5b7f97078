"""The options of `format("millstream")`: one table, read once into frozen values.

Names follow Spark's own Kafka connector where it has one, so that switching is a change of format.
Spark hands options over as text under names in any case.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from millstream.clients.partition import Isolation
from millstream.config.schema import MIB
from millstream.errors import InvalidConfig
from millstream.formats.bad_records import OnBadRecord, bad_records_from
from millstream.protocols.kafka.pipeline_client_id import CLIENT_ID_LENGTH_MAX
from millstream.records.compression import Codec
from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.positions import EARLIEST, LATEST, Position, parse_position

T = TypeVar("T")

BATCH_BYTES = 512 * 1024
"""What one batch holds: half of what a topic takes at the most unless it says otherwise, so that
varints and headers never make it too large."""

PARTITION_BYTES = 64 * MIB
"""What one task reads: long enough that its start does not count, short enough to be repeated."""

TRANSACTION_TIMEOUT_MS = 600_000
"""How long a write may take from its first record to its commit. Until then, records of others
behind it are invisible to readers of committed records, so it should not be for ever."""

TIMEOUT_MS = 30_000
"""How long a node may take to answer, with all attempts."""

_TOPIC_OPTIONS = ("topic", "topics", "topicPattern", "assign")


class OptionHelp(NamedTuple):
    """One option, as the reference lists it."""

    meaning: str
    aliases: tuple[str, ...] = ()
    """What it is called in Spark's Kafka connector, where that is not its name here."""


CLIENT_ID = "millstream-spark"
"""What the node calls who does not say otherwise."""

_PLACE = {
    "bootstrap.servers": OptionHelp(
        "Where the node is: `host:port`, several with commas.", ("kafka.bootstrap.servers",)
    ),
    "timeoutMs": OptionHelp(
        f"How long a node may take to answer, with all attempts; default {TIMEOUT_MS}."
    ),
    "client.id": OptionHelp(
        "What the node calls this reader or writer, in quotas and where it shows who publishes;"
        f" default `{CLIENT_ID}`.",
        ("kafka.client.id",),
    ),
}

_VALUE = {
    "valueFormat": OptionHelp(
        "What values are, for typed columns: `raw`, `json` or `avro`. Default is what the topic"
        " declares."
    ),
    "valueSchema": OptionHelp(
        "The schema of the values: for `json` Spark's, as DDL or JSON; for `avro` Avro's. Default"
        " is what the topic declares."
    ),
    "avroFraming": OptionHelp("`none` (default), or `confluent` for values with a schema id."),
    "avroSchemaId": OptionHelp(
        "The id that a sink writes, and a source expects, with `confluent`."
    ),
}

_PREFIX = OptionHelp("What the names of typed columns begin with; default is nothing.")

READ_OPTIONS: Mapping[str, OptionHelp] = MappingProxyType(
    {
        **_PLACE,
        "path": OptionHelp("Instead of a node: a data directory, whose files are read in place."),
        "topic": OptionHelp("One topic. Needed is this or one of the next three.", ("subscribe",)),
        "topics": OptionHelp("Several topics, with commas."),
        "topicPattern": OptionHelp("All topics whose whole name matches.", ("subscribePattern",)),
        "assign": OptionHelp('Certain partitions: `{"orders": [0, 1]}`.'),
        "startingOffsets": OptionHelp(
            "Where to begin: `earliest` (default of batches), `latest` (default of streams) or"
            ' `{"orders": {"0": 23, "1": -2}}`, where -2 is earliest and -1 latest.'
        ),
        "startingTimestamp": OptionHelp(
            "Begin with the first record of each partition that is that late: milliseconds since"
            " 1970, or ISO 8601."
        ),
        "startingOffsetsByTimestamp": OptionHelp(
            "The same for each partition: `" + '{"orders": {"0": 1700000000000}}`.'
        ),
        "endingOffsets": OptionHelp("Where a batch ends: `latest` (default) or as above."),
        "endingTimestamp": OptionHelp("End before the first record that is that late."),
        "endingOffsetsByTimestamp": OptionHelp("The same for each partition."),
        "isolation": OptionHelp(
            "`read_committed` (default) or `read_uncommitted`.", ("kafka.isolation.level",)
        ),
        "failOnDataLoss": OptionHelp(
            "`true` (default): records that retention took before they were read fail the query."
            " `false`: they are logged and counted."
        ),
        "includeHeaders": OptionHelp("`true` adds the column `headers`; default `false`."),
        "columns": OptionHelp("Which columns to read, with commas; no others are decoded."),
        "maxRecordsPerTrigger": OptionHelp(
            "How many records a micro-batch has at the most.", ("maxOffsetsPerTrigger",)
        ),
        "maxBytesPerTrigger": OptionHelp("About how many bytes of the log a micro-batch has."),
        "minPartitions": OptionHelp(
            "How many tasks to make at least, if there are enough records. Default is one for each"
            " partition, or for several that have little."
        ),
        "partitionBytes": OptionHelp(
            f"About how many bytes of the log one task reads; default {PARTITION_BYTES}."
        ),
        **_VALUE,
        "valuePrefix": _PREFIX,
        "onBadRecord": OptionHelp(
            "What is done with a value that does not fit: `fail` (default), `null` for typed"
            " columns that are null beside a column `_error`, or `deadLetter`."
        ),
        "deadLetterTopic": OptionHelp("Where values go that do not fit, with `deadLetter`."),
    }
)

WRITE_OPTIONS: Mapping[str, OptionHelp] = MappingProxyType(
    {
        **_PLACE,
        "topic": OptionHelp("Where records go that have no column `topic`."),
        "jobId": OptionHelp(
            "Names a batch write: what was written under a name is not written again under it."
            " Default is a new one each time."
        ),
        "jobSequence": OptionHelp(
            "Numbers the writes of one `jobId`, rising from 0 on: what was written under a number"
            " is not written again under it or a lower one. For `foreachBatch`: the query's id and"
            " the batch's."
        ),
        "transactionTimeoutMs": OptionHelp(
            "How long a write may take, from its first record to its commit; default"
            f" {TRANSACTION_TIMEOUT_MS}."
        ),
        "compression": OptionHelp("`none` (default), `gzip`, `snappy`, `lz4` or `zstd`."),
        "batchBytes": OptionHelp(
            f"How large a batch of records may get before it is packed; default {BATCH_BYTES}."
        ),
        **_VALUE,
        "valuePrefix": _PREFIX,
    }
)

_SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "path"})
"""What Spark itself takes from the options of a writer, and hands on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where topics are: at a node, or in a directory. One of the first two is set."""

    bootstrap: str | None = None
    path: str | None = None
    timeout_ms: int = TIMEOUT_MS
    client_id: str = CLIENT_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Which topics to read: by name, by pattern, or certain partitions. One of them is set."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """How values become typed columns, or typed columns values."""

    given: Mapping[str, str] = field(default_factory=dict)
    """Those options that say what values are, as they were given."""
    prefix: str = ""
    on_bad: OnBadRecord = OnBadRecord.FAIL
    dead_letter_topic: str | None = None

    @property
    def format(self) -> str | None:
        """The format that was given; `None` where what topics declare counts."""
        return self.given.get("valueFormat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What and how to read."""

    place: SourceOptions
    selection: TopicSelection
    starting: Position
    ending: Position
    isolation: Isolation = Isolation.READ_COMMITTED
    fail_on_data_loss: bool = True
    include_headers: bool = False
    columns: tuple[str, ...] | None = None
    records_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    partitions_min: int = 1
    partition_bytes: int = PARTITION_BYTES
    value: ValueOptions = field(default_factory=ValueOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Where and how to write."""

    place: SourceOptions
    topic: str | None = None
    job_id: str
    job_sequence: int | None = None
    """`None` where the job is one write."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES
    value: ValueOptions = field(default_factory=ValueOptions)


def parse_read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Read the options of a source; raises `InvalidConfig` for what is not allowed."""
    found = _Found(options, READ_OPTIONS)
    if is_stream and (ending := found.first("endingOffsets", "endingTimestamp")):
        raise InvalidConfig(f"option {ending} is set, and a stream has no end")
    return ReadOptions(
        place=_place(found, may_be_path=True),
        selection=_selection(found),
        starting=_position(found, "starting", default=LATEST if is_stream else EARLIEST),
        ending=_position(found, "ending", default=LATEST),
        isolation=found.choice("isolation", {one.value: one for one in Isolation})
        or Isolation.READ_COMMITTED,
        fail_on_data_loss=found.truth("failOnDataLoss", default=True),
        include_headers=found.truth("includeHeaders", default=False),
        columns=found.names("columns"),
        records_per_trigger_max=found.number("maxRecordsPerTrigger"),
        bytes_per_trigger_max=found.number("maxBytesPerTrigger"),
        partitions_min=found.number("minPartitions") or 1,
        partition_bytes=found.number("partitionBytes") or PARTITION_BYTES,
        value=_value(found),
    )


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a sink; raises `InvalidConfig` for what is not allowed."""
    found = _Found(options, WRITE_OPTIONS, ignored=_SPARKS_OWN)
    codecs = {codec.name.lower(): codec for codec in Codec}
    codec = found.choice("compression", codecs)
    return WriteOptions(
        place=_place(found, may_be_path=False),
        topic=found.get("topic"),
        job_id=found.get("jobId") or str(uuid.uuid4()),
        job_sequence=_job_sequence(found),
        transaction_timeout_ms=found.number("transactionTimeoutMs") or TRANSACTION_TIMEOUT_MS,
        codec=Codec.NONE if codec is None else codec,
        batch_bytes=found.number("batchBytes") or BATCH_BYTES,
        value=_value(found),
    )


def _job_sequence(found: _Found) -> int | None:
    if found.get("jobSequence") is not None and found.get("jobId") is None:
        raise InvalidConfig("jobSequence is set and jobId is not: it numbers the writes of a job")
    return found.number("jobSequence", least=0)


def _place(found: _Found, *, may_be_path: bool) -> SourceOptions:
    bootstrap, path = found.get("bootstrap.servers"), found.get("path") if may_be_path else None
    if (bootstrap is None) == (path is None):
        needed = "bootstrap.servers or path, and not both" if may_be_path else "bootstrap.servers"
        raise InvalidConfig(
            f"options are bootstrap.servers={bootstrap!r} and path={path!r}: needed is {needed}"
        )
    timeout_ms = found.number("timeoutMs") or TIMEOUT_MS
    return SourceOptions(
        bootstrap=bootstrap, path=path, timeout_ms=timeout_ms, client_id=_client_id(found)
    )


def _client_id(found: _Found) -> str:
    given = found.get("client.id")
    if given is None:
        return CLIENT_ID
    if not 0 < len(given) <= CLIENT_ID_LENGTH_MAX:
        raise InvalidConfig(
            f"client.id has {len(given)} characters, allowed is 1 to {CLIENT_ID_LENGTH_MAX}"
        )
    return given


def _selection(found: _Found) -> TopicSelection:
    given = [name for name in _TOPIC_OPTIONS if found.get(name) is not None]
    if len(given) != 1:
        raise InvalidConfig(
            f"options that name topics are {given}: needed is one of {list(_TOPIC_OPTIONS)}"
        )
    if (pattern := found.get("topicPattern")) is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidConfig(f"topicPattern is {pattern!r}, no pattern: {error}") from error
        return TopicSelection(pattern=pattern)
    if (assign := found.get("assign")) is not None:
        return TopicSelection(assigned=_assigned(assign))
    return TopicSelection(names=found.names("topic") or found.names("topics"))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        parsed: Any = json.loads(text)
        if not parsed:
            raise ValueError
        return tuple(
            TopicPartition(str(topic), _whole(partition))
            for topic, partitions in parsed.items()
            for partition in partitions
        )
    except (ValueError, TypeError, AttributeError):
        raise InvalidConfig(
            f'assign is {text!r}, needed is partitions by topic: {{"orders": [0, 1]}}'
        ) from None


def _value(found: _Found) -> ValueOptions:
    found.choice("valueFormat", {one: one for one in ("raw", "json", "avro")})
    bad = bad_records_from(found.given("onBadRecord", "deadLetterTopic"))
    return ValueOptions(
        given=found.given(*_VALUE),
        prefix=found.get("valuePrefix") or "",
        on_bad=bad.on_bad,
        dead_letter_topic=bad.topic,
    )


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _position(found: _Found, side: str, *, default: Position) -> Position:
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    given = {name: text for name in names if (text := found.get(name)) is not None}
    if len(given) > 1:
        raise InvalidConfig(f"options {list(given)} exclude each other: one may be set")
    for name, text in given.items():
        return parse_position(name, text)
    return default


class _Found:
    """The options that were given, by name in any case; `None` where one was not."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: Mapping[str, OptionHelp],
        *,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        names = {name.lower(): name for name in known}
        names |= {alias.lower(): name for name, one in known.items() for alias in one.aliases}
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = names.get(given.lower())
            if name is None:
                if given.lower() in ignored:
                    continue
                raise InvalidConfig(f"option {given!r} is unknown, allowed are {list(known)}")
            if name in self._values:
                raise InvalidConfig(f"option {name} is set twice, also as {given}")
            self._values[name] = value

    def get(self, name: str) -> str | None:
        """Return an option as it was given."""
        return self._values.get(name)

    def given(self, *names: str) -> dict[str, str]:
        """Return those of these options that were given."""
        return {name: self._values[name] for name in names if name in self._values}

    def first(self, *prefixes: str) -> str | None:
        """Return the name of an option that was given and begins so."""
        return next((name for name in self._values if name.startswith(prefixes)), None)

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return an option that is a list of names with commas."""
        text = self.get(name)
        if text is None:
            return None
        parts = tuple(part.strip() for part in text.split(","))
        if not all(parts) or len(set(parts)) < len(parts):
            raise InvalidConfig(f"{name} is {text!r}, needed are names, each once, with commas")
        return parts

    def number(self, name: str, *, least: int = 1) -> int | None:
        """Return an option that is a whole number of `least` or more."""
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
            raise InvalidConfig(f"{name} is {text!r}, needed is a whole number of {least} or more")
        return int(text)

    def truth(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        found = self.choice(name, {"true": True, "false": False})
        return default if found is None else found

    def choice(self, name: str, allowed: Mapping[str, T]) -> T | None:
        """Return what an option stands for, of those that are allowed."""
        text = self.get(name)
        if text is None:
            return None
        if text.lower() not in allowed:
            raise InvalidConfig(f"{name} is {text!r}, allowed are {list(allowed)}")
        return allowed[text.lower()]
