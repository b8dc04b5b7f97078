"""Declarations of HTTP operations.

An operation has a method and a path, the types of its query, body and responses, and a handler.
Routing, parsing and `/openapi.json` are generated from that, so the document cannot differ from
what the server does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from millstream.broker.quotas import QuotaKind
from millstream.servers.http.routing.operation_access import OperationAccess
from millstream.servers.http.routing.request import HttpRequest

LIMITED_PREFIX = "/v1/"
"""Paths that are subject to quotas. Health, metrics and console files are not."""

UNTHROTTLED_PATHS = frozenset({"/v1/quotas"})
"""Paths that are charged but never refused: a client that a quota has locked out can still change
it."""

TAKEOVER_SECONDS_MAX = 2.0
TAKEOVER_SECONDS = 0.1
"""How long, and at which interval, a request is tried again for which no node is responsible now,
or whose node says so of itself and refuses: an election takes a moment."""

Handler = Callable[[HttpRequest], Awaitable[Response]]


class Media(NamedTuple):
    """A response or a body that is not JSON of one type."""

    media_type: str
    description: str
    example: str | None = None


Answer = Media | type | None


class Parameter(NamedTuple):
    """A header of an operation."""

    name: str
    description: str
    schema: Mapping[str, Any]


_CHANGING = frozenset({"PUT", "POST", "PATCH", "DELETE"})
_ACCESS_PREFIX = "/v1/access/"


class HttpOperation(NamedTuple):
    """One operation of the HTTP API."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[HTTPStatus, Answer]
    """Successful responses by status; `None` is an empty body."""
    access: OperationAccess
    """Who may use it. There is no default: an operation that says nothing does not exist."""
    query: type[msgspec.Struct] | None = None
    body: Media | type[msgspec.Struct] | None = None
    errors: Sequence[HTTPStatus] = ()
    """Statuses of errors in addition to those that every operation has."""
    headers: Sequence[Parameter] = ()
    tag: str = "topics"
    is_body_optional: bool = False
    answer_headers: Sequence[Parameter] = ()
    uses: Sequence[QuotaKind] = ()
    """Quotas that it uses in addition to request time. A client that exceeds one of them is
    refused."""
    is_forwarded: bool = False
    """Whether another node can process it whole: if its handler raises `NotLeader` or
    `NotCoordinator`, it has done nothing."""
    end_event: Callable[[HttpRequest], bytes] | None = None
    """Makes the last event of a stream whose node failed, after which clients continue elsewhere.
    """
    example: Any = None
    """An example body, as decoded JSON."""
    answer_example: Any = None
    """The response to it, with the first status of `answers`."""

    @property
    def is_audited(self) -> bool:
        """Whether the log tells what it has changed. The gate tells it of ACLs and tokens."""
        return self.method in _CHANGING and not self.path.startswith(_ACCESS_PREFIX)
