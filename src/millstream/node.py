"""A node: a config in, a running broker with its doors out.

    data directory ──► store, state, metadata ──► broker ──► Kafka door, HTTP door

Started in that order, stopped in the other one. This is the only place that knows all parts.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import uvloop

from millstream.broker.broker import Broker
from millstream.broker.loop_timers import LoopTimers
from millstream.broker.problems import Problem, ProblemCode, listed_problems
from millstream.clock import SystemClock
from millstream.config.schema import Endpoint, NodeConfig, is_loopback
from millstream.errors import InvalidConfig, MillstreamError
from millstream.observe.loop_watch import LoopWatch
from millstream.observe.metrics.node_metrics import NodeMetrics
from millstream.observe.metrics.telemetry import TelemetryCounters
from millstream.observe.node_info import NodeInfo
from millstream.servers.http.app import make_app, make_starting_app
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.server.listener import HttpListener
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.kafka.listener import KafkaListener
from millstream.storage.disk.filesystem import Filesystem
from millstream.tracing import Tracer

if TYPE_CHECKING:
    from millstream.observe.otel.export import TelemetryExport

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another wants it. With Python's own 5 ms, a
thread that cleans in the background would be what the slowest requests wait for: the loop lets go
of the interpreter with every system call, and each time it may wait that long to have it back."""

YOUNG_OBJECTS_MAX = 20_000
"""How many objects may be made before Python looks for cycles among them. A request of a hundred
records makes some thousand, none of them in a cycle; with Python's own 700, such a request took a
tenth longer."""

DRAIN_SHARE = 0.4
"""How much of the time to stop may be spent on Kafka's requests, and half of that again on those
over HTTP; the rest is for the disk."""

_NEW, _STARTING, _READY, _STOPPING = "new", "starting", "ready", "stopping"


class Node:
    """A node that runs on the event loop."""

    def __init__(self, config: NodeConfig, *, filesystem: Filesystem | None = None) -> None:
        """Make a node of a config; `filesystem` is where logs lie, if not on the machine's own."""
        self.config = config
        self._filesystem = filesystem
        self._clock = SystemClock()
        self._broker: Broker | None = None
        self._kafka: KafkaListener | None = None
        self._http: HttpListener | None = None
        self._live: LiveDelivery | None = None
        self._about: NodeInfo | None = None
        self._export: TelemetryExport | None = None
        self._state = _NEW
        self.loop_watch = LoopWatch(self._clock, LoopTimers(), lag_ms_max=config.loop_lag_ms_max)
        self.kafka = config.kafka
        self.http = config.http
        """Where the doors are, with the ports that the system picked."""

    @property
    def broker(self) -> Broker:
        """The broker, while the node runs."""
        assert self._broker is not None, "the node was started"
        return self._broker

    @property
    def live(self) -> LiveDelivery:
        """Live delivery, once the node was started."""
        assert self._live is not None, "the node was started"
        return self._live

    async def start(self) -> None:
        """Open the data and then the doors. Where one step fails, those before are taken back.

        The HTTP door is opened first, and tells nothing but that the node starts until it does.
        """
        config = self.config
        raise_descriptor_limit()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._state = _STARTING
        self.loop_watch.start()
        told = TelemetryCounters()
        try:
            export = self._export = open_export(config, told)
            tracer = None if export is None else export.tracer
            http = await self._open_http(tracer)
            broker = self._broker = await Broker.open(
                config.data,
                config=config.broker,
                log_config=config.log,
                store_config=config.store,
                clock=self._clock,
                filesystem=self._filesystem,
            )
            kafka = self._kafka = KafkaListener(broker, config.kafka_server, tracer=tracer)
            with _listen_errors("kafka", config.kafka):
                port = await kafka.listen(*config.kafka)
            self.kafka = Endpoint(config.kafka.host, port)
            broker.advertised = advertised(config, port)
            live = self._live = LiveDelivery(broker, config.http_server)
            doorway = http.state
            metrics = NodeMetrics(
                broker,
                kafka,
                doorway,
                live,
                health=self.health,
                watch=self.loop_watch,
                telemetry=told,
            )
            about = self._about = NodeInfo(
                broker,
                kafka,
                doorway,
                live,
                health=self.health,
                doors=lambda: (self.kafka, self.http),
                timers=LoopTimers(),
            )
            app = make_app(
                self.health,
                metrics.scrape,
                broker,
                config=config.http_server,
                live=live,
                shutdown=doorway.shutdown,
                node=about,
                counters=doorway.counters,
                tracer=tracer,
                is_local=is_loopback(config.http.host),
            )
            http.serve(app)
            about.start()
            if export is not None:
                export.send_metrics(metrics.readings)
            self._state = _READY
        except BaseException:
            await self.stop()
            raise

    async def _open_http(self, tracer: Tracer | None) -> HttpListener:
        """Listen for who asks how the start goes."""
        where = self.config.http
        doorway = HttpServerState(self.config.http_server, self._clock, LoopTimers())
        app = make_starting_app(
            self.health,
            clock=self._clock,
            counters=doorway.counters,
            tracer=tracer,
            is_local=is_loopback(where.host),
        )
        http = HttpListener(app, doorway)
        self._http = http
        with _listen_errors("http", where):
            self.http = Endpoint(where.host, await http.listen(*where))
        return http

    # How it is.

    def health(self) -> Health:
        """Whether clients are served, and what is wrong."""
        return Health(
            is_started=self._state in (_READY, _STOPPING),
            problems=listed_problems(self._problems()),
        )

    def _problems(self) -> Iterator[Problem]:
        code = ProblemCode
        if self._state == _STOPPING:
            yield Problem(code.STOPPING, "the node is stopping")
        elif self._state != _READY:
            yield Problem(code.STARTING, "the node is starting")
        for name, door in (("Kafka", self._kafka), ("HTTP", self._http)):
            if door is not None and door.is_exhausted:
                yield Problem(
                    code.DESCRIPTORS_EXHAUSTED,
                    f"no descriptor was left for the last connection to the {name} door",
                )
        watch = self.loop_watch
        if watch.is_late:
            yield Problem(
                code.LOOP_LATE,
                f"the event loop was {watch.lag_seconds:.1f} s late, and so before; allowed is"
                f" {self.config.loop_lag_ms_max / 1000:g} s",
            )
        if self._broker is not None:
            yield from self._broker.problems()

    # Stopping.

    async def stop(self) -> None:
        """Answer what is under way, commit and seal, and give everything back."""
        was_ready, self._state = self._state == _READY, _STOPPING
        config = self.config
        if was_ready and config.drain_notice_ms:
            # Who asks for health hears it now, and clients are served until they go elsewhere.
            await asyncio.sleep(config.drain_notice_ms / 1000)
        if self._about is not None:
            self._about.stop()
        kafka, self._kafka = self._kafka, None
        http, self._http = self._http, None
        broker, self._broker = self._broker, None
        export, self._export = self._export, None
        patience = (config.drain_ms_max - config.drain_notice_ms) / 1000 * DRAIN_SHARE
        if kafka is not None:
            if broker is not None:  # Members that wait for others are answered: none will come.
                broker.groups.registry.close()
            try:
                await asyncio.wait_for(kafka.drain(), patience)
            except TimeoutError:
                kafka.abort()
        if http is not None:  # Last, since it tells meanwhile that the node stops.
            await http.stop(patience / 2)
        if export is not None:
            await export.begin_flush()
        try:
            if broker is not None:
                await broker.close()
        finally:
            self.loop_watch.stop()
            if export is not None:
                seconds = min(config.telemetry.flush_ms_max / 1000, patience / 2)
                if not await export.end_flush(seconds):
                    logger.warning("the collector did not take what was left of telemetry")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def open_export(config: NodeConfig, counters: TelemetryCounters) -> TelemetryExport | None:
    """Begin to send what a node is told to send to a collector; nothing is loaded otherwise."""
    if not config.telemetry.is_on:
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        logger.info("no telemetry is sent: OTEL_SDK_DISABLED is set")
        return None
    try:
        from millstream.observe.otel.export import TelemetryExport  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"telemetry is on, and there is no {error.name}: install the extra,"
            " pip install 'millstream[otel]'"
        ) from error
    return TelemetryExport(config, counters)


