"""`millstream queue work`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.output import printable
from millstream.cli.support.settings import MILLISECONDS
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.clients.http.sync.queue import ClientJob
    from millstream.clients.http.sync.queue_worker import QueueWorker

PATIENCE_S = 5.0
"""Seconds after which a command that was asked to stop is killed."""


@click.command(context_settings={"ignore_unknown_options": True})
@queue_argument
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--until-empty", is_flag=True, help="Stop when no job is ready instead of waiting.")
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Stop after this number of jobs."
)
@click.option(
    "--lease-ms",
    type=MILLISECONDS,
    metavar="TIME",
    help="Lease time of a job: how long it stays claimed if this worker dies. Extended while"
    " the command runs.",
)
@click.option(
    "--retry-ms",
    "delay_ms",
    type=MILLISECONDS,
    metavar="TIME",
    default=0,
    show_default=True,
    help="Delay before a failed job can be claimed again.",
)
@click.option("--worker", metavar="NAME", default="", help="Name of this worker in `queue jobs`.")
@server_option
@click.pass_context
def work(
    context: click.Context,
    *,
    name: str,
    command: Sequence[str],
    until_empty: bool,
    limit: int | None,
    lease_ms: int | None,
    delay_ms: int,
    worker: str,
    server: str,
) -> None:
    """Run a command for each job of a queue, one job at a time.

    The command gets the value of the job on standard input, and JOB_KEY, JOB_PARTITION, JOB_OFFSET
    and JOB_DELIVERIES in its environment. If it exits with status 0 the job is done; otherwise the
    job is returned to the queue, and moved to the dead-letter topic after the allowed number of
    deliveries. The lease is extended while the command runs. Start several workers to process jobs
    in parallel.

    SIGTERM stops after the current job. Ctrl-C stops at once and returns the job to the queue. A
    job may be processed twice if a worker dies between the work and its acknowledgement.

    \b
    Exit status:
        0  stopped, and every job was done
        1  some jobs were returned, the queue does not exist, or no node answers
        2  wrong usage, or the command was not found
        130  interrupted by Ctrl-C

    \b
    Example:
        millstream queue work mail --retry-ms 1min -- ./send-mail --from me
    """
    program = shutil.which(command[0])
    if program is None:
        raise click.UsageError(f"command {printable(command[0])!r} not found")
    done = failed = 0
    with connected(server) as node:
        queue = node.client.queue(name)
        queue.counts()  # Says that there is none before the first job is waited for.
        wanted = queue.work(ahead=1, lease_ms=lease_ms, worker=worker, stops_when_empty=until_empty)
        with wanted as jobs, _stopped_by_sigterm(jobs):
            for job in jobs:
                status = _run([program, *command[1:]], job)
                if status == 0:
                    done += 1
                else:
                    failed += 1
                    _give_back(job, status, delay_ms)
                if done + failed == limit:
                    jobs.stop()
    click.echo(f"{done} jobs done, {failed} returned to the queue", err=True)
    context.exit(1 if failed else 0)


@contextmanager
def _stopped_by_sigterm(jobs: QueueWorker) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, lambda *_: jobs.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(command: Sequence[str], job: ClientJob) -> int:
    """Run the command for a job and return its exit status."""
    record = job.record
    about = {
        b"JOB_KEY": record.key.encode() if isinstance(record.key, str) else record.key or b"",
        b"JOB_PARTITION": b"%d" % record.partition,
        b"JOB_OFFSET": b"%d" % record.offset,
        b"JOB_DELIVERIES": b"%d" % job.deliveries,
    }
    # A key may be any bytes; one that an environment cannot hold is left out.
    shown = {name: value for name, value in about.items() if b"\0" not in value}
    process = subprocess.Popen(  # noqa: S603 - the command of the user.
        command, stdin=subprocess.PIPE, env={**os.environb, **shown}
    )
    try:
        # A command that reads nothing, or not all, is as good as any.
        with suppress(BrokenPipeError):
            process.communicate(record.raw or b"")
        return process.wait()
    except BaseException:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _give_back(job: ClientJob, status: int, delay_ms: int) -> None:
    what = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
    record = job.record
    text = f"job {record.partition}:{record.offset}: {what}, returned to the queue"
    try:
        job.nack(delay_ms=delay_ms)
    except MillstreamError as error:  # Then its lease runs out, or has.
        text = f"{text}, which failed: {error}"
    click.echo(printable(f"{text} (delivery {job.deliveries})"), err=True)
