"""No request can be hidden inside another: everything ambiguous about its end is refused."""

from __future__ import annotations

import pytest
from starlette.exceptions import HTTPException

from millstream.servers.http.server.request_framer import RequestFramer
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.raw_client import raw_client

CANARY = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""Sent after everything that is refused. It must not be answered."""


def post(*lines: bytes, body: bytes = b"") -> bytes:
    fields = b"".join(line + b"\r\n" for line in (b"Host: localhost", *lines))
    return b"POST /v1/topics/t/records HTTP/1.1\r\n" + fields + b"\r\n" + body


def get(first: bytes = b"GET /health/live HTTP/1.1", *lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (first, *(lines or (b"Host: localhost",)))) + b"\r\n"


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


SIZED = b"Content-Length: 5"
CHUNKED = b"Transfer-Encoding: chunked"
END = b"0\r\n\r\n"

REFUSED = {
    # How long the body is, said twice.
    "length and chunks": post(SIZED, CHUNKED, body=END),
    "chunks and length": post(CHUNKED, SIZED, body=END),
    "length of nothing and chunks": post(b"Content-Length: 0", CHUNKED, body=END),
    "two lengths": post(SIZED, b"Content-Length: 6", body=b"hello!"),
    "two lengths that agree": post(SIZED, SIZED, body=b"hello"),
    "a list of lengths": post(b"Content-Length: 5, 5", body=b"hello"),
    "chunks twice": post(CHUNKED, CHUNKED, body=END),
    "chunks twice, the second in disguise": post(CHUNKED, b"Transfer-encoding: x", body=END),
    "chunks, and a name with a blank": post(CHUNKED, b"Content-Length : 5", body=END),
    # A length that is no number.
    "length with a plus": post(b"Content-Length: +5", body=b"hello"),
    "length with a minus": post(b"Content-Length: -5", body=b"hello"),
    "length of minus nothing": post(b"Content-Length: -0"),
    "length in hexadecimal": post(b"Content-Length: 0x5", body=b"hello"),
    "length behind two blanks": post(b"Content-Length:  5", body=b"hello"),
    "length behind a tab": post(b"Content-Length:\t5", body=b"hello"),
    "length before a blank": post(b"Content-Length: 5 ", body=b"hello"),
    "length with a blank inside": post(b"Content-Length: 5 5", body=b"hello"),
    "length with an underscore": post(b"Content-Length: 1_0", body=b"hellohello"),
    "length with a point": post(b"Content-Length: 5.0", body=b"hello"),
    "length in other digits": post(b"Content-Length: \xd9\xa5", body=b"hello"),
    "length that is empty": post(b"Content-Length:"),
    "length beyond all numbers": post(b"Content-Length: " + b"9" * 30),
    # Codings that another reader may take for chunks, or not.
    "coding xchunked": post(b"Transfer-Encoding: xchunked", body=END),
    "coding chunkedx": post(b"Transfer-Encoding: chunkedx", body=END),
    "coding identity": post(b"Transfer-Encoding: identity", body=END),
    "coding gzip, chunked": post(b"Transfer-Encoding: gzip, chunked", body=END),
    "coding chunked, identity": post(b"Transfer-Encoding: chunked, identity", body=END),
    "coding chunked, chunked": post(b"Transfer-Encoding: chunked, chunked", body=END),
    "coding in quotes": post(b'Transfer-Encoding: "chunked"', body=END),
    "coding with a parameter": post(b"Transfer-Encoding: chunked;q=1", body=END),
    "coding behind two blanks": post(b"Transfer-Encoding:  chunked", body=END),
    "coding behind a tab": post(b"Transfer-Encoding:\tchunked", body=END),
    "coding before a tab": post(b"Transfer-Encoding: chunked\t", body=END),
    "coding behind a vertical tab": post(b"Transfer-Encoding: \x0bchunked", body=END),
    "coding in the next line": post(b"Transfer-Encoding:\r\n chunked", body=END),
    "coding of which half is in the next line": post(b"Transfer-Encoding: chun\r\n ked", body=END),
    "coding that is empty": post(b"Transfer-Encoding:", SIZED, body=b"hello"),
    "coding with a blank before the colon": post(b"Transfer-Encoding : chunked", body=END),
    "coding with a tab before the colon": post(b"Transfer-Encoding\t: chunked", body=END),
    "coding behind a blank": post(b" Transfer-Encoding: chunked", body=END),
    "coding in HTTP/1.0": post(CHUNKED, body=END).replace(b"HTTP/1.1", b"HTTP/1.0"),
    # Lines.
    "line feeds alone": get().replace(b"\r\n", b"\n"),
    "carriage returns alone": get().replace(b"\r\n", b"\r"),
    "a line feed alone behind the first line": get().replace(b"1.1\r\n", b"1.1\n"),
    "a line feed alone behind a field": get(b"GET / HTTP/1.1", b"Host: localhost\nX: y"),
    "a carriage return within a field": get(b"GET / HTTP/1.1", b"Host: localhost", b"X: a\rb"),
    "a carriage return, twice": get(b"GET / HTTP/1.1", b"Host: localhost\r"),
    "a zero within a field": get(b"GET / HTTP/1.1", b"Host: localhost", b"X: a\x00b"),
    "a zero within a name": get(b"GET / HTTP/1.1", b"Host: localhost", b"X\x00Y: a"),
    "a zero within the path": get(b"GET /health\x00/live HTTP/1.1"),
    "a field that goes on": get(b"GET / HTTP/1.1", b"Host: localhost", b"X: a", b" b"),
    "a field that goes on behind a tab": get(
        b"GET / HTTP/1.1", b"Host: localhost", b"X: a", b"\tb"
    ),
    "a field without a colon": get(b"GET / HTTP/1.1", b"Host: localhost", b"X"),
    "a field without a name": get(b"GET / HTTP/1.1", b"Host: localhost", b": x"),
    "a field that begins with a blank": get(b"GET / HTTP/1.1", b" X: y", b"Host: localhost"),
    "a name in quotes": get(b"GET / HTTP/1.1", b"Host: localhost", b'"X": y'),
    "a name that is not ASCII": get(b"GET / HTTP/1.1", b"Host: localhost", b"X\xc3\xa4: y"),
    "an empty line first": b"\r\n" + get(),
    "a blank first": b" " + get(),
    # Chunks.
    "chunk without a size": chunked(b"\r\nhello\r\n" + END),
    "chunk size that is no number": chunked(b"z\r\nhello\r\n" + END),
    "chunk size with 0x": chunked(b"0x5\r\nhello\r\n" + END),
    "chunk size with a plus": chunked(b"+5\r\nhello\r\n" + END),
    "chunk size with a minus": chunked(b"-5\r\nhello\r\n" + END),
    "chunk size behind a blank": chunked(b" 5\r\nhello\r\n" + END),
    "chunk size before a blank": chunked(b"5 \r\nhello\r\n" + END),
    "chunk size with an underscore": chunked(b"0_5\r\nhello\r\n" + END),
    "chunk size beyond 64 bits": chunked(b"10000000000000005\r\nhello\r\n" + END),
    "chunk size before a line feed alone": chunked(b"5\nhello\r\n" + END),
    "chunk size before a carriage return alone": chunked(b"5\rhello\r\n" + END),
    "chunk with an extension": chunked(b"5;a=b\r\nhello\r\n" + END),
    "chunk with an extension and a line feed": chunked(b"5;\nx\r\nhello\r\n" + END),
    "chunk that is longer than it says": chunked(b"4\r\nhello\r\n" + END),
    "chunk that is shorter than it says": chunked(b"6\r\nhello\r\n" + END),
    "chunk before a line feed alone": chunked(b"5\r\nhello\n" + END),
    "chunk before nothing": chunked(b"5\r\nhello" + END),
    "last chunk with an extension": chunked(b"5\r\nhello\r\n0;a\r\n\r\n"),
    "last chunk before a line feed alone": chunked(b"5\r\nhello\r\n0\n\n"),
    "trailers": chunked(b"5\r\nhello\r\n0\r\nX: y\r\n\r\n"),
    "trailers that change the length": chunked(b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n"),
    # Who is asked.
    "no host": get(b"GET /health/live HTTP/1.1", b"X: y"),
    "two hosts": get(b"GET /health/live HTTP/1.1", b"Host: localhost", b"Host: other"),
    "two hosts that agree": get(
        b"GET /health/live HTTP/1.1", b"Host: localhost", b"Host: localhost"
    ),
    "two hosts in HTTP/1.0": get(b"GET / HTTP/1.0", b"Host: localhost", b"Host: other"),
    "a host with a path": get(b"GET /health/live HTTP/1.1", b"Host: localhost/x"),
    "a host with a user": get(b"GET /health/live HTTP/1.1", b"Host: me@localhost"),
    "a host with a blank": get(b"GET /health/live HTTP/1.1", b"Host: local host"),
    "a host with letters for a port": get(b"GET /health/live HTTP/1.1", b"Host: localhost:http"),
    "a host that is empty": get(b"GET /health/live HTTP/1.1", b"Host:"),
    "a target at another host": get(b"GET http://other/health/live HTTP/1.1"),
    "a target at a host with a user": get(b"GET http://me@localhost/health/live HTTP/1.1"),
    "a target at another port": get(b"GET http://localhost:1/health/live HTTP/1.1"),
    # First lines.
    "HTTP/0.9": b"GET /health/live\r\n",
    "HTTP/0.9 with blanks": b"GET /health/live \r\n\r\n",
    "HTTP/1.2": get(b"GET /health/live HTTP/1.2"),
    "HTTP/2.0": get(b"GET /health/live HTTP/2.0"),
    "HTTP/3": get(b"GET /health/live HTTP/3"),
    "HTTP/1.10": get(b"GET /health/live HTTP/1.10"),
    "HTTP/01.1": get(b"GET /health/live HTTP/01.1"),
    "http/1.1": get(b"GET /health/live http/1.1"),
    "no HTTP": get(b"GET /health/live FTP/1.1"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a small method": get(b"get /health/live HTTP/1.1"),
    "a method half in small letters": get(b"GEt /health/live HTTP/1.1"),
    "a method that nobody knows": get(b"MILL /health/live HTTP/1.1"),
    "a method with a digit": get(b"GET1 /health/live HTTP/1.1"),
    "no method": get(b"/health/live HTTP/1.1"),
    "CONNECT": get(b"CONNECT localhost:80 HTTP/1.1"),
    "CONNECT to a path": get(b"CONNECT /health/live HTTP/1.1"),
    "OPTIONS of everything": get(b"OPTIONS * HTTP/1.1"),
    "two blanks before the path": get(b"GET  /health/live HTTP/1.1"),
    "two blanks behind the path": get(b"GET /health/live  HTTP/1.1"),
    "a tab before the path": get(b"GET\t/health/live HTTP/1.1"),
    "a blank at the end": get(b"GET /health/live HTTP/1.1 "),
    "a blank within the path": get(b"GET /health /live HTTP/1.1"),
    "a path without its slash": get(b"GET health/live HTTP/1.1"),
    "a fragment": get(b"GET /health/live#top HTTP/1.1"),
    "a path that is not ASCII": get("GET /ä HTTP/1.1".encode()),
    "a path that is not UTF-8": get(b"GET /v1/topics/%ff%fe HTTP/1.1"),
    # Upgrades.
    "a WebSocket by POST": post(b"Connection: upgrade", b"Upgrade: websocket"),
    "a WebSocket with a body": get(
        b"GET /v1/ws HTTP/1.1",
        b"Host: localhost",
        b"Connection: upgrade",
        b"Upgrade: websocket",
        SIZED,
    )
    + b"hello",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory):
    with running_broker(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED)
def test_doubt_is_refused_and_what_follows_is_not_answered(
    broker: RunningBroker, request_bytes: bytes
) -> None:
    with raw_client(broker.url) as client:
        client.send(request_bytes + CANARY)
        (answer,) = client.answers()
    assert answer.status in (400, 501, 505)
    assert answer.headers["connection"] == "close"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert set(answer.error) == {"code", "message", "detail"}


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED)
def test_doubt_is_refused_however_its_bytes_arrive(
    broker: RunningBroker, request_bytes: bytes
) -> None:
    """A request in two pieces is treated like a whole one."""
    middle = len(request_bytes) // 2
    with raw_client(broker.url) as client:
        client.send(request_bytes[:middle])
        client.try_to_send(request_bytes[middle:] + CANARY)
        statuses = [answer.status for answer in client.answers()]
    # The topic is not there: what was refused late may have got that for an answer already.
    assert len(statuses) <= 1
    assert set(statuses) <= {400, 404, 501, 505}


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "a method that nobody knows"])
def test_doubt_is_refused_before_the_parser_sees_it(name: str) -> None:
    """The parser alone would accept every fourth of these. Unknown methods are left to it."""
    framing = RequestFramer(head_size_max=65_536)
    framing.receive(REFUSED[name] + CANARY)
    with pytest.raises(HTTPException):
        list(iter(framing.take, None))


SERVED = {
    "a request": get(),
    "HTTP/1.0": get(b"GET /health/live HTTP/1.0"),
    "a target with the host": get(b"GET http://LocalHost/health/live HTTP/1.1"),
    "a value that is empty": get(b"GET /health/live HTTP/1.1", b"Host: localhost", b"X:"),
    "a value with blanks": get(b"GET /health/live HTTP/1.1", b"Host: localhost", b"X:  a\t b "),
    "a value that is not ASCII": get(b"GET /health/live HTTP/1.1", b"Host: localhost", b"X: \xe4"),
    "a query": get(b"GET /health/live?a=b&c=%20 HTTP/1.1"),
    "an offer of HTTP/2": get(
        b"GET /health/live HTTP/1.1",
        b"Host: localhost",
        b"Connection: Upgrade, HTTP2-Settings",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    ),
}


@pytest.mark.parametrize("request_bytes", SERVED.values(), ids=SERVED)
def test_what_leaves_no_doubt_is_served(broker: RunningBroker, request_bytes: bytes) -> None:
    with raw_client(broker.url) as client:
        client.send(request_bytes)
        assert client.answer().status == 200


BODIES = {
    "a size": post(SIZED, body=b"hello"),
    "chunks": chunked(b"2\r\nhe\r\n0003\r\nllo\r\n" + END),
    "chunks in capitals": chunked(b"A\r\nhellohello\r\n000\r\n\r\n"),
    "no bytes in chunks": chunked(END),
    "a size of nothing": post(b"Content-Length: 0"),
    # The parser that we use takes the body for the next request here.
    "a size and an offer of HTTP/2": post(
        b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: %d" % len(CANARY), body=CANARY
    ),
}


@pytest.mark.parametrize("request_bytes", BODIES.values(), ids=BODIES)
def test_a_body_ends_where_it_says_and_the_next_request_begins_there(
    broker: RunningBroker, request_bytes: bytes
) -> None:
    """Whole, and byte by byte: a body is never taken for a request, nor a request for a body."""
    for size in (len(request_bytes), 1):
        with raw_client(broker.url) as client:
            for at in range(0, len(request_bytes), size):
                client.send(request_bytes[at : at + size])
            first = client.answer()
            assert first.status in (400, 404)
            assert first.error["code"] in ("unknown_topic", "malformed_request")
            if size > 1:  # Else, the answer may have come before the body, and ends it all.
                client.send(CANARY + get(b"GET /health/live HTTP/1.0"))
                assert [answer.status for answer in client.answers()] == [200, 200]


TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(64))
KAFKA_FRAME = bytes.fromhex("00000012001200030000000100047465737400") + b"a\x02b\x00"
"""A Kafka ApiVersions request."""


@pytest.mark.parametrize(
    "sent", [TLS_HELLO, KAFKA_FRAME, b"\x15\x03\x03\x00\x02", b"\x00" * 70_000]
)
def test_another_protocol_is_refused_with_its_first_bytes(
    broker: RunningBroker, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"), raw_client(broker.url) as client:
        client.send(sent)
        (answer,) = client.answers()
    assert answer.status == 400
    assert ": not HTTP" in answer.error["message"]
    lines = [
        one.getMessage() for one in caplog.records if one.name.startswith("millstream.servers.http")
    ]
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_http_at_the_kafka_server_is_closed_at_once(broker: RunningBroker) -> None:
    """`GET ` would be a frame of 1,195,725,856 bytes, which is refused."""
    with raw_client(f"http://{broker.bootstrap}") as client:
        client.send(CANARY)
        assert client.read_all() == b""


def test_the_node_of_all_that_was_refused_serves_on(broker: RunningBroker) -> None:
    with raw_client(broker.url) as client:
        client.send(get())
        assert client.answer().status == 200
