"""`millstream segments verify`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millstream.cli.support.options import data_option, json_option, one_line_errors, progress_bar
from millstream.cli.support.output import finding_json, finding_line, to_json
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.catalog import Finding, check_directory, store_paths
from millstream.storage.inspect.verify_store import verify_store


@click.command()
@data_option
@json_option
@click.pass_context
def verify(context: click.Context, data: str, *, as_json: bool) -> None:
    """Verify all checksums, and that the files of each log agree.

    Prints damage, one line each with file, position and reason, and unfinished writes of a crash,
    which the next start repairs and which are not damage. Internal state in `__state` is checked
    too. Reads only, uses all processors, and can run beside a running node.

    \b
    Exit status:
        0  no damage
        1  damaged, or could not be checked
        2  wrong usage

    \b
    Example:
        millstream segments verify --data ./millstream-data
    """
    filesystem = OsFilesystem()
    findings: list[Finding] = []
    with one_line_errors(), progress_bar("verify") as bar:
        check_directory(filesystem, data)
        for path in store_paths(filesystem, data):
            findings += verify_store(filesystem, path, progress=bar.after(bar.done))
    context.exit(report_findings(findings, size=bar.done, as_json=as_json))


def report_findings(findings: Sequence[Finding], *, size: int, as_json: bool) -> int:
    """Print the findings and return the exit status."""
    damaged = sum(finding.is_damage for finding in findings)
    if as_json:
        report = {
            "is_sound": damaged == 0,
            "bytes": size,
            "findings": [finding_json(finding) for finding in findings],
        }
        click.echo(to_json(report, indent=2))
    else:
        for finding in findings:
            click.echo(finding_line(finding))
    summary = (
        f"{size} bytes of log checked: {damaged} damaged, {len(findings) - damaged} unfinished"
    )
    click.echo(summary, err=True)
    return 1 if damaged else 0
