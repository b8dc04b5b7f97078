"""Progress of a running pipeline: a live table, lines, or JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.cli.support.output import printable, to_json

if TYPE_CHECKING:
    from millstream.spark.pipelines.definition.pipeline import Pipeline
    from millstream.spark.pipelines.run.progress import BatchProgress

Observe: TypeAlias = "Callable[[BatchProgress], None]"

_COLUMNS = ("TARGET", "BATCH", "ROWS", "IN/S", "OUT/S", "LAG", "SECONDS", "WATERMARK")


@contextmanager
def progress_display(pipeline: Pipeline, *, as_json: bool) -> Iterator[Observe]:
    """Yield a callback for completed batches, which shows them in the form that fits the output."""
    console = Console()
    if as_json:
        yield lambda batch: click.echo(to_json(dataclasses.asdict(batch)))
    elif not console.is_terminal:
        yield lambda batch: click.echo(batch_line(batch))
    else:
        board = ProgressBoard(pipeline)
        with Live(board.table(), console=console, refresh_per_second=4) as live:

            def observe(batch: BatchProgress) -> None:
                board.add(batch)
                live.update(board.table())

            yield observe


def lag_text(batch: BatchProgress) -> str:
    """Return the lag after a batch."""
    return ", ".join(f"{topic} {count:,}" for topic, count in sorted(batch.lag.items())) or "-"


def batch_line(batch: BatchProgress) -> str:
    written = "" if batch.rows_out is None else f", {batch.rows_out:,} out"
    return printable(
        f"{batch.at} {batch.target} batch {batch.batch}: {batch.rows_in:,} rows in{written},"
        f" {batch.rows_per_second_out:,.0f} rows/s, lag {lag_text(batch)}, {batch.seconds:.2f} s"
    )


class ProgressBoard:
    """Table of the last batch of each target."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._name = pipeline.name
        self._last: dict[str, BatchProgress | None] = {
            target.name: None for target in pipeline.targets
        }
        self._rows: dict[str, int] = dict.fromkeys(self._last, 0)

    def add(self, batch: BatchProgress) -> None:
        self._last[batch.target] = batch
        self._rows[batch.target] += batch.rows_in

    def table(self) -> Table:
        table = Table(title=f"{self._name}: Ctrl-C stops after the current batch", box=None)
        for name in _COLUMNS:
            is_text = name in ("TARGET", "LAG", "WATERMARK")
            table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
        for name, batch in self._last.items():
            table.add_row(*(Text(printable(cell)) for cell in self._cells(name, batch)))
        return table

    def _cells(self, name: str, batch: BatchProgress | None) -> list[str]:
        if batch is None:
            return [name, "waits", *["-"] * (len(_COLUMNS) - 2)]
        return [
            name,
            str(batch.batch),
            f"{self._rows[name]:,}",
            f"{batch.rows_per_second_in:,.0f}",
            f"{batch.rows_per_second_out:,.0f}",
            lag_text(batch),
            f"{batch.seconds:.2f}",
            batch.watermark or "-",
        ]
