"""`millstream chaos run`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.chaos.numbered_record import SIZE_MIN
from millstream.cli.support.exit import Exit
from millstream.cli.support.kafka_security import kafka_security, login_options
from millstream.cli.support.node_api import NodeApi, connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.audit.verification.report import Report
    from millstream.cli.chaos.chaos_run import ChaosPlan, ChaosRun

PARTITIONS_MAX = 100
"""Each partition has a writer and a reader, with a thread and a connection each."""

PROBLEMS_MAX = 20
"""Problems that are listed; all are counted."""


@click.command()
@click.option(
    "--rate",
    "records_per_second",
    type=click.FloatRange(min=0, max=100_000, min_open=True),
    default=100,
    show_default=True,
    metavar="N",
    help="Records per second, over all partitions.",
)
@click.option(
    "--duration",
    type=click.FloatRange(min=0.1, max=7 * 86_400),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to write. Ctrl-C ends the run before, with the same report.",
)
@click.option(
    "--topic",
    metavar="NAME",
    help="Existing topic to write to; other clients may use it too. The default is a new topic,"
    " which is deleted at the end unless something is wrong.",
)
@click.option(
    "--partitions",
    type=click.IntRange(1, PARTITIONS_MAX),
    default=3,
    show_default=True,
    metavar="N",
    help="Partitions of the new topic.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 1_000),
    metavar="N",
    help="Replicas of the new topic.  [default: as for any new topic]",
)
@click.option(
    "--size",
    "record_size",
    type=click.IntRange(SIZE_MIN, 256 * 1024),
    default=100,
    show_default=True,
    metavar="BYTES",
    help="Size of the value of a record.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=3_600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a batch is retried before its outcome counts as unknown.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0, max=3_600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait at the end until everything acknowledged was read.",
)
@click.option(
    "--ledger",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="New file for all acknowledgements, on another disk than those of the nodes. The default"
    " is a file in the current directory, which is removed with the new topic.",
)
@click.option(
    "--progress",
    "progress_s",
    type=click.FloatRange(min=0, max=3_600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two lines of progress on standard error; 0 prints none.",
)
@click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="Kafka address of the node, or several with commas. The default is what --server tells.",
)
@server_option
@login_options
@json_option
@click.pass_context
def run(
    context: click.Context,
    *,
    records_per_second: float,
    duration: float,
    topic: str | None,
    partitions: int,
    replicas: int | None,
    record_size: int,
    timeout_s: float,
    settle_s: float,
    ledger: str | None,
    progress_s: float,
    bootstrap: str | None,
    server: str,
    as_json: bool,
) -> None:
    """Write numbered records at a rate, read them back, and report what was lost.

    This command breaks nothing. Do that yourself while it runs: kill a node, pull a cable, fill a
    disk, restart one node after the other.

    Records are written over the Kafka protocol with acks=all by one idempotent producer for each
    partition. Every acknowledgement is recorded in a file, which `millstream verify --acknowledged`
    understands. A reader follows each partition. At the end, the command waits until everything
    acknowledged was read (--settle), and reads the topic once more.

    LOST was acknowledged and not read. GONE was acknowledged, and is not stored at the end, or is
    different. DOUBLED was read twice. A record of UNKNOWN outcome was not acknowledged within
    --timeout: it may be stored or not, and both are right. PAUSE is the longest time in which a
    partition had something to write, or to read, and did not.

    \b
    Exit status:
        0  everything acknowledged was read once and in order, and is stored
        1  a record is lost, gone, doubled, out of order or was never sent, offsets are missing in
           the new topic, nothing was acknowledged, or something could not be checked
        2  wrong usage
        130  interrupted by Ctrl-C a second time; the topic and the file are kept

    \b
    Example:
        millstream chaos run --rate 500 --duration 600 --server http://node1:8080,http://node2:8080
    """
    run_id = secrets.token_hex(6)
    path = Path(ledger or f"millstream-chaos-{run_id}.jsonl")
    if path.exists():
        raise click.BadParameter(f"must be a new file, {path} exists", param_hint="--ledger")
    if topic is not None and replicas is not None:
        raise click.UsageError("--replicas is for a new topic, and cannot be combined with --topic")
    security = kafka_security(server)
    # Here and not above: `--help` needs none of it.
    from millstream.audit.acknowledgements.file import AcknowledgementFile  # noqa: PLC0415
    from millstream.cli.chaos.chaos_run import ChaosPlan, ChaosRun  # noqa: PLC0415

    with connected(server) as node:
        name = topic or f"millstream-chaos-{run_id}"
        if topic is None:
            node.client.create_topic(name, partitions=partitions, replicas=replicas)
        described = node.ask("GET", path_of("topics", name), field="partitions")
        plan = ChaosPlan(
            bootstrap=bootstrap or _bootstrap(node),
            topic=name,
            topic_id=_topic_id(described),
            partitions=len(described["partitions"]),
            run=run_id,
            records_per_second=records_per_second,
            record_size=record_size,
            timeout_s=timeout_s,
            security=security,
        )
        if plan.partitions > PARTITIONS_MAX:
            raise click.ClickException(
                f"topic {name} has {plan.partitions} partitions, at most {PARTITIONS_MAX} can be"
                " written to"
            )
        click.echo(f"run {run_id}: topic {name}, acknowledgements in {path}", err=True)
        with AcknowledgementFile(path) as acknowledgements:
            running = ChaosRun(plan, acknowledgements)
            try:
                _write(running, duration, progress_s)
                seconds = running.seconds
                _settle(running, settle_s)
            finally:
                running.close()
        stored = _check_stored(plan, path, running)
        report = _report(running, seconds, stored, is_new_topic=topic is None)
        _print(report, as_json=as_json)
        if topic is None and not report["problems"]:
            _delete_topic(node, name)
            if ledger is None:
                path.unlink()
        elif report["problems"]:
            click.echo(f"topic {name} and {path} are kept", err=True)
    context.exit(Exit.FAILED if report["problems"] else Exit.DONE)


def _bootstrap(node: NodeApi) -> str:
    """Return the Kafka addresses of all nodes that are known."""
    nodes = node.ask("GET", "/v1/cluster", field="nodes")["nodes"]
    return ",".join(each["kafka"] for each in nodes if each["kafka"])


def _topic_id(described: dict[str, Any]) -> Any:
    import uuid  # noqa: PLC0415

    return uuid.UUID(described["id"])


# A run.


def _write(running: ChaosRun, duration: float, progress_s: float) -> None:
    """Write for so long, or until Ctrl-C."""
    running.start()
    try:
        while (left := duration - running.seconds) > 0:
            running.wait(min(left, progress_s or left))
            if progress_s:
                click.echo(_progress_line(running), err=True)
    except KeyboardInterrupt:
        click.echo("interrupted: waiting until everything acknowledged was read", err=True)


def _progress_line(running: ChaosRun) -> str:
    counts = running.counts()
    line = (
        f"{running.seconds:.0f} s: {counts.sent} sent, {counts.acknowledged} acknowledged,"
        f" {counts.read} read, {counts.unknown} of unknown outcome, {counts.doubled} doubled,"
        f" {counts.out_of_order} out of order; longest pause: write {counts.write_pause_s:.1f} s,"
        f" read {counts.read_pause_s:.1f} s"
    )
    if running.last_error:
        line += f"; last error: {printable(running.last_error)}"
        running.last_error = ""
    return line


def _settle(running: ChaosRun, settle_s: float) -> None:
    running.stop_writing(max(settle_s, running.plan.timeout_s))
    running.wait_until_read(settle_s)


def _check_stored(plan: ChaosPlan, path: Path, running: ChaosRun) -> Report | str:
    """Compare the topic with the acknowledgements; return why that is not possible, if so."""
    from millstream.cli.chaos.chaos_run import check_stored  # noqa: PLC0415

    try:
        return check_stored(plan, str(path), running.starts)
    except MillstreamError as error:
        return str(error)


def _delete_topic(node: NodeApi, name: str) -> None:
    try:
        node.client.topic(name).delete()
    except MillstreamError as error:
        click.echo(printable(f"topic {name} was not deleted: {error}"), err=True)


# The report.


def _report(
    running: ChaosRun, seconds: float, stored: Report | str, *, is_new_topic: bool
) -> dict[str, Any]:
    from millstream.audit.verification.report import AckOutcome  # noqa: PLC0415

    counts = running.counts()
    checked = None if isinstance(stored, str) else stored
    report: dict[str, Any] = {
        "run": running.plan.run,
        "topic": running.plan.topic,
        "seconds": round(seconds, 3),
        "sent": counts.sent,
        "acknowledged": counts.acknowledged,
        "unknown": counts.unknown + counts.in_flight,
        "unknown_stored": counts.unknown_stored,
        "read": counts.read,
        "lost": counts.lost,
        "gone": checked and checked.lost,
        "deleted": checked and checked.outcomes[AckOutcome.BEFORE_START],
        "doubled": counts.doubled,
        "out_of_order": counts.out_of_order,
        "unexpected": counts.unexpected,
        "gaps": counts.gaps,
        "write_pause_s": round(counts.write_pause_s, 3),
        "read_pause_s": round(counts.read_pause_s, 3),
        "errors": dict(running.errors),
    }
    report["problems"] = [
        *_problems(report, is_new_topic=is_new_topic),
        *_stored_problems(stored),
    ]
    report["examples"] = counts.examples[:PROBLEMS_MAX]
    return report


def _problems(report: dict[str, Any], *, is_new_topic: bool) -> Iterator[str]:
    """Return what is wrong by the counts, one sentence for each."""
    if not report["acknowledged"]:
        yield "nothing was acknowledged"
    if report["lost"]:
        yield f"{report['lost']} acknowledged records were not read"
    if report["doubled"]:
        yield f"{report['doubled']} records were read more than once"
    if report["out_of_order"]:
        yield f"{report['out_of_order']} records were read out of order"
    if report["unexpected"]:
        yield f"{report['unexpected']} records were read that were not sent there"
    if report["gaps"] and is_new_topic:
        yield f"{report['gaps']} offsets have no record"


def _stored_problems(stored: Report | str) -> Iterator[str]:
    if isinstance(stored, str):
        yield f"the topic could not be read at the end: {stored}"
        return
    if stored.lost:
        yield f"{stored.lost} acknowledged records are not stored, or are different"
    for miss in stored.discrepancies[:PROBLEMS_MAX]:
        yield f"{miss.outcome.value}: {miss.partition} offset {miss.offset}: {miss.why}"
    if stored.damaged:
        yield f"{stored.damaged} batches of the topic are damaged"


ROWS = (
    ("sent", "sent"),
    ("acknowledged", "acknowledged"),
    ("unknown outcome", "unknown"),
    ("- of these stored", "unknown_stored"),
    ("read", "read"),
    ("LOST", "lost"),
    ("GONE", "gone"),
    ("deleted meanwhile", "deleted"),
    ("DOUBLED", "doubled"),
    ("OUT OF ORDER", "out_of_order"),
    ("NEVER SENT", "unexpected"),
    ("gaps in offsets", "gaps"),
)


def _print(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(report, indent=2))
    else:
        rows = [(name, "-" if report[key] is None else report[key]) for name, key in ROWS]
        pauses = ("write_pause_s", "read_pause_s")
        rows += [
            (f"longest pause in {name}, seconds", f"{report[key]:.1f}")
            for name, key in zip(("writes", "reads"), pauses, strict=True)
        ]
        print_table(("WHAT", "COUNT"), rows)
    for name, count in report["errors"].items():
        click.echo(f"clients met {count} x {name}, and went on", err=True)
    for problem in (*report["problems"], *(report["examples"] if report["problems"] else ())):
        click.echo(printable(problem), err=True)
    if not report["problems"]:
        click.echo("nothing is lost, doubled or out of order", err=True)
