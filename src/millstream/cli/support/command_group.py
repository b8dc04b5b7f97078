"""Commands that are loaded when they are asked for, and that know what was nearly asked for.

All commands together need the better part of a second to be loaded, most of it for what one of
them needs. So a noun names the places of its verbs, as `module:name`, and looks there for the one
that runs.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from millstream.cli.support.exit import Exit
from millstream.cli.support.output import printable

SUGGESTIONS_MAX = 3
"""Names that a message offers in the place of one that is not there."""


class CommandGroup(click.Group):
    """A group of commands; `verbs` says where those are that are loaded when they are needed."""

    def __init__(
        self, *arguments: Any, verbs: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self._verbs = dict(verbs or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, loaded or not."""
        return sorted({*super().list_commands(ctx), *self._verbs})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, loading it where it is not loaded yet."""
        if cmd_name in self._verbs and cmd_name not in self.commands:
            module, _, name = self._verbs[cmd_name].partition(":")
            self.add_command(getattr(importlib.import_module(module), name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; where there is none, say which names come close."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            error.message = (
                f"{printable(error.message)}{suggestion(args[0], self.list_commands(ctx))}"
            )
            raise


class RootCommand(CommandGroup):
    """The whole command. Ended by Ctrl-C, it is silent and leaves the status that shells know."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run what was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return what to add to a message of a name that is not there: names that come close."""
    close = difflib.get_close_matches(name, list(names), n=SUGGESTIONS_MAX)
    return f" Did you mean {_either(close)}?" if close else ""


def _either(names: Sequence[str]) -> str:
    *first, last = map(printable, names)
    return f"{', '.join(first)} or {last}" if first else last


def walk(command: click.Command, name: str = "millstream") -> Iterator[tuple[str, click.Command]]:
    """Yield a command and all below it, each with its whole name."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for verb in command.list_commands(context):
            below = command.get_command(context, verb)
            assert below is not None
            yield from walk(below, f"{name} {verb}")
