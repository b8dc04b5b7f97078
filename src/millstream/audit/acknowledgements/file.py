"""`AcknowledgementFile`: a client's log of all records that were acknowledged to it.

    with AcknowledgementFile("acknowledged.jsonl") as acknowledged:
        producer.produce("orders", value, key=key, on_delivery=acknowledged.on_delivery)
        ...
        producer.flush()

`millstream verify --acknowledged acknowledged.jsonl` then looks for all of them. Write the file to
another disk than the node's: a failure of that disk should not take the file with it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from millstream.audit.acknowledgements.checksums import bytes_checksum, headers_checksum
from millstream.audit.acknowledgements.line import (
    HEADER,
    LINE_SIZE_MAX,
    NO_OFFSET,
    Acknowledgement,
    check_header,
    encode_line,
)
from millstream.errors import (
    CorruptFile,
    InvalidConfig,
    LogClosed,
    MillstreamError,
    StorageFailed,
    StoreLocked,
    again,
)

BUFFER_SIZE_MAX = 64 * 1024
"""Bytes that are buffered before they are written: some hundreds of lines."""

_NO_TIMESTAMP_TYPE = 0  # librdkafka: there is no timestamp.

Headers = Mapping[str, Any] | Iterable[tuple[str, Any]]


class AcknowledgementFile:
    """File of acknowledgements, created or continued. Thread-safe.

    Lines are buffered, and written when the buffer is full and at `flush`, `sync` and `close`.
    Records whose lines were lost with a killed client are not looked for, so they cause no false
    alarm. With `sync_every`, the file is also synced after that many lines, which survives a power
    cut of this machine; 0 leaves that to `sync` and `close`. `topic_ids` gives the ids of topics: a
    topic that is deleted and created again has another id, and records of the first one are then
    not reported as lost.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync_every: int = 0,
        topic_ids: Mapping[str, uuid.UUID | str] | None = None,
    ) -> None:
        if sync_every < 0:
            raise InvalidConfig(f"sync_every must be at least 0, got {sync_every}")
        self.path = os.fspath(path)
        self.count = 0
        """Number of acknowledgements recorded."""
        self.unplaced = 0
        """Acknowledgements without an offset, which cannot be looked for."""
        self._sync_every = sync_every
        self._unsynced = 0
        self._topic_ids = {
            name: _topic_id(topic_id) for name, topic_id in (topic_ids or {}).items()
        }
        self._buffer = bytearray()
        self._lock = threading.Lock()
        self._error: StorageFailed | None = None
        self._file: int | None = _open(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Recording.

    def note(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        topic_id: uuid.UUID | str | None = None,
    ) -> None:
        """Record an acknowledged record. Leave out `headers` if they are not known."""
        self.write(
            self.acknowledgement(
                topic,
                partition,
                offset,
                value=value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                topic_id=topic_id,
            )
        )

    def on_delivery(self, error: object, message: Any) -> None:
        """Record a message of confluent-kafka; pass it as `on_delivery`.

        Messages that were not delivered are skipped. librdkafka does not report the headers of a
        message here; use `on_delivery_of` to verify them too.
        """
        if error is None:
            self.write(self._delivered(message, None))

    def on_delivery_of(self, headers: Headers) -> Callable[[object, Any], None]:
        """Return an `on_delivery` callback for one message that was sent with these headers."""
        pairs = _headers(headers)

        def on_delivery(error: object, message: Any) -> None:
            if error is None:
                self.write(self._delivered(message, pairs))

        return on_delivery

    def on_send(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = ()
    ) -> Callable[[Any], None]:
        """Return a success callback for the result of `send` of kafka-python and aiokafka.

        These clients report where a record was stored but not its content, so that is given here,
        as bytes.
        """
        pairs = _headers(headers)

        def on_send(sent: Any) -> None:
            time_ms = sent.timestamp if sent.timestamp is not None and sent.timestamp >= 0 else None
            self.note(
                sent.topic,
                sent.partition,
                sent.offset,
                value=value,
                key=key,
                headers=pairs,
                timestamp_ms=time_ms,
            )

        return on_send

    def transaction(self) -> AcknowledgedTransaction:
        """Return a collector for the records of one transaction."""
        return AcknowledgedTransaction(self)

    def acknowledgement(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        topic_id: uuid.UUID | str | None = None,
    ) -> Acknowledgement:
        """Return the acknowledgement of a record, with checksums instead of its content."""
        known = self._topic_ids.get(topic) if topic_id is None else _topic_id(topic_id)
        return Acknowledgement(
            topic=topic,
            partition=partition,
            offset=max(offset, NO_OFFSET),
            key=bytes_checksum(key),
            value=bytes_checksum(value),
            headers=None if headers is None else headers_checksum(_headers(headers)),
            timestamp_ms=timestamp_ms,
            topic_id=known,
        )

    def _delivered(self, message: Any, headers: Headers | None) -> Acknowledgement:
        kind, time_ms = message.timestamp()
        offset = message.offset()
        return self.acknowledgement(
            message.topic(),
            message.partition(),
            NO_OFFSET if offset is None else offset,
            value=message.value(),
            key=message.key(),
            headers=headers,
            timestamp_ms=None if kind == _NO_TIMESTAMP_TYPE else time_ms,
        )

    # Writing.

    def write(self, *acknowledgements: Acknowledgement) -> None:
        """Write acknowledgements. Raises `StorageFailed` if that fails.

        Acknowledgements of a call that raised were not recorded, and may be written again; after a
        failed sync, nothing is accepted any more.
        """
        lines = [encode_line(acknowledgement) for acknowledgement in acknowledgements]
        with self._lock:
            self._check()
            for acknowledgement, line in zip(acknowledgements, lines, strict=True):
                if len(self._buffer) + len(line) > BUFFER_SIZE_MAX:
                    self._flush()
                self._buffer += line
                self.count += 1
                self.unplaced += acknowledgement.offset == NO_OFFSET
                self._unsynced += 1
            if self._sync_every and self._unsynced >= self._sync_every:
                self._sync()

    def flush(self) -> None:
        """Write the buffer to the file: it survives a crash of this process."""
        with self._lock:
            self._check()
            self._flush()

    def sync(self) -> None:
        """Write the buffer and sync the file: it survives a power cut."""
        with self._lock:
            self._check()
            self._sync()

    def close(self) -> None:
        """Sync and close the file."""
        with self._lock:
            if self._file is None:
                return
            try:
                if self._error is None:
                    self._sync()
            finally:
                os.close(self._file)
                self._file = None

    def _check(self) -> None:
        if self._file is None:
            raise LogClosed(f"{self.path} is closed")
        if self._error is not None:
            raise again(self._error)

    def _flush(self) -> None:
        assert self._file is not None, "it was checked"
        while self._buffer:
            try:
                size = os.write(self._file, self._buffer)
            except OSError as error:
                raise StorageFailed(f"{self.path} cannot be written: {error}") from error
            del self._buffer[:size]

    def _sync(self) -> None:
        self._flush()
        assert self._file is not None, "it was checked"
        try:
            os.fsync(self._file)
        except OSError as error:
            self._error = StorageFailed(f"{self.path} cannot be synced: {error}")
            raise self._error from error
        self._unsynced = 0


class AcknowledgedTransaction:
    """Records of one transaction, written once its commit is acknowledged.

    transaction = acknowledged.transaction()
    producer.begin_transaction()
    producer.produce("orders", value, on_delivery=transaction.on_delivery)
    producer.commit_transaction()
    transaction.committed()

    The records of a transaction are acknowledged before its outcome is decided, and readers do not
    see aborted ones. Without a call of `committed`, they are dropped. Needs about 200 bytes of
    memory per record.
    """

    def __init__(self, file: AcknowledgementFile) -> None:
        self._file = file
        self._pending: list[Acknowledgement] = []

    def on_delivery(self, error: object, message: Any) -> None:
        """Add a message of confluent-kafka; pass it as `on_delivery`."""
        if error is None:
            self.add(self._file._delivered(message, None))  # noqa: SLF001 - its other half.

    def add(self, acknowledgement: Acknowledgement) -> None:
        """Keep an acknowledgement until the transaction is decided."""
        self._pending.append(acknowledgement)

    def committed(self) -> None:
        """Write all acknowledgements: the commit was acknowledged."""
        pending, self._pending = self._pending, []
        self._file.write(*(_committed(acknowledgement) for acknowledgement in pending))


def _committed(acknowledgement: Acknowledgement) -> Acknowledgement:
    fields = {name: getattr(acknowledgement, name) for name in acknowledgement.__struct_fields__}
    return Acknowledgement(**fields | {"is_committed": True})


def _headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, value.encode() if isinstance(value, str) else value) for name, value in pairs]


