"""`millstream segments reindex`."""

from __future__ import annotations

import click

from millstream.cli.support.options import data_option, json_option, one_line_errors, progress_bar
from millstream.cli.support.output import finding_json, finding_line, printable, to_json
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.reindex import ReindexResult, reindex_store


@click.command()
@data_option
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Rebuild all indexes, not only those that are missing or wrong.",
)
@json_option
@click.pass_context
def reindex(context: click.Context, data: str, *, is_all: bool, as_json: bool) -> None:
    """Rebuild missing or damaged indexes and seals from their logs.

    Stop the node first. Prints each written file and the remaining damage: a damaged log is never
    changed, and the tail of a log is left to the next start of the node.

    \b
    Exit status:
        0  all indexes and seals are valid
        1  a log is damaged, or something could not be rebuilt
        2  wrong usage

    \b
    Example:
        millstream segments reindex --data ./millstream-data
    """
    with one_line_errors(), progress_bar("reindex") as bar:
        done = reindex_store(OsFilesystem(), data, is_all=is_all, progress=bar.update)
    context.exit(report_reindexed(done, as_json=as_json))


def report_reindexed(done: ReindexResult, *, as_json: bool) -> int:
    """Print written files and remaining damage, and return the exit status."""
    if as_json:
        findings = [finding_json(finding) for finding in done.findings]
        click.echo(to_json({"written": done.written, "findings": findings}, indent=2))
    else:
        for path in done.written:
            click.echo(printable(f"written: {path}"))
        for finding in done.findings:
            click.echo(finding_line(finding))
    click.echo(f"{len(done.written)} files written, {len(done.findings)} damaged", err=True)
    return 1 if done.findings else 0
