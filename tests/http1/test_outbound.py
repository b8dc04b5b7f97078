"""Requests to servers of others: where they are sent, and where never."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millstream.errors import InvalidConfig, Unavailable
from millstream.http1.outbound import OutboundClient, parse_outbound_url
from millstream.http1.public_addresses import is_allowed_address, parse_networks
from tests.in_loop import in_loop
from tests.servers.peer.certificates import Authority

SECONDS = 30.0
LOOPBACK = ("127.0.0.0/8",)

LOOPBACK_HOSTS = (
    # Every way to write an address of this machine that some parser takes.
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "0177.1",
    "0",
    "0.0.0.0",
    "00000000",
    "localhost",
    "LOCALHOST",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
)
PRIVATE_HOSTS = (
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "2852039166",
    "0xa9fea9fe",
    "0251.0376.0251.0376",
    "100.100.100.200",
    "168.63.129.16",
    "[fd00:ec2::254]",
    "[fe80::1]",
    "[fc00::1]",
    "[::ffff:169.254.169.254]",
    "224.0.0.1",
    "255.255.255.255",
)
MALFORMED = (
    # Whatever the allow-list has: what comes after https:// is what parsers disagree about.
    "http://keys.example:{port}/jwks",
    "HTTP://keys.example:{port}/",
    "ftp://keys.example:{port}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_",
    "//127.0.0.1:{port}/",
    "https://keys.example@127.0.0.1:{port}/",
    "https://keys.example:x@127.0.0.1:{port}/",
    "https://user:secret@keys.example:{port}/",
    "https://keys.example:{port}#@127.0.0.1/",
    "https://127.0.0.1:{port}#@keys.example/",
    "https://127.0.0.1:{port}\\@keys.example/",
    "https://keys.example\\@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}/ @keys.example",
    "https://keys.example:{port}/\r\nHost: other",
    "https://keys.example:{port}\t/",
    "https://keys.example.:{port}/",
    "https://keys.example%2e:{port}/",
    "https://keys.example%00.127.0.0.1:{port}/",
    "https://①②⑦.⓪.⓪.①:{port}/",
    "https://127。0。0。1:{port}/",
    "https://keys.example:{port}@127.0.0.1/",
    "https://[::1%25lo]:{port}/",
    "https://[::1:{port}/",
    "https://:{port}/",
    "https://keys.example:99999/",
    "https://keys.example:-1/",
    "https:keys.example:{port}/",
    "https:/keys.example:{port}/",
    "https:///keys.example:{port}/",
    "javascript:alert(1)",
    "",
)
HOSTILE = [f"https://{host}:{{port}}/jwks" for host in LOOPBACK_HOSTS + PRIVATE_HOSTS] + [
    *MALFORMED
]


class Canary:
    """A listener on this machine that nobody may connect to."""

    def __init__(self) -> None:
        self.connections = 0
        self.seen = asyncio.Event()
        self.port = 0

    async def note(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.seen.set()
        writer.close()


@contextlib.asynccontextmanager
async def listening_canary() -> AsyncIterator[Canary]:
    canary = Canary()
    # All addresses: 0.0.0.0 and every form of 127.0.0.0/8 would reach it.
    server = await asyncio.start_server(canary.note, "0.0.0.0", 0)
    canary.port = server.sockets[0].getsockname()[1]
    servers = [server]
    with contextlib.suppress(OSError):
        servers.append(await asyncio.start_server(canary.note, "::1", canary.port))
    try:
        yield canary
    finally:
        for each in servers:
            each.close()
            await each.wait_closed()


def test_there_are_sixty_hostile_addresses():
    assert len(set(HOSTILE)) >= 60


@in_loop
async def test_no_hostile_address_reaches_this_machine_even_if_its_host_is_allowed():
    async with listening_canary() as canary:
        # It would notice: a plain connection is counted.
        _, writer = await asyncio.open_connection("127.0.0.1", canary.port)
        writer.close()
        await canary.seen.wait()
        canary.connections = 0
        for template in HOSTILE:
            url = template.replace("{port}", str(canary.port))
            # An operator who allows just what the address says, in every form.
            allowed = [f"keys.example:{canary.port}", "keys.example"]
            with contextlib.suppress(ValueError):
                allowed += [urlsplit(url).netloc, urlsplit(url).netloc.lower()]
                allowed += [f"{urlsplit(url).hostname}:{canary.port}", urlsplit(url).hostname or ""]
            client = OutboundClient(allowed_hosts=allowed)
            with pytest.raises((InvalidConfig, Unavailable)):
                await client.get(url, size_max=1000, seconds_max=SECONDS)
            assert canary.connections == 0, url


@pytest.mark.parametrize("url", ["https://other.example/", "https://keys.example:8443/"])
def test_only_hosts_and_ports_of_the_allow_list_are_accepted(url: str):
    with pytest.raises(InvalidConfig, match=r"not one of outbound.allowed_hosts: keys\.example"):
        parse_outbound_url(url, ["keys.example"])


def test_a_host_of_the_allow_list_is_accepted_with_the_default_port_or_the_given_one():
    for url, allowed in (
        ("https://keys.example/a?b=c", "keys.example"),
        ("https://keys.example:443/a?b=c", "keys.example"),
        ("https://keys.example/a?b=c", "keys.example:443"),
    ):
        assert parse_outbound_url(url, [allowed]) == ("keys.example", 443, "/a?b=c", True)
    assert parse_outbound_url("https://k.example:8443", ["k.example:8443"])[1:3] == (8443, "/")


# Real requests.


class KeyServer:
    """An https server on this machine that answers as a test says."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
            if self.answer.endswith(b"..."):
                await reader.read()
        writer.close()


