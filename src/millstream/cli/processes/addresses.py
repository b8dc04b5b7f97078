"""Addresses and ports of the processes of a local cluster."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

from millstream.cli.processes.child_process import ChildProcess
from millstream.errors import InvalidConfig


def read_addresses(process: ChildProcess) -> dict[str, str]:
    """Return what a node prints about its servers until it is ready, by their names."""
    addresses: dict[str, str] = {}
    while (line := process.read_line()) is not None:
        if line == "ready":
            return addresses
        name, _, address = line.partition(" ")
        addresses[name] = address
    raise InvalidConfig(f"{process.name} did not start: {process.last_words()}")


def address_line(node_id: int, addresses: Mapping[str, str]) -> str:
    """Return the line on which a command prints where a node listens."""
    words = " ".join(f"{name} {address}" for name, address in addresses.items())
    return f"node {node_id} {words}"


def check_port(name: str, port: int) -> None:
    """Raise `InvalidConfig` if somebody listens on a port of this machine."""
    if not port:
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InvalidConfig(
                f"port {port}, for the {name}, is not free: {error.strerror}; end what uses it, or"
                " use --free-ports"
            ) from error


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports of the loopback address that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return tuple(int(listener.getsockname()[1]) for listener in sockets)
