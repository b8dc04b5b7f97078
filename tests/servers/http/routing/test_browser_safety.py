"""A page of another site cannot use a visitor's browser to work with a node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import Response

from millstream.servers.http.routing.browser_safety import HEADERS, is_cross_site
from millstream.servers.http.routing.operations import Handler
from millstream.servers.http.server.listener import HttpListener
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import app_with, ask
from tests.servers.http.raw_client import RawAnswer, answers_in, raw_client


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


APPEND = b'{"records": [{"value": 1}]}'

FOREIGN = {
    "an origin elsewhere": {"Origin": "http://evil.example"},
    "an origin elsewhere, encrypted": {"Origin": "https://evil.example"},
    "an origin on this machine": {"Origin": "http://127.0.0.1:1"},
    "an origin that begins alike": {"Origin": "http://127.0.0.1.evil.example"},
    "an origin that is hidden": {"Origin": "null"},
    "an origin that is empty": {"Origin": ""},
    "an extension": {"Origin": "chrome-extension://abc"},
    "a file": {"Origin": "file://"},
    "a form": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a page beside it": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    "a frame": {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "iframe",
    },
    "an image": {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "no-cors",
        "Sec-Fetch-Dest": "image",
    },
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_what_another_site_asks_for_is_refused(
    broker: RunningBroker, method: str, headers: dict[str, str]
) -> None:
    plain = {"Content-Type": "text/plain", **headers}
    answer = ask(broker.url, method, "/v1/topics/browser/records", APPEND, plain)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers
    assert broker.server.broker.topics.find("browser") is None


@pytest.mark.parametrize("path", ["/v1/topics/browser/records", "/v1/streams/browser"])
def test_a_browser_that_asks_first_for_another_site_is_told_nothing_that_lets_it_in(
    broker: RunningBroker, path: str
) -> None:
    wanted = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    answer = ask(broker.url, "OPTIONS", path, None, wanted)
    assert answer.status in (204, 405)
    assert "access-control-allow-origin" not in answer.headers


def test_programs_and_own_pages_are_served(broker: RunningBroker) -> None:
    own = broker.url.removeprefix("http://")
    for headers in (
        {},
        {"Origin": broker.url},
        {"Origin": broker.url.upper().replace("HTTP", "http")},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{own}"},
        {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {"Sec-Fetch-Mode": "cors"},
        # A link on another page: what comes of it is not that page's to see.
        {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        },
    ):
        assert ask(broker.url, "GET", "/health/live", headers=headers).status == 200, headers


@pytest.mark.parametrize(
    ("origin", "host", "is_own"),
    [
        (b"http://a.example", b"a.example", True),
        (b"http://a.example", b"a.example:80", True),
        (b"https://a.example", b"a.example:443", True),
        (b"https://a.example:8443", b"a.example:8443", True),
        (b"http://[::1]:8080", b"[::1]:8080", True),
        (b"http://a.example:8080", b"a.example", False),
        (b"http://a.example", b"b.example", False),
        (b"a.example", b"a.example", False),
        (b"http://", b"", False),
    ],
)
def test_an_origin_is_own_where_host_and_port_are(origin: bytes, host: bytes, is_own: bool) -> None:
    assert is_cross_site([(b"origin", origin), (b"host", host)]) is not is_own


SAFE = {name.decode(): value.decode() for name, value in HEADERS}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/health/live"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("POST", "/health/live"),
        ("GET", "/v1/topics/unknown"),
        ("POST", "/v1/topics/unknown/records"),
    ],
)
def test_every_answer_is_safe_to_show(broker: RunningBroker, method: str, path: str) -> None:
    answer = ask(broker.url, method, path, b"{" if method == "POST" else None)
    assert {name: answer.headers[name] for name in SAFE} == SAFE
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_even_what_was_no_request_is_answered_safely(broker: RunningBroker) -> None:
    with raw_client(broker.url) as client:
        client.send(b"GET / HTTP/9.9\r\n\r\n")
        (answer,) = client.answers()
    assert {name: answer.headers[name] for name in SAFE} == SAFE


def answered(handler: Handler) -> RawAnswer:
    """Return the response of a server with one handler."""

    async def run() -> bytes:
        listener = HttpListener(app_with(test=handler))
        port = await listener.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /test HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        came = await reader.read()
        writer.close()
        await listener.stop()
        return came

    (answer,) = answers_in(asyncio.run(run()))
    return answer


def test_a_handler_may_know_better() -> None:
    async def handler(_: Request) -> Response:
        headers = {"Cross-Origin-Resource-Policy": "cross-origin", "Cache-Control": "max-age=60"}
        return Response(headers=headers)

    found = answered(handler).headers
    assert found["cross-origin-resource-policy"] == "cross-origin"
    assert found["cache-control"] == "max-age=60"
    assert found["x-frame-options"] == "DENY"


def test_an_answer_to_an_error_of_ours_is_safe_too() -> None:
    async def handler(_: Request) -> Response:
        raise RuntimeError

    answer = answered(handler)
    assert answer.status == 500
    assert SAFE.items() <= answer.headers.items()


def test_a_websocket_of_another_site_is_refused(broker: RunningBroker) -> None:
    """A browser lets every page open a WebSocket anywhere, and read from it."""
    assert upgrade(broker, "localhost", "Origin: http://evil.example") == 403
    assert upgrade(broker, "localhost", "Origin: http://localhost") != 403
    assert upgrade(broker, "localhost", "X: y") != 403


def test_a_websocket_under_another_name_is_refused(broker: RunningBroker) -> None:
    assert upgrade(broker, "evil.example:80", "Origin: http://evil.example") == 421


def upgrade(broker: RunningBroker, host: str, line: str) -> int:
    lines = [
        "GET /v1/ws HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        line,
    ]
    with raw_client(broker.url) as client:
        client.send(("\r\n".join(lines) + "\r\n\r\n").encode())
        return client.answer().status
