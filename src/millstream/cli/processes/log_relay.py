"""Passes on what the processes of a local cluster write to standard error, marked with their names.

Each process writes to a pipe of its own, and whole lines are written from there: lines of several
processes that shared standard error could be torn apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO

LINE_BYTES_MAX = 256 * 1024
"""Bytes of one line; a longer one is passed on in pieces."""


def mark_line(process: str, line: str) -> str:
    """Return a line of a process with its name: as the first field if the line is a JSON object."""
    if line.startswith('{"') and line.endswith("}"):
        return f'{{"process":"{process}",{line[1:]}'
    return f"{process} | {line}"


def relay_lines(stream: IO[bytes], process: str, write: Callable[[str], None]) -> None:
    """Pass on the lines of a stream until it ends."""
    while data := stream.readline(LINE_BYTES_MAX):
        line = data.decode("utf-8", "backslashreplace").rstrip("\n")
        write(mark_line(process, line))
