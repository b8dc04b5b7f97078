"""How the story is told: steps, commands, code."""

from __future__ import annotations

import inspect
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMAND = Path(sys.executable).with_name("millstream")
INDENT = " " * 4
JAVAS_OWN = ("WARNING: Using incubator", "NOTE: Picked up")
"""How lines begin that Java says when it starts, and that mean nothing."""

_numbers = itertools.count(1)


def chapter(title: str) -> None:
    """Begin a chapter."""
    print(f"\n{title}\n{'-' * len(title)}", flush=True)


def say(text: str) -> None:
    """Begin a step."""
    print()
    head = f"{next(_numbers)}. "
    print(textwrap.fill(text, 96, initial_indent=head, subsequent_indent=" " * 3), flush=True)


def show(text: str) -> None:
    """Show what came out, or what went in."""
    print(textwrap.indent(text.rstrip("\n"), INDENT), flush=True)


def show_code(function: Callable[..., Any]) -> None:
    """Show what a function does, without its head and its docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    body = source.split('"""\n', 1)[1]
    show(textwrap.indent(textwrap.dedent(body), "> "))


def show_command(*arguments: object) -> list[str]:
    """Show a `millstream` command as a user would type it, and return it as it is started."""
    words = [str(argument) for argument in arguments]
    show("$ " + " ".join(["millstream", *words]))
    return [str(COMMAND), *words]


def run(*arguments: object, directory: Path) -> None:
    """Run a `millstream` command, and show what it says."""
    result = subprocess.run(
        show_command(*arguments), cwd=directory, capture_output=True, text=True, check=False
    )
    said = (result.stdout + result.stderr).splitlines()
    show("\n".join(line.rstrip() for line in said if not line.startswith(JAVAS_OWN)))
    assert result.returncode == 0, f"exit status {result.returncode}"


@contextmanager
def java_aside(path: Path) -> Iterator[None]:
    """Write into a file what a Java that is started here says on standard error.

    It warns of a module that Spark asks for; what fails is raised in Python as well.
    """
    kept = os.dup(sys.stderr.fileno())
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
        yield
    finally:
        os.dup2(kept, sys.stderr.fileno())
        os.close(kept)
