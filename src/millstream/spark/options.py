"""Options of `format("millstream")`, parsed into frozen values.

Names follow Spark's own Kafka connector where it has the option, so that switching is a change of
format. Spark passes options as strings, with names in any case.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity, parse_security
from millstream.clients.partition import Isolation
from millstream.config.schema import MIB
from millstream.errors import InvalidConfig
from millstream.formats.bad_records import OnBadRecord, bad_records_from
from millstream.http1.registered_schema import (
    CREDENTIALS_VARIABLE,
    SchemaRegistryConfig,
)
from millstream.protocols.kafka.pipeline_client_id import CLIENT_ID_LENGTH_MAX
from millstream.records.compression import Codec
from millstream.records.topic_partition import TopicPartition
from millstream.spark.kafka_options import IGNORED, instead_of
from millstream.spark.read.positions import EARLIEST, LATEST, Position, parse_position

T = TypeVar("T")

BATCH_BYTES = 512 * 1024
"""Size of a record batch: half the default maximum of a topic, so that varints and headers never
exceed it.
"""

PARTITION_BYTES = 64 * MIB
"""Bytes that one task reads: many beside the cost of its start, and few enough to repeat."""

TRANSACTION_TIMEOUT_MS = 600_000
"""Maximum duration of a write, from its first record to its commit. Until then, readers of
committed records do not see later records of other producers, so it must be limited. """

TRANSACTION_LEASE_MS = 60_000
"""Time for which the transactions of a write stay open without a sign of life from its tasks."""

TIMEOUT_MS = 30_000
"""Timeout of a request to a node, including retries."""

AUTO = "auto"
"""As history: the table in the config of each topic."""

_TOPIC_OPTIONS = ("topic", "topics", "topicPattern", "assign")


class OptionHelp(NamedTuple):
    """An option as the reference lists it."""

    meaning: str
    aliases: tuple[str, ...] = ()
    """Other names of the option, as in Spark's Kafka connector."""


CLIENT_ID = "millstream-spark"
"""Default client id."""

_SOURCE = {
    "bootstrap.servers": OptionHelp(
        "Addresses of nodes: `host:port`, separated by commas.", ("kafka.bootstrap.servers",)
    ),
    "timeoutMs": OptionHelp(
        f"Timeout of a request to a node, including retries; default {TIMEOUT_MS}."
    ),
    "client.id": OptionHelp(
        "Client id of this reader or writer, for quotas and in listings of publishers; default"
        f" `{CLIENT_ID}`.",
        ("kafka.client.id",),
    ),
    "security.protocol": OptionHelp(
        "How to connect to nodes: `PLAINTEXT`, `SSL`, `SASL_SSL` or `SASL_PLAINTEXT`. Default:"
        " `SASL_SSL` with a user, `SSL` with a file of certificates, otherwise `PLAINTEXT`. This"
        " and the next six options can also be set by [variables](../operating/credentials.md).",
        ("kafka.security.protocol",),
    ),
    "sasl.mechanism": OptionHelp(
        "How to log in with `SASL_SSL`: `SCRAM-SHA-256` (default), `SCRAM-SHA-512` or `PLAIN`.",
        ("kafka.sasl.mechanism",),
    ),
    "sasl.username": OptionHelp("The user to log in as.", ("kafka.sasl.username",)),
    "sasl.passwordFile": OptionHelp(
        "File with the password of that user in its first line, on the driver and on all executors."
        " There is no option for the password itself: Spark shows options in plans and its UI."
    ),
    "ssl.ca.location": OptionHelp(
        "File (PEM) with the authorities that the certificates of nodes must be signed by, on the"
        " driver and on all executors. Default: those of the system.",
        ("kafka.ssl.ca.location", "kafka.ssl.truststore.location"),
    ),
    "ssl.certificate.location": OptionHelp(
        "File (PEM) with the certificate that is shown to nodes, if they ask for one.",
        ("kafka.ssl.certificate.location",),
    ),
    "ssl.key.location": OptionHelp(
        "File (PEM) with the private key of that certificate.", ("kafka.ssl.key.location",)
    ),
}