def _topic_id(topic_id: uuid.UUID | str) -> uuid.UUID:
    try:
        return topic_id if isinstance(topic_id, uuid.UUID) else uuid.UUID(topic_id)
    except ValueError:
        raise InvalidConfig(f"topic id must be a UUID, got {topic_id!r}") from None


def _open(path: str) -> int:
    """Open a file for appending. A new file gets its header line, and its name is made durable."""
    file: int | None = None
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _resume(file, path)
    except BlockingIOError:
        reason: MillstreamError = StoreLocked(f"{path} is in use by another process")
    except OSError as error:
        reason = StorageFailed(f"{path} cannot be opened: {error}")
    except MillstreamError as error:
        reason = type(error)(f"{path}: {error}")
    else:
        return file
    if file is not None:
        os.close(file)
    raise reason


def _resume(file: int, path: str) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    size = os.fstat(file).st_size
    complete_size = _complete_size(file, size)
    first = os.pread(file, LINE_SIZE_MAX, 0)
    if complete_size or not HEADER.startswith(first):
        check_header(first.partition(b"\n")[0])
    if complete_size < size:
        os.ftruncate(file, complete_size)  # An unfinished line was never reported as written.
    if not complete_size:
        os.write(file, HEADER)
        os.fsync(file)
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _complete_size(file: int, size: int) -> int:
    """Return the size of all complete lines. Raises if the remainder is too long for a line."""
    start = max(0, size - LINE_SIZE_MAX)
    tail = os.pread(file, size - start, start)
    end = tail.rfind(b"\n") + 1
    if not end and start:
        raise CorruptFile(f"the last line is longer than {LINE_SIZE_MAX} bytes")
    return start + end
