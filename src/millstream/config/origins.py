"""Origins of values, in words that lead a reader there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class FromDefault:
    """The key was not set."""

    place: str = "default"
    """Name of the source; every origin has one."""

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class FromVariable:
    """Set by an environment variable."""

    place: str

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class FromFlag:
    """Set by an option of the command."""

    place: str

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class FromFile:
    """Set by a file."""

    place: str
    path: tuple[str, ...]
    """The tables, outermost first, and the key."""
    text: str = field(repr=False)
    """Content of the file, to find the line in."""

    @property
    def line(self) -> int:
        """Line of the key, counted from 1. Finding it takes some milliseconds."""
        return line_of(self.text, self.path)

    def __str__(self) -> str:
        return f"{self.place}, line {self.line}"


@dataclass(frozen=True, slots=True)
class FromHostName:
    """Taken from the name of the machine."""

    host_name: str
    place: str = "host name"

    def __str__(self) -> str:
        return f"host name {self.host_name}"


Origin: TypeAlias = FromDefault | FromVariable | FromFlag | FromFile | FromHostName


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Return the line of a document in which a key is set.

    Python's TOML parser reports no lines. But a key that a prefix of the document has is also in
    every longer prefix, so the first line with which it appears is found by binary search.
    """
    lines = text.splitlines(keepends=True)
    low, high = 1, len(lines)
    while low < high:
        middle = (low + high) // 2
        if _has(lines, middle, path):
            high = middle
        else:
            low = middle + 1
    return low


def _has(lines: list[str], count: int, path: tuple[str, ...]) -> bool:
    """Return whether the first `count` lines, extended to the end of a value, set the key."""
    for end in range(count, len(lines) + 1):
        try:
            value: Any = tomllib.loads("".join(lines[:end]))
        except ValueError:
            continue  # In the middle of a value.
        for name in path:
            if not isinstance(value, Mapping) or name not in value:
                return False
            value = value[name]
        return True
    return True
