"""Text that cannot end a line or control a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return `text` with all characters escaped that are not printable."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
