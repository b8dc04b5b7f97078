"""`millstream bench load`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.exit import Exit
from millstream.cli.support.node_api import client_config, connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.cli.bench.load_run import LoadResult

REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the values of one request: as base64 they fit into a request of 16 MiB."""

QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p99_9_ms": 0.999}


@click.command()
@click.option(
    "--rate",
    "records_per_second",
    type=click.FloatRange(min=0, max=10_000_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Records per second, over all connections. 0 sends as fast as the node answers.",
)
@click.option(
    "--size",
    "record_size",
    type=click.IntRange(0, 1024 * 1024),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Size of the value of a record.",
)
@click.option(
    "--batch",
    "records_per_request",
    type=click.IntRange(1, 10_000),
    default=10,
    show_default=True,
    metavar="N",
    help="Records in one request.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 1_000),
    default=4,
    show_default=True,
    metavar="N",
    help="Connections, each with one request at a time.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1, max=86_400),
    default=10.0,
    show_default=True,
    metavar="N",
    help="Duration of the load.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=3_600),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a request, with its retries, may take before it counts as failed.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    default=4,
    show_default=True,
    metavar="N",
    help="Partitions of the topic.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="Replicas of the topic.  [default: as for any new topic]",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "disk", "memory"]),
    default="fsync",
    show_default=True,
    help="Durability class of the topic.",
)
@server_option
@json_option
@click.pass_context
def load(
    context: click.Context,
    *,
    records_per_second: float,
    record_size: int,
    records_per_request: int,
    connections: int,
    seconds: float,
    timeout_s: float,
    partitions: int,
    replicas: int | None,
    durability: str,
    server: str,
    as_json: bool,
) -> None:
    """Append records at a fixed rate, and measure how long nodes take to acknowledge them.

    A temporary topic is created, and deleted at the end. The latency of a request counts from the
    time at which it should have been sent, so that a stall counts for every request that it
    delays. BEHIND is how late the latest request was sent. If it grows with --seconds, the rate is
    more than the node, or this process, can do over so many connections.

    At the end, the records that are stored are counted, and compared with those that were
    acknowledged.

    \b
    Exit status:
        0  every request was acknowledged, and everything acknowledged is stored
        1  a request failed, a record is missing, or no node answers
        2  wrong usage
        130  interrupted by Ctrl-C; the topic was deleted

    \b
    Example:
        millstream bench load --rate 2000 --size 200 --batch 20 --connections 8
    """
    if (size := record_size * records_per_request) > REQUEST_BYTES_MAX:
        raise click.UsageError(
            f"--size times --batch must be at most {REQUEST_BYTES_MAX} bytes, got {size}"
        )
    import asyncio  # noqa: PLC0415 - not for --help.

    from millstream.cli.bench.load_run import LoadPlan, run_load  # noqa: PLC0415

    plan = LoadPlan(
        topic=f"millstream-bench-load-{secrets.token_hex(6)}",
        seconds=seconds,
        records_per_second=records_per_second,
        record_size=record_size,
        records_per_request=records_per_request,
        timeout_s=timeout_s,
    )
    with connected(server) as node:
        topic = node.client.create_topic(
            plan.topic, partitions=partitions, replicas=replicas, durability=durability
        )
        try:
            config = client_config()
            result = asyncio.run(run_load(server, plan, connections=connections, config=config))
            stored = topic.describe().count
        finally:
            try:
                topic.delete()
            except MillstreamError as error:
                click.echo(printable(f"topic {plan.topic} was not deleted: {error}"), err=True)
    report = _report(result, stored, record_size)
    if as_json:
        click.echo(to_json(report, indent=2))
    else:
        _print(report)
    is_whole = not result.failures and stored == result.acknowledged
    context.exit(Exit.DONE if is_whole else Exit.FAILED)


def _report(result: LoadResult, stored: int, record_size: int) -> dict[str, Any]:
    rate = result.acknowledged / result.seconds if result.seconds else 0.0
    latencies = result.latencies
    return {
        "acknowledged": result.acknowledged,
        "stored": stored,
        "missing": max(0, result.acknowledged - stored),
        "failures": dict(result.failures),
        "seconds": round(result.seconds, 3),
        "records_per_second": round(rate, 1),
        "bytes_per_second": round(rate * record_size, 1),
        "behind_ms": round(result.behind_s * 1000, 3),
        "requests": latencies.count,
        **{name: round(latencies.quantile(share) * 1000, 3) for name, share in QUANTILES.items()},
        "max_ms": round(latencies.longest * 1000, 3),
    }


def _print(report: dict[str, Any]) -> None:
    head = ("RECORDS/S", "MB/S", "P50 MS", "P90 MS", "P99 MS", "P99.9 MS", "MAX MS", "BEHIND MS")
    row = [
        round(report["records_per_second"]),
        f"{report['bytes_per_second'] / 1e6:.2f}",
        *(f"{report[name]:.2f}" for name in (*QUANTILES, "max_ms", "behind_ms")),
    ]
    print_table(head, [row])
    for name, count in report["failures"].items():
        click.echo(f"failed: {count} requests with {name}", err=True)
    text = f"{report['acknowledged']} records acknowledged, {report['stored']} stored"
    missing = f", {report['missing']} MISSING" if report["missing"] else ""
    click.echo(f"{text}{missing}", err=True)
