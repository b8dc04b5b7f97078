"""Conversion between request or response bodies and the records of a stream.

A JSON stream consists of messages: a body that is an array has one for each element, and reads
always return an array. A stream of another type consists of bytes, one record for each body.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException

from millstream.broker.streams.create_stream import is_json
from millstream.errors import MalformedRequest
from millstream.protocols.http.mismatch import describe_syntax
from millstream.protocols.http.strict_json import check
from millstream.protocols.http.values import base64_json
from millstream.records.record import StoredRecord
from millstream.servers.http.routing.bodies import in_thread_if

MESSAGES_MAX = 100_000
"""Messages of one body: they are one batch, which is written all or none."""

INLINE_BYTES_MAX = 64 * 1024
"""Bodies up to this size are parsed on the event loop; larger ones in a thread."""

_split_array = msgspec.json.Decoder(list[msgspec.Raw]).decode
_check_json = msgspec.json.Decoder().decode


async def values_of(content_type: str, body: bytes) -> list[bytes]:
    """Return the record values of a body; raises if it is not valid."""
    if not is_json(content_type):
        return [body] if body else []
    return await in_thread_if(len(body) > INLINE_BYTES_MAX, lambda: json_messages(body))


def json_messages(body: bytes) -> list[bytes]:
    """Return the messages in a JSON body, each as it was written."""
    if not body:
        return []
    decoded = check(body)
    if not isinstance(decoded, list):
        return [body.strip()]
    if len(decoded) > MESSAGES_MAX:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"body must have at most {MESSAGES_MAX} messages, got {len(decoded)}",
        )
    try:
        return [bytes(message).strip() for message in _split_array(body)]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRequest(f"body is not JSON in UTF-8: {describe_syntax(error)}") from None


def body_of(content_type: str, records: Sequence[StoredRecord]) -> bytes:
    """Return the response body for some records."""
    if is_json(content_type):
        return b"[" + b",".join(message_json(record.value) for record in records) + b"]"
    return b"".join(record.value or b"" for record in records)


def message_json(value: bytes | None) -> bytes:
    """Return a message; a value that a Kafka client wrote and that is not JSON, in base64."""
    if value is None:
        return b"null"
    try:
        _check_json(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return base64_json(value)
    return value
