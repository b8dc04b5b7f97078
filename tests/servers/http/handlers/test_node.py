"""The description of a node over HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream import __version__
from millstream.observe.node_info import resident_bytes
from millstream.testing.broker import RunningBroker, running_broker
from tests.browser.console import consumer
from tests.servers.http.app_node import AppNode, with_app_node
from tests.servers.http.calls import ask
from tests.servers.http.http_topic import HttpTopic


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("node")) as broker:
        yield broker


def test_a_node_tells_what_it_is_and_where_its_servers_are(running: RunningBroker) -> None:
    found = ask(running.url, "GET", "/v1/node").json
    assert found["version"] == __version__
    assert found["node_id"] == running.server.broker.node_id
    assert (found["status"], found["problems"]) == ("ready", [])
    assert found["kafka"] == found["advertised"] == running.bootstrap
    assert found["http"] == running.url
    assert found["data"] == os.path.abspath(running.data)
    assert found["commits"] == running.server.broker.store.sync_backend
    assert found["event_loop"].startswith("uvloop ")
    assert found["machine"]["cpus"] >= 1
    assert found["machine"]["free_bytes"] > 0
    assert found["http_connections"] >= 1
    assert found["uptime_ms"] >= 0


def test_connections_are_added_up_by_client(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    with consumer(running, "connected", topic.name, client="reader-1"):
        found = ask(running.url, "GET", "/v1/node/connections").json
    assert (found["kafka_max"], found["http_max"]) == (20_000, 10_000)
    clients = {(one["server"], one["client_id"]): one for one in found["clients"]}
    kafka, http = clients["kafka", "reader-1"], clients["http", None]
    assert (kafka["address"], http["address"]) == ("127.0.0.1", "127.0.0.1")
    assert kafka["connections"] >= 1
    assert kafka["idle_ms"] >= 0
    assert http["connections"] >= 1
    assert http["idle_ms"] is None
    assert found["kafka"] == sum(
        one["connections"] for one in found["clients"] if one["server"] == "kafka"
    )


def test_what_a_node_holds_is_counted(running: RunningBroker) -> None:
    before = ask(running.url, "GET", "/v1/node").json
    topic = HttpTopic(running, partitions=3)
    assert ask(running.url, "PUT", f"/v1/queues/{topic.name}").status == 201
    body = json.dumps({"topic": topic.name, "to": "latest"}).encode()
    assert ask(running.url, "PUT", f"/v1/groups/{topic.name}/offsets", body).status == 200
    after = ask(running.url, "GET", "/v1/node").json
    grown = {name: after[name] - before[name] for name in ("topics", "partitions", "groups")}
    assert grown == {"topics": 1, "partitions": 3, "groups": 1}
    assert after["queues"] - before["queues"] == 1


def test_what_opening_the_data_found_is_told_after_a_clean_stop(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        HttpTopic(running).append_values(1, 2)
        begun = ask(running.url, "GET", "/v1/node").json
    with running_broker(tmp_path) as running:
        found = ask(running.url, "GET", "/v1/node").json
    assert begun["opened"] == {"logs": 0, "scanned_bytes": 0, "damaged_logs": 0}
    assert found["opened"]["logs"] >= 1
    assert (found["opened"]["scanned_bytes"], found["opened"]["damaged_logs"]) == (0, 0)
    assert found["started_at"] >= begun["started_at"]


def test_the_history_has_what_was_appended_and_asked_for(running: RunningBroker) -> None:
    topic = HttpTopic(running)
    topic.append_values(*range(40))
    info = running.server._info
    assert info is not None

    async def sample() -> None:
        info._history._sample(running.server.broker.clock.monotonic())

    running.run(sample())
    found = ask(running.url, "GET", "/v1/node/history").json
    series = found["series"]
    assert found["interval_ms"] == 1000
    assert len({len(one) for one in series.values()}) == 1
    assert sum(one or 0 for one in series["appended_records"]) > 0
    assert sum(one or 0 for one in series["http_requests"]) > 0
    assert any(one is not None for one in series["commit_p99_ms"])
    assert series["memory_bytes"][-1] > 0


def test_a_request_that_was_asked_to_wait_says_nothing_of_how_fast_the_node_is(
    running: RunningBroker,
) -> None:
    topic = HttpTopic(running)
    info = running.server._info
    assert info is not None
    before = info._sample()
    topic.get(wait_ms=1)
    after = info._sample()
    assert sum(after.http_answers) == sum(before.http_answers)
    assert after.http_requests == before.http_requests + 1
    topic.get()
    assert sum(info._sample().http_answers) == sum(after.http_answers) + 1


def test_a_node_that_was_stopped_samples_no_more(tmp_path: Path) -> None:
    with running_broker(tmp_path) as running:
        info = running.server._info
        assert info is not None
        history = info._history
        assert history._timer is not None
    assert history._timer is None


@with_app_node
async def test_a_server_without_a_node_says_so(node: AppNode) -> None:
    for path in ("/v1/node", "/v1/node/history"):
        status, answer = await node.begin("GET", path).answer()
        assert (status, answer["error"]["code"]) == (503, "unavailable")


def test_memory_that_the_system_does_not_tell_is_none(tmp_path: Path) -> None:
    assert resident_bytes(str(tmp_path / "missing")) is None
    (tmp_path / "odd").write_text("12")
    assert resident_bytes(str(tmp_path / "odd")) is None
    assert (resident_bytes() or 0) > 1_000_000
