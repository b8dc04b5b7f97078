"""Exit statuses of all commands."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit status of a command."""

    DONE = 0
    """The command succeeded."""
    FAILED = 1
    """The command failed, in whole or in part, or a check found a problem. One line on standard
    error says why. Also, without a line, if the reader of a pipe has closed it."""
    USAGE = 2
    """The command line is wrong; nothing was changed."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C. `serve` and `pipeline run` exit with 0 if it stops them cleanly."""
    QUIT = 131
    """`serve` got SIGQUIT: it wrote the stacks of all threads and tasks, and stopped cleanly."""
