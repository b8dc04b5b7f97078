"""Every error has a status, and looks the same over HTTP."""

from __future__ import annotations

import asyncio
import inspect
import json
from http import HTTPStatus

import pytest
from starlette.requests import Request
from starlette.responses import Response

from millstream import errors
from millstream.errors import (
    CorruptBatch,
    DeadlineExceeded,
    DiskFull,
    LogFull,
    MalformedRequest,
    MillstreamError,
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageFailed,
    Unavailable,
    UnknownTopic,
    WouldBlock,
)
from millstream.protocols.http.errors import ErrorShape, error_of
from millstream.servers.http.routing.errors import STATUSES, code_of, status_of
from millstream.servers.http.server.listener import HttpListener
from tests.servers.http.calls import Answer, app_with, ask

ALL = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__
]


def answer_to(error: Exception) -> Answer:
    """Return the response if a handler raises `error`."""

    async def raise_it(_: Request) -> Response:
        raise error

    async def live() -> Answer:
        listener = HttpListener(app_with(test=raise_it))
        port = await listener.listen("127.0.0.1", 0)
        try:
            return await asyncio.to_thread(ask, f"http://127.0.0.1:{port}", "GET", "/test")
        finally:
            await listener.stop()

    return asyncio.run(live())


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_a_status_and_a_code(kind):
    assert status_of(kind) in STATUSES.values()
    assert code_of(kind) == code_of(kind).lower()
    if kind is not OffsetNotAvailable:  # `behind`: what it means to a client over HTTP.
        assert code_of(kind).replace("_", "") == kind.__name__.lower()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownTopic("topic 'a' does not exist"), 404, "unknown_topic"),
        (MalformedRequest("body is not JSON"), 400, "malformed_request"),
        (Unavailable("later"), 503, "unavailable"),
        (DeadlineExceeded("too late"), 503, "deadline_exceeded"),
    ],
    ids=str,
)
def test_an_error_says_what_is_wrong_and_who_has_to_act(error, status, code):
    found = answer_to(error)
    assert found.status == status
    assert found.json == {"error": {"code": code, "message": str(error), "detail": None}}


@pytest.mark.parametrize(
    ("error", "status", "code", "kind"),
    [
        (WouldBlock("slow", "store"), 503, "would_block", "store"),
        (DeadlineExceeded("too late", "log"), 503, "deadline_exceeded", "log"),
        (DeadlineExceeded("too late", "sealing"), 503, "deadline_exceeded", "sealing"),
        (DiskFull("no room"), 507, "disk_full", "full"),
        (LogFull("no room"), 409, "log_full", "limit"),
    ],
)
def test_the_kind_of_backpressure_is_told_to_programs(error, status, code, kind):
    found = answer_to(error)
    assert found.status == status
    body = {"code": code, "message": str(error), "detail": {"kind": kind}}
    assert found.json == {"error": body}
    assert error_of(status, ErrorShape(**body)).kind in (kind, None)


def test_an_offset_out_of_range_tells_the_numbers_to_programs_too():
    found = answer_to(OffsetOutOfRange(7, start=10, end=20))
    assert found.status == 416
    assert found.json["error"]["detail"] == {"offset": 7, "start": 10, "end": 20}


def test_who_may_try_again_is_told_when():
    assert answer_to(Unavailable("later")).headers["retry-after"] == "1"
    assert "retry-after" not in answer_to(UnknownTopic("none")).headers


@pytest.mark.parametrize(
    "error",
    [
        StorageFailed("/var/lib/millstream/topics/a/0 cannot be opened"),
        CorruptBatch("/var/lib/millstream/topics/a/0/0.log: byte 7"),
        MillstreamError("/var/lib"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_the_node_names_no_paths_to_clients_and_all_to_its_log(error, caplog):
    found = answer_to(error)
    assert found.status == 500
    assert found.json["error"]["code"] == code_of(type(error))
    assert "/var" not in json.dumps(found.json)
    assert str(error) in caplog.text


def test_a_mistake_of_ours_shows_no_traceback(caplog):
    found = answer_to(ZeroDivisionError("division by zero"))
    assert found.status == HTTPStatus.INTERNAL_SERVER_ERROR
    assert found.json["error"]["code"] == "internal_server_error"
    assert "zero" not in json.dumps(found.json)
    assert "ZeroDivisionError" in caplog.text
