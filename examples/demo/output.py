"""Output of the demo: steps, commands, code."""

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
JAVA_NOISE = ("WARNING: Using incubator", "NOTE: Picked up")
"""Prefixes of lines that Java prints at its start and that can be ignored."""

_numbers = itertools.count(1)


def chapter(title: str) -> None:
    """Print the title of a chapter."""
    print(f"\n{title}\n{'-' * len(title)}", flush=True)


def explain(text: str) -> None:
    """Print the description of a step."""
    print()
    head = f"{next(_numbers)}. "
    print(textwrap.fill(text, 96, initial_indent=head, subsequent_indent=" " * 3), flush=True)


def show(text: str) -> None:
    """Print input or output."""
    print(textwrap.indent(text.rstrip("\n"), INDENT), flush=True)


def show_code(function: Callable[..., Any]) -> None:
    """Print the body of a function, without its docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    body = source.split('"""\n', 1)[1]
    show(textwrap.indent(textwrap.dedent(body), "> "))


def show_command(*arguments: object) -> list[str]:
    """Print a `millstream` command as a user would type it; return its arguments."""
    words = [str(argument) for argument in arguments]
    show("$ " + " ".join(["millstream", *words]))
    return [str(COMMAND), *words]


def run(*arguments: object, directory: Path) -> None:
    """Run a `millstream` command and print its output."""
    result = subprocess.run(
        show_command(*arguments), cwd=directory, capture_output=True, text=True, check=False
    )
    output_lines = (result.stdout + result.stderr).splitlines()
    show("\n".join(line.rstrip() for line in output_lines if not line.startswith(JAVA_NOISE)))
    assert result.returncode == 0, f"exit status {result.returncode}"


@contextmanager
def java_stderr_to(path: Path) -> Iterator[None]:
    """Redirect standard error of Java processes started here to a file.

    Java warns of a module that Spark requests. Errors are raised in Python as well.
    """
    saved = os.dup(sys.stderr.fileno())
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
        yield
    finally:
        os.dup2(saved, sys.stderr.fileno())
        os.close(saved)
