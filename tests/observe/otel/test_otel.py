"""Spans and metrics reach a collector over OTLP; a failed or slow collector blocks no request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from millstream import Client
from millstream.config.schema import TelemetryConfig
from millstream.errors import InvalidConfig
from millstream.observe.metrics.node_metrics import (
    CLUSTER_SECTIONS,
    NATIVE_SECTIONS,
    SECTIONS,
)
from millstream.observe.otel.spans import parse_traceparent
from millstream.testing.broker import RunningBroker, running_broker
from tests.cli.nodes import Node, wait_until
from tests.servers.http.calls import ask

from .collector import Collector, running_collector

JSON = {"content-type": "application/json"}
RECORD = b'{"records": [{"value": "a"}]}'
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
SERVER_KIND = 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    # The export interval of the SDK, so that a test waits no longer than this.
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with running_collector() as found:
        yield found


def traced(collector: Collector, **settings: Any) -> TelemetryConfig:
    return TelemetryConfig(
        **{"traces": True, "traces_ratio": 1.0, "endpoint": collector.url, **settings}
    )


def measured(collector: Collector, **settings: Any) -> TelemetryConfig:
    return TelemetryConfig(
        **{
            "metrics": True,
            "metrics_interval_ms": 100,
            "endpoint": collector.url,
            **settings,
        }
    )


@contextlib.contextmanager
def node(path: Path, telemetry: TelemetryConfig) -> Iterator[RunningBroker]:
    with running_broker(path, telemetry=telemetry) as broker:
        yield broker


def told(broker: RunningBroker, name: str, outcome: str) -> float:
    text = ask(broker.url, "GET", "/metrics").body.decode()
    line = f'millstream_telemetry_{name}_total{{outcome="{outcome}"}} '
    (found,) = (one for one in text.splitlines() if one.startswith(line))
    return float(found.rpartition(" ")[2])


def append(broker: RunningBroker, topic: str = "mail", **headers: str) -> None:
    answer = ask(broker.url, "POST", f"/v1/topics/{topic}/records", RECORD, {**JSON, **headers})
    assert answer.status == 201


# Traces over HTTP.


def test_an_append_over_http_is_part_of_the_trace_of_its_caller(
    tmp_path: Path, collector: Collector
):
    # No span is sampled at random: the decision of the caller applies.
    with node(tmp_path, traced(collector, traces_ratio=0.0)) as broker:
        append(broker)
        append(broker, traceparent=f"00-{TRACE}-{CALLER}-01")
        span = collector.span("POST /v1/topics/{topic}/records")
        commit = collector.span("commit")
    assert (span["trace"], span["parent"], span["kind"]) == (TRACE, CALLER, SERVER_KIND)
    assert span["http.request.method"] == "POST"
    assert span["http.route"] == "/v1/topics/{topic}/records"
    assert span["http.response.status_code"] == 201
    assert span["url.path"] == "/v1/topics/mail/records"
    assert span["millstream.topic"] == "mail"
    assert span["millstream.append.wait_ms"] >= 0
    assert span["millstream.fsync_ms"] > 0
    assert span["error"] is None
    assert commit["parent"] == span["id"]
    assert span["start"] <= commit["start"] <= commit["end"] <= span["end"]
    assert len(collector.spans) == 2, "that of the other append was not followed"


@pytest.mark.parametrize("header", [f"00-{TRACE}-{CALLER}-00", None])
def test_what_its_caller_does_not_follow_is_not_followed(
    tmp_path: Path, collector: Collector, header: str | None
):
    ratio = 0.0 if header is None else 1.0
    with node(tmp_path, traced(collector, traces_ratio=ratio)) as broker:
        append(broker, **({} if header is None else {"traceparent": header}))
        append(broker, traceparent=f"00-{TRACE}-{CALLER}-01")
        collector.span("POST /v1/topics/{topic}/records")
    names = [span["name"] for span in collector.spans]
    assert sorted(names) == ["POST /v1/topics/{topic}/records", "commit"]


def test_what_is_refused_and_what_fails_is_told(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    with node(tmp_path, traced(collector)) as broker:
        assert ask(broker.url, "GET", "/v1/topics/none").status == 404
        assert ask(broker.url, "GET", "/nothing/here").status == 404
        monkeypatch.setattr(broker.server.broker.topics, "get", None)
        assert ask(broker.url, "GET", "/v1/topics/broken").status == 500
        refused = collector.span("GET /v1/topics/{topic}", lambda one: one["error"] is None)
        failed = collector.span("GET /v1/topics/{topic}", lambda one: one["error"] is not None)
        other = collector.span("other other")
    assert refused["http.response.status_code"] == 404
    assert failed["error"] == "answered with 500"
    assert failed["error.type"] == "500"
    assert other["http.route"] == "other", "paths that clients think of make no names"


def test_a_live_answer_is_told_when_it_begins(tmp_path: Path, collector: Collector):
    with node(tmp_path, traced(collector)) as broker:
        append(broker)
        with contextlib.closing(
            socket.create_connection(broker.url.removeprefix("http://").split(":"))
        ) as watching:
            watching.sendall(b"GET /v1/events?topic=mail HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert watching.recv(100).startswith(b"HTTP/1.1 200")
            assert collector.span("GET /v1/events")["http.response.status_code"] == 200


def test_our_client_tells_the_node_which_span_is_current(tmp_path: Path, collector: Collector):
    context = SpanContext(int(TRACE, 16), int(CALLER, 16), False, TraceFlags(1))
    with (
        node(tmp_path, traced(collector, traces_ratio=0.0)) as broker,
        Client(broker.url) as client,
        trace.use_span(NonRecordingSpan(context)),
    ):
        client.create_topic("mail")
        span = collector.span("PUT /v1/topics/{topic}")
    assert (span["trace"], span["parent"]) == (TRACE, CALLER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"00-{TRACE}-{CALLER}",
        f"00-{TRACE}-{CALLER}-1",
        f"00-{TRACE.upper()}-{CALLER}-01",
        f"ff-{TRACE}-{CALLER}-01",
        f"00-{'0' * 32}-{CALLER}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{CALLER}-01-more",
        f"00-{TRACE}-{CALLER}-01\n",
    ],
)
def test_a_parent_that_is_none_is_passed_over(text: str):
    assert parse_traceparent(text) is None


def test_a_parent_of_a_later_version_is_read_as_far_as_it_is_known():
    found = parse_traceparent(f"01-{TRACE}-{CALLER}-03-more")
    assert found is not None
    assert f"{found.trace_id:x}".zfill(32) == TRACE
    assert found.trace_flags.sampled


# Traces of Kafka clients.


def test_a_produce_of_a_kafka_client_is_followed(tmp_path: Path, collector: Collector):
    with node(tmp_path, traced(collector)) as broker:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "client.id": "shop", "acks": "all"}
        )
        producer.produce("orders", b"first")
        assert producer.flush(60) == 0
        span = collector.span("Kafka Produce")
        commit = collector.span("commit")
    assert span["kind"] == SERVER_KIND
    assert span["parent"] == ""
    assert span["messaging.system"] == "kafka"
    assert span["messaging.operation.name"] == "Produce"
    assert span["messaging.client.id"] == "shop"
    assert span["messaging.destination.name"] == "orders"
    assert span["kafka.topic_count"] == 1
    assert span["client.address"] == "127.0.0.1"
    assert span["kafka.api_version"] >= 9
    assert span["error"] is None
    assert commit["parent"] == span["id"]
    assert commit["end"] - commit["start"] > 0


def test_a_fetch_that_waits_tells_for_how_long(tmp_path: Path, collector: Collector):
    with node(tmp_path, traced(collector)) as broker:
        append(broker, "orders")
        settings = {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
        with contextlib.closing(Consumer(settings)) as consumer:
            consumer.subscribe(["orders"])
            assert consumer.poll(60).error() is None
            wait = collector.span("wait for records")
            fetch = collector.span("Kafka Fetch", lambda one: one["id"] == wait["parent"])
            joined = collector.span("Kafka JoinGroup")
    assert wait["end"] - wait["start"] >= 15_000_000
    assert fetch["kafka.topic_count"] >= 0
    assert "messaging.destination.name" not in joined


# Metrics.


def test_metrics_arrive_as_a_scrape_tells_them(tmp_path: Path, collector: Collector):
    with node(tmp_path, measured(collector, service_name="mill")) as broker:
        for _ in range(3):
            append(broker)
        key = ("millstream_log_appends_total", "mail", "0")
        wait_until(lambda: collector.metrics.get(key) == 3.0)
        assert collector.metrics["millstream_node_ready_flag",] == 1.0
        scraped = ask(broker.url, "GET", "/metrics").body.decode()
    names = {
        name for section in SECTIONS for metric in section.metrics for name, _, _ in metric.parts()
    }
    assert {row[0] for row in collector.metrics} <= names
    counters = ("_total", "_bucket", "_sum", "_count")
    assert {name for name in collector.counters if not name.endswith(counters)} == set()
    assert collector.metrics["millstream_broker_topics",] == 1.0
    assert collector.metrics["millstream_node_ready_flag",] == 0.0, "its last word: it stops"
    route = ("millstream_http_requests_total", "POST", "/v1/topics/{topic}/records", "2xx")
    assert collector.metrics[route] == 3.0
    assert collector.metrics["millstream_http_request_duration_seconds_bucket", "+Inf"] >= 3.0
    assert 'millstream_log_appends_total{topic="mail",partition="0"} 3.0' in scraped
    assert collector.units["millstream_log_appended_bytes_total"] == "By"
    assert collector.units["millstream_log_sync_seconds_total"] == "s"
    assert collector.units["millstream_broker_topics"] == ""
    assert collector.resource["service.name"] == "mill"
    assert collector.resource["service.version"]
    assert collector.resource["service.instance.id"].endswith("-1")


def test_all_that_a_node_has_to_tell_arrives(tmp_path: Path, collector: Collector):
    with node(tmp_path, measured(collector)) as broker:
        assert ask(broker.url, "PUT", "/v1/queues/mail", b"{}", JSON).status == 201
        append(broker)
        names = {
            name
            for section in SECTIONS
            if section not in (*CLUSTER_SECTIONS, *NATIVE_SECTIONS)
            for metric in section.metrics
            for name, _, _ in metric.parts()
            if not metric.name.startswith("millstream_group_")  # There is no group.
        }
        wait_until(lambda: {row[0] for row in collector.metrics} >= names)


def test_the_last_word_of_a_node_that_stops_arrives(tmp_path: Path, collector: Collector):
    config = measured(collector, metrics_interval_ms=3_600_000, traces=True, traces_ratio=1.0)
    with node(tmp_path, config) as broker:
        append(broker)
    assert collector.metrics["millstream_log_appends_total", "mail", "0"] == 1.0
    assert [one["name"] for one in collector.spans if one["parent"] == ""] == [
        "POST /v1/topics/{topic}/records"
    ]


def test_variables_of_the_sdk_are_heeded(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20it")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from-a-variable")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=north,service.instance.id=seven")
    with node(tmp_path, traced(collector, endpoint=None)) as broker:
        append(broker)
    assert collector.headers["authorization"] == "Bearer it"
    assert collector.resource["service.name"] == "from-a-variable"
    assert collector.resource["service.instance.id"] == "seven"
    assert collector.resource["zone"] == "north"


def test_the_sdk_can_be_disabled_by_its_own_variable(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with node(tmp_path, traced(collector, metrics=True, metrics_interval_ms=100)) as broker:
        append(broker)
    assert collector.requests == {"/v1/traces": 0, "/v1/metrics": 0}


# A collector that is down or slow.


def test_a_collector_that_is_down_disturbs_nobody_and_is_told_of_once(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    collector.status = 400  # The SDK does not retry this status.
    with node(tmp_path, traced(collector, metrics=True, metrics_interval_ms=100)) as broker:
        for _ in range(20):
            append(broker)
        wait_until(lambda: told(broker, "spans", "lost") >= 20)
        wait_until(lambda: told(broker, "readings", "lost") >= 3)
        assert told(broker, "spans", "sent") == 0
        words = [one.getMessage() for one in caplog.records if one.name.endswith("sender")]
        assert sorted(word.partition(":")[0] for word in words) == [
            "the collector does not accept metrics",
            "the collector does not accept spans",
        ]
        assert not [one for one in caplog.records if one.name.startswith("opentelemetry")]
        collector.status = 200
        wait_until(lambda: told(broker, "readings", "sent") >= 1)
        append(broker)
        wait_until(lambda: told(broker, "spans", "sent") >= 1)
    assert "the collector accepts spans again" in caplog.text
    assert "the collector accepts metrics again" in caplog.text


def test_where_nobody_listens_all_is_lost_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        endpoint = f"http://127.0.0.1:{gone.getsockname()[1]}"
    config = TelemetryConfig(
        traces=True, traces_ratio=1.0, metrics=True, metrics_interval_ms=100, endpoint=endpoint
    )
    with node(tmp_path, config) as broker:
        append(broker)
        wait_until(lambda: told(broker, "spans", "lost") >= 1)
        wait_until(lambda: told(broker, "readings", "lost") >= 1)
        assert ask(broker.url, "GET", "/health/ready").status == 200


def test_no_more_waits_for_a_slow_collector_than_may(tmp_path: Path, collector: Collector):
    collector.answering.clear()
    config = traced(
        collector, traces_waiting_max=10, metrics=True, metrics_interval_ms=100, flush_ms_max=100
    )
    with node(tmp_path, config) as broker:
        for _ in range(30):
            append(broker)
        wait_until(lambda: told(broker, "spans", "dropped") >= 30)
        wait_until(lambda: told(broker, "readings", "dropped") >= 2)
        counters = broker.server._export._counters
        assert counters.spans_waiting <= 10
        assert counters.readings == 1, "one is under way, and none waits"


def test_the_last_reading_is_sent_although_one_is_in_flight(tmp_path: Path, collector: Collector):
    with node(tmp_path, measured(collector, metrics_interval_ms=3_600_000)) as broker:
        append(broker)
        export = broker.server._export
        collector.answering.clear()
        broker.run(export._send_once())
        wait_until(lambda: export._sender.is_busy)
        broker.run(export._send_once(is_last=True))
        assert export._counters.readings == 2
        collector.answering.set()
    assert collector.metrics["millstream_node_ready_flag",] == 0.0


def test_stopping_waits_for_a_collector_that_hangs_no_longer_than_it_may(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
):
    collector.answering.clear()
    with node(tmp_path, traced(collector, metrics=True, flush_ms_max=50)) as broker:
        append(broker)
        began = time.monotonic()
    assert time.monotonic() - began < 20, "it hangs"
    assert "the collector did not accept the remaining telemetry" in caplog.text


def test_reading_metrics_lets_others_have_the_loop_in_between(tmp_path: Path, collector: Collector):
    with node(tmp_path, measured(collector, metrics_interval_ms=3_600_000)) as broker:
        append(broker)
        turns = 0

        async def count() -> int:
            nonlocal turns
            is_done = False

            async def turn() -> None:
                nonlocal turns
                while not is_done:
                    turns += 1
                    await asyncio.sleep(0)

            counting = asyncio.create_task(turn())
            await broker.server._export._send_once()
            is_done = True
            await counting
            return turns

        absent = (*CLUSTER_SECTIONS, *NATIVE_SECTIONS)
        sections = [section for section in SECTIONS if section not in absent]
        pieces = sum(len(section.metrics) for section in sections)
        assert broker.run(count()) >= pieces


# Disabled or not installed.


def test_a_node_that_sends_nothing_loads_nothing_of_it(tmp_path: Path):
    script = """
