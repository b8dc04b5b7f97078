"""Spans and metrics reach a collector over gRPC, and a failed or slow one blocks nobody."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.config.schema import TelemetryConfig, TelemetryProtocol
from millstream.errors import InvalidConfig
from tests.cli.nodes import wait_until
from tests.observe.otel.test_otel import CALLER, TRACE, append, node, told

from .collector import Collector, running_grpc_collector


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with running_grpc_collector() as found:
        yield found


def telemetry(collector: Collector, **settings: Any) -> TelemetryConfig:
    return TelemetryConfig(
        **{
            "protocol": TelemetryProtocol.GRPC,
            "traces": True,
            "traces_ratio": 1.0,
            "endpoint": collector.url,
            **settings,
        }
    )


def test_an_append_is_part_of_the_trace_of_its_caller(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=token")
    with node(tmp_path, telemetry(collector, traces_ratio=0.0)) as broker:
        append(broker, traceparent=f"00-{TRACE}-{CALLER}-01")
        span = collector.span("POST /v1/topics/{topic}/records")
        wait_until(lambda: told(broker, "spans", "sent") == 2)
    assert (span["trace"], span["parent"]) == (TRACE, CALLER)
    assert collector.resource["service.name"] == "millstream"
    assert collector.headers["authorization"] == "token"
    assert collector.requests["/v1/metrics"] == 0


def test_metrics_arrive_as_a_scrape_tells_them(tmp_path: Path, collector: Collector):
    settings = telemetry(collector, traces=False, metrics=True, metrics_interval_ms=100)
    with node(tmp_path, settings) as broker:
        append(broker)
        row = ("millstream_log_appends_total", "mail", "0")
        wait_until(lambda: collector.metrics.get(row) == 1)
        assert "millstream_log_appends_total" in collector.counters
    assert collector.requests["/v1/traces"] == 0


def test_the_last_spans_of_a_node_that_stops_arrive(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with node(tmp_path, telemetry(collector)) as broker:
        append(broker)
        assert not collector.spans
    assert "commit" in [span["name"] for span in collector.spans]


def test_a_collector_that_hangs_does_not_keep_a_node_from_stopping(
    tmp_path: Path, collector: Collector
):
    collector.answering.clear()
    with node(tmp_path, telemetry(collector, flush_ms_max=100)) as broker:
        append(broker)
    assert not collector.spans


def test_spans_that_nobody_accepts_are_counted(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # Else it is tried for ten seconds.
    collector.status = 503
    with node(tmp_path, telemetry(collector)) as broker:
        append(broker)
        wait_until(lambda: told(broker, "spans", "lost") > 0)
        append(broker)


def test_without_the_extra_it_is_named(tmp_path: Path):
    script = """
import sys
sys.modules["opentelemetry.exporter.otlp.proto.grpc"] = None
from millstream.cli.main import main
main()
"""
    options = ["serve", "--data", str(tmp_path / "data"), "--log-format", "pretty",
               "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0",
               "--set", "telemetry.traces=true", "--set", "telemetry.protocol=grpc"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "opentelemetry.exporter.otlp.proto.grpc is not installed" in done.stderr
    assert "install 'millstream[otel-grpc]'" in done.stderr
    assert not (tmp_path / "data").exists(), "nothing was touched"


def test_a_path_has_no_meaning_for_grpc_and_is_refused():
    words = "endpoint must be a URL without a path for grpc, got 'http://c:4317/v1/traces'"
    with pytest.raises(InvalidConfig, match=re.escape(words)):
        TelemetryConfig(protocol=TelemetryProtocol.GRPC, endpoint="http://c:4317/v1/traces")
    TelemetryConfig(endpoint="http://c:4318/prefix")


def test_a_protocol_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(InvalidConfig, match="protocol must be one of http, grpc, got 'udp'"):
        TelemetryConfig(protocol="udp")  # type: ignore[arg-type]
