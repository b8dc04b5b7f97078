"""Confirmation of irreversible commands."""

from __future__ import annotations

import sys

import click

from millstream.cli.support.output import printable

yes_option = click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")


def confirm_or_exit(question: str, *, is_sure: bool) -> None:
    """Ask on a terminal, and end the command unless the answer is yes."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation without a terminal; use --yes")
    click.confirm(printable(question), abort=True, err=True)
