"""Whatever names clients use: no file is touched elsewhere, and no log line is broken."""

# ruff: noqa: RUF001 - letters that look like others are what this is about.

from __future__ import annotations

import asyncio
import logging
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

import pytest
from starlette.requests import Request
from starlette.responses import Response

from millstream.clock import SystemClock
from millstream.errors import MillstreamError
from millstream.servers.http.app import OPERATIONS
from millstream.servers.http.counters import HttpCounters
from millstream.servers.http.routing.http_app import HttpApp
from millstream.servers.http.routing.operation_access import OPEN
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.server.listener import HttpListener
from millstream.testing.broker import RunningBroker, running_broker

from .raw_client import RawAnswer, raw_client

_PARTS = (
    *("..", ".", "...", ". .", "..\\..", "../..", "....//", "/..", "../", "./a", "a/../b", "/"),
    *("//", "/etc/passwd", "\\", "\\\\host\\share", "C:", "C:\\x", "a\\b", "~", "~root", "$HOME"),
    *("`id`", "$(id)", ";id", "|id", "&&id", "a;b", "a|b", "a b", " a", "a ", "\ta", "a\t", "*"),
    *("?", "a?b", "a#b", "#", "%", "%25", "%2e%2e", "%2e%2e%2f", "%252e%252e%252f", "%00", "+"),
    *("a+b", "a&b", "a=b", "{a}", "{topic}", "{0}", "%s", "%n%n%n", "%(name)s", "<b>", "</script>"),
    *("<script>alert(1)</script>", "'", '"', "a'b", 'a"b', "' OR 1=1 --", "'; DROP TABLE t; --"),
    *("CON", "con", "NUL", "AUX", "PRN", "COM1", "LPT1", "CON.txt", "nul.log", "a.", ".a", "..a"),
    *(".lock", ".trash", "a:b", "a:$DATA", "-", "--help", "-rf", "__proto__", "null", "undefined"),
    *(
        "\x00",
        "a\x00b",
        "a\x00",
        "a\nb",
        "a\rb",
        "a\r\nb",
        "\n",
        "\r\n",
        "\x1b[31m",
        "\x07",
        "\x7f",
    ),
    *(
        "a\r\nSet-Cookie: x=1",
        "a\r\n\r\nHTTP/1.1 200 OK",
        "\x85",
        "\u2028",
        "\u2029",
        "\x0b",
        "\x0c",
    ),
    *(
        "\u202e",
        "\u200b",
        "\ufeff",
        "\ufffd",
        "\ufffe",
        "\U0001f40e",
        "\u00e9",
        "e\u0301",
        "\u00e5",
    ),
    *("\u212b", "A\u030a", "\u0130", "\u0131", "\u1e9e", "ß", "ﬀ", "Ⅷ", "٠", "\u0000\u0300", "𝕏"),
    *("．．／", "‥", "․․", "∕", "⁄", "＼", "名前", "имя", "عربى", "a\u0301\u0301" * 20),
    *(
        "x" * 250,
        "x" * 255,
        "x" * 256,
        "x" * 1_000,
        "x" * 5_000,
        "x" * 65_535,
        "é" * 200,
        "/" * 100,
    ),
    *("../" * 50 + "tmp/evil", "..\\" * 50 + "evil", "./" * 200 + "a", "a/" * 100, "." * 300),
)
_PREFIXES = ("", "a/", "../", "a\x00")

NAMES: tuple[bytes, ...] = tuple(
    dict.fromkeys(
        [
            *((prefix + part).encode() for prefix in _PREFIXES for part in _PARTS),
            *(unicodedata.normalize("NFD", part).encode() for part in _PARTS),
            *(b"\xff", b"\xc0\xae\xc0\xae", b"\xc0\xaf", b"a\x80", b"\xed\xa0\x80", b"\xf5\x80"),
        ]
    )
)
"""Odd names. Each is sent with every possible byte escaped, and with as few as possible."""

