"""The `millstream` command: every noun, in one place."""

from __future__ import annotations

import click

import millstream
from millstream.cli.support.command_group import RootCommand

NOUNS = {
    "bench": "millstream.cli.bench.command:bench",
    "completion": "millstream.cli.completion:completion",
    "config": "millstream.cli.config:config",
    "group": "millstream.cli.group.command:group",
    "jobs": "millstream.cli.jobs.command:jobs",
    "pipeline": "millstream.cli.pipeline.command:pipeline",
    "queue": "millstream.cli.queue.command:queue",
    "quota": "millstream.cli.quota.command:quota",
    "segments": "millstream.cli.segments.command:segments",
    "serve": "millstream.cli.serve:serve",
    "topic": "millstream.cli.topic.command:topic",
    "verify": "millstream.cli.verify:verify_all",
}
"""Where the commands are."""


@click.group(
    cls=RootCommand,
    verbs=NOUNS,
    context_settings={"help_option_names": ["--help"], "max_content_width": 100},
)
@click.version_option(millstream.__version__, message="millstream %(version)s")
def main() -> None:
    """Millstream: an append-only log.

    `serve` runs a node; `topic`, `group` and `queue` ask one that runs; `segments` looks at the
    files of one, running or not. Each command has a --help of its own, with an example.

    Data goes to standard output, everything else to standard error. On a terminal data is a table,
    with --json it is JSON.

    \b
    Example:
        millstream serve --data ./millstream-data
    """  # noqa: D301 - click's mark for lines to leave as they are.


if __name__ == "__main__":
    main()
