"""Hosts that a node answers to, and pages that may use it, by default and with settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from millstream.config.schema import HttpConfig
from millstream.errors import InvalidConfig
from millstream.servers.http.app import make_app
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.routing.site_rules import name_of
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import Answer, ask

GOOD = Health(is_started=True)


def status(host: str | None, *, is_local: bool, allowed_hosts: tuple[str, ...] = ()) -> int:
    """Return the status of a request with this `Host`."""
    config = HttpConfig(allowed_hosts=allowed_hosts)
    app = make_app(lambda: GOOD, lambda: (), config=config, is_local=is_local)
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
    ],
)
def test_other_names_are_refused_by_a_local_node(host: str) -> None:
    assert status(host, is_local=True) == 421


def test_a_request_without_a_host_is_served_because_browsers_always_send_one() -> None:
    assert status(None, is_local=True) == 200
    assert status(None, is_local=False, allowed_hosts=("log.example",)) == 200


def test_a_node_that_others_may_reach_answers_to_any_name() -> None:
    assert status("node.example:8080", is_local=False) == 200


@pytest.mark.parametrize(
    ("host", "is_local", "expected"),
    [
        ("log.example", True, 200),
        ("LOG.example:443", True, 200),
        ("localhost:8080", True, 200),
        ("sub.log.example", True, 421),
        ("192.168.0.7:8080", True, 421),
        ("log.example", False, 200),
        ("localhost", False, 200),
        ("192.168.0.7:8080", False, 200),
        ("[2001:db8::1]:8080", False, 200),
        ("evil.example", False, 421),
        ("192.168.0.7.evil.example", False, 421),
    ],
)
def test_allowed_hosts_are_answered_to_and_no_other_names(
    host: str, is_local: bool, expected: int
) -> None:
    assert status(host, is_local=is_local, allowed_hosts=("log.example",)) == expected


def test_a_star_allows_every_host() -> None:
    assert status("evil.example", is_local=True, allowed_hosts=("*",)) == 200


# Origins, at a real node.

APP = "https://app.example"


@pytest.fixture(scope="module")
def open_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A node that one other origin may use."""
    config = HttpConfig(allowed_origins=(APP, "http://localhost:3000"))
    with running_broker(tmp_path_factory.mktemp("data"), http_server=config) as running:
        yield running


def append(node: RunningBroker, **headers: str) -> Answer:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(node.url, "POST", "/v1/topics/cors/records", b'{"records": [{"value": 1}]}', fields)


def test_a_page_of_an_allowed_origin_may_append_and_read_the_response(open_node) -> None:
    answer = append(open_node, Origin=APP, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors")
    assert answer.status == 201
    assert answer.headers["access-control-allow-origin"] == APP
    assert answer.headers["access-control-expose-headers"] == "*"
    assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://app.example", "https://app.example:8443", "null"]
)
def test_other_pages_are_refused_with_the_setting_that_would_allow_them(open_node, origin) -> None:
    answer = append(open_node, Origin=origin)
    assert answer.status == 403
    assert f'got one from "{origin}"; http.allowed_origins adds origins' in answer.message
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["vary"] == "Origin"


def test_a_browser_that_asks_first_is_told_the_methods_and_headers(open_node) -> None:
    question = {
        "Origin": APP,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, x-client-id",
    }
    answer = ask(open_node.url, "OPTIONS", "/v1/topics/cors/records", None, question)
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == APP
    assert {"GET", "POST", "DELETE"} <= set(
        answer.headers["access-control-allow-methods"].split(", ")
    )
    assert answer.headers["access-control-allow-headers"] == "content-type, x-client-id"
    foreign = ask(
        open_node.url,
        "OPTIONS",
        "/v1/topics/cors/records",
        None,
        question | {"Origin": "https://evil.example"},
    )
    assert "access-control-allow-origin" not in foreign.headers


def test_a_page_of_an_allowed_origin_may_send_a_token_and_no_credentials_of_the_browser(
    open_node,
) -> None:
    question = {
        "Origin": APP,
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    answer = ask(open_node.url, "OPTIONS", "/v1/topics", None, question)
    assert answer.headers["access-control-allow-headers"] == "authorization"
    assert "access-control-allow-credentials" not in answer.headers


def test_with_a_star_every_page_may_use_the_node_but_never_with_credentials(tmp_path) -> None:
    with running_broker(tmp_path, http_server=HttpConfig(allowed_origins=("*",))) as node:
        for origin in ("https://any.example", "null"):
            answer = append(node, Origin=origin)
            assert answer.status == 201
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-credentials" not in answer.headers


UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


def test_a_websocket_of_another_page_is_refused_and_nothing_is_logged(open_node, caplog) -> None:
    with caplog.at_level(logging.INFO):
        refused = ask(
            open_node.url, "GET", "/v1/ws", None, UPGRADE | {"Origin": "https://evil.example"}
        )
        assert refused.status == 403
        # The node handles connections in order of arrival, so the refusal is complete by now.
        assert ask(open_node.url, "GET", "/health/live").status == 200
    assert caplog.records == []
    allowed = ask(open_node.url, "GET", "/v1/ws", None, UPGRADE | {"Origin": APP})
    assert allowed.status == 101


def test_the_refusal_of_a_host_names_it_and_the_setting(tmp_path) -> None:
    config = HttpConfig(allowed_hosts=("log.example",))
    with running_broker(tmp_path, http_server=config) as node:
        answer = ask(node.url, "GET", "/v1/topics", None, {"Host": "other.example"})
        assert (answer.status, answer.message) == (
            421,
            'Host must be one of localhost, log.example, got "other.example";'
            " http.allowed_hosts adds names",
        )
        assert ask(node.url, "GET", "/v1/topics", None, {"Host": "log.example"}).status == 200


@pytest.mark.parametrize(
    "hosts", [("a b",), ("log.example:443",), ("-a",), ("",), ("A.example",), ("*.example",), "a"]
)
def test_a_host_that_no_request_can_have_is_refused_at_start(hosts) -> None:
    with pytest.raises(InvalidConfig, match="allowed_hosts must be host names without a port"):
        HttpConfig(allowed_hosts=hosts)


@pytest.mark.parametrize(
    "origin",
    [
        "app.example",
        "https://app.example/",
        "https://app.example:443",
        "https://App.example",
        "ftp://app.example",
        "https://user@app.example",
        "null",
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_at_start(origin) -> None:
    with pytest.raises(InvalidConfig, match="allowed_origins must be origins such as"):
        HttpConfig(allowed_origins=(origin,))


@pytest.mark.parametrize(
    ("host", "name"),
    [("a:1", "a"), ("a", "a"), ("[::1]:1", "::1"), ("[::1]", "::1"), ("", ""), ("[", "")],
)
def test_a_port_is_no_part_of_a_name(host: str, name: str) -> None:
    assert name_of(host) == name
