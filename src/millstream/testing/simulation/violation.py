"""A promise that a simulated cluster broke."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise was broken. The message says which, and where."""
