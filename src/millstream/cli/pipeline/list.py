"""`millstream pipeline list`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.options import json_option, one_line_errors
from millstream.cli.support.output import print_table, printable, time_text, to_json
from millstream.errors import InvalidPipeline

if TYPE_CHECKING:
    from millstream.spark.pipelines.definition.pipeline import Pipeline

_COLUMNS = {
    "file": "FILE",
    "pipeline": "PIPELINE",
    "target": "TARGET",
    "to": "TO",
    "planned": "BEGUN",
    "committed": "DONE",
    "at_ms": "AT",
}

_FILE_SIZE_MAX = 1024 * 1024
"""Maximum size of a pipeline file, as for running one."""


@click.command("list")
@click.argument(
    "directory", metavar="[DIRECTORY]", default=".", type=click.Path(exists=True, file_okay=False)
)
@json_option
@click.pass_context
def list_pipelines(context: click.Context, directory: str, *, as_json: bool) -> None:
    """List the pipelines of a directory, with their targets and progress.

    A pipeline is a file that ends in .toml and has a table [pipeline], or that ends in .py and
    imports millstream.spark.pipelines; Python files are executed. BEGUN is the last batch that was
    started and DONE the last that was completed, according to the checkpoint; both count from 0.
    Spark is not started.

    \b
    Exit status:
        0  all files were read
        1  some files are invalid; standard error says why
        2  wrong usage

    \b
    Example:
        millstream pipeline list ./pipelines
    """
    rows: list[dict[str, Any]] = []
    is_wrong = False
    with one_line_errors():
        for path in sorted(filter(_is_pipeline, _files(directory))):
            from millstream.spark.pipelines.definition.load import load  # noqa: PLC0415

            try:
                rows += _rows(path, load(path))
            except InvalidPipeline as error:
                click.echo(printable(f"Error: {error}"), err=True)
                is_wrong = True
    if as_json:
        click.echo(to_json(rows, indent=2))
    else:
        print_table(list(_COLUMNS.values()), [_cells(row) for row in rows])
    context.exit(1 if is_wrong else 0)


def _files(directory: str) -> list[str]:
    return [os.path.join(directory, name) for name in os.listdir(directory)]


def _is_pipeline(path: str) -> bool:
    """Return whether a file declares itself a pipeline."""
    marks = {".toml": b"[pipeline]", ".py": b"millstream.spark.pipelines"}
    mark = marks.get(os.path.splitext(path)[1])
    if mark is None or not os.path.isfile(path) or os.path.getsize(path) > _FILE_SIZE_MAX:
        return False
    with open(path, "rb") as file:
        return mark in file.read()


def _rows(path: str, pipeline: Pipeline) -> list[dict[str, Any]]:
    from millstream.spark.pipelines.definition.target import place_of  # noqa: PLC0415
    from millstream.spark.pipelines.run.state import states_of  # noqa: PLC0415

    states = {state.target: state for state in states_of(pipeline) or ()}
    rows = []
    for target in pipeline.targets:
        state = states.get(target.name)
        rows.append(
            {
                "file": path,
                "pipeline": pipeline.name,
                "target": target.name,
                "to": place_of(target),
                "planned": state.planned if state else None,
                "committed": state.committed if state else None,
                "at_ms": int(state.at * 1000) if state and state.at else None,
            }
        )
    return rows


def _cells(row: dict[str, Any]) -> list[object]:
    shown = {name: "-" if value is None else value for name, value in row.items()}
    shown["at_ms"] = time_text(row["at_ms"])
    return [shown[name] for name in _COLUMNS]
