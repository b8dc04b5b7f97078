"""Requests to servers of others, such as those that publish keys, without being led astray.

    address ─► allow-list ─► resolve once ─► check every address ─► connect to one of them ─► GET
               https, no                     all public, or                with the name, for
               user                          allowed                      the certificate

A server on the allow-list may be taken over, and its name may resolve to another address the next
time. So the name is resolved once, all addresses are checked, and the connection is made to an
address that was checked. Redirects are not followed. The size and the time of a response are
limited. Nothing blocks the event loop: names are resolved in a thread.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from millstream.errors import InvalidConfig, MillstreamError, Unavailable
from millstream.http1.connection import AsyncConnection
from millstream.http1.public_addresses import is_allowed_address, parse_networks
from millstream.http1.response_reader import ResponseReader

HTTPS_PORT = 443
HTTP_PORT = 80
HEAD_SIZE_MAX = 16 * 1024
URL_LENGTH_MAX = 2_000

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host and port."""

_TARGET = re.compile(r"/[!-~]*")
"""Path and query of a request: printable ASCII without spaces."""


class OutboundTarget(NamedTuple):
    """Where a request is sent."""

    host: str
    port: int
    target: str
    """Path and query."""
    is_tls: bool = True

    @property
    def authority(self) -> str:
        """Host and port, as in a header."""
        usual = HTTPS_PORT if self.is_tls else HTTP_PORT
        return self.host if self.port == usual else f"{self.host}:{self.port}"


def parse_outbound_url(
    url: str, allowed_hosts: Sequence[str], *, is_plain_allowed: bool = False
) -> OutboundTarget:
    """Return where a URL leads; raise `InvalidConfig` unless the operator has allowed its host."""
    shown = url[:200]
    # Parsers disagree about spaces, backslashes and letters beyond ASCII in a host.
    if len(url) > URL_LENGTH_MAX or not re.fullmatch(r"[!-\[\]-~]+", url):
        raise InvalidConfig(f"address {shown!r} must be printable ASCII without backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidConfig(f"address {shown!r} is not a URL: {error}") from None
    is_tls = parts.scheme == "https"
    if not is_tls and not (is_plain_allowed and parts.scheme == "http"):
        allowed = "https:// or http://" if is_plain_allowed else "https://"
        raise InvalidConfig(f"address {shown!r} must begin with {allowed}")
    if "@" in parts.netloc:
        raise InvalidConfig(f"address of {parts.hostname!r} must not contain a user")
    if parts.fragment or "#" in url:
        raise InvalidConfig(f"address {shown!r} must not have a fragment")
    host = parts.hostname or ""
    usual = HTTPS_PORT if is_tls else HTTP_PORT
    port = usual if port is None else port
    name = host if port == usual else f"{host}:{port}"
    # Hosts are compared as they are written: there is no second way to write one that is allowed.
    if parts.netloc not in (name, f"{host}:{port}") or not (
        name in allowed_hosts or f"{host}:{port}" in allowed_hosts
    ):
        raise InvalidConfig(
            f"host {parts.netloc[:200]!r} is not one of outbound.allowed_hosts:"
            f" {', '.join(allowed_hosts) or 'none'}"
        )
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if _TARGET.fullmatch(target) is None:
        raise InvalidConfig(f"address {shown!r} has no valid path")
    return OutboundTarget(host, port, target, is_tls)


class OutboundAnswer(NamedTuple):
    """What a server answers."""

    status: int
    body: bytes

    @property
    def refusal(self) -> str:
        """The reason why an answer without 200 is of no use."""
        more = ", and redirects are not followed" if 300 <= self.status < 400 else ""
        return f"the answer has the status {self.status}{more}"


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host; the system is asked in a thread."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class OutboundClient:
    """Sends requests to the hosts that the operator has allowed."""

    def __init__(
        self,
        *,
        allowed_hosts: Sequence[str] = (),
        allowed_networks: Sequence[str] = (),
        ca_file: str | None = None,
        is_plain_allowed: bool = False,
        resolve: Resolve = resolve_by_system,
    ) -> None:
        """Take the settings of the table `outbound`, and whether addresses may be without TLS."""
        self._allowed_hosts = allowed_hosts
        self._allowed_networks = parse_networks(allowed_networks)
        self._ca_file = ca_file
        self._is_plain_allowed = is_plain_allowed
        self._resolve = resolve
        self._context: ssl.SSLContext | None = None

    def check(self, url: str) -> None:
        """Raise `InvalidConfig` unless requests may be sent to a URL, without sending any."""
        if self._target(url).is_tls:
            self._ssl_context()

    def _target(self, url: str) -> OutboundTarget:
        return parse_outbound_url(url, self._allowed_hosts, is_plain_allowed=self._is_plain_allowed)

    async def get(self, url: str, *, size_max: int, seconds_max: float) -> bytes:
        """Return what a server answers to a GET with 200.

        Raises `InvalidConfig` if the address is not allowed, `Unavailable` if there is no answer.
        """
        answer = await self.ask(url, size_max=size_max, seconds_max=seconds_max)
        if answer.status != HTTPStatus.OK:
            raise Unavailable(f"{self._target(url).authority}: {answer.refusal}")
        return answer.body

    async def ask(
        self, url: str, *, size_max: int, seconds_max: float, authorization: str | None = None
    ) -> OutboundAnswer:
        """Return what a server answers to a GET, with any status; raises as `get`."""
        target = self._target(url)
        try:
            async with asyncio.timeout(seconds_max):
                return await self._ask(target, size_max, authorization)
        except TimeoutError:
            raise Unavailable(f"{target.authority}: no answer in {seconds_max:g} s") from None
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"{target.authority}: {error}") from error
        except InvalidConfig:
            raise
        except MillstreamError as error:
            raise Unavailable(f"{target.authority}: {error}") from error

    async def _ask(
        self, target: OutboundTarget, size_max: int, authorization: str | None
    ) -> OutboundAnswer:
        addresses = list(dict.fromkeys(await self._resolve(target.host, target.port)))
        if not addresses:
            raise Unavailable("the host has no address")
        for address in addresses:
            if not is_allowed_address(address, self._allowed_networks):
                raise InvalidConfig(
                    f"host {target.host} has the address {address}, which is not public: allow its"
                    " network with outbound.allowed_networks"
                )
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: AsyncConnection(target.authority),
            addresses[0],
            target.port,
            ssl=self._ssl_context() if target.is_tls else None,
            server_hostname=target.host if target.is_tls else None,
        )
        try:
            return await _answer(connection, target, size_max, authorization)
        finally:
            connection.close()

    def _ssl_context(self) -> ssl.SSLContext:
        if self._context is None:
            try:
                context = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                raise InvalidConfig(
                    f"outbound.ca_file cannot be used: {self._ca_file}: {error}"
                ) from error
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            self._context = context
        return self._context


async def _answer(
    connection: AsyncConnection, target: OutboundTarget, size_max: int, authorization: str | None
) -> OutboundAnswer:
    reader = ResponseReader(head_size_max=HEAD_SIZE_MAX, body_size_max=size_max)
    identity = "" if authorization is None else f"Authorization: {authorization}\r\n"
    request = (
        f"GET {target.target} HTTP/1.1\r\nHost: {target.authority}\r\nAccept: application/json\r\n"
        f"User-Agent: millstream\r\n{identity}Connection: close\r\n\r\n"
    )
    connection.begin([request.encode("ascii")], reader, is_stream=False)
    await connection.more()
    return OutboundAnswer(reader.status, reader.body)
