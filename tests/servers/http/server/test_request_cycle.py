"""What the application sends for one request becomes one HTTP response, or none."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive, Scope, Send

from millstream.servers.http.server.listener import HttpListener

HEAD = {"type": "http.response.start", "status": 200}


def answered(*messages: Message, method: str = "GET") -> bytes:
    """Return the bytes of a response to which the application sent these messages."""

    async def app(_: Scope, __: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    async def run() -> bytes:
        listener = HttpListener(app)
        port = await listener.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        came = await reader.read()
        writer.close()
        await listener.stop()
        return came

    return asyncio.run(run())


def body(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


def sized(size: int) -> Message:
    return {**HEAD, "headers": [(b"content-length", b"%d" % size)]}


def test_a_body_of_known_length_is_sent_as_it_is() -> None:
    head, _, data = answered(sized(4), body(b"ab", more=True), body(b"cd")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert b"transfer-encoding" not in head
    assert data == b"abcd"


def test_a_body_of_unknown_length_is_sent_in_chunks() -> None:
    came = answered(HEAD, body(b"ab", more=True), body(b"", more=True), body(b"c"))
    head, _, data = came.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert data == b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"


@pytest.mark.parametrize("head", [HEAD, sized(2)])
def test_a_response_to_head_has_no_body(head: Message) -> None:
    came = answered(head, body(b"ab"), method="HEAD")
    assert came.endswith(b"\r\n\r\n")
    assert came.count(b"\r\n\r\n") == 1


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: b", b"a\nb", b"a\x00b"])
def test_a_header_with_a_line_end_is_never_sent(
    value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    came = answered({**HEAD, "headers": [(b"x", value)]}, body(b""))
    assert b"Set-Cookie" not in came
    assert b"200 OK" not in came
    assert "control character" in caplog.text


@pytest.mark.parametrize("data", [b"abc", b"a"])
def test_a_body_of_another_length_than_promised_ends_the_connection(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    answered(sized(2), body(data))
    assert "Content-Length" in caplog.text


@pytest.mark.parametrize("messages", [(), (body(b""),)])
def test_an_application_without_a_response_is_answered_with_500(
    messages: tuple[Message, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert answered(*messages).startswith(b"HTTP/1.1 500 ")
    assert caplog.records