@contextmanager
def _listen_errors(name: str, endpoint: Endpoint) -> Iterator[None]:
    """Say which door it is that cannot be opened, and why."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InvalidConfig(f"{name} is {endpoint}, where it cannot listen: {reason}") from error


def advertised(config: NodeConfig, port: int) -> Endpoint:
    """Return what Kafka clients are told to connect to, where the node listens on `port`."""
    host, port_advertised = config.advertised or config.kafka
    if is_unspecified(host):
        raise InvalidConfig(
            f"clients would be told to connect to {host}, which is no address of a machine: say"
            " with --advertise HOST:PORT by which they reach this one"
        )
    return Endpoint(host, port_advertised or port)


def is_unspecified(host: str) -> bool:
    """Whether `host` stands for all addresses of a machine, and is none itself."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


async def serve_until_signalled(server: Node, on_ready: Callable[[Node], None]) -> bool:
    """Run a node until SIGTERM or SIGINT; returns whether it then stopped cleanly.

    A second signal ends the process at once, as does a stop that takes too long: what was
    acknowledged is safe either way, and the next start checks the rest.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_exit, stopping)
    await server.start()
    on_ready(server)
    await stopping.wait()
    logger.info("stopping")
    stop = loop.create_task(server.stop())
    await asyncio.wait([stop], timeout=server.config.drain_ms_max / 1000)
    if not stop.done():
        logger.error("not stopped within %d ms", server.config.drain_ms_max)
        _exit_at_once()
    try:
        stop.result()
    except MillstreamError as error:
        logger.error("not stopped cleanly: %s", error)  # noqa: TRY400
        return False
    return True


def _stop_or_exit(stopping: asyncio.Event) -> None:
    if stopping.is_set():
        _exit_at_once()
    stopping.set()


def _exit_at_once() -> NoReturn:
    """End the process without waiting for anyone: a thread may wait for a disk for ever."""
    logging.shutdown()
    os._exit(1)


def run(config: NodeConfig, on_ready: Callable[[Node], None]) -> bool:
    """Run a node in this process until it is told to stop; returns whether it stopped cleanly."""
    os.umask(0o077)  # What lies in the data directory is nobody else's business.
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    return uvloop.run(serve_until_signalled(Node(config), on_ready))


def raise_descriptor_limit() -> int:
    """Allow this process as many descriptors as it may have at all; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
