"""`millstream cluster dev`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType

import click

from millstream.cli.cluster.dev_cluster import DevCluster
from millstream.cli.processes.addresses import address_line
from millstream.cli.support.options import one_line_errors
from millstream.cli.support.output import printable

NODES_MAX = 9
WATCH_SECONDS = 0.5


@click.command()
@click.option(
    "--nodes",
    "count",
    type=click.IntRange(1, NODES_MAX),
    default=3,
    show_default=True,
    help="Number of nodes.",
)
@click.option(
    "--data",
    metavar="DIR",
    default="./millstream-cluster",
    show_default=True,
    help="Directory of etcd and of all nodes. It is kept.",
)
@click.option("--etcd-only", is_flag=True, help="Start etcd only; start the nodes yourself.")
@click.option(
    "--free-ports",
    is_flag=True,
    help="Pick free ports instead of 9092, 9192, ... (Kafka), 8080, 8180, ... (HTTP), 9093, 9193,"
    " ... (peers) and 2379 (etcd).",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set any setting of all nodes. Can be repeated.",
)
@click.pass_context
def dev(
    context: click.Context,
    *,
    count: int,
    data: str,
    etcd_only: bool,
    free_ports: bool,
    settings: tuple[str, ...],
) -> None:
    """Run a cluster on this machine: etcd and several nodes, until Ctrl-C.

    Prints one line per server and then `ready`, to standard output. Ctrl-C or SIGTERM stops all
    nodes cleanly, then etcd; the next start continues with the same data. A node that is killed is
    reported, and the others go on without it.

    etcd must be installed: `etcd` of Debian's package `etcd-server`, or any version from 3.4 on, in
    the PATH.

    \b
    Exit status:
        0  stopped cleanly
        1  could not start, or did not stop in time
        2  wrong usage

    \b
    Example:
        millstream cluster dev --nodes 3
    """
    asked_to_stop = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        if asked_to_stop.is_set():
            raise KeyboardInterrupt
        asked_to_stop.set()

    cluster = DevCluster(Path(data), has_free_ports=free_ports, settings=settings)
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with one_line_errors():
            cluster.start_etcd()
            click.echo(f"etcd {cluster.etcd_url}")
            if not etcd_only and not asked_to_stop.is_set():
                cluster.start_nodes(count)
                for node in cluster.nodes:
                    click.echo(address_line(node.node_id, node.addresses))
        click.echo("ready")
        is_well = _watch(cluster, asked_to_stop, has_nodes=not etcd_only)
    finally:
        killed = cluster.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    for name in killed:
        click.echo(f"{name} did not stop in time and was killed", err=True)
    context.exit(0 if is_well and not killed else 1)


def _watch(cluster: DevCluster, asked_to_stop: threading.Event, *, has_nodes: bool) -> bool:
    """Report processes that end, until the command is; return whether some still ran then."""
    while not asked_to_stop.wait(WATCH_SECONDS):
        if not cluster.is_etcd_running:
            click.echo(f"etcd has ended: see {cluster.directory / 'logs'}", err=True)
            return False
        for node in cluster.ended():
            status, log = node.process.status, node.process.log
            message = f"node {node.node_id} has ended with status {status}: see {log}"
            click.echo(printable(message), err=True)
        if has_nodes and not cluster.nodes:
            return False
    return True