_VALUE = {
    "valueFormat": OptionHelp(
        "Format of the values, for typed columns: `raw`, `json` or `avro`. Default: the format"
        " that the topic declares."
    ),
    "valueSchema": OptionHelp(
        "Schema of the values: for `json` a Spark schema, as DDL or JSON; for `avro` an Avro"
        " schema. Default: the schema that the topic declares."
    ),
    "avroFraming": OptionHelp(
        "`none`, or `confluent` for values with a schema id. Default: `none`, or `confluent` with a"
        " schema registry."
    ),
    "avroSchemaId": OptionHelp(
        "Schema id of `valueSchema`, with `confluent`: a sink writes it, and a value with another"
        " id cannot be decoded. Default: a reader accepts all ids. With a schema registry, a reader"
        " finds the schema of each id instead."
    ),
    "schemaRegistryUrl": OptionHelp(
        "Address of a schema registry. Avro values are read with the schema that they were written"
        " with, and become columns of `valueSchema`"
        " ([how](../guides/schemas.md#a-schema-registry))."
    ),
    "schemaRegistryCredentialsFile": OptionHelp(
        "File with `user:password` or `Bearer <token>` for the registry in its first line, on the"
        f" driver and on all executors. Default: the variable `{CREDENTIALS_VARIABLE}`, which has"
        " the credentials themselves."
    ),
    "schemaRegistryCaFile": OptionHelp(
        "File (PEM) with the authorities that the certificate of the registry must be signed by, on"
        " the driver and on all executors. Default: those of the system."
    ),
}

_PREFIX = OptionHelp("Prefix for the names of typed columns; default is none.")

READ_OPTIONS: Mapping[str, OptionHelp] = MappingProxyType(
    {
        **_SOURCE,
        "path": OptionHelp("A data directory whose files are read in place, instead of a node."),
        "topic": OptionHelp(
            "One topic. This or one of the next three is required.", ("subscribe",)
        ),
        "topics": OptionHelp("Several topics, separated by commas."),
        "topicPattern": OptionHelp(
            "All topics whose full name matches the regular expression.", ("subscribePattern",)
        ),
        "assign": OptionHelp('Partitions by topic: `{"orders": [0, 1]}`.'),
        "startingOffsets": OptionHelp(
            "Where to start: `earliest` (default of batches), `latest` (default of streams) or"
            ' `{"orders": {"0": 23, "1": -2}}`, where -2 is earliest and -1 latest.'
        ),
        "startingTimestamp": OptionHelp(
            "Start at the first record of each partition with this timestamp or a later one:"
            " milliseconds since 1970, or ISO 8601."
        ),
        "startingOffsetsByTimestamp": OptionHelp(
            "The same by partition: `" + '{"orders": {"0": 1700000000000}}`.'
        ),
        "endingOffsets": OptionHelp(
            "Where a batch ends: `latest` (default), or as in `startingOffsets`."
        ),
        "endingTimestamp": OptionHelp(
            "End before the first record with this timestamp or a later one."
        ),
        "endingOffsetsByTimestamp": OptionHelp("The same by partition."),
        "history": OptionHelp(
            "[Lake table](../guides/lake.md#spark) with the history of the topic: its address, or"
            " `auto` for the one that the topic has in its config `millstream.lake.table`, if any."
            " Records that the table has are read from it, the rest from the log. Default: all"
            " records are read from the log."
        ),
        "isolation": OptionHelp(
            "`read_committed` (default) or `read_uncommitted`.", ("kafka.isolation.level",)
        ),
        "failOnDataLoss": OptionHelp(
            "`true` (default): the query fails if retention deleted records before they were read."
            " `false`: the loss is logged and counted."
        ),
        "includeHeaders": OptionHelp("`true` adds the column `headers`; default `false`."),
        "columns": OptionHelp("Columns to read, separated by commas; no others are decoded."),
        "maxRecordsPerTrigger": OptionHelp(
            "Maximum number of records in a micro-batch.", ("maxOffsetsPerTrigger",)
        ),
        "maxBytesPerTrigger": OptionHelp(
            "Approximate maximum size of a micro-batch, in bytes of the log."
        ),
        "minPartitions": OptionHelp(
            "Minimum number of tasks, if there are enough records. Default: one task for each"
            " partition, or for several small ones."
        ),
        "partitionBytes": OptionHelp(
            f"Approximate size of a task, in bytes of the log; default {PARTITION_BYTES}."
        ),
        **_VALUE,
        "valuePrefix": _PREFIX,
        "onBadRecord": OptionHelp(
            "Action for a value that cannot be decoded: `fail` (default), `null` (typed columns are"
            " null, and the column `_error` has the reason), or `deadLetter`."
        ),
        "deadLetterTopic": OptionHelp(
            "Topic for values that cannot be decoded, with `deadLetter`."
        ),
    }
)

