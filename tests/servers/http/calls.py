"""Requests to the HTTP server, for tests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from millstream.clock import SystemClock
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.routing.http_app import HttpApp
from millstream.servers.http.routing.operation_access import OPEN
from millstream.servers.http.routing.operations import Handler, HttpOperation


@dataclass(frozen=True)
class Answer:
    """Status, headers (by lower-case names) and body of a response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return self.json["error"]["code"]

    @property
    def message(self) -> str:
        return self.json["error"]["message"]


def ask(
    url: str,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Make one request; an iterable body is sent in chunks, without its size."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.request(method, path, body=body, headers=headers or {})
        found = connection.getresponse()
        names = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, names, found.read())
    finally:
        connection.close()


def app_with(**handlers: Handler) -> HttpApp:
    """Return an application with one GET operation for each handler, at `/NAME`."""
    operations = [
        HttpOperation("GET", f"/{name}", handler, "Test", {}, OPEN)
        for name, handler in handlers.items()
    ]
    return HttpApp(operations, SystemClock(), HttpCounters())
