"""Where a process of a test listens: this machine, or a network namespace of its own."""

from __future__ import annotations

from typing import NamedTuple


class NetworkHost(NamedTuple):
    """An address, and how a process is started there."""

    address: str
    command: tuple[str, ...] = ()
    """What comes before the command of the process. It must replace itself by that command, so
    that signals reach the process."""


LOOPBACK = NetworkHost("127.0.0.1")
