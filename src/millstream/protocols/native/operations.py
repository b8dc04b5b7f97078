"""Operations of the native protocol and the bodies of their frames.

    operation ──► control frame with its code ──► body, of a fixed size or with a text at its end

Every operation of a client is declared here once: servers have a handler, a row of rights and a
counter for each. Numbers are little-endian.
"""

from __future__ import annotations

import enum
import struct
from typing import Any, Final, NamedTuple

import msgspec

from millstream.errors import MalformedRequest
from millstream.records.batch import Bytes

END: Final = 2**64 - 1
"""As the offset of a fetch or a subscription: the end of the topic."""

NAME_SIZE_MAX = 255
"""Bytes of the name of a topic."""

TOKEN_SIZE_MAX = 16 * 1024
"""Bytes of a token; JWTs may have some thousand."""


class NativeOperation(enum.IntEnum):
    """What clients ask for. The first two have no code: a flag of the frame names them."""

    INGEST = 0x100
    KEEPALIVE = 0x101
    CREATE_TOPIC = 0x01
    DELETE_TOPIC = 0x02
    LIST_TOPICS = 0x03
    GET_TOPIC = 0x04
    SET_RETENTION = 0x05
    CREATE_TOPIC_WITH_RETENTION = 0x06
    GET_CLUSTER_STATUS = 0x07
    AUTHENTICATE = 0x08
    FETCH = 0x10
    SUBSCRIBE = 0x20
    UNSUBSCRIBE = 0x21
    COMMIT_OFFSET = 0x22

    @property
    def label(self) -> str:
        """The name, as it is written: `CreateTopic`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class Reply(enum.IntEnum):
    """What a node answers. Answers without a code are ack, backpressure and keepalive frames."""

    AUTHENTICATE = 0x09
    FETCH = 0x11
    CATCHING_UP = 0x12
    SUBSCRIBE = 0x23
    COMMIT = 0x24
    TOPIC = 0x80
    CLUSTER_STATUS = 0x81
    ERROR = 0xFF


# Bodies of requests.


class Retention(NamedTuple):
    """How long and how much of a topic is kept; 0 is no limit."""

    max_age_secs: int
    max_bytes: int


class SetRetention(NamedTuple):
    topic_id: int
    max_age_secs: int
    max_bytes: int


class CreateTopic(NamedTuple):
    name: str
    retention: Retention | None = None


class Fetch(NamedTuple):
    topic_id: int
    start_offset: int
    max_bytes: int


class Subscribe(NamedTuple):
    topic_id: int
    start_offset: int
    max_batch_bytes: int
    consumer_id: int


class Unsubscribe(NamedTuple):
    topic_id: int
    consumer_id: int


class CommitOffset(NamedTuple):
    topic_id: int
    consumer_id: int
    offset: int


_TOPIC_ID = struct.Struct("<I")
_NAME_LENGTH = struct.Struct("<H")
_RETENTION = struct.Struct("<QQ")
_SET_RETENTION = struct.Struct("<IQQ")
_FETCH = struct.Struct("<IQI")
_SUBSCRIBE = struct.Struct("<IQIQ")
_UNSUBSCRIBE = struct.Struct("<IQ")
_COMMIT_OFFSET = struct.Struct("<IQQ")
_CONSUMER_OFFSET = struct.Struct("<QQ")
_FETCHED = struct.Struct("<QII")
_OFFSET = struct.Struct("<Q")


def _unpack(form: struct.Struct, body: Bytes, operation: NativeOperation) -> tuple[Any, ...]:
    if len(body) != form.size:
        raise MalformedRequest(
            f"body of {operation.label} must have {form.size} bytes, got {len(body)}"
        )
    return form.unpack(body)


def _text(data: Bytes, what: str, *, size_max: int) -> str:
    if not 1 <= len(data) <= size_max:
        raise MalformedRequest(f"{what} must have 1 to {size_max} bytes, got {len(data)}")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise MalformedRequest(f"{what} must be UTF-8: {error}") from None


def check_empty(body: Bytes, operation: NativeOperation) -> None:
    """Raise unless the body is empty."""
    if body:
        raise MalformedRequest(f"{operation.label} has no body, got {len(body)} bytes")


def read_topic_id(body: Bytes, operation: NativeOperation) -> int:
    """Read the body of an operation that names a topic and nothing else."""
    topic_id: int = _unpack(_TOPIC_ID, body, operation)[0]
    return topic_id


def read_create_topic(body: Bytes) -> CreateTopic:
    return CreateTopic(_text(body, "the name of a topic", size_max=NAME_SIZE_MAX))


def read_create_topic_with_retention(body: Bytes) -> CreateTopic:
    operation = NativeOperation.CREATE_TOPIC_WITH_RETENTION
    size_min = _NAME_LENGTH.size + _RETENTION.size
    length = _NAME_LENGTH.unpack_from(body)[0] if len(body) >= size_min else 0
    if len(body) != size_min + length:
        raise MalformedRequest(
            f"body of {operation.label} with a name of {length} bytes must have"
            f" {size_min + length} bytes, got {len(body)}"
        )
    end = _NAME_LENGTH.size + length
    name = _text(body[_NAME_LENGTH.size : end], "the name of a topic", size_max=NAME_SIZE_MAX)
    return CreateTopic(name, Retention(*_RETENTION.unpack_from(body, end)))


def read_set_retention(body: Bytes) -> SetRetention:
    return SetRetention(*_unpack(_SET_RETENTION, body, NativeOperation.SET_RETENTION))


def read_token(body: Bytes) -> str:
    return _text(body, "a token", size_max=TOKEN_SIZE_MAX)


def read_fetch(body: Bytes) -> Fetch:
    return Fetch(*_unpack(_FETCH, body, NativeOperation.FETCH))


def read_subscribe(body: Bytes) -> Subscribe:
    return Subscribe(*_unpack(_SUBSCRIBE, body, NativeOperation.SUBSCRIBE))


def read_unsubscribe(body: Bytes) -> Unsubscribe:
    return Unsubscribe(*_unpack(_UNSUBSCRIBE, body, NativeOperation.UNSUBSCRIBE))


def read_commit_offset(body: Bytes) -> CommitOffset:
    return CommitOffset(*_unpack(_COMMIT_OFFSET, body, NativeOperation.COMMIT_OFFSET))


def topic_id_body(topic_id: int) -> bytes:
    return _TOPIC_ID.pack(topic_id)


def create_topic_body(request: CreateTopic) -> bytes:
    """Return the body of CreateTopic, or of CreateTopicWithRetention if there is one."""
    name = request.name.encode()
    if request.retention is None:
        return name
    return _NAME_LENGTH.pack(len(name)) + name + _RETENTION.pack(*request.retention)


def set_retention_body(request: SetRetention) -> bytes:
    return _SET_RETENTION.pack(*request)


def fetch_body(request: Fetch) -> bytes:
    return _FETCH.pack(*request)


def subscribe_body(request: Subscribe) -> bytes:
    return _SUBSCRIBE.pack(*request)


def unsubscribe_body(request: Unsubscribe) -> bytes:
    return _UNSUBSCRIBE.pack(*request)


def commit_offset_body(request: CommitOffset) -> bytes:
    return _COMMIT_OFFSET.pack(*request)


# Bodies of answers.


class NativeTopic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topic, as JSON."""

    id: int
    name: str
    created_at: int
    """Seconds since 1970; 0 if it is not known."""
    retention: dict[str, int] | None = None


