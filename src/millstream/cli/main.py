"""The `millstream` command: every noun, in one place."""

from __future__ import annotations

import click

import millstream
from millstream.cli.config import config
from millstream.cli.jobs import jobs
from millstream.cli.pipeline import pipeline
from millstream.cli.segments import segments
from millstream.cli.serve import serve
from millstream.cli.topic import topic


@click.group(context_settings={"help_option_names": ["--help"], "max_content_width": 100})
@click.version_option(millstream.__version__, message="millstream %(version)s")
def main() -> None:
    """Millstream: an append-only log.

    Data goes to standard output, everything else to standard error.

    Have your shell complete commands and options, with `zsh_source` or `fish_source` for the
    other shells:

    \b
        eval "$(_MILLSTREAM_COMPLETE=bash_source millstream)"

    \b
    Example:
        millstream serve --data ./millstream-data
    """  # noqa: D301 - click's mark for lines to leave as they are.


main.add_command(serve)
main.add_command(segments)
main.add_command(topic)
main.add_command(pipeline)
main.add_command(jobs)
main.add_command(config)
