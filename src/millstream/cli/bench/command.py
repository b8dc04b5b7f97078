"""`millstream bench`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.command_group import CommandGroup
from millstream.cli.support.kafka_security import kafka_security, login_options
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option, one_line_errors
from millstream.cli.support.output import print_table, to_json

if TYPE_CHECKING:
    from millstream.cli.bench.machine import Measurement


VERBS = {"load": "millstream.cli.bench.load:load"}


@click.group(cls=CommandGroup, verbs=VERBS, invoke_without_command=True)
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, writable=True),
    default=".",
    show_default=True,
    help="Directory on the disk to measure. The benchmark writes to a temporary subdirectory"
    " and removes it at the end.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=60),
    metavar="N",
    default=1.0,
    show_default=True,
    help="Duration of each measurement; none writes more than 256 MiB.",
)
@click.option(
    "--node/--no-node",
    "is_node",
    default=None,
    help="Measure a node too. The default is to measure one if it answers.",
)
@server_option
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_BOOTSTRAP",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    help="Kafka address of the same node.",
)
@login_options
@json_option
@click.pass_context
def bench(
    context: click.Context,
    *,
    data: str,
    seconds: float,
    is_node: bool | None,
    server: str,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Measure this machine, and a node; or, with `load`, nodes at a given rate.

    A quick comparison of a log with the limits of the disk, not a benchmark to publish.

    Measures the disk first: writes, and writes with a sync after each. Then a log in this process,
    in each durability class. Then, if a node answers at --server, a temporary topic on that node:
    append and read over HTTP, produce and fetch over the Kafka protocol, with Millstream's clients.

    OF LIMIT is the fraction of the limit next to it; for a node it is meaningful only if DIR is on
    the disk of the node. Everything runs sequentially on one connection, with batches of 1,000
    records of 100 bytes: many clients reach more. Other work on the machine affects the numbers.

    \b
    Exit status:
        0  measured
        1  something could not be measured
        2  wrong usage
        130  interrupted by Ctrl-C; temporary files and topics were removed

    \b
    Example:
        millstream bench --data ./millstream-data --seconds 5
    """
    if context.invoked_subcommand is not None:
        return
    from millstream.cli.bench.machine import measure_machine  # noqa: PLC0415 - not for --help.

    measurements: list[Measurement] = []
    with one_line_errors():
        with tempfile.TemporaryDirectory(prefix=".millstream-bench-", dir=data) as directory:
            for measurement in measure_machine(directory, seconds):
                measurements.append(_noted(measurement))
        if is_node is not False and _is_reachable(server, is_needed=bool(is_node)):
            from millstream.cli.bench.node import measure_node  # noqa: PLC0415

            security = kafka_security(server)
            with connected(server) as node:
                for measurement in measure_node(node.client, bootstrap, seconds, security):
                    measurements.append(_noted(measurement))
    limits = {measurement.what: measurement for measurement in measurements}
    if as_json:
        click.echo(
            to_json([_as_json(measurement, limits) for measurement in measurements], indent=2)
        )
    else:
        head = ("WHAT", "RECORDS/S", "MB/S", "P50 MS", "P99 MS", "OF LIMIT")
        print_table(head, [_cells(measurement, limits) for measurement in measurements])


def _noted(measured: Measurement) -> Measurement:
    """Print progress on a terminal."""
    if sys.stderr.isatty():
        click.echo(f"measured: {measured.what}", err=True)
    return measured


def _is_reachable(server: str, *, is_needed: bool) -> bool:
    try:
        with connected(server):
            return True
    except click.BadParameter:
        raise
    except click.ClickException as error:
        if is_needed:
            raise
        click.echo(f"Measuring only this machine: {error.message}", err=True)
        return False


def _ratio(measurement: Measurement, limits: Mapping[str, Measurement]) -> float | None:
    limit = limits.get(measurement.limit or "")
    return measurement.bytes_per_second / limit.bytes_per_second if limit else None


def _cells(measurement: Measurement, limits: Mapping[str, Measurement]) -> list[object]:
    ratio = _ratio(measurement, limits)
    return [
        measurement.what,
        round(measurement.records_per_second),
        f"{measurement.bytes_per_second / 1e6:.1f}",
        f"{measurement.p50_ms:.3f}",
        f"{measurement.p99_ms:.3f}",
        "-" if ratio is None else f"{ratio:.2f} of {measurement.limit}",
    ]


def _as_json(measurement: Measurement, limits: Mapping[str, Measurement]) -> dict[str, Any]:
    return {
        "what": measurement.what,
        "records_per_second": round(measurement.records_per_second, 1),
        "bytes_per_second": round(measurement.bytes_per_second, 1),
        "p50_ms": round(measurement.p50_ms, 4),
        "p99_ms": round(measurement.p99_ms, 4),
        "limit": measurement.limit,
        "of_limit": _ratio(measurement, limits),
    }