class TopicList(msgspec.Struct, frozen=True, kw_only=True):
    """All topics that the client may see, as JSON."""

    topics: list[NativeTopic]


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as the node sees it, as JSON."""

    node_id: int
    is_leader: bool
    leader_id: int | None
    current_term: int
    node_count: int
    healthy_nodes: int
    quorum_available: bool
    peer_states: dict[str, str]


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error, as JSON: a code for programs, a message for people, and what goes with it."""

    code: int
    message: str
    details: dict[str, Any]


class Fetched(NamedTuple):
    """The answer to a fetch, without its records."""

    next_offset: int
    size: int
    record_count: int


FETCHED_SIZE = _FETCHED.size


def fetched_body(fetched: Fetched) -> bytes:
    return _FETCHED.pack(*fetched)


def read_fetched(body: Bytes) -> tuple[Fetched, memoryview]:
    """Read the answer to a fetch: what it says, and the records."""
    if len(body) < _FETCHED.size:
        raise MalformedRequest(
            f"an answer to Fetch must have at least {_FETCHED.size} bytes, got {len(body)}"
        )
    fetched = Fetched(*_FETCHED.unpack_from(body))
    data = memoryview(body)[_FETCHED.size :]
    if len(data) != fetched.size:
        raise MalformedRequest(f"an answer to Fetch must have {fetched.size} bytes of records")
    return fetched, data


def offset_body(offset: int) -> bytes:
    """Return the body of CatchingUp: the newest offset of the node."""
    return _OFFSET.pack(offset)


def consumer_offset_body(consumer_id: int, offset: int) -> bytes:
    """Return the body of the answers to Subscribe and CommitOffset."""
    return _CONSUMER_OFFSET.pack(consumer_id, offset)


def login_body(message: str, *, is_success: bool) -> bytes:
    """Return the body of the answer to Authenticate."""
    return bytes([is_success]) + message.encode()
