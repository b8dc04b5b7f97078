"""What a client's batch has to be before anything of it is written.

The order of the checks and their errors are Kafka's. All of them look at the header and the
checksum; records are opened only where the topic asks for it: on a compacted topic every record
needs a key, and a topic with a codec of its own stores nothing else.
"""

from __future__ import annotations

from typing import Any, Protocol

from crc32c import crc32c

from millstream.config.schema import LogConfig
from millstream.errors import (
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
from millstream.records.compression import BODY_SIZE_MAX, Codec, OversizedBody, compress
from millstream.records.filter.keys.keyless import first_keyless

DECOMPRESSION_RATIO_MAX = 64
"""A batch may unpack to so many times the largest batch of its topic. Text shrinks to a tenth, the
dullest of it to a fiftieth; a bomb to a thousandth."""

_CLIENT_BITS = CODEC_MASK | TRANSACTIONAL_BIT
"""What a client may set. The rest is the broker's, or has no meaning yet."""

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
_CODEC_MAX = max(_CODECS.values())


class PartitionConfig(Protocol):
    """What a partition has to know of its topic's settings; they do not change in place."""

    @property
    def cleanup_policy(self) -> frozenset[str]:
        """`compact`, `delete`, or both."""
        ...

    @property
    def message_bytes_max(self) -> int:
        """Larger batches are refused."""
        ...

    @property
    def timestamp_type(self) -> str:
        """Who dates records: `CreateTime` the producer, `LogAppendTime` the broker."""
        ...

    @property
    def timestamp_before_max_ms(self) -> int:
        """How old a record may be when it comes."""
        ...

    @property
    def timestamp_after_max_ms(self) -> int:
        """How far in the future a record may be when it comes."""
        ...

    @property
    def compression_type(self) -> str:
        """The codec of all batches, or `producer`: whatever they come with."""
        ...

    def log_config(self) -> LogConfig:
        """Return the settings of the logs."""
        ...


class InvalidBatchRecord(InvalidRecord):
    """One record of a batch is why the topic does not take it."""

    def __init__(self, message: str, *, record_index: int) -> None:
        super().__init__(message)
        self.record_index = record_index
        """Which record of the batch, from 0."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _invalid_batch_record, (str(self), self.record_index)


def _invalid_batch_record(message: str, record_index: int) -> InvalidBatchRecord:
    """Make the error anew in the process that it was sent to."""
    return InvalidBatchRecord(message, record_index=record_index)


class BatchValidator:
    """What one topic asks of every batch."""

    __slots__ = (
        "_after_ms",
        "_before_ms",
        "_codec",
        "_is_compacted",
        "_size_max",
        "_unpacked_max",
        "is_append_time",
        "is_header_enough",
    )

    def __init__(self, config: PartitionConfig) -> None:
        self._size_max = config.message_bytes_max
        self._unpacked_max = min(BODY_SIZE_MAX, DECOMPRESSION_RATIO_MAX * self._size_max)
        self._before_ms = config.timestamp_before_max_ms
        self._after_ms = config.timestamp_after_max_ms
        self._is_compacted = "compact" in config.cleanup_policy
        self._codec = _CODECS.get(config.compression_type)
        self.is_append_time = config.timestamp_type == "LogAppendTime"
        """Whether the broker sets the timestamps of records."""
        self.is_header_enough = (
            not self.is_append_time and not self._is_compacted and self._codec is None
        )
        """Whether a batch that passed `check` is stored as it is."""

    def check(self, batch: Bytes, now_ms: int) -> BatchHeader:
        """Return the header of a batch that may be appended, as far as that shows; else raise.

        Every batch passes here, so it asks in one go, and leaves it to others to say why not.
        """
        size = len(batch)
        if size > self._size_max:
            raise BatchTooLarge(f"batch has {size} bytes, limit is {self._size_max}")
        if size < HEADER_SIZE:
            raise InvalidBatch(f"batch needs {HEADER_SIZE} bytes at least, found {size}")
        fields = unpack_header(batch)
        base_offset, length, _, magic, crc, attributes, delta, base_ms, max_ms = fields[:9]
        producer_id, producer_epoch, base_sequence, count = fields[9:]
        if magic != MAGIC:
            raise _format_error(magic)
        if length + LENGTH_END != size:
            raise InvalidBatch(f"batch claims {length + LENGTH_END} bytes, found {size}")
        if (found := crc32c(memoryview(batch)[CRC_END:])) != crc:
            raise InvalidBatch(f"batch sums to {found:08x}, header says {crc:08x}")
        # Offsets are given by what a batch claims, so it may claim no more than it can hold.
        codec = attributes & CODEC_MASK
        room = BODY_SIZE_MAX if codec else size - HEADER_SIZE
        if base_offset or count < 1 or count != delta + 1 or count * RECORD_SIZE_MIN > room:
            raise _offsets_error(base_offset, count, delta + 1, room)
        if attributes & ~_CLIENT_BITS or codec > _CODEC_MAX:
            raise _attributes_error(attributes)
        if producer_id == NO_PRODUCER_ID:
            is_sound = not attributes & TRANSACTIONAL_BIT
        else:
            is_sound = producer_id >= 0 and producer_epoch >= 0 and base_sequence >= 0
        if not is_sound:
            raise _producer_error(producer_id, producer_epoch, base_sequence)
        if not self.is_append_time:
            self._check_timestamp(max_ms, now_ms)
            if base_ms != max_ms:
                self._check_timestamp(base_ms, now_ms)
        return BatchHeader._make(fields)

    def has_work(self, header: BatchHeader) -> bool:
        """Whether the records themselves have to be looked at."""
        return self._is_compacted or (
            self._codec is not None and header.attributes & CODEC_MASK != self._codec
        )

    def work(self, header: BatchHeader, batch: Bytes) -> tuple[BatchHeader, Bytes]:
        """Look at the records; return the batch as it is to be stored. May take a while."""
        try:
            if self._is_compacted:
                self._check_keys(batch)
            if self._codec is not None and header.codec != self._codec:
                batch = recompress(header, batch, self._codec, size_max=self._unpacked_max)
                header = decode_header(batch)
        except OversizedBody as error:
            raise BatchTooLarge(str(error)) from error
        except CorruptBatch as error:
            raise InvalidBatch(f"records cannot be read: {error}") from error
        if len(batch) > self._size_max:
            raise BatchTooLarge(
                f"batch has {len(batch)} bytes as the topic stores it, limit is {self._size_max}"
            )
        return header, batch

    def _check_timestamp(self, timestamp_ms: int, now_ms: int) -> None:
        if timestamp_ms == NO_TIMESTAMP:
            return
        if timestamp_ms < NO_TIMESTAMP:
            allowed = "not before 1970"
        elif now_ms - timestamp_ms > self._before_ms:
            allowed = f"no older than {self._before_ms} ms"
        elif timestamp_ms - now_ms > self._after_ms:
            allowed = f"no more than {self._after_ms} ms ahead"
        else:
            return
        raise InvalidTimestamp(
            f"timestamp is {timestamp_ms}, now is {now_ms}: allowed is {allowed}"
        )

    def _check_keys(self, batch: Bytes) -> None:
        if (index := first_keyless(batch, size_max=self._unpacked_max)) is not None:
            raise InvalidBatchRecord(
                f"record {index} has no key, which a compacted topic needs", record_index=index
            )


def _format_error(magic: int) -> RequestError:
    if magic in (0, 1):
        return InvalidRecord(f"batch format is {magic}, which ended with Kafka 3: expected {MAGIC}")
    return InvalidBatch(f"batch format is {magic}, expected {MAGIC}")


def _offsets_error(base_offset: int, count: int, offsets: int, room: int) -> RequestError:
    if base_offset:
        return InvalidRecord(f"batch has base offset {base_offset}, expected 0")
    if count < 1:
        return InvalidRecord(f"batch claims {count} records, needs at least 1")
    if count != offsets:
        return InvalidRecord(
            f"batch holds {count} records in {offsets} offsets: it must leave none out"
        )
    return InvalidRecord(f"batch claims {count} records in {room} bytes")


def _attributes_error(attributes: int) -> RequestError:
    if attributes & CONTROL_BIT:
        return InvalidRecord("batch is a control batch, which only the broker writes")
    if attributes & TIMESTAMP_TYPE_BIT:
        return InvalidTimestamp("batch claims log-append time, which only the broker gives")
    if attributes & ~_CLIENT_BITS:
        return InvalidRecord(
            f"batch has attributes {attributes:#06x}, allowed are {_CLIENT_BITS:#04x}"
        )
    return InvalidBatch(f"codec is {attributes & CODEC_MASK}, known are 0-{_CODEC_MAX}")


def _producer_error(producer_id: int, producer_epoch: int, base_sequence: int) -> RequestError:
    if producer_id == NO_PRODUCER_ID:
        return InvalidRecord("batch is transactional and has no producer id")
    return InvalidRecord(
        f"batch has producer id {producer_id}, epoch {producer_epoch} and"
        f" sequence {base_sequence}: all must be 0 or more"
    )


def recompress(
    header: BatchHeader, batch: Bytes, codec: Codec, *, size_max: int = BODY_SIZE_MAX
) -> bytes:
    """Return the same batch with its records packed by another codec."""
    body = open_body(header, batch, size_max=size_max)
    packed = bytes(body) if codec == Codec.NONE else compress(codec, body)
    return seal(header._replace(attributes=header.attributes & ~CODEC_MASK | codec), packed)
