"""Patterns by which members subscribe to topics.

They come from clients, so they are matched by an engine that never goes back: the time to match a
name grows with its length and the pattern's, whatever either says. A pattern is bounded in length,
and what it is compiled to in memory.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import re2

from millstream.errors import InvalidRegex

PATTERN_LENGTH_MAX = 1024
"""Characters of a pattern. Four names of the longest kind, spelled out, fit."""

_MEMORY_MAX = 256 * 1024
"""What one pattern may be compiled to, and what matching may remember, in bytes. A client can have
one for each group that it makes up. Patterns that need more are refused within some 10 ms."""

_QUOTED_MAX = 60


class TopicPattern:
    """A pattern, and which topics it was found to match.

    It matches a name as a whole. What was decided about a name once is remembered: topics come
    and go one at a time, and each is looked at once.
    """

    def __init__(self, source: str) -> None:
        self._regexp = _compile(source)
        self._decided: frozenset[str] = frozenset()
        self._matching: frozenset[str] = frozenset()

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` is as the pattern says."""
        return self._regexp.fullmatch(name) is not None

    def select(self, names: AbstractSet[str]) -> frozenset[str]:
        """Of `names`, those that match."""
        found = {name for name in names - self._decided if self.matches(name)}
        self._matching = frozenset(self._matching & names | found)
        self._decided = frozenset(names)
        return self._matching


def _compile(source: str) -> re2._Regexp:
    if len(source) > PATTERN_LENGTH_MAX:
        raise InvalidRegex(
            f"pattern has {len(source)} characters, at most {PATTERN_LENGTH_MAX} are allowed"
        )
    options = re2.Options()
    options.max_mem = _MEMORY_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as error:
        reason = _cut(_reason(error))
        raise InvalidRegex(f"pattern {_cut(source)!r} is not valid: {reason}") from None


def _reason(error: re2.error) -> str:
    """The engine's own words, which come as bytes, and with the pattern."""
    reason = error.args[0] if error.args else "it cannot be compiled"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _cut(text: str) -> str:
    return text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "..."
