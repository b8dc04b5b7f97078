"""Health and metrics over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Iterable, Iterator

from millstream.broker.problems import Problem, ProblemCode
from millstream.servers.http.app import make_app
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.server.listener import HttpListener
from tests.in_loop import in_loop

STARTING = Problem(ProblemCode.STARTING, "the node is starting")
GOOD = Health(is_started=True)


@contextlib.asynccontextmanager
async def listening(health: Health = GOOD, pieces: Iterable[str] = ()) -> AsyncIterator[int]:
    listener = HttpListener(make_app(lambda: health, lambda: pieces))
    port = await listener.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await listener.stop()


def get(port: int, path: str, method: str = "GET") -> tuple[int, str, str]:
    """Return status, content type and body of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"] or "", answer.read().decode()
    finally:
        connection.close()


def pages(health: Health, *paths: str) -> list[tuple[int, str, str]]:
    async def live() -> list[tuple[int, str, str]]:
        async with listening(health) as port:
            return [await asyncio.to_thread(get, port, path) for path in paths]

    return asyncio.run(live())


HEALTH = ("/health/live", "/health/startup", "/health/ready")


def test_a_good_node_is_live_started_and_ready():
    found = pages(GOOD, *HEALTH)
    assert [status for status, *_ in found] == [200, 200, 200]
    assert all(kind == "application/json" for _, kind, _ in found)


def test_a_node_that_starts_is_live_and_neither_started_nor_ready():
    found = pages(Health(is_started=False, problems=(STARTING,)), *HEALTH)
    assert [status for status, *_ in found] == [200, 503, 503]
    assert json.loads(found[2][2]) == {
        "status": "not ready",
        "problems": [{"code": "starting", "message": "the node is starting"}],
    }


def test_problems_are_named_also_by_a_node_that_is_ready():
    problem = Problem(ProblemCode.LOG_OFFLINE, "orders/0: offline")
    health = Health(is_started=True, problems=(problem,))
    (ready,) = pages(health, "/health/ready")
    assert json.loads(ready[2]) == {
        "status": "ready",
        "problems": [{"code": "log_offline", "message": "orders/0: offline"}],
    }


@in_loop
async def test_what_is_not_there_is_not_found_and_nothing_can_be_changed():
    async with listening() as port:
        missing = await asyncio.to_thread(get, port, "/")
        refused = await asyncio.to_thread(get, port, "/metrics", "POST")
        for (status, kind, body), code in ((missing, 404), (refused, 405)):
            assert (status, kind) == (code, "application/json")
            assert json.loads(body)["error"].keys() == {"code", "message", "detail"}


@in_loop
async def test_metrics_come_in_one_text_of_the_kind_that_prometheus_reads():
    async with listening(pieces=["a 1\n", "b 2\n"]) as port:
        found = await asyncio.to_thread(get, port, "/metrics")
        assert found == (200, "text/plain; version=0.0.4; charset=utf-8", "a 1\nb 2\n")


@in_loop
async def test_the_loop_has_a_turn_between_two_pieces_of_a_scrape():
    turns: list[str] = []
    loop = asyncio.get_running_loop()

    def pieces() -> Iterator[str]:
        for name in "abc":
            turns.append(name)
            loop.call_soon(turns.append, "loop")
            yield name

    async with listening(pieces=pieces()) as port:
        await asyncio.to_thread(get, port, "/metrics")
    assert turns == ["a", "loop", "b", "loop", "c", "loop"]


def test_a_client_that_keeps_its_connection_does_not_hold_up_the_end():
    async def live() -> None:
        async with listening() as port:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            await asyncio.to_thread(connection.request, "GET", "/health/live")
            assert (await asyncio.to_thread(connection.getresponse)).read()
        connection.close()

    asyncio.run(asyncio.wait_for(live(), 30))


def test_a_listener_that_was_never_asked_to_listen_can_be_stopped():
    asyncio.run(HttpListener(make_app(lambda: GOOD, lambda: ())).stop())


def test_a_path_that_leads_nowhere_is_told_what_there_is():
    [(status, _, body)] = pages(GOOD, "/nowhere")
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (404, "not_found")
    assert "/openapi.json" in error["message"]


def test_a_method_that_a_path_does_not_know_is_told_those_that_it_knows():
    async def live() -> tuple[int, str, str]:
        async with listening() as port:
            return await asyncio.to_thread(get, port, "/health/live", "PATCH")

    status, _, body = asyncio.run(live())
    error = json.loads(body)["error"]
    assert (status, error["code"]) == (405, "method_not_allowed")
    assert "allowed: GET, HEAD" in error["message"]
