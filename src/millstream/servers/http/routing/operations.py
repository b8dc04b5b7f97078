"""What the door can be asked for, declared.

An operation says by which method and path it is reached, which types its query, body and answers
have, and who handles it. The router, the parsing of requests and `/openapi.json` are all made from
that, so the document cannot differ from what the door does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from starlette.responses import Response

from millstream.broker.quotas import QuotaKind
from millstream.servers.http.routing.request import HttpRequest

LIMITED_PREFIX = "/v1/"
"""What quotas are charged for. Health, metrics and files of the console are never limited."""

UNTHROTTLED_PATHS = frozenset({"/v1/quotas"})
"""What is charged for and never refused: whoever was locked out by a quota has to get at it."""

Handler = Callable[[HttpRequest], Awaitable[Response]]


class Media(NamedTuple):
    """An answer, or a body, that is not JSON of one type."""

    media_type: str
    description: str
    example: str | None = None


Answer = Media | type | None


class Parameter(NamedTuple):
    """A header that an operation reads."""

    name: str
    description: str
    schema: Mapping[str, Any]


class HttpOperation(NamedTuple):
    """One thing that the door can be asked for."""

    method: str
    path: str
    handler: Handler
    summary: str
    answers: Mapping[HTTPStatus, Answer]
    """What is answered where all goes well, by status; `None` is an empty body."""
    query: type[msgspec.Struct] | None = None
    body: Media | type[msgspec.Struct] | None = None
    errors: Sequence[HTTPStatus] = ()
    """What can go wrong here beside what can go wrong everywhere."""
    headers: Sequence[Parameter] = ()
    tag: str = "topics"
    is_body_optional: bool = False
    answer_headers: Sequence[Parameter] = ()
    uses: Sequence[QuotaKind] = ()
    """The quotas that it takes from beside time: who owes one of them is refused."""
    example: Any = None
    """A body, as JSON would have it."""
    answer_example: Any = None
    """What is answered to that, with the first status of `answers`."""
