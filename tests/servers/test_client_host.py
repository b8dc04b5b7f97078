"""Addresses of clients: rules and limits for a host hold however the client reaches the node."""

from __future__ import annotations

import asyncio
import socket

import pytest

from millstream.broker.access.acls import check_host
from millstream.servers.acceptor import Acceptor
from millstream.servers.client_host import client_host
from millstream.servers.connection_set import ConnectionSet
from tests.in_loop import in_loop


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        (("10.0.0.7", 1), "10.0.0.7"),
        (("::ffff:10.0.0.7", 1, 0, 0), "10.0.0.7"),
        (("::1", 1, 0, 0), "::1"),
        (("2001:DB8:0:0::1", 1, 0, 0), "2001:db8::1"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::1%eth0"),
        (None, ""),
    ],
)
def test_an_address_has_one_spelling(peer: tuple[str, int] | None, host: str) -> None:
    assert client_host(peer) == host
    if host:
        check_host(host)


class Limits:
    connections_max = 10
    connections_per_address_max = 1


class Seen(asyncio.Protocol):
    """A connection that notes where it comes from."""

    def __init__(self, connections: ConnectionSet[Seen], made: asyncio.Event) -> None:
        self._connections = connections
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._connections.add(self, client_host(transport.get_extra_info("peername")))
        self._made.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)


@in_loop
async def test_a_client_of_ipv4_is_the_same_at_a_socket_for_both_families() -> None:
    connections: ConnectionSet[Seen] = ConnectionSet()
    made, refused = asyncio.Event(), asyncio.Queue[str]()
    acceptor = Acceptor(
        Limits(), connections, lambda: Seen(connections, made), on_refused=refused.put_nowait
    )
    try:
        port = await acceptor.listen("::", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with socket.create_connection(("127.0.0.1", port)):
        await made.wait()
        assert connections.count_of("127.0.0.1") == 1
        with socket.create_connection(("127.0.0.1", port)):
            assert await refused.get() == "address"
    acceptor.stop()
