"""What the exit status of every command says; its help says what that means there."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """How a command ended."""

    DONE = 0
    """What was asked for was done, or is so."""
    FAILED = 1
    """It could not be done, or not all of it, or what was checked is not in order. One line on
    standard error says why. Also where the reader of a pipe has gone, without a line."""
    USAGE = 2
    """The command line is wrong, and nothing was changed."""
    INTERRUPTED = 130
    """Ended by Ctrl-C. `serve` and `pipeline run` end with 0 where they stop cleanly by it, for
    that is how they are meant to end."""
