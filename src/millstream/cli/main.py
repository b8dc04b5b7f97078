"""The `millstream` command and its subcommands."""

from __future__ import annotations

import click

import millstream
from millstream.cli.support.command_group import RootCommand

NOUNS = {
    "access": "millstream.cli.access.command:access",
    "bench": "millstream.cli.bench.command:bench",
    "chaos": "millstream.cli.chaos.command:chaos",
    "cluster": "millstream.cli.cluster.command:cluster",
    "completion": "millstream.cli.completion:completion",
    "config": "millstream.cli.config:config",
    "group": "millstream.cli.group.command:group",
    "jobs": "millstream.cli.jobs.command:jobs",
    "lake": "millstream.cli.lake.command:lake",
    "pipeline": "millstream.cli.pipeline.command:pipeline",
    "queue": "millstream.cli.queue.command:queue",
    "quota": "millstream.cli.quota.command:quota",
    "segments": "millstream.cli.segments.command:segments",
    "serve": "millstream.cli.serve:serve",
    "topic": "millstream.cli.topic.command:topic",
    "transactions": "millstream.cli.transactions.command:transactions",
    "verify": "millstream.cli.verify:verify_all",
}
"""Module and function of each command."""


@click.group(
    cls=RootCommand,
    verbs=NOUNS,
    context_settings={"help_option_names": ["--help"], "max_content_width": 100},
)
@click.version_option(millstream.__version__, message="millstream %(version)s")
def main() -> None:
    """Millstream: a durable log and stream engine.

    `serve` runs a node. `topic`, `group`, `queue`, `quota` and `transactions` administer a running
    node. `segments` inspects the files of a data directory. Every command has a --help with an
    example.

    Data is printed to standard output, everything else to standard error. Data is a table, or JSON
    with --json.

    \b
    Example:
        millstream serve --data ./millstream-data
    """


if __name__ == "__main__":
    main()