CHANGING = [one for one in OPERATIONS if one.method not in ("GET", "HEAD") and "{" in one.path]


def test_there_are_enough_names() -> None:
    assert len(NAMES) > 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def broker(root: Path) -> Iterator[RunningBroker]:
    data = root / "a" / "b" / "data"
    data.mkdir(parents=True)
    with running_broker(data) as running:
        yield running


def tree_around(root: Path) -> set[str]:
    """Return every path outside of the data directory, up to the root of the test."""
    found = set()
    for folder, folders, files in os.walk(root):
        if folder.endswith(os.path.join("b", "data")):
            folders.clear()
        else:
            found.update(os.path.join(folder, name) for name in (*folders, *files))
    return found


def asked(url: str, method: str, path: bytes, body: bytes) -> RawAnswer:
    head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" % (method.encode(), path)
    with raw_client(url) as client:
        client.try_to_send(head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        (answer,) = client.answers()
    return answer


def written(name: bytes) -> Iterator[bytes]:
    """Yield the spellings of a name in a path."""
    yield b"".join(b"%%%02x" % byte for byte in name)
    yield quote_from_bytes(name, safe="/.~!$&'()*+,;=:@").encode()


@pytest.mark.parametrize("operation", CHANGING, ids=lambda one: f"{one.method} {one.path}")
def test_odd_names_touch_nothing_elsewhere_and_are_answered_clearly(
    broker: RunningBroker, root: Path, operation: HttpOperation, caplog: pytest.LogCaptureFixture
) -> None:
    before = tree_around(root)
    body = b'{"records": [{"value": 1}]}' if operation.path.endswith("/records") else b"{}"
    with caplog.at_level(logging.INFO):
        for name in NAMES:
            for text in written(name):
                path = re.sub(rb"\{[^}]*\}", lambda _, text=text: text, operation.path.encode())
                answer = asked(broker.url, operation.method, path, body)
                assert answer.status < 500, name
                if answer.status >= 400:
                    assert set(answer.error) == {"code", "message", "detail"}, name
                    assert len(answer.body) < 2_000, name
    assert tree_around(root) == before
    for record in caplog.records:
        assert record.getMessage().isprintable(), record


def test_a_topic_has_a_plain_name_or_is_refused(broker: RunningBroker) -> None:
    """Names reach the broker unchanged, and it has a list of valid characters."""
    for name in NAMES:
        path = b"/v1/topics/" + next(written(name)) + b"/records"
        answer = asked(broker.url, "POST", path, b'{"records": [{"value": 1}]}')
        is_plain = re.fullmatch(rb"[A-Za-z0-9._-]{1,249}", name) and name not in (b".", b"..")
        assert (answer.status < 400) is bool(is_plain), name


@pytest.mark.parametrize("name", NAMES[:150], ids=lambda name: ascii(name[:20]))
def test_an_unknown_path_is_not_echoed(broker: RunningBroker, name: bytes) -> None:
    answer = asked(broker.url, "GET", b"/nowhere/" + next(written(name)), b"")
    assert answer.status in (400, 404, 414)
    assert answer.headers["content-type"] == "application/json"
    assert b"<" not in answer.body


@pytest.mark.parametrize("name", ["a%0ab", "a%0d%0ab", "a%1b%5b31m", "%e2%80%a8", "%c2%85", "%00"])
def test_a_line_of_the_log_about_a_path_stays_one_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: Request) -> Response:
        raise MillstreamError("it is broken")

    async def run() -> None:
        operation = HttpOperation("GET", "/{name}", fail, "Test", {}, OPEN)
        listener = HttpListener(HttpApp([operation], SystemClock(), HttpCounters()))
        port = await listener.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /{name} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        assert b" 500 " in await reader.readline()
        writer.close()
        await listener.stop()

    asyncio.run(run())
    (line,) = [one.getMessage() for one in caplog.records if "it is broken" in one.getMessage()]
    assert line.isprintable()
