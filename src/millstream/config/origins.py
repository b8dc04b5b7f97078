"""Where a value came from, in words that lead there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class FromDefault:
    """Nobody set it."""

    place: str = "default"
    """What every origin has: the name of the place."""

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class FromVariable:
    """An environment variable set it."""

    place: str

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class FromFlag:
    """An option of the command set it."""

    place: str

    def __str__(self) -> str:
        return self.place


@dataclass(frozen=True, slots=True)
class FromFile:
    """A file set it."""

    place: str
    path: tuple[str, ...]
    """The tables, outermost first, and the key."""
    text: str = field(repr=False)
    """What the file holds, to find the line in."""

    @property
    def line(self) -> int:
        """The line that the key stands on, counted from 1. Finding it takes some milliseconds."""
        return line_of(self.text, self.path)

    def __str__(self) -> str:
        return f"{self.place}, line {self.line}"


Origin: TypeAlias = FromDefault | FromVariable | FromFlag | FromFile


def line_of(text: str, path: tuple[str, ...]) -> int:
    """Return the line of a document on which a key stands.

    Python's reader of TOML tells no lines. But as lines are added to a document, a key that is
    there stays there; so the first line with which it is there is found by halving.
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
    """Whether the key is there with so many lines, and those that their last value goes on in."""
    for end in range(count, len(lines) + 1):
        try:
            found: Any = tomllib.loads("".join(lines[:end]))
        except ValueError:
            continue  # In the middle of a value.
        for name in path:
            if not isinstance(found, Mapping) or name not in found:
                return False
            found = found[name]
        return True
    return True
