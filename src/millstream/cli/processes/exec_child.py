"""Script that runs a command which is told to stop when its parent ends, however that ends.

    python exec_child.py PARENT COMMAND...

The kernel sends SIGTERM when the process PARENT ends, also if it was killed: otherwise an etcd or a
node would go on without anybody to supervise it, and keep its ports and its directory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the signal, and become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:  # It ended before the kernel was asked.
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - the command of the parent.


if __name__ == "__main__":
    main()
