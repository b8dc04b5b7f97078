"""A node: starts a broker and its servers from a config.

    data directory ──► store, state, metadata ──► broker ──► Kafka server, HTTP server

Started in that order, stopped in reverse. This is the only module that knows all parts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Self

import uvloop

from millstream.broker.broker import Broker, BrokerCluster
from millstream.broker.loop_timers import LoopTimers
from millstream.broker.problems import Problem, ProblemCode, listed_problems
from millstream.clock import Clock, SystemClock
from millstream.cluster.control.node_identity import CLUSTER_FILE
from millstream.config.schema import (
    Endpoint,
    NodeConfig,
    TelemetryProtocol,
    is_loopback,
    is_unspecified,
)
from millstream.errors import InvalidConfig, MillstreamError
from millstream.formats.value_check import FormatCheck
from millstream.observe.loop_watch import LoopWatch
from millstream.observe.metrics.node_metrics import NodeMetrics
from millstream.observe.metrics.telemetry import TelemetryCounters
from millstream.observe.node_info import NodeInfo
from millstream.observe.stacks import write_task_stacks, write_thread_stacks_on
from millstream.servers.http.app import make_app, make_starting_app
from millstream.servers.http.handlers.health import Health
from millstream.servers.http.live.live_delivery import LiveDelivery
from millstream.servers.http.server.listener import HttpListener
from millstream.servers.http.server.server_state import HttpServerState
from millstream.servers.kafka.listener import KafkaListener
from millstream.servers.request_listener import RequestListener
from millstream.servers.tls import CertificateWatch, ServerCertificates
from millstream.storage.disk.allocator import keep_freed_memory
from millstream.storage.disk.cpu_affinity import allowed_cpus, check_cpus, pin_process
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join
from millstream.storage.files.names import PROCESSES_FILE, STATE_DIRECTORY
from millstream.storage.store import Store, check_store_format
from millstream.tracing import Tracer

if TYPE_CHECKING:
    from millstream.broker.access.jwt.jwt_logins import JwtLogins
    from millstream.metadata.interface import LeasedMetadata
    from millstream.node_cluster import NodeCluster
    from millstream.observe.otel.export import TelemetryExport
    from millstream.servers.native.listener import NativeListener

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter while another one wants it. With Python's default of 5
ms, a background thread that cleans would delay the slowest requests: the loop releases the
interpreter with every system call, and may wait that long each time to get it back.
"""

YOUNG_OBJECTS_MAX = 20_000
"""Objects that are made before Python looks for cycles among them. A request with a hundred records
makes a few thousand, none of them in a cycle; with Python's default of 700, such a request took a
tenth longer.
"""

EXIT_CLEAN = 0
EXIT_FAILED = 1
EXIT_QUIT = 128 + signal.SIGQUIT
"""Exit status after SIGQUIT, if the data was committed and sealed: as a shell reports a process
that the signal has ended.
"""

DRAIN_SHARE = 0.4
"""Share of the time to stop that may be spent on Kafka requests, and half of that again on HTTP
requests; the remaining time is for the disk.
"""

START_POLL_SECONDS = 0.05
"""How often a node that was told to stop while it starts looks whether it can."""

_NEW, _STARTING, _READY, _STOPPING = "new", "starting", "ready", "stopping"


