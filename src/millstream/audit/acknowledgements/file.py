"""`AcknowledgementFile`: what a client writes down of every record that was acknowledged to it.

    with AcknowledgementFile("acknowledged.jsonl") as acknowledged:
        producer.produce("orders", value, key=key, on_delivery=acknowledged.on_delivery)
        ...
        producer.flush()

`millstream verify --acknowledged acknowledged.jsonl` then looks for all of them. Write it where
the node does not write: what takes the node's disk should not take this with it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
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
)

BUFFER_SIZE_MAX = 64 * 1024
"""Bytes that are gathered before they are written: some hundreds of lines."""

_NO_TIMESTAMP_TYPE = 0  # Of librdkafka: there is none.

Headers = Mapping[str, Any] | Iterable[tuple[str, Any]]


class AcknowledgementFile:
    """A file of acknowledgements, made or gone on with. Any number of threads may share one.

    Lines are gathered, and written when there are enough of them, at `flush`, `sync` and `close`;
    what a killed client had not written yet is not looked for, and is no false alarm. `sync_every`
    so many lines they are synced too, which outlives a power cut of this machine; 0 leaves that to
    `sync` and `close`. `topic_ids` says which topics are meant by their names: a topic that is
    deleted and made anew has another id, and records of the first are then not missed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync_every: int = 0,
        topic_ids: Mapping[str, uuid.UUID | str] | None = None,
    ) -> None:
        if sync_every < 0:
            raise InvalidConfig(f"sync_every is {sync_every}, least is 0")
        self.path = os.fspath(path)
        self.count = 0
        """Acknowledgements that were noted."""
        self.unplaced = 0
        """Those of them that came without an offset, which cannot be looked for."""
        self._sync_every = sync_every
        self._unsynced = 0
        self._topic_ids = {name: _topic_id(one) for name, one in (topic_ids or {}).items()}
        self._waiting = bytearray()
        self._guard = threading.Lock()
        self._failed: StorageFailed | None = None
        self._file: int | None = _open(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Noting.

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
        """Note a record that was acknowledged. Leave out `headers` where they are not known."""
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
        """Note a message of confluent-kafka, as its `on_delivery`.

        What was not delivered is left out. librdkafka does not say here which headers a message
        had; `on_delivery_of` has them looked at too.
        """
        if error is None:
            self.write(self._delivered(message, None))

    def on_delivery_of(self, headers: Headers) -> Callable[[object, Any], None]:
        """Return an `on_delivery` for one message, that was sent with these headers."""
        found = _headers(headers)

        def on_delivery(error: object, message: Any) -> None:
            if error is None:
                self.write(self._delivered(message, found))

        return on_delivery

    def on_send(
        self, value: bytes | None, *, key: bytes | None = None, headers: Headers = ()
    ) -> Callable[[Any], None]:
        """Return a callback for kafka-python and aiokafka: what `send` promised has come true.

        They say where a record went and not what it was; so what was sent is given here, as bytes.
        """
        found = _headers(headers)

        def on_send(sent: Any) -> None:
            time_ms = sent.timestamp if sent.timestamp is not None and sent.timestamp >= 0 else None
            self.note(
                sent.topic,
                sent.partition,
                sent.offset,
                value=value,
                key=key,
                headers=found,
                timestamp_ms=time_ms,
            )

        return on_send

    def transaction(self) -> AcknowledgedTransaction:
        """Return what notes the records of one transaction once that was committed."""
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
        """Return what is remembered of a record."""
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
        """Write down some acknowledgements; raises `StorageFailed` where that is not possible.

        What raised was not taken in, and may be written down again; after a failed sync nothing
        is taken in any more.
        """
        lines = [encode_line(one) for one in acknowledgements]
        with self._guard:
            self._check()
            for one, line in zip(acknowledgements, lines, strict=True):
                if len(self._waiting) + len(line) > BUFFER_SIZE_MAX:
                    self._flush()
                self._waiting += line
                self.count += 1
                self.unplaced += one.offset == NO_OFFSET
                self._unsynced += 1
            if self._sync_every and self._unsynced >= self._sync_every:
                self._sync()

    def flush(self) -> None:
        """Write what was gathered: it outlives this process."""
        with self._guard:
            self._check()
            self._flush()

    def sync(self) -> None:
        """Write what was gathered, and have the disk keep it: it outlives a power cut."""
        with self._guard:
            self._check()
            self._sync()

    def close(self) -> None:
        """Sync, and let go of the file."""
        with self._guard:
            if self._file is None:
                return
            try:
                if self._failed is None:
                    self._sync()
            finally:
                os.close(self._file)
                self._file = None

    def _check(self) -> None:
        if self._file is None:
            raise LogClosed(f"{self.path} is closed")
        if self._failed is not None:
            raise self._failed

    def _flush(self) -> None:
        assert self._file is not None, "it was checked"
        while self._waiting:
            try:
                size = os.write(self._file, self._waiting)
            except OSError as error:
                raise StorageFailed(f"{self.path} cannot be written: {error}") from error
            del self._waiting[:size]

    def _sync(self) -> None:
        self._flush()
        assert self._file is not None, "it was checked"
        try:
            os.fsync(self._file)
        except OSError as error:
            self._failed = StorageFailed(f"{self.path} cannot be synced: {error}")
            raise self._failed from error
        self._unsynced = 0


class AcknowledgedTransaction:
    """The records of one transaction, noted once its commit was acknowledged.

    transaction = acknowledged.transaction()
    producer.begin_transaction()
    producer.produce("orders", value, on_delivery=transaction.on_delivery)
    producer.commit_transaction()
    transaction.committed()

    A record of a transaction is acknowledged before that is decided, and an aborted one is rightly
    not seen. What is never `committed` is forgotten. Holds about 200 bytes for each record.
    """

    def __init__(self, file: AcknowledgementFile) -> None:
        self._file = file
        self._held: list[Acknowledgement] = []

    def on_delivery(self, error: object, message: Any) -> None:
        """Hold a message of confluent-kafka, as its `on_delivery`."""
        if error is None:
            self.hold(self._file._delivered(message, None))  # noqa: SLF001 - its other half.

    def hold(self, acknowledgement: Acknowledgement) -> None:
        """Hold an acknowledgement until the transaction is decided."""
        self._held.append(acknowledgement)

    def committed(self) -> None:
        """Note all that is held: the commit was acknowledged."""
        held, self._held = self._held, []
        self._file.write(*(_committed(one) for one in held))


def _committed(one: Acknowledgement) -> Acknowledgement:
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    return Acknowledgement(**fields | {"is_committed": True})


def _headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name, one.encode() if isinstance(one, str) else one) for name, one in pairs]


