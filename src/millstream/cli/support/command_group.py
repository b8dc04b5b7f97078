"""Command groups that import their commands on first use, and suggest similar names.

Importing all commands takes most of a second, nearly all of it for a few of them. So a group names
its commands as `module:function` and imports only the one that runs. The help of a group lists all
commands: it takes their docstrings from their source files, without running those.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from millstream.cli.support.exit import Exit
from millstream.cli.support.output import printable

SUGGESTIONS_MAX = 3
"""Maximum number of similar names suggested in a message."""


class CommandGroup(click.Group):
    """A group whose `verbs` are imported on first use."""

    def __init__(
        self, *arguments: Any, verbs: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._verbs = dict(verbs or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, imported or not."""
        return sorted({*super().list_commands(ctx), *self._verbs})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, importing it if necessary."""
        if cmd_name in self._verbs and cmd_name not in self.commands:
            module, _, name = self._verbs[cmd_name].partition(":")
            self.add_command(getattr(importlib.import_module(module), name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and summaries of all commands."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names), default=0)
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(name, width)) for name in names])

    def _summary(self, name: str, width: int) -> str:
        """Return the first sentence of the help of a command, shortened to `width`."""
        command = self.commands.get(name) or click.Command(
            name, help=_docstring(*self._verbs[name].split(":"))
        )
        return command.get_short_help_str(width)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or suggest similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            error.message = (
                f"{printable(error.message)}{suggestion(args[0], self.list_commands(ctx))}"
            )
            raise


class RootCommand(CommandGroup):
    """The `millstream` command. On Ctrl-C it exits silently with status 130."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)


def _docstring(module: str, function: str) -> str | None:
    """Return the docstring of a function of a module that may not be imported."""
    import ast  # noqa: PLC0415 - for the help only.

    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    with Path(spec.origin).open("rb") as source:
        body = ast.parse(source.read()).body
    found = (node for node in body if isinstance(node, ast.FunctionDef) and node.name == function)
    return ast.get_docstring(next(found))


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the part of an error message that suggests similar names."""
    import difflib  # noqa: PLC0415 - for mistakes only.

    close = difflib.get_close_matches(name, list(names), n=SUGGESTIONS_MAX)
    return f" Did you mean {_either(close)}?" if close else ""


def _either(names: Sequence[str]) -> str:
    *first, last = map(printable, names)
    return f"{', '.join(first)} or {last}" if first else last


def walk(command: click.Command, name: str = "millstream") -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all its subcommands with their full names."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            yield from walk(below, f"{name} {verb}")
