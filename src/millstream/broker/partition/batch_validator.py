"""Validation of client batches, before anything of them is written.

The order of the checks and their errors are Kafka's. Every check looks at the header and the
checksum. Records are inspected only if the topic requires it: on a compacted topic every record
needs a key, a topic with a codec of its own stores no other, the jobs of a queue are delivered
one by one, and a topic may have its values checked against their schema. Then a batch is refused
if its records cannot be decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from crc32c import crc32c

from millstream.broker.partition.value_check import FAULTS_MAX, ValueCheck, ValueFault
from millstream.config.schema import LogConfig
from millstream.errors import (
    BadRecord,
    BatchTooLarge,
    CorruptBatch,
    InvalidBatch,
    InvalidRecord,
    InvalidTimestamp,
    RequestError,
)
from millstream.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    CRC_END,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    decode_header,
    seal,
    unpack_header,
)
from millstream.records.body import RECORD_SIZE_MIN, open_body
from millstream.records.compression import (
    BODY_SIZE_MAX,
    Codec,
    OversizedBody,
    compress,
    declared_size,
)
from millstream.records.filter.keys.keyless import check_records, keyless_records

DECOMPRESSION_RATIO_MAX = 64
"""If records are inspected, the decompressed size of a batch may be this many times the largest
batch of its topic, and `BODY_SIZE_MAX`. Text shrinks to a tenth, very repetitive text to a
fiftieth, a decompression bomb to a thousandth.
"""

_OTHERS_SHOWN = 10
"""Records that an error message names, after the first."""

_CLIENT_BITS = CODEC_MASK | TRANSACTIONAL_BIT
"""Attributes that a client may set. The others are set by the broker, or have no meaning yet."""

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_CODEC_MAX = max(_CODECS.values())


class PartitionConfig(Protocol):
    """The topic settings that a partition needs. An instance does not change."""

    @property
    def cleanup_policy(self) -> frozenset[str]:
        """`compact`, `delete`, or both."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """The largest batch that is accepted."""
        ...

    @property
    def checked_values(self) -> tuple[str, str] | None:
        """Format and schema that values must have, or `None`."""
        ...

    @property
    def timestamp_type(self) -> str:
        """`CreateTime` if producers set timestamps, `LogAppendTime` if the broker does."""
        ...

    @property
    def timestamp_before_max_ms(self) -> int:
        """The greatest age of a record when it arrives."""
        ...

    @property
    def timestamp_after_max_ms(self) -> int:
        """How far in the future the timestamp of a record may be when it arrives."""
        ...

    @property
    def compression_type(self) -> str:
        """The codec of all batches, or `producer` for the codec that each came with."""
        ...

    def log_config(self) -> LogConfig:
        """Return the settings of the log."""
        ...

    def lake_position(self, partition: int) -> int | None:
        """Return the first offset that the lake needs; `None` if retention does not wait."""
        ...


class InvalidBatchRecord(InvalidRecord):
    """A compacted topic does not accept a batch because some of its records have no key."""

    def __init__(self, record_indexes: Sequence[int]) -> None:
        first, *others = record_indexes
        message = self.reason(first)
        if others:
            more = ", ..." if len(others) > _OTHERS_SHOWN else ""
            message += f"; nor have records {', '.join(map(str, others[:_OTHERS_SHOWN]))}{more}"
        super().__init__(message)
        self.record_indexes = tuple(record_indexes)
        """Indexes of the records in the batch, from 0; at most the first `KEYLESS_MAX`."""

    @property
    def record_index(self) -> int:
        """Index of the first of the records."""
        return self.record_indexes[0]

    def reason(self, index: int) -> str:
        """Return why the record at `index` is rejected."""
        return f"record {index} has no key, which a compacted topic requires"

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidBatchRecord, (self.record_indexes,)


class InvalidBatchValues(BadRecord, InvalidBatchRecord):
    """A topic does not accept a batch because some of its values do not fit the schema."""

    def __init__(self, faults: Sequence[tuple[int, str]]) -> None:
        self._reasons = dict(faults)
        first, *others = self._reasons
        message = self.reason(first)
        if others:
            more = ", ..." if len(others) > _OTHERS_SHOWN else ""
            message += f"; nor do records {', '.join(map(str, others[:_OTHERS_SHOWN]))}{more}"
        InvalidRecord.__init__(self, message)
        self.record_indexes = tuple(self._reasons)

    @property
    def faults(self) -> Sequence[ValueFault]:
        """The records, in their order."""
        return tuple(ValueFault(index, reason) for index, reason in self._reasons.items())

    def reason(self, index: int) -> str:
        """Return why the record at `index` is rejected."""
        return f"record {index} does not fit the topic's schema: {self._reasons[index]}"

    def __reduce__(self) -> tuple[Any, ...]:
        return InvalidBatchValues, (self.faults,)


class BatchValidator:
    """Applies the settings of one topic to every batch."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_codec",
        "_is_compacted",
        "_is_queue",
        "_size_max",
        "_value_check",
        "decompressed_max",
        "is_append_time",
        "is_header_enough",
    )

    def __init__(
        self,
        config: PartitionConfig,
        *,
        is_queue: bool = False,
        value_check: ValueCheck | None = None,
    ) -> None:
        self._size_max = config.message_bytes_max
        self.decompressed_max = min(BODY_SIZE_MAX, DECOMPRESSION_RATIO_MAX * self._size_max)
        """The greatest decompressed size of a batch."""
        self._before_ms = config.timestamp_before_max_ms
        self._after_ms = config.timestamp_after_max_ms
        self._is_compacted = "compact" in config.cleanup_policy
        self._is_queue = is_queue
        self._value_check = value_check
        self._codec = _CODECS.get(config.compression_type)
        self.is_append_time = config.timestamp_type == "LogAppendTime"
        """Whether the broker sets the timestamps of records."""
        self.is_header_enough = (
            not self.is_append_time
            and not self._is_compacted
            and not self._is_queue
            and self._value_check is None
            and self._codec is None
        )
        """Whether a batch that passed `check` is stored as it is."""

    def check(self, batch: Bytes, now_ms: int) -> BatchHeader:
        """Return the header of a batch, or raise if the header or the checksum is invalid.

        Every batch passes here, so all conditions are tested in one go; helpers choose the error.
        """
        size = len(batch)
        if size > self._size_max:
            raise BatchTooLarge(f"batch has {size} bytes, limit is {self._size_max}")
        if size < HEADER_SIZE:
            raise InvalidBatch(f"batch must have at least {HEADER_SIZE} bytes, got {size}")
        fields = unpack_header(batch)
        base_offset, length, _, magic, crc, attributes, delta, base_ms, max_ms = fields[:9]
        producer_id, producer_epoch, base_sequence, count = fields[9:]
        if magic != MAGIC:
            raise _format_error(magic)
        if length + LENGTH_END != size:
            raise InvalidBatch(
                f"batch header gives a size of {length + LENGTH_END} bytes, got {size}"
            )
        if (computed := crc32c(memoryview(batch)[CRC_END:])) != crc:
            raise InvalidBatch(f"batch has checksum {computed:08x}, its header says {crc:08x}")
        # Offsets are assigned by the record count in the header, so it must be plausible.
        codec = attributes & CODEC_MASK
        body_size_max = BODY_SIZE_MAX if codec else size - HEADER_SIZE
        is_implausible = count < 1 or count * RECORD_SIZE_MIN > body_size_max
        if base_offset or count != delta + 1 or is_implausible:
            raise _offsets_error(base_offset, count, delta + 1, body_size_max)
        if attributes & ~_CLIENT_BITS or codec > _CODEC_MAX:
            raise _attributes_error(attributes)
        # No reader would decompress more; most clients declare the size.
        if codec and (declared_size(codec, memoryview(batch)[HEADER_SIZE:]) or 0) > BODY_SIZE_MAX:
            raise BatchTooLarge(
                f"records of a batch must have at most {BODY_SIZE_MAX} bytes without compression,"
                f" got {declared_size(codec, memoryview(batch)[HEADER_SIZE:])}"
            )
        if (
            attributes & TRANSACTIONAL_BIT
            if producer_id == NO_PRODUCER_ID
            else producer_id < 0 or producer_epoch < 0 or base_sequence < 0
        ):
            raise _producer_error(producer_id, producer_epoch, base_sequence)
        if not self.is_append_time:
            self._check_timestamp(max_ms, now_ms)
            if base_ms != max_ms:
                self._check_timestamp(base_ms, now_ms)
        return BatchHeader._make(fields)

    def must_inspect(self, header: BatchHeader, *, is_built: bool = False) -> bool:
        """Return whether the records themselves have to be inspected.

        With `is_built`, this node built the batch, so that they can be decoded.
        """
        return (
            self._is_compacted
            or self._value_check is not None
            or (self._is_queue and not is_built)
            or (self._codec is not None and header.attributes & CODEC_MASK != self._codec)
        )

    @property
    def may_inspect_inline(self) -> bool:
        """Whether small batches may be inspected on the event loop."""
        return self._value_check is None or self._value_check.is_fast

    def inspect(
        self, header: BatchHeader, batch: Bytes, *, size_max: int = BODY_SIZE_MAX
    ) -> tuple[BatchHeader, Bytes]:
        """Inspect the records; return the batch as it is to be stored. This may take a while.

        Raises `OversizedBody` if the records take more than `size_max` bytes, and may take more.
        """
        limit = min(size_max, self.decompressed_max)
        try:
            if self._is_compacted:
                _check_keys(batch, limit)
            elif self._value_check is None:
                check_records(batch, size_max=limit)
            if self._value_check is not None:
                _check_values(self._value_check, batch, limit)
            if self._codec is not None and header.codec != self._codec:
                batch = recompress(header, batch, self._codec, size_max=limit)
                header = decode_header(batch)
        except OversizedBody as error:
            if size_max < self.decompressed_max:
                raise
            raise BatchTooLarge(str(error)) from error
        except CorruptBatch as error:
            # Not `InvalidBatch`, upon which Kafka's clients try again: the checksum is correct.
            raise InvalidRecord(f"cannot read the records: {error}") from error
        if len(batch) > self._size_max:
            raise BatchTooLarge(
                f"batch has {len(batch)} bytes once recompressed, limit is {self._size_max}"
            )
        return header, batch

    def _check_timestamp(self, timestamp_ms: int, now_ms: int) -> None:
        if timestamp_ms == NO_TIMESTAMP:
            return
        if timestamp_ms < NO_TIMESTAMP:
            rule = "it must not be negative"
        elif now_ms - timestamp_ms > self._before_ms:
            rule = f"it must not be more than {self._before_ms} ms in the past"
        elif timestamp_ms - now_ms > self._after_ms:
            rule = f"it must not be more than {self._after_ms} ms in the future"
        else:
            return
        raise InvalidTimestamp(f"timestamp is {timestamp_ms} and now is {now_ms}: {rule}")