@contextlib.asynccontextmanager
async def key_server(folder: Path, answer: bytes) -> AsyncIterator[tuple[KeyServer, str]]:
    authority = Authority(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue("keys.example"))
    server = KeyServer(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server, authority.certificate
    finally:
        listener.close()
        await listener.wait_closed()


def resolver(*answers: Sequence[str]) -> tuple[Callable[[str, int], object], list[str]]:
    """Return a resolver that gives these answers in turn, and what it was asked."""
    asked: list[str] = []
    remaining = list(answers)

    async def resolve(host: str, _port: int) -> Sequence[str]:
        asked.append(host)
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return resolve, asked


def client_of(
    server: KeyServer, ca_file: str, resolve: object, **options: object
) -> OutboundClient:
    settings = {
        "allowed_hosts": [f"keys.example:{server.port}"],
        "allowed_networks": LOOPBACK,
        "ca_file": ca_file,
        "resolve": resolve,
        **options,
    }
    return OutboundClient(**settings)  # type: ignore[arg-type]


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@in_loop
async def test_an_allowed_server_is_asked_by_its_name_at_the_address_that_was_checked(
    tmp_path: Path,
):
    async with key_server(tmp_path, OK) as (server, ca_file):
        resolve, asked = resolver(["127.0.0.1"])
        client = client_of(server, ca_file, resolve)
        url = f"https://keys.example:{server.port}/jwks?x=1"
        assert await client.get(url, size_max=1000, seconds_max=SECONDS) == b"{}"
        (request,) = server.requests
        assert request.startswith(b"GET /jwks?x=1 HTTP/1.1\r\n")
        assert f"Host: keys.example:{server.port}\r\n".encode() in request
        assert asked == ["keys.example"]


@in_loop
async def test_an_address_that_was_not_checked_is_not_connected_to(tmp_path: Path):
    """A resolver that changes its answer: the name is resolved once."""
    async with key_server(tmp_path, OK) as (server, ca_file), listening_canary() as canary:
        resolve, asked = resolver(["127.0.0.1"], ["127.0.0.2"], ["127.0.0.2"])
        client = client_of(server, ca_file, resolve, allowed_networks=["127.0.0.1/32"])
        url = f"https://keys.example:{server.port}/"
        assert await client.get(url, size_max=1000, seconds_max=SECONDS) == b"{}"
        assert asked == ["keys.example"]
        with pytest.raises(InvalidConfig, match=r"127\.0\.0\.2, which is not public"):
            await client.get(url, size_max=1000, seconds_max=SECONDS)
        assert len(server.requests) == 1
        assert canary.connections == 0


@in_loop
async def test_one_private_address_among_public_ones_is_enough_to_refuse(tmp_path: Path):
    async with key_server(tmp_path, OK) as (server, ca_file):
        for answer in (["127.0.0.1", "10.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::1"], []):
            resolve, _ = resolver(answer)
            networks = ["127.0.0.0/8"] if answer[:1] == ["127.0.0.1"] else []
            client = client_of(server, ca_file, resolve, allowed_networks=networks)
            url = f"https://keys.example:{server.port}/"
            with pytest.raises((InvalidConfig, Unavailable)):
                await client.get(url, size_max=1000, seconds_max=SECONDS)
        assert server.requests == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@in_loop
async def test_redirects_are_not_followed(tmp_path: Path, status: int):
    async with listening_canary() as canary:
        location = f"https://127.0.0.1:{canary.port}/"
        answer = f"HTTP/1.1 {status} X\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        async with key_server(tmp_path, answer.encode()) as (server, ca_file):
            resolve, _ = resolver(["127.0.0.1"])
            client = client_of(server, ca_file, resolve)
            with pytest.raises(Unavailable, match=f"status {status}, and redirects are not"):
                await client.get(
                    f"https://keys.example:{server.port}/", size_max=1000, seconds_max=SECONDS
                )
        assert canary.connections == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", "announces 1001 bytes"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n",
            "more than 1000 bytes",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000, "head of more than"),
        (b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n", "status 404"),
        (b"SSH-2.0-x\r\n", "not HTTP"),
        (b"", "connection"),
    ],
)  # fmt: skip
@in_loop
async def test_answers_that_are_too_large_or_not_a_success_are_refused(
    tmp_path: Path, answer: bytes, words: str
):
    async with key_server(tmp_path, answer) as (server, ca_file):
        resolve, _ = resolver(["127.0.0.1"])
        client = client_of(server, ca_file, resolve)
        with pytest.raises(Unavailable, match=words):
            await client.get(
                f"https://keys.example:{server.port}/", size_max=1000, seconds_max=SECONDS
            )


