"""A real broker on a free port, in this process, for tests.

    with running_broker("data") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

It runs on an event loop in its own thread, with real sockets and real files: a test sees what a
client of a node sees.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from os import PathLike, fspath
from typing import Any, TypeVar

import uvloop

from millstream.config.schema import (
    AccessConfig,
    BrokerConfig,
    Endpoint,
    HttpConfig,
    KafkaConfig,
    LogConfig,
    NativeConfig,
    NodeConfig,
    OAuthConfig,
    OutboundConfig,
    StoreConfig,
    TelemetryConfig,
    TierConfig,
    TlsConfig,
)
from millstream.node import Node
from millstream.storage.disk.filesystem import Filesystem

T = TypeVar("T")

_ANY_PORT = Endpoint("127.0.0.1", 0)


class RunningBroker:
    """A node that runs in a thread."""

    def __init__(self, config: NodeConfig, *, filesystem: Filesystem | None = None) -> None:
        self._server = Node(config, filesystem=filesystem)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="millstream-broker", daemon=True)
        self.data = config.data
        """Its data directory."""

    @property
    def bootstrap(self) -> str:
        """Address for Kafka clients: `bootstrap.servers`."""
        return str(self._server.kafka)

    @property
    def url(self) -> str:
        """URL for HTTP clients."""
        return self._server.http_url

    @property
    def native(self) -> Endpoint:
        """Address for native clients, if the node has a native server."""
        assert self._server.native is not None, "a native server was asked for"
        return self._server.native

    @property
    def server(self) -> Node:
        """The node itself, which belongs to its own thread."""
        return self._server

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of the node, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self) -> None:
        """Start the node, and return when it serves requests."""
        self._thread.start()
        try:
            self.run(self._server.start())
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """Stop the node cleanly, and return when its files are closed."""
        try:
            self.run(self._server.stop())
        finally:
            self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


@contextlib.contextmanager
def running_broker(
    data: str | PathLike[str],
    *,
    broker: BrokerConfig | None = None,
    kafka_server: KafkaConfig | None = None,
    http_server: HttpConfig | None = None,
    log: LogConfig | None = None,
    store: StoreConfig | None = None,
    tier: TierConfig | None = None,
    kafka: Endpoint = _ANY_PORT,
    native_server: NativeConfig | None = None,
    filesystem: Filesystem | None = None,
    telemetry: TelemetryConfig | None = None,
    tls: TlsConfig | None = None,
    access: AccessConfig | None = None,
    oauth: OAuthConfig | None = None,
    outbound: OutboundConfig | None = None,
) -> Iterator[RunningBroker]:
    """Run a broker with its data in the directory `data` for the duration of the block.

    It has a native server if `native_server` has its settings.

    With a `FaultyFilesystem` its logs are on a disk that fails on command.
    """
    config = NodeConfig(
        data=fspath(data),
        kafka=kafka,
        http=_ANY_PORT,
        native=None if native_server is None else _ANY_PORT,
        broker=broker or BrokerConfig(),
        kafka_server=kafka_server or KafkaConfig(),
        http_server=http_server or HttpConfig(),
        native_server=native_server or NativeConfig(),
        log=log or LogConfig(),
        store=store or StoreConfig(),
        tier=tier or TierConfig(),
        telemetry=telemetry or TelemetryConfig(),
        tls=tls or TlsConfig(),
        access=access or AccessConfig(),
        oauth=oauth or OAuthConfig(),
        outbound=outbound or OutboundConfig(),
    )
    running = RunningBroker(config, filesystem=filesystem)
    running.start()
    try:
        yield running
    finally:
        running.stop()
