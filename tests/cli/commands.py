"""Helpers that run the `millstream` command."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner, Result

from millstream.cli.main import main
from tests.cli.nodes import MILLSTREAM, PATIENCE


def run(*arguments: object, server: str = "", **settings: Any) -> Result:
    """Run the command in this process, without a terminal."""
    words = [str(argument) for argument in arguments]
    if server:
        # Insert before `--`: the words after it belong to another command.
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = ["--server", server]
    return CliRunner().invoke(main, words, **settings)


def told(*arguments: object, server: str, **settings: Any) -> Any:
    """Run the command with --json and return its parsed output."""
    result = run(*arguments, "--json", server=server, **settings)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def lines_of(text: str) -> list[Any]:
    """Parse the JSON on each line."""
    return [json.loads(line) for line in text.splitlines()]


def is_one_line(text: str) -> bool:
    return text.startswith("Error: ") and text.count("\n") == 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def type_in(*arguments: object, typed: str) -> tuple[int, str]:
    """Run the command with typed terminal input; return its exit status and its output."""
    own, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [MILLSTREAM, *map(str, arguments)],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        os.write(own, typed.encode())
        said, _ = process.communicate(timeout=PATIENCE)
        return process.returncode, said
    finally:
        os.close(own)
        os.close(theirs)


@contextmanager
def started(*arguments: object, **settings: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in a separate process, and kill it at the end if it still runs."""
    process = subprocess.Popen(
        [MILLSTREAM, *map(str, arguments)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        # Not read to their end: a child of the command may still have them open.
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def on_a_terminal(*arguments: object, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run the command on a terminal; return its exit status and the terminal output."""
    own, theirs = pty.openpty()
    process = subprocess.Popen(
        [MILLSTREAM, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", **(environment or {})},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := _read(own):
            shown += piece
        return process.wait(PATIENCE), shown.decode().replace("\r\n", "\n")
    finally:
        os.close(own)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # The last process that had it open has ended.
        return b""