@in_loop
async def test_a_server_that_never_finishes_is_given_up(tmp_path: Path):
    async with key_server(tmp_path, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n...") as (
        server,
        ca_file,
    ):
        resolve, _ = resolver(["127.0.0.1"])
        client = client_of(server, ca_file, resolve)
        with pytest.raises(Unavailable, match=r"no answer in 0\.2 s"):
            await client.get(f"https://keys.example:{server.port}/", size_max=10, seconds_max=0.2)


@in_loop
async def test_the_certificate_must_name_the_host_and_be_trusted(tmp_path: Path):
    async with key_server(tmp_path, OK) as (server, ca_file):
        resolve, _ = resolver(["127.0.0.1"])
        other = client_of(server, ca_file, resolve, allowed_hosts=[f"other.example:{server.port}"])
        with pytest.raises(Unavailable, match="certificate"):
            await other.get(
                f"https://other.example:{server.port}/", size_max=10, seconds_max=SECONDS
            )
        stranger = client_of(server, None, resolve)
        with pytest.raises(Unavailable, match="certificate"):
            await stranger.get(
                f"https://keys.example:{server.port}/", size_max=10, seconds_max=SECONDS
            )
        assert server.requests == []


# Addresses.


@pytest.mark.parametrize(
    "address",
    [
        *("8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:4700::1111", "2a00:1450:4001::1"),
        "::ffff:8.8.8.8",
    ],
)
def test_public_addresses_are_allowed(address: str):
    assert is_allowed_address(address, ())


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254"),
        *("172.20.0.1", "192.0.0.1", "192.0.2.1", "192.168.0.1", "198.18.0.1", "198.51.100.1"),
        *("203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
        *("2002:7f00:1::", "2001:0:53aa:64c:0:7f00:1:1", "2001:db8::1", "fc00::1", "fd00:ec2::254"),
        *("fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "100::1", "", "x", "127.1", "1.2.3"),
    ],
)
def test_all_others_are_not(address: str):
    assert not is_allowed_address(address, ())


def test_a_network_that_is_allowed_lets_its_addresses_in_and_no_others():
    networks = parse_networks(["10.1.0.0/16", "fd12::/16"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::1"):
        assert is_allowed_address(address, networks)
    for address in ("10.2.0.1", "::ffff:10.2.0.1", "fd13::1", "127.0.0.1"):
        assert not is_allowed_address(address, networks)
