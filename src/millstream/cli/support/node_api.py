"""Asking a running node, over its HTTP door.

All commands speak to a node by `millstream.Client`, without a proxy: a node is on this machine, or
in the same network as the one who looks after it. What a client has no method for is asked by
`NodeApi.ask`, over the same connections and by the same rules.

A client that loses its node waits for it to come back. A command first makes sure that there is one
at all, once and without waiting, since a wrong address does not get right by that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import quote, urlencode

import click

from millstream.cli.support.command_group import suggestion
from millstream.cli.support.output import printable
from millstream.errors import (
    InvalidConfig,
    MalformedAnswer,
    MillstreamError,
    NodeRefused,
    NodeUnreachable,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
)

if TYPE_CHECKING:
    from millstream.clients.http.sync.client import Client

PATIENCE_S = 30.0
"""How long a node may take for what it does at once, and be away where it was there before."""

PATIENCE_S_LONG = 300.0
"""The same for what walks over data: deleting by key may have to look through a whole segment."""

PAGE = 1_000
"""Things to ask for at once, where a node tells them page by page."""

SHOWN_MAX = 5
"""Names that a message lists of those that there are."""

server_option = click.option(
    "--server",
    metavar="URL",
    envvar="MILLSTREAM_SERVER",
    default="http://127.0.0.1:8080",
    show_default=True,
    show_envvar=True,
    help="Which node to ask: the address of its HTTP door.",
)


class ApiResponse(NamedTuple):
    """What a node answered."""

    status: int
    body: Any


class NodeApi:
    """A node that answers."""

    def __init__(self, client: Client, server: str) -> None:
        self.client = client
        """For records and jobs: appends once, follows, makes leases longer."""
        self.server = server

    def ask(self, method: str, path: str, body: object = None, *, field: str = "") -> Any:
        """Make one request and return its answer, which has the given field."""
        return self.tell(method, path, body, field=field).body

    def tell(self, method: str, path: str, body: object = None, *, field: str = "") -> ApiResponse:
        """Make one request and return its answer with the status."""
        import msgspec  # noqa: PLC0415 - with the client, which is loaded where one is needed.

        from millstream.clients.http.core.requests import Idempotency, Request  # noqa: PLC0415
        from millstream.clients.http.core.steps import send_with_retries  # noqa: PLC0415

        effect = {"GET": Idempotency.NONE, "POST": Idempotency.EACH}.get(method, Idempotency.SAME)
        data = b"" if body is None else msgspec.json.encode(body)
        answer = self.client.run(
            send_with_retries(self.client.context, Request(method, path, effect, data))
        )
        try:
            found: Any = msgspec.json.decode(answer.body) if answer.body else None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedAnswer(str(error)) from error
        if field and not (isinstance(found, dict) and field in found):
            raise MalformedAnswer(f"there is no {field}")
        return ApiResponse(answer.status, found)

    def pages(self, path: str, field: str, query: Mapping[str, object] | None = None) -> list[Any]:
        """Return all that a node tells page by page."""
        found: list[Any] = []
        wanted = {**(query or {}), "limit": PAGE}
        while True:
            page = self.ask("GET", f"{path}?{urlencode(wanted)}", field=field)
            found += page[field]
            if page.get("next") is None or not page[field]:
                return found
            wanted["after"] = page["next"]


def path_of(kind: str, name: str) -> str:
    """Return where a topic, a group or a queue is found, whatever its name is."""
    return f"/v1/{kind}/{quote(name, safe='')}"


@contextmanager
def connected(server: str, *, patience_s: float = PATIENCE_S) -> Iterator[NodeApi]:
    """Give a node that answers; whatever is wrong with it, or by it, ends the command."""
    from millstream.clients.http.core.config import ClientConfig  # noqa: PLC0415
    from millstream.clients.http.sync.client import Client  # noqa: PLC0415 - not for --help.

    config = ClientConfig(timeout_s=patience_s, answer_s_max=patience_s)
    try:
        client = Client(server, config=config)
    except InvalidConfig:
        raise click.BadParameter(
            f"found {server!r}, needed is http://HOST:PORT", param_hint="--server"
        ) from None
    with client:
        node = NodeApi(client, server)
        try:
            _greet(client)
            yield node
        except NodeUnreachable as lost:
            _end(_unreachable(server, lost), lost)
        except MalformedAnswer as wrong:
            shown = f"what answers at {server} is no Millstream node: {wrong}"
            _end(shown[:_MESSAGE_MAX], wrong)
        except NodeRefused as refused:
            _end(f"{server} refuses: {refused.message}"[:_MESSAGE_MAX], refused)
        except MillstreamError as refused:
            _end(f"{refused}{_advice(node, refused)}", refused)


_MESSAGE_MAX = 300
"""What answers in the place of a node may say anything, at any length."""


def _greet(client: Client) -> None:
    """Make sure that a node is there: one attempt, no pause."""
    from millstream.clients.http.core.requests import Request  # noqa: PLC0415
    from millstream.clients.http.core.responses import refusal_of  # noqa: PLC0415

    timeout_s = client.config.connect_s_max + client.config.answer_s_max
    answer = client.connections.ask(Request("GET", "/health/live"), timeout_s)
    if (refusal := refusal_of(answer)) is not None:
        raise refusal.error
    if b'"status"' not in answer.body:
        raise MalformedAnswer(f"it answers {answer.status} when asked whether it lives")


def _unreachable(server: str, lost: NodeUnreachable) -> str:
    cause = lost.__cause__
    reason = getattr(cause, "strerror", None) or lost.reason
    if lost.may_be_done and lost.reason != "hung up before it answered":
        return f"{server}: {lost.reason}; the request may have been executed"
    return f"no node answers at {server}: {reason}; say with --server where one does"


_LISTED: dict[type[MillstreamError], tuple[str, str, str]] = {
    UnknownTopic: ("topic", "topics", "name"),
    UnknownQueue: ("queue", "queues", "name"),
    UnknownGroup: ("group", "groups", "group"),
}
"""What is not there: the noun, where all are listed, and the field that has the name."""


def _advice(node: NodeApi, error: MillstreamError) -> str:
    """Return which name was meant perhaps, or which there are."""
    listed = next((row for kind, row in _LISTED.items() if isinstance(error, kind)), None)
    params = click.get_current_context().params
    asked = params.get(listed[0], params.get("name")) if listed else None
    if listed is None or not isinstance(asked, str):
        return ""
    noun, field, key = listed
    try:
        names = [str(one[key]) for one in node.ask("GET", f"/v1/{field}", field=field)[field]]
    except (MillstreamError, LookupError, TypeError):
        return ""
    if asked in names:  # It has no such partition, or came to be just now.
        return ""
    if close := suggestion(asked, names):
        return f".{close}"
    if not names:
        return f"; there is no {noun} at all yet"
    shown = ", ".join(sorted(names)[:SHOWN_MAX])
    more = f" and others: millstream {noun} list" if len(names) > SHOWN_MAX else ""
    return f"; there is {shown}{more}"


def _end(message: str, error: BaseException) -> NoReturn:
    raise click.ClickException(printable(message)) from error
