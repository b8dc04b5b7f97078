"""`millstream pipeline`: topics and tables in, SQL or Python between, topics and tables out."""

from __future__ import annotations

import click

from millstream.cli.pipeline_explain import explain
from millstream.cli.pipeline_list import list_pipelines
from millstream.cli.pipeline_run import run


@click.group()
def pipeline() -> None:
    """Run pipelines on Spark, described in one file.

    \b
    Example:
        millstream pipeline run orders.toml
    """  # noqa: D301 - click's mark for lines to leave as they are.


pipeline.add_command(run)
pipeline.add_command(explain)
pipeline.add_command(list_pipelines)
