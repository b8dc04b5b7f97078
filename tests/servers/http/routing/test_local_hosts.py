"""A local node answers to no other host name: web pages must not reach it by DNS rebinding."""

from __future__ import annotations

import asyncio

import pytest

from millstream.servers.http.app import make_app
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.routing.local_hosts import name_of

GOOD = Health(is_started=True)


def status(host: str | None, *, is_local: bool) -> int:
    """Return the status of a request with this `Host`."""
    app = make_app(lambda: GOOD, lambda: (), is_local=is_local)
    headers = [] if host is None else [(b"host", host.encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/health/live",
        "query_string": b"",
        "headers": headers,
    }
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return int(str(sent[0]["status"]))


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "127.5.5.5", "[::1]:8080"]
)
def test_names_of_this_machine_are_answered_to(host: str) -> None:
    assert status(host, is_local=True) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8080",
        "192.168.0.7:8080",
        "[2001:db8::1]:8080",
        "",
        None,
    ],
)
def test_other_names_are_refused_by_a_local_node(host: str | None) -> None:
    assert status(host, is_local=True) == 421


def test_a_node_that_others_may_reach_answers_to_any_name() -> None:
    assert status("node.example:8080", is_local=False) == 200


@pytest.mark.parametrize(
    ("host", "name"),
    [("a:1", "a"), ("a", "a"), ("[::1]:1", "::1"), ("[::1]", "::1"), ("", ""), ("[", "")],
)
def test_a_port_is_no_part_of_a_name(host: str, name: str) -> None:
    assert name_of(host) == name
