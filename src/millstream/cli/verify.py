"""`millstream verify`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource

from millstream.audit.verification.ack_index import AckIndex
from millstream.audit.verification.node_source import TIMEOUT_S
from millstream.audit.verification.probes import PROBES_MAX
from millstream.audit.verification.report import AckOutcome, Discrepancy, Report
from millstream.audit.verification.verification import Verification
from millstream.cli.support.exit import Exit
from millstream.cli.support.kafka_security import kafka_security, login_options
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import data_option, json_option, one_line_errors, progress_bar
from millstream.cli.support.output import (
    finding_json,
    finding_line,
    print_table,
    printable,
    to_json,
)
from millstream.cli.verify_cluster import ClusterVerification, print_cluster_report
from millstream.storage.disk.io_throttle import IoThrottle

SAMPLES = 32

_SEED_MAX = 2**32


@click.command("verify")
@data_option
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="Kafka address of a running node to verify instead of a directory.",
)
@click.option(
    "--cluster",
    "is_cluster",
    is_flag=True,
    help="Compare all replicas of a running cluster instead.",
)
@server_option
@login_options
@click.option(
    "--acknowledged",
    metavar="FILE",
    multiple=True,
    help="Acknowledgement file of a client: every record in it must be stored. Can be repeated.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME",
    multiple=True,
    help="Verify only this topic. Can be repeated; the default is all topics.",
)
@click.option(
    "--deleted",
    metavar="NAME",
    multiple=True,
    help="Count missing records of this topic as deleted, not as lost: records were deleted by"
    " key, or the topic was deleted. Can be repeated.",
)
@click.option(
    "--bytes-per-second",
    type=click.IntRange(min=1),
    help="Limit the read rate. The default is no limit.",
)
@click.option(
    "--samples",
    type=click.IntRange(0, PROBES_MAX),
    default=SAMPLES,
    show_default=True,
    help="Approximate number of offsets per partition to look up through the node's indexes.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, _SEED_MAX - 1),
    help="Seed of the random choice of these offsets. The default is a random seed, which is"
    " printed.",
)
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT_S,
    show_default=True,
    help="Timeout of a request to the node.",
)
@json_option
@click.pass_context
def verify_all(  # noqa: PLR0917 - click passes them by name.
    context: click.Context,
    data: str,
    bootstrap: str | None,
    server: str,
    acknowledged: Sequence[str],
    topics: Sequence[str],
    deleted: Sequence[str],
    bytes_per_second: int | None,
    samples: int,
    seed: int | None,
    timeout: float,
    *,
    is_cluster: bool,
    as_json: bool,
) -> None:
    """Verify that no data is damaged and that no acknowledged record is lost.

    For a directory, does what `segments verify` does, and verifies the metadata and the state of
    producers. For a node (--bootstrap), reads every batch
    over the Kafka protocol and verifies its checksum, checks that offsets have no gaps, and
    compares lookups by offset and time with the records read.

    With --acknowledged, every record of the file must be stored with the same content. Records that
    were removed legitimately are counted by reason: retention, deletion, compaction, an aborted
    transaction, a recreated topic. Lost or different records are listed, the first 100 with their
    lines.

    For a cluster (--cluster), every node reads its replicas and checks them, and their digests are
    compared: finished segments, and the rest up to the lowest high watermark. Nodes copy segments
    that are found damaged from other replicas, by themselves.

    Reads only. A directory can be verified beside its running node.

    \b
    Exit status:
        0  nothing is lost, different or damaged
        1  something is, or could not be checked
        2  wrong usage

    \b
    Example:
        millstream verify --data ./millstream-data --acknowledged ./acknowledged.jsonl
        millstream verify --bootstrap 127.0.0.1:9092 --acknowledged ./acknowledged.jsonl
        millstream verify --cluster --server http://127.0.0.1:8080
    """
    throttle = IoThrottle(bytes_per_second) if bytes_per_second else None
    if is_cluster:
        _check_cluster_options(context)
        with (
            connected(server, patience_s=timeout) as node,
            progress_bar("verify") as bar,
        ):
            compared = ClusterVerification(
                node, topics=topics, throttle=throttle, progress=bar.update
            ).run()
        print_cluster_report(compared, as_json=as_json)
        context.exit(Exit.DONE if compared.is_sound else Exit.FAILED)
    if _is_given(context, "server"):
        raise click.UsageError("--server is for --cluster")
    if bootstrap and _is_given(context, "data"):
        raise click.UsageError("--data and --bootstrap cannot be combined")
    security = kafka_security()
    seed = secrets.randbelow(_SEED_MAX) if seed is None else seed
    with one_line_errors(), progress_bar("verify") as bar, AckIndex() as ack_index:
        for path in acknowledged:
            ack_index.read(path, topics=topics)
        run = Verification(
            ack_index, topics=topics, deleted=deleted, throttle=throttle, progress=bar.update
        )
        if bootstrap:
            report = run.verify_node(
                bootstrap, samples=samples, seed=seed, timeout_s=timeout, security=security
            )
        else:
            report = run.verify_directory(data)
    used_seed = seed if bootstrap and samples else None
    if as_json:
        click.echo(to_json(_report_json(report, used_seed), indent=2))
    else:
        _print_report(report)
    click.echo(_summary(report, used_seed), err=True)
    context.exit(0 if report.is_sound else 1)


_NOT_FOR_CLUSTERS = ("data", "bootstrap", "acknowledged", "deleted", "samples", "seed")


def _check_cluster_options(context: click.Context) -> None:
    for name in _NOT_FOR_CLUSTERS:
        if _is_given(context, name):
            raise click.UsageError(f"--{name} and --cluster cannot be combined")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _report_json(report: Report, seed: int | None) -> dict[str, Any]:
    return {
        "is_sound": report.is_sound,
        "bytes": report.bytes,
        "acknowledged": {
            "total": report.records,
            **{outcome.value: report.outcomes[outcome] for outcome in AckOutcome},
        },
        "topics": {
            topic: {
                outcome.value: outcomes[outcome]
                for outcome in AckOutcome
                if outcome is not AckOutcome.UNPLACED
            }
            for topic, outcomes in sorted(report.by_topic.items())
        },
        "misses": [_miss_json(miss) for miss in report.discrepancies],
        "damaged": report.damaged,
        "unfinished": report.unfinished,
        "absent": report.absent,
        "findings": [finding_json(finding) for finding in report.findings],
        "torn_files": report.torn_files,
        "probes": {
            "offsets": report.offsets_probed,
            "times": report.times_probed,
            "seed": seed,
        },
    }


def _miss_json(miss: Discrepancy) -> dict[str, Any]:
    return {
        "fate": miss.outcome.value,
        "topic": miss.partition.topic,
        "partition": miss.partition.partition,
        "offset": miss.offset,
        "why": miss.why,
        "file": miss.file,
        "line": miss.line,
    }


def _print_report(report: Report) -> None:
    for finding in report.findings:
        click.echo(finding_line(finding))
    total = report.damaged + report.unfinished + report.absent
    if (rest := total - len(report.findings)) > 0:
        click.echo(f"and {rest} more findings")
    for miss in report.discrepancies:
        place = f"{miss.outcome.value}: {miss.partition} offset {miss.offset}: {miss.why}"
        click.echo(printable(f"{place} ({miss.file} line {miss.line})"))
    if (rest := report.lost - len(report.discrepancies)) > 0:
        click.echo(f"and {rest} more records")
    if report.by_topic:
        shown = [outcome for outcome in AckOutcome if outcome is not AckOutcome.UNPLACED]
        rows = [
            (topic, *(outcomes[outcome] for outcome in shown))
            for topic, outcomes in sorted(report.by_topic.items())
        ]
        print_table(
            ["TOPIC", *(outcome.value.replace("_", " ").upper() for outcome in shown)], rows
        )


def _summary(report: Report, seed: int | None) -> str:
    lines = [
        f"{report.bytes} bytes read: {report.damaged} damaged, {report.unfinished} unfinished;"
        f" {report.records} acknowledged: {report.outcomes[AckOutcome.LOST]} lost,"
        f" {report.outcomes[AckOutcome.DIFFERENT]} different"
    ]
    if report.absent:
        lines.append(f"{report.absent} gaps between offsets, from deletion by key or from loss")
    lines += [f"{path}: the last line is incomplete and was skipped" for path in report.torn_files]
    if count := report.outcomes[AckOutcome.UNPLACED]:
        lines.append(f"{count} acknowledged without an offset, not checked")
    if seed is not None:
        lines.append(
            f"{report.offsets_probed} offsets and {report.times_probed} times looked up,"
            f" with --seed {seed}"
        )
    return "\n".join(map(printable, lines))