def _check_keys(batch: Bytes, size_max: int) -> None:
    if indexes := keyless_records(batch, size_max=size_max):
        raise InvalidBatchRecord(indexes)


def _check_values(check: ValueCheck, batch: Bytes, size_max: int) -> None:
    if faults := check.faults(batch, size_max=size_max, limit=FAULTS_MAX):
        raise InvalidBatchValues(faults)


def _format_error(magic: int) -> RequestError:
    if magic in (0, 1):
        return InvalidRecord(
            f"batch format must be {MAGIC}, got {magic}, which Kafka 4 no longer supports"
        )
    return InvalidBatch(f"batch format must be {MAGIC}, got {magic}")


def _offsets_error(base_offset: int, count: int, offsets: int, body_size_max: int) -> RequestError:
    if base_offset:
        return InvalidRecord(f"base offset must be 0, got {base_offset}")
    if count < 1:
        return InvalidRecord(f"batch must have at least 1 record, its header says {count}")
    if count != offsets:
        return InvalidRecord(
            f"batch has {count} records and {offsets} offsets: one each is required"
        )
    return InvalidRecord(f"{count} records do not fit in {body_size_max} bytes")


def _attributes_error(attributes: int) -> RequestError:
    if attributes & CONTROL_BIT:
        return InvalidRecord("control batches are written by the broker only")
    if attributes & TIMESTAMP_TYPE_BIT:
        return InvalidTimestamp("log append time is set by the broker only")
    if attributes & ~_CLIENT_BITS:
        return InvalidRecord(
            f"batch attributes are {attributes:#06x}, allowed bits are {_CLIENT_BITS:#04x}"
        )
    return InvalidBatch(f"codec must be between 0 and {_CODEC_MAX}, got {attributes & CODEC_MASK}")


def _producer_error(producer_id: int, producer_epoch: int, base_sequence: int) -> RequestError:
    if producer_id == NO_PRODUCER_ID:
        return InvalidRecord("a transactional batch must have a producer id")
    return InvalidRecord(
        "producer id, epoch and sequence must be at least 0,"
        f" got {producer_id}, {producer_epoch} and {base_sequence}"
    )


def recompress(
    header: BatchHeader, batch: Bytes, codec: Codec, *, size_max: int = BODY_SIZE_MAX
) -> bytes:
    """Return the same batch with its records compressed by another codec."""
    body = open_body(header, batch, size_max=size_max)
    compressed = bytes(body) if codec == Codec.NONE else compress(codec, body)
    return seal(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), compressed)
