"""Runs the processes of `millstream serve --processes`, and acts on what `supervision` decides.

    signals ─┐
    ends ────┼─► queue ─► step(state, event, now) ─► start, signal, log
    ready ───┘

Everything but reading the output of the processes happens in the main thread: the kernel stops a
process when the thread ends that has started it (`exec_child.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

import click

from millstream.cli.processes.addresses import address_line, free_ports, read_addresses
from millstream.cli.processes.child_process import ChildProcess
from millstream.cli.processes.data_layout import (
    ETCD_DIRECTORY,
    check_layout,
    mark_directory,
    marked_nodes,
    stored_nodes,
)
from millstream.cli.processes.etcd_process import find_etcd, start_etcd, wait_until_healthy
from millstream.cli.processes.held_partitions import check_left_out
from millstream.cli.processes.log_relay import relay_lines
from millstream.cli.processes.node_plan import NodePlan, plan_nodes
from millstream.cli.processes.supervision import (
    ETCD,
    Action,
    Announce,
    Ended,
    Event,
    LogMessage,
    Ready,
    Send,
    Signalled,
    Start,
    Tick,
    step,
    supervise,
)
from millstream.config.loader import Configuration
from millstream.config.schema import EventFormat, EventLevel
from millstream.errors import InvalidConfig
from millstream.observe.logging.event_writer import EventWriter
from millstream.observe.logging.formatter import JsonFormatter
from millstream.storage.disk.cpu_affinity import allowed_cpus, check_cpus
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.files.document import replace_file
from millstream.storage.files.names import LOCK_FILE

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def run_processes(configuration: Configuration, events: EventWriter) -> int:
    """Run the nodes of a configuration that has `node.processes`; return the exit status.

    Raises `MillstreamError` or `OSError` if they cannot be started at all.
    """
    config = configuration.node
    has_own_etcd = not config.cluster.etcd
    if has_own_etcd:
        find_etcd()
    allowed = allowed_cpus()
    check_cpus("node.cpus", config.cpus, allowed)
    check_cpus("storage.maintenance_cpus", config.store.maintenance_cpus, allowed)
    check_layout(config.data, has_own_etcd=has_own_etcd)
    os.umask(0o077)  # The data directories are private to the user of the nodes.
    os.makedirs(config.data, exist_ok=True)
    lock = OsFilesystem().lock(os.path.join(config.data, LOCK_FILE))
    try:
        return Supervisor(configuration, events, has_own_etcd=has_own_etcd).run()
    finally:
        lock.release()


class Supervisor:
    """The processes of one data directory."""

    def __init__(
        self, configuration: Configuration, events: EventWriter, *, has_own_etcd: bool
    ) -> None:
        self._configuration = configuration
        self._data = os.path.abspath(configuration.node.data)
        self._events = events
        self._etcd_ports = free_ports(2) if has_own_etcd else None
        is_json = isinstance(events.formatter, JsonFormatter)
        plans = plan_nodes(
            configuration,
            etcd=self._etcd_url,
            format_=EventFormat.JSON if is_json else EventFormat.PRETTY,
            host_name=socket.gethostname(),
        )
        self._plans = {plan.name: plan for plan in plans}
        self._processes: dict[str, ChildProcess] = {}
        self._addresses: dict[str, dict[str, str]] = {}
        self._queue: SimpleQueue[Event] = SimpleQueue()

    @property
    def _etcd_url(self) -> str | None:
        return None if self._etcd_ports is None else f"http://127.0.0.1:{self._etcd_ports[0]}"

    def run(self) -> int:
        """Start everything, and supervise it until a signal; return the exit status."""
        with _signals(self._take_signal):
            try:
                if self._etcd_ports is not None:
                    self._start_etcd()
                    wait_until_healthy(self._processes[ETCD], self._etcd_ports[0])
                self._prepare_directory()
            except BaseException:
                self._end_etcd()
                raise
            return self._supervise()

    def _prepare_directory(self) -> None:
        """Check that no node is left out which is needed, and write the settings of the nodes."""
        node_ids = [plan.node_id for plan in self._plans.values()]
        stored = stored_nodes(self._data)
        if left_out := set(stored) - set(node_ids):
            cluster = self._configuration.node.cluster
            if self._etcd_url is not None:
                cluster = replace(cluster, etcd=(self._etcd_url,))
            check_left_out(cluster, self._data, left_out, len(node_ids))
        filesystem = OsFilesystem()
        marked = marked_nodes(filesystem, self._data)
        for plan in self._plans.values():
            path, name = os.path.split(plan.config_file)
            replace_file(filesystem, path, name, [plan.toml().encode()])
        mark_directory(filesystem, self._data, node_ids)
        if marked and (added := sorted(set(node_ids) - set(marked))):
            logger.info(
                "nodes were added and have no partitions yet: `millstream cluster rebalance` moves"
                " some to them",
                extra={"added": added},
            )

    def _supervise(self) -> int:
        state = supervise(
            list(self._plans),
            time.monotonic(),
            stop_seconds_max=self._configuration.node.drain_ms_max / 1000,
            has_etcd=self._etcd_ports is not None,
            has_certificates=self._configuration.node.tls.is_on,
        )
        while (status := state.exit_status) is None:
            event = self._next_event(state.due_at())
            state, actions = step(state, event, time.monotonic())
            for action in actions:
                self._perform(action)
        return status

    def _next_event(self, due_at: float | None) -> Event:
        """Return the next event; a tick if something is due before."""
        timeout = None if due_at is None else max(0.0, due_at - time.monotonic())
        try:
            return self._queue.get(timeout=timeout)
        except Empty:
            return Tick()

    def _perform(self, action: Action) -> None:
        match action:
            case Start(name):
                if name == ETCD:
                    self._start_etcd()
                else:
                    self._start_node(self._plans[name])
            case Send(name, number):
                self._processes[name].send(number)
            case LogMessage(text, is_error, fields):
                level = logging.ERROR if is_error else logging.WARNING
                logger.log(level, "%s", text, extra=dict(fields))
            case Announce():
                self._announce()

    # Processes.

    def _start_etcd(self) -> None:
        assert self._etcd_ports is not None, "the nodes have an etcd of their own"
        port, peer_port = self._etcd_ports
        data = Path(self._data, ETCD_DIRECTORY)
        is_quiet = self._configuration.node.logging.level is EventLevel.ERROR
        level = "error" if is_quiet else "warn"
        self._adopt(start_etcd(data, None, port=port, peer_port=peer_port, log_level=level))

    def _start_node(self, plan: NodePlan) -> None:
        process = ChildProcess(
            plan.name, plan.command(), None, environment=plan.environment(), is_read=True
        )
        self._adopt(process)
        _start_thread(f"{plan.name}-output", partial(self._read_output, process))

    def _adopt(self, process: ChildProcess) -> None:
        self._processes[process.name] = process
        _start_thread(f"{process.name}-errors", partial(self._relay, process))

    def _end_etcd(self) -> None:
        """End etcd after a start that failed."""
        if (etcd := self._processes.get(ETCD)) is not None:
            etcd.terminate()
            etcd.process.wait()

    # Threads, each of which reads one pipe.

    def _relay(self, process: ChildProcess) -> None:
        assert process.process.stderr is not None
        relay_lines(process.process.stderr, process.name, self._events.write)
        self._queue.put(Ended(process.name, process.process.wait()))

    def _read_output(self, process: ChildProcess) -> None:
        try:
            self._addresses[process.name] = read_addresses(process)
        except InvalidConfig:
            return  # Its end is reported.
        self._queue.put(Ready(process.name))

    # Signals and output.

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._queue.put(Signalled(number))

    def _announce(self) -> None:
        """Print the addresses of all servers, in lines that programs wait for."""
        if self._etcd_url is not None:
            click.echo(f"etcd {self._etcd_url}")
        for plan in self._plans.values():
            click.echo(address_line(plan.node_id, self._addresses[plan.name]))
        click.echo("ready")
        sys.stdout.flush()


def _start_thread(name: str, work: Callable[[], None]) -> None:
    threading.Thread(target=work, name=name, daemon=True).start()


@contextmanager
def _signals(take: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Pass signals to `take`, except SIGHUP if the command was started to ignore it (`nohup`).

    A shell starts commands in the background with SIGINT and SIGQUIT ignored; a single node does
    not heed that either.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = [
        number
        for number, handler in before.items()
        if number != signal.SIGHUP or handler is not signal.SIG_IGN
    ]
    for number in taken:
        signal.signal(number, take)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
