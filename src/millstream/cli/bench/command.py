"""`millstream bench`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option, one_line_errors
from millstream.cli.support.output import print_table, to_json

if TYPE_CHECKING:
    from millstream.cli.bench.machine import Measurement


@click.command()
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, writable=True),
    default=".",
    show_default=True,
    help="A directory on the disk to measure. What is written there has a directory of its own, and"
    " is gone at the end.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.01, max=60),
    metavar="N",
    default=1.0,
    show_default=True,
    help="How long each measurement lasts; none writes more than 256 MiB.",
)
@click.option(
    "--node/--no-node",
    "is_node",
    default=None,
    help="Whether to measure a node too; without it, where one answers.",
)
@server_option
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_BOOTSTRAP",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    help="The Kafka door of the same node.",
)
@json_option
def bench(
    *, data: str, seconds: float, is_node: bool | None, server: str, bootstrap: str, as_json: bool
) -> None:
    """Measure this machine, and a node.

    Quickly, to see what a log costs beside what the disk can do; it proves nothing.

    First the limits of the disk: writing, and writing with a sync after each piece. Then a log in
    this process, in each class of durability, one batch after the other. Then, where a node answers
    at --server, a topic of its own name on that node, which is deleted at the end: append and read
    over HTTP, produce and fetch over Kafka's protocol, with Millstream's own clients.

    OF LIMIT says how much of the limit beside it was reached; for a node it means something where
    DIR is on the disk of the node. All happens one after the other, on one connection, with batches
    of 1,000 records of 100 bytes: many clients reach more. Other work on the machine shows in the
    numbers.

    \b
    Exit status:
        0  measured
        1  something could not be measured
        2  wrong usage
        130  ended by Ctrl-C; what was made for it is gone

    \b
    Example:
        millstream bench --data ./millstream-data --seconds 5
    """  # noqa: D301 - click's mark for lines to leave as they are.
    from millstream.cli.bench.machine import measure_machine  # noqa: PLC0415 - not for --help.

    found: list[Measurement] = []
    with one_line_errors():
        with tempfile.TemporaryDirectory(prefix=".millstream-bench-", dir=data) as directory:
            for one in measure_machine(directory, seconds):
                found.append(_noted(one))
        if is_node is not False and _is_there(server, is_needed=bool(is_node)):
            from millstream.cli.bench.node import measure_node  # noqa: PLC0415

            with connected(server) as node:
                for one in measure_node(node.client, bootstrap, seconds):
                    found.append(_noted(one))
    limits = {one.what: one for one in found}
    if as_json:
        click.echo(to_json([_as_json(one, limits) for one in found], indent=2))
    else:
        head = ("WHAT", "RECORDS/S", "MB/S", "P50 MS", "P99 MS", "OF LIMIT")
        print_table(head, [_cells(one, limits) for one in found])


def _noted(measured: Measurement) -> Measurement:
    """Say on a terminal how far it is."""
    if sys.stderr.isatty():
        click.echo(f"measured: {measured.what}", err=True)
    return measured


def _is_there(server: str, *, is_needed: bool) -> bool:
    try:
        with connected(server):
            return True
    except click.BadParameter:
        raise
    except click.ClickException as error:
        if is_needed:
            raise
        click.echo(f"Only this machine is measured: {error.message}", err=True)
        return False


def _ratio(one: Measurement, limits: Mapping[str, Measurement]) -> float | None:
    limit = limits.get(one.limit or "")
    return one.bytes_per_second / limit.bytes_per_second if limit else None


def _cells(one: Measurement, limits: Mapping[str, Measurement]) -> list[object]:
    ratio = _ratio(one, limits)
    return [
        one.what,
        round(one.records_per_second),
        f"{one.bytes_per_second / 1e6:.1f}",
        f"{one.p50_ms:.3f}",
        f"{one.p99_ms:.3f}",
        "-" if ratio is None else f"{ratio:.2f} of {one.limit}",
    ]


def _as_json(one: Measurement, limits: Mapping[str, Measurement]) -> dict[str, Any]:
    return {
        "what": one.what,
        "records_per_second": round(one.records_per_second, 1),
        "bytes_per_second": round(one.bytes_per_second, 1),
        "p50_ms": round(one.p50_ms, 4),
        "p99_ms": round(one.p99_ms, 4),
        "limit": one.limit,
        "of_limit": _ratio(one, limits),
    }
