"""Writes the pages of docs/reference that are derived from the code.

`make docs` runs this; `tests/test_docs.py` fails when a page is not what this would write.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import click

from millstream import config, errors
from millstream.cli.main import main as command_line
from millstream.config import LogConfig, StoreConfig, settings_of
from millstream.observe import metrics

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `make docs`. Do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """Return every generated page, by file name."""
    return {
        "cli.md": cli_page(),
        "config.md": config_page(),
        "errors.md": errors_page(),
        "metrics.md": metrics_page(),
    }


def cli_page() -> str:
    """Every command, as its help describes it."""
    parts = [
        NOTE,
        "# Command line\n\nData goes to standard output, everything else to standard error.",
    ]
    for path, command in _commands(["millstream"], command_line):
        context = click.Context(command, info_name=" ".join(path))
        parts.append(f"\n\n## {' '.join(path)}\n\n```\n{command.get_help(context)}\n```")
    return "".join(parts) + "\n"


def _commands(path: list[str], command: click.Command) -> list[tuple[list[str], click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        for name, below in sorted(command.commands.items()):
            found += _commands([*path, name], below)
    return found


def config_page() -> str:
    """Every setting, with its limits and its default."""
    parts = [NOTE, "# Settings\n"]
    for kind in (LogConfig, StoreConfig):
        parts.append(f"\n## {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n")
        parts.append("| setting | default | allowed | what it is for |\n|---|---|---|---|\n")
        words = _field_docstrings(kind)
        for name, default in settings_of(kind()).items():
            shown = f"{default:,}" if isinstance(default, int) else default
            parts.append(f"| `{name}` | {shown} | {_allowed(kind, name)} | {words[name]} |\n")
    parts.append("\n## Durability\n\n| class | what an acknowledgement promises |\n|---|---|\n")
    words = _field_docstrings(config.Durability)
    for member in config.Durability:
        parts.append(f"| `{member.value}` | {words[member.name]} |\n")
    return "".join(parts)


def _allowed(kind: type, name: str) -> str:
    limits = vars(kind)["_limits"].get(name)
    if limits is None:
        return ", ".join(f"`{member.value}`" for member in config.Durability)
    return f"{limits[0]:,} to {limits[1]:,}"


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the string that stands below each field of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        target = field.target if isinstance(field, ast.AnnAssign) else None
        if isinstance(field, ast.Assign):
            target = field.targets[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            found[target.id] = " ".join(str(below.value.value).split())
    return found


def errors_page() -> str:
    """Every error, indented below the one that it is a kind of."""
    lines = [NOTE, "# Errors\n\n", "Catch a branch to catch all below it.\n\n"]
    lines += ["| error | what it means |\n", "|---|---|\n"]
    lines += _error_rows(errors.MillstreamError, 0)
    return "".join(lines)


def _error_rows(kind: type[errors.MillstreamError], depth: int) -> list[str]:
    indent = "&nbsp;&nbsp;" * depth
    rows = [f"| {indent}`{kind.__name__}` | {' '.join((inspect.getdoc(kind) or '').split())} |\n"]
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            rows += _error_rows(below, depth + 1)
    return rows


def metrics_page() -> str:
    """Every metric, with its kind, its labels and what it counts."""
    lines = [
        NOTE,
        "# Metrics\n\n",
        "| metric | kind | labels | what it is |\n",
        "|---|---|---|---|\n",
    ]
    declared = [
        *((metric, metrics.LOG_LABELS) for metric in metrics.LOG_METRICS),
        *((metric, ()) for metric in metrics.STORE_METRICS),
    ]
    for metric, common in declared:
        labels = ", ".join(f"`{label}`" for label in (*common, *metric.labels))
        lines.append(f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |\n")
    return "".join(lines)


if __name__ == "__main__":
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