def _topic_id(found: uuid.UUID | str) -> uuid.UUID:
    try:
        return found if isinstance(found, uuid.UUID) else uuid.UUID(found)
    except ValueError:
        raise InvalidConfig(f"topic id is {found!r}, needed is a UUID") from None


def _open(path: str) -> int:
    """Open a file to go on with; one that is new gets its first line, and its name is durable."""
    file: int | None = None
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        _resume(file, path)
    except BlockingIOError:
        reason: MillstreamError = StoreLocked(f"{path} is being written by someone else")
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
    whole = _whole_size(file, size)
    first = os.pread(file, LINE_SIZE_MAX, 0)
    if whole or not HEADER.startswith(first):
        check_header(first.partition(b"\n")[0])
    if whole < size:
        os.ftruncate(file, whole)  # A line that was never finished, and that nobody rests on.
    if not whole:
        os.write(file, HEADER)
        os.fsync(file)
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _whole_size(file: int, size: int) -> int:
    """Return how many bytes have whole lines; raises where what follows them is no line."""
    start = max(0, size - LINE_SIZE_MAX)
    tail = os.pread(file, size - start, start)
    end = tail.rfind(b"\n") + 1
    if not end and start:
        raise CorruptFile(f"the last line has more than {LINE_SIZE_MAX} bytes")
    return start + end
