"""Requests to a running node over HTTP.

Most commands send single requests with `NodeApi.ask`, by the rules of `millstream.Client`: the same
retries, the same errors, no proxy. They do not load the client itself, which takes longer than all
that they do. Commands that append, follow or work on jobs use `NodeApi.client`.

A client that loses its node waits for it to come back. So a command first checks once, without
waiting, that there is a node at the address.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar
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
    from millstream.clients.http.core.config import ClientConfig
    from millstream.clients.http.core.steps import ClientContext
    from millstream.clients.http.sync.client import Client

F = TypeVar("F", bound=Callable[..., Any])

PATIENCE_S = 30.0
"""Timeout of quick requests, and how long an unreachable node is retried."""

PATIENCE_S_LONG = 300.0
"""Timeout of requests that scan data: deleting by key may read a whole segment."""

PAGE = 1_000
"""Page size of listings."""

SHOWN_MAX = 5
"""Maximum number of names listed in a message."""

_TLS = "millstream.tls"
"""Key of what a command knows of certificates, in the context of click."""

_TLS_OPTIONS = {
    "ca_file": "Certificates (PEM) of the authorities that the node's certificate must be signed"
    " by, for TLS. Default: those of the system.",
    "cert_file": "Certificate (PEM) to show to the node.",
    "key_file": "Private key (PEM) of that certificate.",
}


def _note_tls(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta.setdefault(_TLS, {})[parameter.name] = value


_META_KEY = "millstream.token_file"
"""In the context of a command: the file with the token."""


def _keep_token_file(context: click.Context, _: click.Parameter, value: str | None) -> None:
    context.meta[_META_KEY] = value


_server_option = click.option(
    "--server",
    metavar="URL",
    envvar="MILLSTREAM_SERVER",
    default="http://127.0.0.1:8080",
    show_default=True,
    show_envvar=True,
    help="HTTP address of the node, or several of a cluster with commas between them.",
)

_token_file_option = click.option(
    "--token-file",
    metavar="FILE",
    expose_value=False,
    callback=_keep_token_file,
    help="File with the token to log in with.  [env var: MILLSTREAM_TOKEN for the token itself,"
    " MILLSTREAM_TOKEN_FILE for a file]",
)


def server_option(command: F) -> F:
    """Add the options that name the node, its certificates, and the token to log in with."""
    return _server_option(_token_file_option(tls_options(command)))


def tls_options(command: F) -> F:
    """Add the options that name files of certificates."""
    for name, text in reversed(_TLS_OPTIONS.items()):
        command = click.option(
            f"--{name.replace('_', '-')}",
            metavar="FILE",
            envvar=f"MILLSTREAM_{name.upper()}",
            show_envvar=True,
            expose_value=False,
            callback=_note_tls,
            help=text,
        )(command)
    return command


def tls_files_given() -> dict[str, str]:
    """Return the files of certificates that options and variables name."""
    files: dict[str, str] = click.get_current_context().meta.get(_TLS, {})
    return dict(files)


class ApiResponse(NamedTuple):
    """Response of a node."""

    status: int
    body: Any


class NodeApi:
    """A node that answers."""

    def __init__(self, context: ClientContext, server: str) -> None:
        from millstream.clients.http.sync.step_runner import StepRunner  # noqa: PLC0415
        from millstream.clients.http.transport.connection_pool import ConnectionPool  # noqa: PLC0415

        self.server = server
        self._context = context
        self._connections = {
            address: ConnectionPool(address, context.config, clock=context.clock)
            for address in context.addresses.all
        }
        self._runner = StepRunner(self._connections)

    @cached_property
    def client(self) -> Client:
        """For records and jobs: appends exactly once, follows, extends leases."""
        from millstream.clients.http.sync.client import Client  # noqa: PLC0415

        return Client(self.server, config=self._context.config)

    def close(self) -> None:
        """Close all connections."""
        if "client" in self.__dict__:
            self.client.close()
        for connections in self._connections.values():
            connections.close()

    def greet(self) -> None:
        """Check that a node answers, with one attempt at each address."""
        from millstream.clients.http.core.refusal import refusal_of  # noqa: PLC0415
        from millstream.clients.http.core.request import Request  # noqa: PLC0415

        config = self._context.config
        timeout_s = config.connect_s_max + config.answer_s_max
        request, addresses = Request("GET", "/health/live"), self._context.addresses
        for attempt, address in enumerate(addresses.all, 1):
            try:
                answer = self._connections[address].send(request, timeout_s)
                break
            except NodeUnreachable:
                addresses.move_on(address)
                if attempt == len(addresses):
                    raise
        if (refusal := refusal_of(answer)) is not None:
            raise refusal.error
        if b'"status"' not in answer.body:
            raise MalformedAnswer(f"its liveness check returned {answer.status}")

    def ask(self, method: str, path: str, body: object = None, *, field: str = "") -> Any:
        """Send one request and return its response, which must contain `field`."""
        return self.tell(method, path, body, field=field).body

    def tell(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        field: str = "",
        is_repeatable: bool | None = None,
    ) -> ApiResponse:
        """Send one request and return its response with the status.

        A request that has an effect each time is not sent again if the first may have been
        executed. By default, only a POST is such a request.
        """
        from millstream.clients.http.core.request import Idempotency, Request  # noqa: PLC0415
        from millstream.clients.http.core.steps import send_with_retries  # noqa: PLC0415

        if is_repeatable is None:
            is_repeatable = method != "POST"
        effect = Idempotency.SAME if is_repeatable else Idempotency.EACH
        if method == "GET":
            effect = Idempotency.NONE
        data = b"" if body is None else json.dumps(body).encode()
        answer = self._runner.run(
            send_with_retries(self._context, Request(method, path, effect, data))
        )
        try:
            decoded: Any = json.loads(answer.body) if answer.body else None
        except ValueError as error:  # Not JSON, or not UTF-8.
            raise MalformedAnswer(str(error)) from error
        if field and not (isinstance(decoded, dict) and field in decoded):
            raise MalformedAnswer(f"there is no {field}")
        return ApiResponse(answer.status, decoded)

    def pages(self, path: str, field: str, query: Mapping[str, object] | None = None) -> list[Any]:
        """Return all items of a paged listing."""
        items: list[Any] = []
        wanted = {**(query or {}), "limit": PAGE}
        while True:
            page = self.ask("GET", f"{path}?{urlencode(wanted)}", field=field)
            items += page[field]
            if page.get("next") is None or not page[field]:
                return items
            wanted["after"] = page["next"]


def path_of(kind: str, name: str) -> str:
    """Return the path of a topic, group, queue or transaction, with its name escaped."""
    # The server unquotes a path before it splits it, so these names would select another path.
    # Groups and transactions are routed differently: Kafka allows any name for them.
    if kind not in ("groups", "transactions") and (not name or "/" in name):
        noun = kind.removesuffix("s")
        message = f"the name of a {noun} must not be empty or contain '/', got {name!r}"
        raise click.ClickException(printable(message))
    return f"/v1/{kind}/{quote(name, safe='')}"


def token_file_given() -> str | None:
    """Return the file of `--token-file`; `None` lets the client look at the environment."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_META_KEY)