class Node:
    """A node that runs on the event loop."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        filesystem: Filesystem | None = None,
        metadata: LeasedMetadata | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Make a node; `filesystem` stores the logs, instead of the machine's own file system.

        With `metadata`, the node is one of a cluster that shares it, instead of one in etcd. The
        default of `clock` is the clock of the machine.
        """
        self.config = config
        self._filesystem = filesystem
        self._metadata = metadata
        self._cluster: NodeCluster | None = None
        self._waits_for: str | None = None
        """What the start waits for, if it is not this node."""
        self._clock = clock or SystemClock()
        self._broker: Broker | None = None
        self._kafka: KafkaListener | None = None
        self._http: HttpListener | None = None
        self._native: NativeListener | None = None
        self._live: LiveDelivery | None = None
        self._info: NodeInfo | None = None
        self._export: TelemetryExport | None = None
        self._jwt_logins: JwtLogins | None = None
        self._certificates: ServerCertificates | None = None
        self._certificate_watch: CertificateWatch | None = None
        self._state = _NEW
        self.loop_watch = LoopWatch(self._clock, LoopTimers(), lag_ms_max=config.loop_lag_ms_max)
        self.kafka = config.kafka
        self.http = config.http
        self.native = config.native
        """Addresses of the listeners, with the ports that the system picked."""

    @property
    def peer(self) -> Endpoint | None:
        """Address of the peer listener; None if the node is alone."""
        return None if self._cluster is None else self._cluster.address

    @property
    def waits_for(self) -> str | None:
        """What keeps a node that starts from taking part in its cluster, if something does."""
        if self._state != _STARTING:
            return None
        if self._cluster is not None and self._broker is not None:
            return self._cluster.member.membership.problem
        return self._waits_for

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
        """Open the data, then start the servers. If a step fails, the ones before are undone.

        The HTTP listener is opened first, and only reports that the node is starting until it is
        ready.
        """
        config = self.config
        raise_descriptor_limit()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._state = _STARTING
        self.loop_watch.start()
        counters = TelemetryCounters()
        try:
            self._certificates = ServerCertificates.configured(config.tls)
            export = self._export = open_export(config, counters)
            tracer = None if export is None else export.tracer
            http = await self._open_http(tracer)
            self._check_directory()
            is_clustered = self._metadata is not None or bool(config.cluster.etcd)
            broker = self._broker = await Broker.open(
                config.data,
                config=config.broker,
                log_config=config.log,
                store_config=config.store,
                tier_config=config.tier,
                clock=self._clock,
                filesystem=self._filesystem,
                open_cluster=self._open_cluster if is_clustered else None,
                access_config=config.access,
            )
            broker.value_checks.make = FormatCheck
            await self._open_jwt_logins(broker)
            kafka = self._kafka = KafkaListener(
                broker,
                config.kafka_server,
                tracer=tracer,
                ssl_context=self._ssl_context,
                principal_rules=config.tls.principal_rules,
                access_config=config.access,
            )
            with _listen_errors("kafka", config.kafka):
                port = await kafka.listen(*config.kafka)
            self.kafka = Endpoint(config.kafka.host, port)
            broker.listener, broker.advertised = self.kafka, advertised(config, port)
            if (cluster := self._cluster) is not None:
                http_address = Endpoint(broker.advertised.host, self.http.port)
                await cluster.start(broker, kafka=broker.advertised, http=http_address)
            await self._open_native(broker, tracer)
            live = self._live = LiveDelivery(broker, config.http_server)
            http_state = http.state
            metrics = NodeMetrics(
                broker,
                kafka,
                http_state,
                live,
                health=self.health,
                watch=self.loop_watch,
                telemetry=counters,
                native=self._native,
                peer_server=None if cluster is None else cluster.listener,
                peer_pool=None if cluster is None else cluster.peers,
                forwards=None if cluster is None else cluster.forwards,
                replicas=None if cluster is None else cluster.member.replicas,
            )
            info = self._info = NodeInfo(
                broker,
                kafka,
                http_state,
                live,
                health=self.health,
                endpoints=lambda: (self.kafka, self.http_url),
                timers=LoopTimers(),
            )
            app = make_app(
                self.health,
                metrics.scrape,
                broker,
                config=config.http_server,
                live=live,
                shutdown=http_state.shutdown,
                node=info,
                counters=http_state.counters,
                tracer=tracer,
                forwarder=None if cluster is None else cluster.request_forwarder(),
                is_local=is_loopback(config.http.host),
            )
            http.serve(app)
            if cluster is not None:
                cluster.serve_http(app)
            info.start()
            if export is not None:
                export.send_metrics(metrics.readings)
            if self._certificates is not None:
                self._certificate_watch = CertificateWatch(
                    self._certificates, self._use_certificates
                )
            self._state = _READY
        except BaseException:
            await self.stop()
            raise

    async def _open_cluster(self, store: Store) -> BrokerCluster:
        """Open the node's part in its cluster. A lone node does not load any of this."""
        from millstream.node_cluster import open_cluster  # noqa: PLC0415

        self._cluster = await open_cluster(
            self.config,
            store,
            self._metadata,
            clock=self._clock,
            on_wait=self._note_wait,
            tracer=None if self._export is None else self._export.tracer,
        )
        return self._cluster.member

    async def _open_native(self, broker: Broker, tracer: Tracer | None) -> None:
        """Start the native server if it has an address. Others do not load any of this."""
        config = self.config
        if config.native is None:
            return
        from millstream.servers.native.listener import NativeListener  # noqa: PLC0415

        native = self._native = NativeListener(
            broker,
            config.native_server,
            tracer=tracer,
            ssl_context=self._ssl_context,
            principal_rules=config.tls.principal_rules,
        )
        with _listen_errors("native", config.native):
            port = await native.listen(*config.native)
        self.native = Endpoint(config.native.host, port)

    async def _open_jwt_logins(self, broker: Broker) -> None:
        """Let clients log in by JWTs, if an issuer is set. Others do not load any of this."""
        config = self.config
        if broker.access is None or not config.oauth.is_on:
            return
        from millstream.broker.access.jwt.jwt_logins import JwtLogins  # noqa: PLC0415
        from millstream.http1.outbound import OutboundClient  # noqa: PLC0415

        logins = self._jwt_logins = JwtLogins(
            config.oauth,
            OutboundClient(
                allowed_hosts=config.outbound.allowed_hosts,
                allowed_networks=config.outbound.allowed_networks,
                ca_file=config.outbound.ca_file,
            ),
            clock=self._clock,
            timers=LoopTimers(),
            counters=broker.access.counters,
        )
        await logins.open()
        broker.access.use_jwts(logins)

    def _note_wait(self, reason: str | None) -> None:
        self._waits_for = reason

    def _check_directory(self) -> None:
        """Refuse the directory of a later release, of several nodes, or of one in a cluster.

        Nothing is changed before: the release that wrote the directory finds it as it was. A node
        in a cluster is refused if this one is alone.
        """
        config = self.config
        if os.path.exists(os.path.join(config.data, PROCESSES_FILE)):
            raise InvalidConfig(
                f"{config.data} has the data directories of several node processes; start it with"
                " --processes, or use another data directory"
            )
        filesystem = self._filesystem or OsFilesystem()
        for path in (config.data, join(config.data, STATE_DIRECTORY)):
            check_store_format(filesystem, path)
        if self._metadata is not None or config.cluster.etcd:
            # A lone node does not load any of this.
            from millstream.cluster.directory_format import (  # noqa: PLC0415
                check_cluster_formats,
            )

            check_cluster_formats(filesystem, config.data)
            return
        if os.path.exists(os.path.join(config.data, CLUSTER_FILE)):
            raise InvalidConfig(
                f"{config.data} belongs to a node of a cluster; set cluster.etcd, or use another"
                " data directory"
            )

    async def _open_http(self, tracer: Tracer | None) -> HttpListener:
        """Open the HTTP listener, which reports the start until the node is ready."""
        address = self.config.http
        state = HttpServerState(
            self.config.http_server,
            self._clock,
            LoopTimers(),
            principal_rules=self.config.tls.principal_rules,
        )
        app = make_starting_app(
            self.health,
            self.config.http_server,
            clock=self._clock,
            counters=state.counters,
            tracer=tracer,
            is_local=is_loopback(address.host),
        )
        http = HttpListener(app, state, ssl_context=self._ssl_context)
        self._http = http
        with _listen_errors("http", address):
            self.http = Endpoint(address.host, await http.listen(*address))
        return http

    # Certificates.

    @property
    def http_url(self) -> str:
        """URL of the HTTP server."""
        return f"{'https' if self.config.tls.is_on else 'http'}://{self.http}"

    @property
    def has_certificates(self) -> bool:
        """Whether there are certificate files that can change."""
        return self.config.tls.is_on or self.config.cluster.peer_cert_file is not None

    def reload_certificates(self) -> None:
        """Read certificate files again if they have changed. Connections go on as they are."""
        if self._certificate_watch is not None:
            self._certificate_watch.check_now()
        if self._cluster is not None:
            self._cluster.reload_certificates()

    @property
    def _ssl_context(self) -> ssl.SSLContext | None:
        return None if self._certificates is None else self._certificates.contexts

    def _use_certificates(self) -> None:
        context = self._ssl_context
        assert context is not None
        for listener in (self._kafka, self._http, self._native):
            if listener is not None:
                listener.use_tls(context)

    # Health.

    def health(self) -> Health:
        """Return whether clients are served, and what is wrong."""
        return Health(
            is_started=self._state in (_READY, _STOPPING),
            problems=listed_problems(self._problems()),
        )

    def _problems(self) -> Iterator[Problem]:
        code = ProblemCode
        if self._state == _STOPPING:
            yield Problem(code.STOPPING, "the node is stopping")
        elif self._state != _READY:
            waits_for = f": {self.waits_for}" if self.waits_for else ""
            yield Problem(code.STARTING, f"the node is starting{waits_for}")
        listeners = (("Kafka", self._kafka), ("HTTP", self._http), ("native", self._native))
        for name, listener in listeners:
            if listener is not None and listener.is_exhausted:
                yield Problem(
                    code.DESCRIPTORS_EXHAUSTED,
                    f"the {name} listener could not accept a connection: no file descriptor left",
                )
        watch = self.loop_watch
        if watch.is_late:
            yield Problem(
                code.LOOP_LATE,
                f"the event loop is repeatedly late, last by {watch.lag_seconds:.1f} s; the limit"
                f" is {self.config.loop_lag_ms_max / 1000:g} s",
            )
        if self._broker is not None:
            yield from self._broker.problems()

    # Stopping.

    async def stop(self, *, is_draining: bool = True) -> None:
        """Answer requests in flight, commit and seal the logs, and release everything.

        Without `is_draining`, connections are closed at once.
        """
        was_ready, self._state = self._state == _READY, _STOPPING
        config = self.config
        if was_ready and is_draining:
            await self._give_notice()
        cluster, self._cluster = self._cluster, None
        self._stop_watches()
        kafka, self._kafka = self._kafka, None
        native, self._native = self._native, None
        http, self._http = self._http, None
        broker, self._broker = self._broker, None
        export, self._export = self._export, None
        drain_seconds = (config.drain_ms_max - config.drain_notice_ms) / 1000 * DRAIN_SHARE
        if not is_draining:
            drain_seconds = 0.0
        if kafka is not None:
            if broker is not None:  # Answers members that wait for others to join.
                broker.groups.stop_waiting()
            # Both at once: they share the time.
            await asyncio.gather(
                *(_drain(server, drain_seconds) for server in (kafka, native) if server is not None)
            )
        if http is not None:  # Last, because it reports that the node is stopping.
            await http.stop(drain_seconds / 2)
        if export is not None:
            await export.begin_flush()
        try:
            await _close(broker, cluster)
        finally:
            self.loop_watch.stop()
            if export is not None:
                seconds = min(config.telemetry.flush_ms_max / 1000, drain_seconds / 2)
                if not await export.end_flush(seconds):
                    logger.warning("the collector did not accept the remaining telemetry in time")

    def _stop_watches(self) -> None:
        """Stop what looks at files and numbers from time to time."""
        if self._certificate_watch is not None:
            self._certificate_watch.stop()
        if self._jwt_logins is not None:
            self._jwt_logins.close()
        if self._info is not None:
            self._info.stop()

    async def _give_notice(self) -> None:
        """Let clients and other nodes take their work elsewhere, while this node still serves."""
        if self.config.drain_notice_ms:
            # `/health/ready` reports it from now on; clients are served until they are elsewhere.
            await asyncio.sleep(self.config.drain_notice_ms / 1000)
        if self._cluster is not None:
            await self._cluster.hand_over()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def _drain(server: RequestListener[Any], seconds: float) -> None:
    """Answer the requests in flight; close the connections that take longer."""
    try:
        await asyncio.wait_for(server.drain(), seconds)
    except TimeoutError:
        server.abort()


