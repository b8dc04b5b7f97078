"""`millstream serve`."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.node_options import configuration_of, node_options
from millstream.cli.support.options import one_line_errors
from millstream.config.loader import Configuration
from millstream.errors import MillstreamError
from millstream.observe.logging.event_writer import EventWriter, event_logging
from millstream.observe.logging.formatter import JsonFormatter

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.node import Node
    from millstream.storage.disk.filesystem import Filesystem

logger = logging.getLogger(__name__)

FAILED = 1


@click.command()
@node_options
@click.pass_context
def serve(context: click.Context, /, **options: Any) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Prints one line per server and then `ready`, to standard output. A stop completes the requests
    in flight, commits and seals, so that the next start has nothing to check. SIGQUIT writes the
    stacks of all threads and tasks to standard error, closes connections at once, commits and
    seals.

    With --processes, several nodes run as a local cluster, to use more processors; one line per
    node is printed. etcd must be installed (Debian's package `etcd-server`), or named by --etcd. A
    process that ends is started again. Signals reach all processes.

    Settings come from a file, environment variables and these options; later sources win.
    `millstream config show` prints the result.

    \b
    Exit status:
        0  stopped cleanly
        1  could not start, failed, or did not stop in time
        2  wrong usage
        131  stopped by SIGQUIT, data committed and sealed

    \b
    Example:
        millstream serve --data ./millstream-data --kafka 127.0.0.1:9092
        millstream serve --data ./millstream-data --processes 4 --cpus 0-3
    """
    configuration = configuration_of(options)
    with event_logging(configuration.node.logging) as events:
        run = run_node if configuration.node.processes is None else run_nodes
        status = run(configuration, events)
        logger.info("stopped", extra={"is_clean": status != FAILED})
    context.exit(status)


def run_node(
    configuration: Configuration,
    events: EventWriter,
    *,
    filesystem: Filesystem | None = None,
    clock: Clock | None = None,
) -> int:
    """Run a node and report why it could not start. Return the exit status.

    The defaults of `filesystem` and `clock` are those of the machine.
    """

    def work() -> int:
        # A node needs far more than the other commands do, which would all wait for it. Modules are
        # not garbage: collections while they are loaded take a tenth of the time, and later ones
        # need not look at them.
        gc.disable()
        from millstream.node import run  # noqa: PLC0415

        gc.freeze()
        gc.enable()
        started = partial(_started, configuration, events)
        return run(configuration.node, started, filesystem=filesystem, clock=clock)

    return _reported(configuration, events, work)


def run_nodes(configuration: Configuration, events: EventWriter) -> int:
    """Run several node processes and report why they could not start. Return the exit status."""

    def work() -> int:
        from millstream.cli.processes.supervisor import run_processes  # noqa: PLC0415

        return run_processes(configuration, events)

    return _reported(configuration, events, work)


def _reported(configuration: Configuration, events: EventWriter, work: Callable[[], int]) -> int:
    """Return what `work` returns; if it fails, report why, and return the status for that."""
    for warning in configuration.warnings:
        logger.warning("%s", warning)
    try:
        return work()
    except (MillstreamError, OSError) as error:
        if not isinstance(events.formatter, JsonFormatter):
            events.flush()
            with one_line_errors():
                raise
        logger.error("not started: %s", error)  # noqa: TRY400 - the message says it all.
    except Exception:
        logger.critical("the node stopped because of an internal error", exc_info=True)
    return FAILED


def _started(configuration: Configuration, events: EventWriter, server: Node) -> None:
    """Report the machine, the data and the addresses of the servers."""
    from millstream.cli.support.start_report import report  # noqa: PLC0415

    report(configuration, events, server)
    announce(server)


def announce(server: Node) -> None:
    """Print the addresses of the servers to standard output, in lines that programs wait for."""
    click.echo(f"kafka {server.kafka}")
    click.echo(f"http {server.http_url}")
    if server.native is not None:
        click.echo(f"native {server.native}")
    if server.peer is not None:
        click.echo(f"peer {server.peer}")
    click.echo("ready")
    sys.stdout.flush()