WRITE_OPTIONS: Mapping[str, OptionHelp] = MappingProxyType(
    {
        **_SOURCE,
        "topic": OptionHelp("Topic of rows that have no column `topic`."),
        "jobId": OptionHelp(
            "Id of a batch write: a write that was committed under an id is not written again under"
            " the same id. Default: a new id each time."
        ),
        "jobSequence": OptionHelp(
            "Sequence number of a write of a `jobId`, ascending from 0: a write with the number"
            " that was committed last is not written again, and one with a lower number fails. For"
            " `foreachBatch`: the query's id as `jobId`, and the batch id."
        ),
        "transactionTimeoutMs": OptionHelp(
            "Maximum duration of a write, from its first record to its commit; default"
            f" {TRANSACTION_TIMEOUT_MS}."
        ),
        "transactionLeaseMs": OptionHelp(
            "How long the transactions of a write stay open when none of its tasks runs; default"
            f" {TRANSACTION_LEASE_MS}. What a killed job has left holds readers back for that"
            " long. Raise it if the tasks of a write wait for a long time for executors."
        ),
        "compression": OptionHelp(
            "`none` (default), `gzip`, `snappy`, `lz4` or `zstd`.", ("kafka.compression.type",)
        ),
        "batchBytes": OptionHelp(
            f"Maximum size of a batch of records before compression; default {BATCH_BYTES}."
        ),
        **_VALUE,
        "valuePrefix": _PREFIX,
    }
)

SECURITY_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "security.protocol": "protocol",
        "ssl.ca.location": "ca_file",
        "ssl.certificate.location": "cert_file",
        "ssl.key.location": "key_file",
        "sasl.username": "user",
        "sasl.passwordFile": "password_file",
        "sasl.mechanism": "mechanism",
    }
)
"""Settings of `KafkaSecurity`, by option."""

_SECRET_OPTIONS = re.compile(r"(kafka\.)?(sasl\.password|sasl\.jaas\.config|ssl\.key\.password)")
"""Options that other clients have, and that would put a secret into plans and the UI of Spark."""

CATALOG_OPTIONS = frozenset(
    {"provider", "owner", "location", "external", "comment", "is_managed_location"}
)
"""Properties of a table in Spark's catalog, which Spark passes on with its options."""

CATALOG_PREFIX = "option."
"""Of the options of a table in the catalog, which Spark passes on a second time."""