async def _close(broker: Broker | None, cluster: NodeCluster | None) -> None:
    """Leave the cluster, then commit and seal the logs; metadata is needed until the end."""
    try:
        if cluster is not None:
            await cluster.stop()
        if broker is not None:
            await broker.close()
    finally:
        if cluster is not None:
            await cluster.close()


def open_export(config: NodeConfig, counters: TelemetryCounters) -> TelemetryExport | None:
    """Start telemetry if it is turned on. Nothing of OpenTelemetry is imported otherwise."""
    if not config.telemetry.is_on:
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        logger.info("telemetry is off: OTEL_SDK_DISABLED is set")
        return None
    try:
        from millstream.observe.otel.export import TelemetryExport  # noqa: PLC0415

        return TelemetryExport(config, counters)
    except ModuleNotFoundError as error:
        is_grpc = config.telemetry.protocol is TelemetryProtocol.GRPC
        extra = "otel-grpc" if is_grpc else "otel"
        raise InvalidConfig(
            f"telemetry is on, but {error.name} is not installed: install 'millstream[{extra}]'"
        ) from error


@contextmanager
def _listen_errors(name: str, endpoint: Endpoint) -> Iterator[None]:
    """Turn an error of listening into one that names the listener and its address."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InvalidConfig(f"cannot listen on {endpoint} ({name}): {reason}") from error


def advertised(config: NodeConfig, port: int) -> Endpoint:
    """Return the address that Kafka clients are told to connect to; the node listens on `port`."""
    host, port_advertised = config.advertised or config.kafka
    if is_unspecified(host):
        raise InvalidConfig(
            f"Kafka clients cannot connect to {host}, which is not the address of a machine; set"
            " the address that they use with --advertise HOST:PORT"
        )
    return Endpoint(host, port_advertised or port)


async def serve_until_signalled(server: Node, on_ready: Callable[[Node], None]) -> int:
    """Run a node until a signal; return the exit status.

    SIGTERM and SIGINT answer the requests in flight, then commit and seal. SIGQUIT writes the
    stacks of all threads and tasks to standard error, then commits and seals without waiting for
    clients. A second signal ends the process at once, as does a stop that takes too long.
    Acknowledged records are safe in all cases, and the next start checks the logs if it must.

    SIGHUP reads certificate files again if there are any. Otherwise a terminal was closed, and it
    stops the node, unless it is to be ignored, as with `nohup`.
    """
    loop = asyncio.get_running_loop()
    signals = _Signals()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, signals.take, number)
    if server.has_certificates:
        loop.add_signal_handler(signal.SIGHUP, server.reload_certificates)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, signals.take, signal.SIGHUP)
    write_thread_stacks_on(signal.SIGQUIT)
    start = loop.create_task(server.start())
    while not start.done():
        await asyncio.wait([start], timeout=START_POLL_SECONDS)
        # Opening the data takes its time and is completed; waiting for a cluster has no end.
        if signals.first.done() and server.waits_for is not None:
            start.cancel()
    if start.cancelled():
        logger.info("stopped while waiting for the cluster")
        return EXIT_CLEAN
    start.result()
    on_ready(server)
    number = await signals.first
    logger.info("stopping")
    stop = loop.create_task(server.stop(is_draining=number is not signal.SIGQUIT))
    await asyncio.wait([stop], timeout=server.config.drain_ms_max / 1000)
    if not stop.done():
        logger.error("not stopped within %d ms", server.config.drain_ms_max)
        _exit_at_once()
    try:
        stop.result()
    except MillstreamError as error:
        logger.error("not stopped cleanly: %s", error)  # noqa: TRY400
        return EXIT_FAILED
    return EXIT_QUIT if number is signal.SIGQUIT else EXIT_CLEAN


class _Signals:
    """The first signal that asks a node to end; a second one ends it at once."""

    def __init__(self) -> None:
        self.first: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def take(self, number: signal.Signals) -> None:
        if number is signal.SIGQUIT:
            write_task_stacks()
        if self.first.done():
            _exit_at_once()
        self.first.set_result(number)


def _exit_at_once() -> NoReturn:
    """End the process without waiting: a thread may be blocked by a disk forever."""
    logging.shutdown()
    os._exit(EXIT_FAILED)


def run(
    config: NodeConfig,
    on_ready: Callable[[Node], None],
    *,
    filesystem: Filesystem | None = None,
    clock: Clock | None = None,
) -> int:
    """Run a node in this process until it is told to stop; return the exit status."""
    pin_configured(config)
    os.umask(0o077)  # The data directory is private to the user of the node.
    gc.set_threshold(YOUNG_OBJECTS_MAX)
    keep_freed_memory()
    node = Node(config, filesystem=filesystem, clock=clock)
    return uvloop.run(serve_until_signalled(node, on_ready))


def pin_configured(config: NodeConfig) -> None:
    """Let this process run on its configured processors; raise `InvalidConfig` if it may not."""
    allowed = allowed_cpus()
    check_cpus("node.cpus", config.cpus, allowed)
    check_cpus("storage.maintenance_cpus", config.store.maintenance_cpus, allowed)
    if config.cpus:
        pin_process(config.cpus)


def raise_descriptor_limit() -> int:
    """Raise the limit of file descriptors to the highest allowed one, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
