"""`millstream serve`."""

from __future__ import annotations

import logging
import os
import platform
import sys
from typing import TYPE_CHECKING

import click

import millstream
from millstream.cli.options import data_option, one_line_errors
from millstream.config import (
    BrokerConfig,
    LogConfig,
    NodeConfig,
    durability_named,
    endpoint_named,
)

if TYPE_CHECKING:
    from millstream.server import Server


@click.command()
@data_option
@click.option(
    "--kafka",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_KAFKA",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    help="Where Kafka clients connect. Port 0 picks a free one.",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_HTTP",
    default="127.0.0.1:8080",
    show_default=True,
    show_envvar=True,
    help="Where HTTP clients connect, health and metrics among it. Port 0 picks a free one.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_ADVERTISE",
    help="What Kafka clients are told to connect to, if not the address that --kafka names.",
)
@click.option(
    "--durability",
    type=click.Choice(["ephemeral", "memory", "disk", "fsync"]),
    envvar="MILLSTREAM_DURABILITY",
    default="fsync",
    show_default=True,
    show_envvar=True,
    help="What an acknowledgement promises in topics that do not say it themselves.",
)
@click.option(
    "--partitions",
    type=int,
    envvar="MILLSTREAM_PARTITIONS",
    default=1,
    show_default=True,
    show_envvar=True,
    help="Partitions of a topic that is created without saying how many.",
)
@click.option(
    "--auto-create/--no-auto-create",
    envvar="MILLSTREAM_AUTO_CREATE",
    default=True,
    show_default=True,
    show_envvar=True,
    help="Whether a topic that a client asks for is made when there is none.",
)
@click.option(
    "--insecure",
    is_flag=True,
    envvar="MILLSTREAM_INSECURE",
    show_envvar=True,
    help="Let others than this machine connect, although nobody has to log in.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="MILLSTREAM_LOG_LEVEL",
    default="info",
    show_default=True,
    show_envvar=True,
    help="How much is said on standard error while the node runs.",
)
@click.pass_context
def serve(
    context: click.Context,
    *,
    data: str,
    kafka: str,
    http: str,
    advertise: str | None,
    durability: str,
    partitions: int,
    auto_create: bool,
    insecure: bool,
    log_level: str,
) -> None:
    """Run a node until SIGTERM or Ctrl-C.

    Prints one line for each door and then `ready`, on standard output. Stopping answers what is
    under way, commits and seals; the next start then has nothing to check.

    \b
    Exit status:
        0  stopped cleanly
        1  could not start, or did not stop in time
        2  wrong usage

    \b
    Example:
        millstream serve --data ./millstream-data --kafka 127.0.0.1:9092
    """  # noqa: D301 - click's mark for lines to leave as they are.
    logging.basicConfig(
        stream=sys.stderr,
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    with one_line_errors():
        config = NodeConfig(
            data=data,
            kafka=endpoint_named(kafka, name="--kafka"),
            http=endpoint_named(http, name="--http"),
            advertised=endpoint_named(advertise, name="--advertise") if advertise else None,
            is_insecure=insecure,
            broker=BrokerConfig(num_partitions=partitions, auto_create_topics=auto_create),
            log=LogConfig(durability=durability_named(durability)),
        )
        # A node needs far more than the other commands do, which would all wait for it.
        from millstream.server import run  # noqa: PLC0415

        is_clean = run(config, announce)
    context.exit(0 if is_clean else 1)


def announce(server: Server) -> None:
    """Say what was found on this machine, and where the doors are."""
    from millstream.server import raise_descriptor_limit  # noqa: PLC0415

    store = server.broker.store
    click.echo(
        f"millstream {millstream.__version__}, Python {platform.python_version()},"
        f" {os.cpu_count()} processors, loop uvloop, commits by {store.sync_backend},"
        f" {raise_descriptor_limit()} descriptors, data in {store.path}",
        err=True,
    )
    click.echo(f"kafka {server.kafka}")
    click.echo(f"http http://{server.http}")
    click.echo("ready")
    sys.stdout.flush()