_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname", "path"}) | CATALOG_OPTIONS
"""Options of a writer that Spark itself uses, and also passes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Location of topics: a node (`bootstrap`) or a data directory (`path`), not both."""

    bootstrap: str | None = None
    path: str | None = None
    timeout_ms: int = TIMEOUT_MS
    client_id: str = CLIENT_ID
    security: KafkaSecurity = NO_SECURITY


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """Topics to read: by name, by pattern, or by partition. Exactly one attribute is set."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """Conversion between values and typed columns."""

    format_options: Mapping[str, str] = field(default_factory=dict)
    """The options of the format, as given."""
    prefix: str = ""
    on_bad: OnBadRecord = OnBadRecord.FAIL
    dead_letter_topic: str | None = None
    registry: SchemaRegistryConfig | None = None

    @property
    def format(self) -> str | None:
        """The format from the options; `None` if the topic's declaration applies."""
        return self.format_options.get("valueFormat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    source: SourceOptions
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
    history: str | None = None
    """Address of the lake table with the history, or `AUTO`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    source: SourceOptions
    topic: str | None = None
    job_id: str
    job_sequence: int | None = None
    """`None` if the job is a single write."""
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    transaction_lease_ms: int = TRANSACTION_LEASE_MS
    checkpoint: str | None = None
    """Checkpoint location of a stream, if it is an option of the stream."""
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES
    value: ValueOptions = field(default_factory=ValueOptions)
    is_table: bool = False
    """Whether rows have all columns of a table in the catalog, also those of readers only."""


def security_options(security: KafkaSecurity) -> dict[str, str]:
    """Return the options of a security. They have names of files, and no secret."""
    settings = security.settings()
    return {
        option: settings[setting]
        for option, setting in SECURITY_OPTIONS.items()
        if setting in settings
    }


def parse_read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of a source; raises `InvalidConfig` for invalid ones."""
    reader = _OptionReader(options, READ_OPTIONS, ignored=CATALOG_OPTIONS)
    if is_stream and (ending := reader.first("endingOffsets", "endingTimestamp")):
        raise InvalidConfig(f"option {ending} is for batches: a stream has no end")
    isolation = reader.choice("isolation", {level.value: level for level in Isolation})
    return ReadOptions(
        source=_source_options(reader, may_be_path=True),
        selection=_selection(reader),
        starting=_position(reader, "starting", default=LATEST if is_stream else EARLIEST),
        ending=_position(reader, "ending", default=LATEST),
        isolation=isolation or Isolation.READ_COMMITTED,
        fail_on_data_loss=reader.flag("failOnDataLoss", default=True),
        include_headers=reader.flag("includeHeaders", default=False),
        columns=reader.names("columns"),
        records_per_trigger_max=reader.number("maxRecordsPerTrigger"),
        bytes_per_trigger_max=reader.number("maxBytesPerTrigger"),
        partitions_min=reader.number("minPartitions") or 1,
        partition_bytes=reader.number("partitionBytes") or PARTITION_BYTES,
        value=_value(reader),
        history=_history(reader, isolation),
    )


def _history(reader: _OptionReader, isolation: Isolation | None) -> str | None:
    history = reader.get("history")
    if history is None:
        return None
    if not history.strip():
        raise InvalidConfig("history must be auto or the address of a table, got an empty text")
    if isolation is Isolation.READ_UNCOMMITTED:
        raise InvalidConfig(
            "history requires isolation read_committed, got read_uncommitted: a table has committed"
            " records only"
        )
    if history.lower() == AUTO and reader.get("path") is not None:
        raise InvalidConfig(
            "history=auto requires bootstrap.servers: a data directory does not have the configs of"
            " topics; set the address of the table"
        )
    return AUTO if history.lower() == AUTO else history


def parse_write_options(options: Mapping[str, str], *, is_table: bool = False) -> WriteOptions:
    """Parse the options of a sink; raises `InvalidConfig` for invalid ones."""
    reader = _OptionReader(options, WRITE_OPTIONS, ignored=_SPARK_OPTIONS)
    codecs = {codec.name.lower(): codec for codec in Codec}
    codec = reader.choice("compression", codecs)
    return WriteOptions(
        source=_source_options(reader, may_be_path=False),
        topic=reader.get("topic"),
        job_id=reader.get("jobId") or str(uuid.uuid4()),
        job_sequence=_job_sequence(reader),
        transaction_timeout_ms=reader.number("transactionTimeoutMs") or TRANSACTION_TIMEOUT_MS,
        transaction_lease_ms=reader.number("transactionLeaseMs") or TRANSACTION_LEASE_MS,
        checkpoint=next(
            (value for name, value in options.items() if name.lower() == "checkpointlocation"), None
        ),
        codec=Codec.NONE if codec is None else codec,
        batch_bytes=reader.number("batchBytes") or BATCH_BYTES,
        value=_value(reader),
        is_table=is_table,
    )


def named(options: Mapping[str, str], known: Mapping[str, OptionHelp]) -> dict[str, str]:
    """Return the known options among the given ones: how each is spelled there, by its name."""
    names = _names(known)
    return {names[given.lower()]: given for given in options if given.lower() in names}


def _names(known: Mapping[str, OptionHelp]) -> dict[str, str]:
    """Return the name of each option by all of its names in lower case."""
    names = {name.lower(): name for name in known}
    return names | {
        alias.lower(): name for name, option in known.items() for alias in option.aliases
    }


def _job_sequence(reader: _OptionReader) -> int | None:
    if reader.get("jobSequence") is not None and reader.get("jobId") is None:
        raise InvalidConfig("jobSequence requires jobId: it numbers the writes of a job")
    return reader.number("jobSequence", minimum=0)


def _source_options(reader: _OptionReader, *, may_be_path: bool) -> SourceOptions:
    bootstrap, path = reader.get("bootstrap.servers"), reader.get("path") if may_be_path else None
    if (bootstrap is None) == (path is None):
        required = "either bootstrap.servers or path" if may_be_path else "bootstrap.servers"
        raise InvalidConfig(
            f"options must have {required}, got bootstrap.servers={bootstrap!r} and path={path!r}"
        )
    timeout_ms = reader.number("timeoutMs") or TIMEOUT_MS
    return SourceOptions(
        bootstrap=bootstrap,
        path=path,
        timeout_ms=timeout_ms,
        client_id=_client_id(reader),
        security=_security(reader, is_path=path is not None),
    )


def _security(reader: _OptionReader, *, is_path: bool) -> KafkaSecurity:
    names = {setting: option for option, setting in SECURITY_OPTIONS.items()}
    given = {
        SECURITY_OPTIONS[name]: text for name, text in reader.subset(*SECURITY_OPTIONS).items()
    }
    # Files are read in place without a node: how this machine connects to nodes does not matter.
    return parse_security(given, names=names, environment={} if is_path else None)


def _client_id(reader: _OptionReader) -> str:
    given = reader.get("client.id")
    if given is None:
        return CLIENT_ID
    if not 0 < len(given) <= CLIENT_ID_LENGTH_MAX:
        raise InvalidConfig(
            f"client.id must have 1 to {CLIENT_ID_LENGTH_MAX} characters, got {len(given)}"
        )
    return given


def _selection(reader: _OptionReader) -> TopicSelection:
    given = [name for name in _TOPIC_OPTIONS if reader.get(name) is not None]
    if len(given) != 1:
        raise InvalidConfig(
            f"exactly one of the options {list(_TOPIC_OPTIONS)} must be set, got {given}"
        )
    if (pattern := reader.get("topicPattern")) is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidConfig(
                f"topicPattern must be a regular expression, got {pattern!r}: {error}"
            ) from error
        return TopicSelection(pattern=pattern)
    if (assign := reader.get("assign")) is not None:
        return TopicSelection(assigned=_assigned(assign))
    return TopicSelection(names=reader.names("topic") or reader.names("topics"))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        parsed: Any = json.loads(text)
        if not parsed:
            raise ValueError
        return tuple(
            TopicPartition(str(topic), _partition_number(partition))
            for topic, partitions in parsed.items()
            for partition in partitions
        )
    except (ValueError, TypeError, AttributeError):
        raise InvalidConfig(
            f'assign must be partitions by topic, such as {{"orders": [0, 1]}}, got {text!r}'
        ) from None


def _value(reader: _OptionReader) -> ValueOptions:
    reader.choice("valueFormat", {name: name for name in ("raw", "json", "avro")})
    bad = bad_records_from(reader.subset("onBadRecord", "deadLetterTopic"))
    return ValueOptions(
        format_options=reader.subset(*_VALUE),
        prefix=reader.get("valuePrefix") or "",
        on_bad=bad.on_bad,
        dead_letter_topic=bad.topic,
        registry=_registry(reader),
    )


def _registry(reader: _OptionReader) -> SchemaRegistryConfig | None:
    """Return the schema registry. Who writes a query may let it connect to any address."""
    url = reader.get("schemaRegistryUrl")
    files = reader.subset("schemaRegistryCredentialsFile", "schemaRegistryCaFile")
    if not url:
        if files:
            raise InvalidConfig(f"{next(iter(files))} requires the option schemaRegistryUrl")
        return None
    return SchemaRegistryConfig(
        url=url,
        credentials_file=_absolute(files.get("schemaRegistryCredentialsFile")),
        ca_file=_absolute(files.get("schemaRegistryCaFile")),
        allowed_networks=("0.0.0.0/0", "::/0"),
    )


def _absolute(path: str | None) -> str | None:
    return None if path is None else os.path.abspath(path)


def _partition_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError
    return value


def _position(reader: _OptionReader, side: str, *, default: Position) -> Position:
    names = (f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp")
    given = {name: text for name in names if (text := reader.get(name)) is not None}
    if len(given) > 1:
        raise InvalidConfig(f"at most one of the options {list(given)} may be set")
    for name, text in given.items():
        return parse_position(name, text)
    return default


class _OptionReader:
    """Options by name, in any case. Methods return `None` for an option that was not given."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: Mapping[str, OptionHelp],
        *,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        names = _names(known)
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = names.get(given.lower())
            if name is None:
                if given.lower() in ignored | IGNORED or given.lower().startswith(CATALOG_PREFIX):
                    continue
                if _SECRET_OPTIONS.fullmatch(given.lower()):
                    raise InvalidConfig(
                        f"option {given!r} is not supported, because Spark shows options: put the"
                        " password into a file, and name that with sasl.passwordFile"
                    )
                if (instead := instead_of(given)) is not None:
                    raise InvalidConfig(
                        f"option {given!r} of Spark's Kafka connector is not supported: {instead}"
                    )
                raise InvalidConfig(
                    f"option {given!r} does not exist, the options are {list(known)}"
                )
            if name in self._values:
                raise InvalidConfig(f"option {name} is set twice, also as {given}")
            self._values[name] = value

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def subset(self, *names: str) -> dict[str, str]:
        """Return those of the named options that were given."""
        return {name: self._values[name] for name in names if name in self._values}

    def first(self, *prefixes: str) -> str | None:
        """Return the name of a given option that starts with one of `prefixes`."""
        return next((name for name in self._values if name.startswith(prefixes)), None)

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return an option that is a list of names separated by commas."""
        text = self.get(name)
        if text is None:
            return None
        parts = tuple(part.strip() for part in text.split(","))
        if not all(parts) or len(set(parts)) < len(parts):
            raise InvalidConfig(f"{name} must be distinct names separated by commas, got {text!r}")
        return parts

    def number(self, name: str, *, minimum: int = 1) -> int | None:
        """Return an option that is an integer of at least `minimum`."""
        text = self.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < minimum:
            raise InvalidConfig(f"{name} must be an integer of at least {minimum}, got {text!r}")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return an option that is true or false."""
        value = self.choice(name, {"true": True, "false": False})
        return default if value is None else value

    def choice(self, name: str, allowed: Mapping[str, T]) -> T | None:
        """Return the value in `allowed` that an option selects."""
        text = self.get(name)
        if text is None:
            return None
        if text.lower() not in allowed:
            raise InvalidConfig(f"{name} must be one of {list(allowed)}, got {text!r}")
        return allowed[text.lower()]
