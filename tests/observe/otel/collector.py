"""A collector on loopback that accepts OTLP by HTTP or gRPC, rejects it, or does not respond."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.cli.nodes import wait_until

Row = tuple[str, ...]


class Collector:
    """Decoded telemetry that has arrived."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.metrics: dict[Row, float] = {}
        """The last value of each metric, by name and label values."""
        self.counters: set[str] = set()
        """Names of the monotonic metrics."""
        self.units: dict[str, str] = {}
        self.resource: dict[str, Any] = {}
        self.headers: dict[str, str] = {}
        self.requests: dict[str, int] = {"/v1/traces": 0, "/v1/metrics": 0}
        self.status = 200
        """HTTP status of the responses."""
        self.answering = threading.Event()
        """Whether requests get a response."""
        self.answering.set()
        self.url = ""
        self.failures: list[BaseException] = []
        """Errors in received requests."""

    def take(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        self.requests[path] += 1
        if self.status != 200:
            return
        self.headers = headers
        if path == "/v1/traces":
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resource = attributes(part.resource.attributes)
                self.spans += [_span(one) for scope in part.scope_spans for one in scope.spans]
        else:
            for part in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.resource = attributes(part.resource.attributes)
                for scope in part.scope_metrics:
                    for metric in scope.metrics:
                        self._take_metric(metric)

    def _take_metric(self, metric: Any) -> None:
        kind = metric.WhichOneof("data")
        if kind == "sum":
            assert metric.sum.is_monotonic
            assert metric.sum.aggregation_temporality == 2, "cumulative"
            self.counters.add(metric.name)
        self.units[metric.name] = metric.unit
        for point in getattr(metric, kind).data_points:
            if kind == "sum":
                assert 0 < point.start_time_unix_nano <= point.time_unix_nano
            labels = attributes(point.attributes)
            self.metrics[metric.name, *labels.values()] = point.as_double

    def span(self, name: str, is_it: Callable[[dict[str, Any]], bool] = lambda _: True) -> Any:
        """Wait for the span of this name and return it."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found[:] = [one for one in list(self.spans) if one["name"] == name and is_it(one)]
            return bool(found)

        wait_until(has_come)
        return found[0]

    def children(self, span: dict[str, Any]) -> list[dict[str, Any]]:
        return [one for one in self.spans if one["parent"] == span["id"]]


def attributes(pairs: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in pairs}


def _span(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "kind": span.kind,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "error": span.status.message if span.status.code == 2 else None,
        **attributes(span.attributes),
    }


@contextmanager
def running_collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.answering.wait()
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                collector.take(self.path, body, headers)
            except BaseException as error:
                collector.failures.append(error)
                raise
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore clients that closed the connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield collector
        finally:
            collector.answering.set()
            server.shutdown()
            thread.join()
        assert not collector.failures, collector.failures


_GRPC_PATHS = {
    "/v1/traces": (
        "opentelemetry.proto.collector.trace.v1.TraceService",
        ExportTraceServiceResponse,
    ),
    "/v1/metrics": (
        "opentelemetry.proto.collector.metrics.v1.MetricsService",
        ExportMetricsServiceResponse,
    ),
}
"""The services of a collector, by the path that each has over HTTP."""


@contextmanager
def running_grpc_collector() -> Iterator[Collector]:
    """Run a collector that speaks gRPC; a `status` that is not 200 is UNAVAILABLE there."""
    collector = Collector()

    def method_of(path: str, response: Any) -> grpc.RpcMethodHandler[Any, Any]:
        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            collector.answering.wait()
            headers = {name: str(value) for name, value in context.invocation_metadata()}
            try:
                collector.take(path, body, headers)
            except BaseException as error:
                collector.failures.append(error)
                raise
            if collector.status != 200:
                context.abort(grpc.StatusCode.UNAVAILABLE, "told to refuse")
            encoded: bytes = response().SerializeToString()
            return encoded

        # Bytes in and out: `take` decodes them, as it does those of HTTP.
        return grpc.unary_unary_rpc_method_handler(export)

    server = grpc.server(ThreadPoolExecutor(4))
    for path, (service, response) in _GRPC_PATHS.items():
        methods = {"Export": method_of(path, response)}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        collector.answering.set()
        server.stop(grace=None).wait()
    assert not collector.failures, collector.failures
