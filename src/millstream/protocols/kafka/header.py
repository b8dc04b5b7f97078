"""Headers of requests and responses.

    request:   int16 key, int16 version, int32 correlation id, nullable string client id
    response:  int32 correlation id

The header of a flexible version ends with tagged fields, though the client id stays a classic
string. The response to ApiVersions never has them: its client does not know the supported versions
yet.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.apis import API_VERSIONS_KEY, APIS
from millstream.protocols.kafka.codec import malformed as refusal

_IDENTITY = struct.Struct(">hhi")
_CLIENT_ID_SIZE = struct.Struct(">h")
_CLASSIC = struct.Struct(">i")
_FLEXIBLE = struct.Struct(">ix")
_CLIENT_ID_START = _IDENTITY.size + _CLIENT_ID_SIZE.size

_versions = {key: api.versions for key, api in APIS.items()}


class RequestHeader(NamedTuple):
    """Header of a request."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(frame: memoryview) -> tuple[RequestHeader, memoryview]:
    """Decode the header at the start of `frame`; return it and the body.

    If the API or its version is not supported, the layout after the correlation id is unknown: then
    the client id is null, and the body is the remainder. That is enough for the caller to answer an
    ApiVersions request, or to name the request in the log before it closes the connection.
    """
    end = len(frame)
    if end < _IDENTITY.size:
        raise MalformedRequest(f"request has {end} bytes, its header at least {_IDENTITY.size}")
    api_key, api_version, correlation_id = _IDENTITY.unpack_from(frame)
    versions = _versions.get(api_key)
    if versions is None or not versions.first <= api_version <= versions.last:
        header = RequestHeader(api_key, api_version, correlation_id, None)
        return header, frame[_IDENTITY.size :]
    try:
        (size,) = _CLIENT_ID_SIZE.unpack_from(frame, _IDENTITY.size)
        client_id, position = _read_client_id(frame, size)
        if api_version >= versions.flexible:
            if frame[position]:
                position, _ = refusal.skip_tags(frame, position, refusal.ITEM_COUNT_MAX)
            else:
                position += 1
    except (IndexError, struct.error):
        raise refusal.truncated_message("request header", _IDENTITY.size, end) from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), frame[position:]


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    versions = _versions.get(api_key)
    is_flexible = versions is not None and api_version >= versions.flexible
    if is_flexible and api_key != API_VERSIONS_KEY:
        return _FLEXIBLE.pack(correlation_id)
    return _CLASSIC.pack(correlation_id)


def _read_client_id(frame: memoryview, size: int) -> tuple[str | None, int]:
    start = _CLIENT_ID_START
    if size == -1:
        return None, start
    left = len(frame) - start
    if not 0 <= size <= left:
        raise refusal.bad_size("client id", size, left)
    try:
        return str(frame[start : start + size], "utf-8"), start + size
    except UnicodeDecodeError as error:
        raise refusal.invalid_utf8("request header", start, error) from None
