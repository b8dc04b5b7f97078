"""`millstream pipeline run`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from millstream.cli.pipeline.options import file_argument, parse_conf, spark_options
from millstream.cli.support.kafka_security import given_security
from millstream.cli.support.options import json_option, one_line_errors

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@file_argument
@click.option(
    "--once",
    "is_once",
    is_flag=True,
    help="Process the available data and stop, whatever trigger the file has.",
)
@spark_options
@json_option
def run(
    *,
    file: str,
    is_once: bool,
    master: str | None,
    conf: Sequence[str],
    bootstrap: str | None,
    log_level: str,
    as_json: bool,
) -> None:
    """Run a pipeline until SIGTERM or Ctrl-C.

    Shows the progress of each target on a terminal; otherwise prints one line per batch, with
    --json one JSON object. Resumes where the last run stopped, exactly once, even after a crash.
    The first signal lets running batches finish; a second one stops immediately.

    \b
    Exit status:
        0  stopped, or everything processed
        1  the pipeline cannot run, or failed
        2  wrong usage

    \b
    Example:
        millstream pipeline run orders.toml --once
    """
    settings = parse_conf(conf)
    with one_line_errors():
        # Slow to import, and for no other command.
        from millstream.cli.pipeline.progress_board import progress_display  # noqa: PLC0415
        from millstream.spark.pipelines.definition.load import load  # noqa: PLC0415

        pipeline = load(file)
        from millstream.spark.pipelines.run.command import pipeline_session, with_overrides  # noqa: PLC0415

        pipeline = with_overrides(
            pipeline,
            master=master,
            bootstrap=bootstrap,
            conf=settings,
            security=given_security(),
        )
        stop = threading.Event()
        with stopped_by_signals(stop), pipeline_session(pipeline, log_level=log_level) as spark:
            from millstream.spark.pipelines.run import runner as running  # noqa: PLC0415

            # Starting, Spark has put a handler of its own in the place of ours.
            with stopped_by_signals(stop), progress_display(pipeline, as_json=as_json) as observe:
                running.run(spark, pipeline, observe=observe, stop=stop, is_once=is_once)


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` at the first signal and end the process at the second."""

    def handle(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
