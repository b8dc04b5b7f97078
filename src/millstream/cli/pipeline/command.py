"""`millstream pipeline`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "explain": "millstream.cli.pipeline.explain:explain",
    "list": "millstream.cli.pipeline.list:list_pipelines",
    "run": "millstream.cli.pipeline.run:run",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def pipeline() -> None:
    """Run pipelines on Spark, described in one file.

    \b
    Example:
        millstream pipeline run orders.toml
    """
