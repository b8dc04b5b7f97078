"""Operations of streams."""

from __future__ import annotations

from http import HTTPStatus

from millstream.broker.access.resources import Operation, ResourceType
from millstream.broker.quotas import QuotaKind
from millstream.broker.streams.paths import PATH_SIZE_MAX
from millstream.servers.http.routing.operation_access import (
    OPEN,
    AccessNeed,
    OperationAccess,
    checked,
)
from millstream.servers.http.routing.operations import HttpOperation, Media, Parameter
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.streams.handlers import (
    append_to_stream,
    create_stream,
    delete_stream,
    describe_stream,
    describe_streams,
    read_stream,
)
from millstream.servers.http.streams.positions import OFFSET_PATTERN
from millstream.servers.http.streams.requests import TEXT_SIZE_MAX, ReadQuery, stream_topic_of
from millstream.servers.http.streams.responses import with_stream_headers


def stream_access(operation: Operation) -> OperationAccess:
    """Return the need of a right to the topic of the stream in the path."""
    return OperationAccess((AccessNeed(operation, ResourceType.TOPIC, name_of=stream_topic_of),))


PATH = "/v1/streams/{path:path}"

_TEXT = {"type": "string"}
_PATH = {"type": "string", "minLength": 1, "maxLength": PATH_SIZE_MAX}
_KEPT = {"type": "string", "minLength": 1, "maxLength": TEXT_SIZE_MAX}
_NUMBER = {"type": "string", "pattern": "^(0|[1-9][0-9]{0,14})$"}
_DATE = {"type": "string", "format": "date-time"}
_OFFSET = {"type": "string", "pattern": OFFSET_PATTERN}
_BODY = Media("*/*", "Bytes of the stream's type; for JSON, one message or an array of messages")
_CONTENT = Media("*/*", "Bytes of the stream's type; for JSON, an array of messages", '[{"n": 1}]')

_TAIL = (
    Parameter("Stream-Next-Offset", "Offset to continue from", _TEXT),
    Parameter("Stream-Closed", "`true` if the stream ends here", _TEXT),
)
_CREATE = (
    Parameter("Content-Type", "Type of the stream's content", _TEXT),
    Parameter("Stream-TTL", "Seconds without use after which the stream expires", _NUMBER),
    Parameter("Stream-Expires-At", "Time at which the stream expires, by RFC 3339", _DATE),
    Parameter("Stream-Closed", "`true` to create a closed stream", _TEXT),
    Parameter("Stream-Forked-From", "Path of the stream to fork", _PATH),
    Parameter("Stream-Fork-Offset", "End of the inherited part", _OFFSET),
    Parameter("Stream-Fork-Sub-Offset", "Messages or bytes that are inherited beyond it", _NUMBER),
)
_APPEND = (
    Parameter("Content-Type", "Must be that of the stream", _TEXT),
    Parameter("Stream-Seq", "Must be greater than that of the previous append", _KEPT),
    Parameter("Stream-Closed", "`true` to close the stream with this append", _TEXT),
    Parameter("Producer-Id", "Id of the producer", _KEPT),
    Parameter("Producer-Epoch", "Epoch of the producer", _NUMBER),
    Parameter("Producer-Seq", "Number of the append within the epoch, from 0", _NUMBER),
)


def _no_event(_: HttpRequest) -> bytes:
    """Return nothing: clients of streams continue where the connection ended."""
    return b""


OPERATIONS = (
    HttpOperation(
        "PUT",
        PATH,
        with_stream_headers(create_stream),
        "Create a stream",
        {HTTPStatus.CREATED: None, HTTPStatus.OK: None},
        body=_BODY,
        is_body_optional=True,
        errors=(HTTPStatus.CONFLICT, HTTPStatus.GONE, HTTPStatus.INSUFFICIENT_STORAGE),
        headers=_CREATE,
        uses=(QuotaKind.PRODUCE, QuotaKind.MUTATION),
        answer_headers=_TAIL,
        tag="streams",
        is_forwarded=True,
        access=checked(
            "CREATE on the topic or cluster; WRITE, if it exists; READ on what is forked"
        ),
    ),
    HttpOperation(
        "POST",
        PATH,
        with_stream_headers(append_to_stream),
        "Append to a stream, or close it",
        {HTTPStatus.OK: None, HTTPStatus.NO_CONTENT: None},
        body=_BODY,
        is_body_optional=True,
        errors=(
            HTTPStatus.FORBIDDEN,
            HTTPStatus.CONFLICT,
            HTTPStatus.GONE,
            HTTPStatus.INSUFFICIENT_STORAGE,
        ),
        headers=_APPEND,
        uses=(QuotaKind.PRODUCE,),
        answer_headers=_TAIL,
        tag="streams",
        is_forwarded=True,
        access=stream_access(Operation.WRITE),
    ),
    HttpOperation(
        "GET",
        PATH,
        with_stream_headers(read_stream),
        "Read a stream",
        {HTTPStatus.OK: _CONTENT, HTTPStatus.NO_CONTENT: None, HTTPStatus.NOT_MODIFIED: None},
        query=ReadQuery,
        errors=(HTTPStatus.GONE,),
        headers=(Parameter("If-None-Match", "ETag of the known chunk", _TEXT),),
        answer_headers=_TAIL,
        tag="streams",
        is_forwarded=True,
        end_event=_no_event,
        access=stream_access(Operation.READ),
    ),
    HttpOperation(
        "HEAD",
        PATH,
        with_stream_headers(describe_stream),
        "Describe a stream",
        {HTTPStatus.OK: None},
        errors=(HTTPStatus.GONE,),
        answer_headers=_TAIL,
        tag="streams",
        is_forwarded=True,
        access=stream_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "OPTIONS",
        PATH,
        with_stream_headers(describe_streams),
        "Get the methods and headers of streams",
        {HTTPStatus.NO_CONTENT: None},
        tag="streams",
        access=OPEN,
    ),
    HttpOperation(
        "DELETE",
        PATH,
        with_stream_headers(delete_stream),
        "Delete a stream",
        {HTTPStatus.NO_CONTENT: None},
        uses=(QuotaKind.MUTATION,),
        errors=(HTTPStatus.GONE,),
        tag="streams",
        is_forwarded=True,
        access=stream_access(Operation.DELETE),
    ),
)
