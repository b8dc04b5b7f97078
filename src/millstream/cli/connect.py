"""Asking a running node, over its HTTP door.

Only with the standard library, and without a proxy: a node is on this machine, or in the same
network as the one who looks after it.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from typing import Any

import click

from millstream.cli.output import printable

PATIENCE_SECONDS = 300
"""How long a node may take to answer: deleting by key may have to look through a whole segment."""

ANSWER_SIZE_MAX = 256 * 1024 * 1024
"""Ten times what the largest topic that a node allows has to tell."""

server_option = click.option(
    "--server",
    metavar="URL",
    envvar="MILLSTREAM_SERVER",
    default="http://127.0.0.1:8080",
    show_default=True,
    show_envvar=True,
    help="Which node to ask: the address of its HTTP door.",
)


def topic_path(name: str) -> str:
    """Return where a topic is found, whatever its name is."""
    return f"/v1/topics/{urllib.parse.quote(name, safe='')}"


def call(server: str, method: str, path: str, body: object = None, *, field: str) -> Any:
    """Make one request of a node and return its answer, which has the given field.

    Whatever is wrong ends the command.
    """
    request = urllib.request.Request(_url(server, path), method=method)  # noqa: S310 - checked there.
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    opener = urllib.request.OpenerDirector()
    opener.add_handler(urllib.request.HTTPHandler())
    opener.add_handler(urllib.request.HTTPSHandler())
    try:
        with opener.open(request, timeout=PATIENCE_SECONDS) as answer:
            return _answer(server, answer.status, answer.read(ANSWER_SIZE_MAX + 1), field)
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        text = getattr(reason, "strerror", None) or reason
        raise click.ClickException(
            printable(f"no node answers at {server}: {text}; say with --server where one does")
        ) from error


def _url(server: str, path: str) -> str:
    try:
        parts = urllib.parse.urlsplit(server)
        is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # A port that is none.
        is_good = False
    if not is_good or not server.isascii() or not server.isprintable() or " " in server:
        raise click.BadParameter(
            f"found {server!r}, needed is http://HOST:PORT", param_hint="--server"
        )
    return server.rstrip("/") + path


def _answer(server: str, status: int, data: bytes, field: str) -> Any:
    """Return what a node said; raises what it had to complain of."""
    try:
        found: Any = json.loads(data) if len(data) <= ANSWER_SIZE_MAX else None
        if status == HTTPStatus.OK and field in found:
            return found
        message = found["error"]["message"]
    except (ValueError, TypeError, KeyError):
        message = f"what answers at {server} is no Millstream node (status {status})"
    raise click.ClickException(printable(str(message)))