import asyncio, sys
from millstream.config.schema import Endpoint, NodeConfig
from millstream.node import Node
import millstream.clients.http.sync.client, millstream.testing.broker

async def run():
    port = Endpoint("127.0.0.1", 0)
    async with Node(NodeConfig(data=sys.argv[1], kafka=port, http=port)):
        pass

asyncio.run(run())
print([name for name in sys.modules if name.startswith(("opentelemetry", "requests"))])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_without_the_extra_it_is_named(tmp_path: Path):
    script = """
import sys
sys.modules["opentelemetry"] = None
from millstream.cli.main import main
main()
"""
    options = ["serve", "--data", str(tmp_path / "data"), "--log-format", "pretty",
               "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0",
               "--set", "telemetry.traces=true"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Error: telemetry is on" in done.stderr
    assert "install 'millstream[otel]'" in done.stderr
    assert not (tmp_path / "data").exists(), "nothing was touched"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "collector:4318"),
        ("endpoint", "ftp://collector"),
        ("endpoint", "http://"),
        ("endpoint", "http://me:secret@collector"),
        ("endpoint", "http://collector:99999"),
        ("endpoint", "http://collector/ x"),
        ("service_name", ""),
        ("service_name", "two\nlines"),
        ("traces_ratio", 1.5),
        ("traces", "yes"),
        ("metrics_interval_ms", 1),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_allowed(name: str, value: object):
    with pytest.raises(InvalidConfig, match=rf"{name} must be .*, got {re.escape(repr(value))}"):
        TelemetryConfig(**{name: value})


# A separate process.


def test_a_node_is_told_by_its_settings_and_stops_cleanly(tmp_path: Path, collector: Collector):
    settings = {
        "traces": "true",
        "traces_ratio": "1",
        "metrics": "on",
        "metrics_interval_ms": "200 ms",
        "endpoint": collector.url,
        "service_name": "mill of mine",
    }
    pairs = [
        part for key, value in settings.items() for part in ("--set", f"telemetry.{key}={value}")
    ]
    with Node(tmp_path, *pairs) as served:
        assert ask(served.url, "PUT", "/v1/topics/orders").status == 201
        collector.span("PUT /v1/topics/{topic}")
        wait_until(lambda: collector.metrics.get(("millstream_broker_topics",)) == 1.0)
        assert served.stop() == 0
    assert collector.resource["service.name"] == "mill of mine"
    assert not [line for line in served.errors.splitlines() if json.loads(line)["level"] != "info"]
