"""Metrics of the HTTP server: requests by operation and outcome."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.servers.http.app import OPERATIONS
from millstream.servers.http.counters import SECONDS, HttpCounters
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask
from tests.servers.http.raw_client import raw_client

from .test_metric import parsed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path) as running:
        yield running


def told(broker: RunningBroker) -> dict[tuple[str, ...], float]:
    return parsed(ask(broker.url, "GET", "/metrics").body.decode())


def test_requests_are_counted_by_operation_and_kind_of_status(broker: RunningBroker) -> None:
    body = b'{"records": [{"value": 1}]}'
    for name in ("a", "b", "c"):
        assert ask(broker.url, "POST", f"/v1/topics/{name}/records", body).status == 201
    assert ask(broker.url, "POST", "/v1/topics/a/records", b"{").status == 400
    found = told(broker)
    route = ("POST", "/v1/topics/{topic}/records")
    assert found["millstream_http_requests_total", *route, "2xx"] == 3
    assert found["millstream_http_requests_total", *route, "4xx"] == 1
    assert found["millstream_http_request_seconds_total", *route] > 0


def routes_in(found: dict[tuple[str, ...], float]) -> set[tuple[str, ...]]:
    return {key[1:3] for key in found if key[0] == "millstream_http_requests_total"}


def test_every_operation_has_its_numbers_before_it_was_asked(broker: RunningBroker) -> None:
    found = told(broker)
    assert {(one.method, one.path) for one in OPERATIONS} < routes_in(found)
    for one in OPERATIONS:
        assert found["millstream_http_requests_total", one.method, one.path, "2xx"] == 0


def test_what_clients_think_of_is_one_line(broker: RunningBroker) -> None:
    before = routes_in(told(broker))
    for at in range(20):
        assert ask(broker.url, "GET", f"/nowhere/{at}").status == 404
        assert ask(broker.url, "PATCH", "/v1/topics/a").status == 405
    found = told(broker)
    assert found["millstream_http_requests_total", "other", "other", "4xx"] == 40
    assert routes_in(found) == before


def test_time_falls_into_buckets_that_contain_each_other(broker: RunningBroker) -> None:
    for _ in range(5):
        ask(broker.url, "GET", "/health/live")
    found = told(broker)
    name = "millstream_http_request_duration_seconds"
    counts = [found[f"{name}_bucket", str(limit)] for limit in (*SECONDS, "+Inf")]
    assert found[f"{name}_count",] == counts[-1]
    assert found[f"{name}_sum",] > 0
    assert counts == sorted(counts)
    assert counts[-1] == 5


def test_an_answer_falls_into_the_bucket_of_its_time() -> None:
    counters = HttpCounters()
    for seconds in (0.0, SECONDS[0], SECONDS[0] + 1e-9, 1e9):
        counters.note_answer("GET", "/", 200, seconds)
    assert counters.durations.counts[:2] == [2, 1]
    assert counters.durations.counts[-1] == 1


def test_bytes_and_connections_are_counted(broker: RunningBroker) -> None:
    with raw_client(broker.url) as client:
        client.send(b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = client.answer()
        found = told(broker)
    assert found["millstream_http_connections",] == 2
    assert found["millstream_http_accepted_connections_total",] == 2
    assert 100 < found["millstream_http_received_bytes_total",] < 1_000
    assert len(answer.body) < found["millstream_http_sent_bytes_total",] < 2_000
    assert found["millstream_http_request_memory_bytes",] > 0


def test_endings_and_refusals_are_there_before_they_happen(broker: RunningBroker) -> None:
    with raw_client(broker.url) as client:
        client.send(b"\x00")
        assert client.answers()[0].status == 400
    found = told(broker)
    assert found["millstream_http_closed_connections_total", "malformed"] == 1
    assert found["millstream_http_closed_connections_total", "output"] == 0
    assert found["millstream_http_refused_connections_total", "descriptors"] == 0
    assert found["millstream_http_unread_bytes",] == 0
