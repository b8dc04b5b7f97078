"""Requests to etcd and its responses, as the JSON of its gateway.

Numbers of 64 bits are strings in JSON, bytes are base64, and fields that have their default are
left out. Pure functions and values.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from millstream.errors import MalformedAnswer
from millstream.http1.response_reader import SHOWN_MAX
from millstream.metadata.interface import (
    CompareCreated,
    Condition,
    MetadataChange,
    MetadataEntry,
)

T = TypeVar("T")

Message = Mapping[str, Any]


class ResponseHeader(Struct):
    """What every response begins with."""

    revision: int = 0
    """Revision of the store when the request was carried out."""


class KeyValue(Struct):
    """A key of etcd."""

    key: bytes
    value: bytes = b""
    create_revision: int = 0
    mod_revision: int = 0


class RangeResponse(Struct):
    """Keys of a range."""

    header: ResponseHeader
    kvs: list[KeyValue] = []
    more: bool = False


class TransactionResponse(Struct):
    """Whether the conditions of a transaction held."""

    header: ResponseHeader
    succeeded: bool = False


class GrantResponse(Struct, rename={"id": "ID", "ttl": "TTL"}):
    """A new lease."""

    id: int
    ttl: int


class KeepAlive(Struct, rename={"ttl": "TTL"}):
    """A lease that was renewed; without a TTL it is gone."""

    ttl: int = 0


class KeepAliveResponse(Struct):
    """The first message of the stream of renewals."""

    result: KeepAlive


class EmptyResponse(Struct):
    """A response without content."""


class AuthenticateResponse(Struct):
    """The token of a user."""

    token: str


class VersionResponse(Struct):
    """The version of a member."""

    etcdserver: str


class StatusResponse(Struct, rename={"db_size": "dbSize"}):
    """The state of a member."""

    header: ResponseHeader
    version: str = ""
    leader: int = 0
    db_size: int = 0
    errors: list[str] = []


class ErrorResponse(Struct):
    """A refusal. In a stream the code is called `grpc_code` by some versions."""

    message: str = ""
    code: int = 0
    grpc_code: int = 0

    @property
    def number(self) -> int:
        return self.code or self.grpc_code


class StreamErrorResponse(Struct):
    """A refusal of a stream, before its first message."""

    error: ErrorResponse


class WatchEvent(Struct):
    """A key that was put or deleted."""

    kv: KeyValue
    type: str = "PUT"


class WatchResult(Struct):
    """One message of a watch."""

    header: ResponseHeader
    created: bool = False
    canceled: bool = False
    compact_revision: int = 0
    cancel_reason: str = ""
    events: list[WatchEvent] = []


class WatchMessage(Struct):
    """One line of the stream of a watch."""

    result: WatchResult | None = None
    error: ErrorResponse | None = None


class _Decoders(dict[type, msgspec.json.Decoder[Any]]):
    """Decoders by type, created on first use. They take numbers as strings."""

    def __missing__(self, kind: type) -> msgspec.json.Decoder[Any]:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, strict=False)
        self[kind] = decoder
        return decoder


_DECODERS = _Decoders()


def decoded(body: bytes, kind: type[T]) -> T:
    """Decode a response. Raises `MalformedAnswer` if it is something else."""
    try:
        message: T = _DECODERS[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = body[:SHOWN_MAX]
        raise MalformedAnswer(f"response is {shown!r}: {str(error)[:SHOWN_MAX]}") from None
    return message


def error_of(body: bytes) -> ErrorResponse:
    """Decode a refusal, of a call or of a stream."""
    try:
        return decoded(body, StreamErrorResponse).error
    except MalformedAnswer:
        return decoded(body, ErrorResponse)


# Requests.


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def range_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with a prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def get_request(key: bytes) -> Message:
    return {"key": _text(key)}


def page_request(start: bytes, end: bytes, *, limit: int, revision: int = 0) -> Message:
    """Return the request for the first keys of a range, as it was at `revision`, or is now."""
    request = {"key": _text(start), "range_end": _text(end), "limit": str(limit)}
    return request | ({"revision": str(revision)} if revision else {})


def transaction_request(
    prefix: bytes,
    compares: Sequence[Condition],
    puts: Mapping[str, bytes],
    deletes: Collection[str],
    *,
    lease: int = 0,
    unbound: Collection[str] = (),
) -> Message:
    """Return a transaction. Its changes are sorted by key, and so are the events of it."""

    def key_of(key: str) -> str:
        return _text(prefix + key.encode())

    changes: list[Message] = []
    for key in sorted({*puts, *deletes}):
        if key in puts:
            put = {"key": key_of(key), "value": _text(puts[key])}
            is_bound = lease != 0 and key not in unbound
            changes.append({"requestPut": put | ({"lease": str(lease)} if is_bound else {})})
        else:
            changes.append({"requestDeleteRange": {"key": key_of(key)}})
    request: dict[str, Any] = {"success": changes}
    if not changes:
        # etcd takes a transaction without an operation for one that may read old state.
        read = [{"requestRange": {"key": _text(prefix), "count_only": True}}]
        request = {"success": read, "failure": read}
    return request | {"compare": [_compare(key_of(one.key), one) for one in compares]}


def _compare(key: str, condition: Condition) -> Message:
    if isinstance(condition, CompareCreated):
        target, field, number = "CREATE", "create_revision", condition.created
    else:
        target, field, number = "MOD", "mod_revision", condition.revision
    return {"key": key, "target": target, "result": "EQUAL", field: str(number)}


def watch_request(prefix: bytes, start_revision: int) -> Message:
    return {
        "create_request": {
            "key": _text(prefix),
            "range_end": _text(range_end(prefix)),
            "start_revision": str(start_revision),
        }
    }


# Responses.


def entries_of(response: RangeResponse, prefix: bytes) -> Iterator[MetadataEntry]:
    """Yield the entries of a range, with their keys as the interface has them."""
    for item in response.kvs:
        key = _key_of(item.key, prefix)
        yield MetadataEntry(key, item.value, item.mod_revision, item.create_revision)


def changes_of(result: WatchResult, prefix: bytes) -> Iterator[tuple[MetadataChange, int]]:
    """Yield the changes of a message, each with the revision at which its key was created."""
    for event in result.events:
        item = event.kv
        value = None if event.type == "DELETE" else item.value
        change = MetadataChange(_key_of(item.key, prefix), value, item.mod_revision)
        yield change, item.create_revision


def _key_of(key: bytes, prefix: bytes) -> str:
    if not key.startswith(prefix):
        raise MalformedAnswer(f"response has the key {key[:SHOWN_MAX]!r} outside of {prefix!r}")
    return key[len(prefix) :].decode("ascii", errors="replace")