def client_config(**limits: Any) -> ClientConfig:
    """Return the config of a client that logs in as the options of the command say."""
    from millstream.clients.http.core.config import ClientConfig  # noqa: PLC0415
    from millstream.clients.tls import ClientTls  # noqa: PLC0415

    try:
        tls = ClientTls(**tls_files_given())
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from None
    return ClientConfig(token_file=token_file_given(), tls=tls, **limits)


@contextmanager
def connected(server: str, *, patience_s: float = PATIENCE_S) -> Iterator[NodeApi]:
    """Yield a node that answers; an error ends the command with one line."""
    # Here and not above: `--help` and completion need none of it.
    from millstream.clients.http.core.node_addresses import parse_node_urls  # noqa: PLC0415
    from millstream.clients.http.core.steps import ClientContext  # noqa: PLC0415
    from millstream.clock import SystemClock  # noqa: PLC0415

    config = client_config(timeout_s=patience_s, answer_s_max=patience_s)
    try:
        addresses = parse_node_urls(server)
    except InvalidConfig:
        raise click.BadParameter(
            "must be http://HOST:PORT or https://HOST:PORT, or several with commas between them,"
            f" got {server!r}",
            param_hint="--server",
        ) from None
    try:
        api = NodeApi(ClientContext(addresses, config, SystemClock(), _jitter), server)
    except InvalidConfig as error:  # The token, or certificates.
        raise click.ClickException(printable(str(error))) from error
    with closing(api) as node:
        try:
            node.greet()
            yield node
        except NodeUnreachable as lost:
            _end(_unreachable(server, lost), lost)
        except MalformedAnswer as wrong:
            shown = f"the server at {server} is not a Millstream node: {wrong}"
            _end(shown[:_MESSAGE_MAX], wrong)
        except NodeRefused as refused:
            _end(f"{server} refuses: {refused.message}"[:_MESSAGE_MAX], refused)
        except MillstreamError as refused:
            _end(f"{refused}{_advice(node, refused)}", refused)


_MESSAGE_MAX = 300
"""Limit for messages of servers that may not be a node."""


def _jitter() -> float:
    import random  # noqa: PLC0415 - for requests that are repeated only.

    return random.random()  # noqa: S311 - it spreads retries.


def _unreachable(server: str, lost: NodeUnreachable) -> str:
    cause = lost.__cause__
    reason = getattr(cause, "strerror", None) or lost.reason
    if lost.may_be_done and lost.reason != "connection closed before the response":
        return f"{server}: {lost.reason}; the request may have been executed"
    return f"no node answers at {server}: {reason}; set the address with --server"


_LISTED: dict[type[MillstreamError], tuple[str, str, str]] = {
    UnknownTopic: ("topic", "topics", "name"),
    UnknownQueue: ("queue", "queues", "name"),
    UnknownGroup: ("group", "groups", "group"),
}
"""Noun, list path and name field of resources, for messages about unknown names."""


def _advice(node: NodeApi, error: MillstreamError) -> str:
    """Return similar names, or the existing ones."""
    listed = next((row for kind, row in _LISTED.items() if isinstance(error, kind)), None)
    params = click.get_current_context().params
    requested = params.get(listed[0], params.get("name")) if listed else None
    if listed is None or not isinstance(requested, str):
        return ""
    noun, field, key = listed
    try:
        names = [str(item[key]) for item in node.ask("GET", f"/v1/{field}", field=field)[field]]
    except (MillstreamError, LookupError, TypeError):
        return ""
    if requested in names:  # It has no such partition, or came to be just now.
        return ""
    if close := suggestion(requested, names):
        return f".{close}"
    if not names:
        return f"; there are no {field} yet"
    shown = ", ".join(sorted(names)[:SHOWN_MAX])
    more = f" and others: millstream {noun} list" if len(names) > SHOWN_MAX else ""
    return f"; existing {field}: {shown}{more}"


def _end(message: str, error: BaseException) -> NoReturn:
    raise click.ClickException(printable(message)) from error
