"""Patterns by which members subscribe to topics.

They come from clients, so they are matched by an engine without backtracking: the time to match a
name is linear in its length and the pattern's. The length of a pattern is limited, and so is the
memory that it is compiled to.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import re2

from millstream.errors import InvalidRegex

PATTERN_LENGTH_MAX = 1024
"""Characters of a pattern: four topic names of the greatest length fit."""

_MEMORY_MAX = 256 * 1024
"""Bytes of a compiled pattern and of its matching cache. A client can have one pattern for each
group that it invents. Patterns that need more are refused within some 10 ms.
"""

_QUOTED_MAX = 60


class TopicPattern:
    """A pattern, with a cache of the topics that it matches.

    It has to match the complete name. Results are cached: topics are created and deleted one at a
    time, and each is matched once.
    """

    def __init__(self, source: str) -> None:
        self._regexp = compile_pattern(source)
        self._decided: frozenset[str] = frozenset()
        self._matching: frozenset[str] = frozenset()

    def matches(self, name: str) -> bool:
        """Return whether the pattern matches the complete name."""
        return self._regexp.fullmatch(name) is not None

    def select(self, names: AbstractSet[str]) -> frozenset[str]:
        """Return those of `names` that match."""
        new = {name for name in names - self._decided if self.matches(name)}
        self._matching = frozenset(self._matching & names | new)
        self._decided = frozenset(names)
        return self._matching


def compile_pattern(source: str) -> re2._Regexp:
    """Compile the pattern of a client, within limits; raises `InvalidRegex`."""
    if len(source) > PATTERN_LENGTH_MAX:
        raise InvalidRegex(
            f"pattern must have at most {PATTERN_LENGTH_MAX} characters, got {len(source)}"
        )
    options = re2.Options()
    options.max_mem = _MEMORY_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as error:
        reason = _shorten(_reason(error))
        raise InvalidRegex(f"invalid pattern {_shorten(source)!r}: {reason}") from None


def _reason(error: re2.error) -> str:
    """Return the message of the engine, which is bytes."""
    reason = error.args[0] if error.args else "it cannot be compiled"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)


def _shorten(text: str) -> str:
    return text if len(text) <= _QUOTED_MAX else text[:_QUOTED_MAX] + "..."
