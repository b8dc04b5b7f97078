"""Connection to a Kafka node: requests and responses in order.

    request:   int32 size, int16 key, int16 version, int32 correlation id, client id, body
    response:  int32 size, int32 correlation id, body

The first request negotiates versions. Every further request uses the newest version that both sides
support. Records are never copied here: a request is sent from the buffers of its parts, and the
records of a response are views into the buffer that it was read into.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Never, Self

from millstream.clients.kafka.address import BrokerAddress
from millstream.clients.kafka.buffers import AlternatingBuffers
from millstream.clients.kafka.deadline import Deadline
from millstream.clients.kafka.login import KafkaLogin, begin_login
from millstream.clock import Clock, SystemClock
from millstream.errors import (
    MalformedAnswer,
    MalformedRequest,
    NodeUnreachable,
    NotAuthenticated,
    UnsupportedVersion,
)
from millstream.protocols.kafka.apis import API_VERSIONS_KEY, APIS, Api
from millstream.protocols.kafka.codec import malformed
from millstream.protocols.kafka.codec.message import decode, encode_parts
from millstream.protocols.kafka.codec.primitives import Buffer
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import error_of
from millstream.protocols.kafka.messages.sasl import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest, ApiVersionsResponse

if TYPE_CHECKING:
    import ssl

FRAME_SIZE_MAX: Final = 128 * 1024 * 1024
"""Largest response that is read: twice the largest batch, because a response contains at least one
complete batch however little was requested. Larger sizes are rejected before anything is allocated.
"""

_SOFTWARE = "millstream"
_SOFTWARE_VERSION = "1"  # Brokers count and show it.

_REQUEST = struct.Struct(">ihhih")
_RESPONSE = struct.Struct(">ii")
_SIZE_SIZE = 4
_CORRELATION_ID_SIZE = 4
_CORRELATION_ID_MASK = 2**31 - 1
_PARTS_MAX = 512
"""Buffers in one `sendmsg` call. Linux allows 1,024; other systems may allow fewer."""

_NONCE_BYTES = 24
_TLS_JOINED_MAX = 64 * 1024
"""Bytes of a request that are copied to be encrypted together."""

_BY_REQUEST: Mapping[type, Api] = {api.request: api for api in APIS.values()}


class _Sent(NamedTuple):
    """Request without a response so far."""

    correlation_id: int
    api: Api
    version: int


class BrokerConnection:
    """Socket to one node. Not thread-safe.

    `send` and `receive` may be called separately: responses arrive in request order. Every wait
    ends at an absolute deadline, `timeout_s` after the call if none is passed. A connection that
    failed in any way is closed, because its next bytes are undefined, and raises `NodeUnreachable`
    from then on.

    The records in a response are views into one of two alternating buffers of the connection: they
    are valid until two further responses were received. Everything else is copied.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str,
        timeout_s: float,
        clock: Clock | None = None,
        deadline: Deadline | None = None,
        frame_size_max: int = FRAME_SIZE_MAX,
        tls: ssl.SSLContext | None = None,
        login: KafkaLogin | None = None,
    ) -> None:
        self.address = BrokerAddress(host, port)
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._frame_size_max = frame_size_max
        self._correlation_id = 0
        self._sent: deque[_Sent] = deque()
        self._buffers = AlternatingBuffers()
        self._head = memoryview(bytearray(_RESPONSE.size))
        self._supported: dict[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        """Finalized features of the node, with their levels."""
        deadline = deadline or self._deadline()
        self._socket = _connect(self.address, deadline)
        self._is_tls = tls is not None
        if tls is not None:
            self._socket = _encrypted(self._socket, tls, self.address, deadline)
        self._negotiate(deadline)
        if login is not None:
            self._log_in(login, deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_flight(self) -> int:
        """Number of requests without a response."""
        return len(self._sent)

    def close(self) -> None:
        """Close the socket. Views into its buffers stay valid."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def is_usable(self) -> bool:
        """Return whether nothing is in flight and the node has not closed the connection."""
        if self._sent:
            return False
        if self._is_tls:  # It cannot peek.
            return _is_quiet(self._socket)
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # End of stream, or bytes that no request asked for.

    def version_of(self, request: type, *, version_max: int | None = None) -> int:
        """Return the version to send such a request in; `UnsupportedVersion` if there is none."""
        api = _BY_REQUEST[request]
        first, last = self._supported.get(api.key, (0, -1))
        newest = api.versions.last if version_max is None else min(version_max, api.versions.last)
        version = min(last, newest)
        if version < max(first, api.versions.first):
            supported = f"versions {first} to {last}" if last >= first else "no version"
            raise UnsupportedVersion(
                f"{self.address} supports {supported} of {api.name},"
                f" this client needs one of {api.versions.first} to {newest}"
            )
        return version

    def supports(self, request: type, *, version_min: int = 0) -> bool:
        """Return whether the node accepts such a request in version `version_min` or newer."""
        api = _BY_REQUEST[request]
        first, last = self._supported.get(api.key, (0, -1))
        version = min(last, api.versions.last)
        return version >= max(first, api.versions.first, version_min)

    def call(
        self, request: Any, *, version_max: int | None = None, deadline: Deadline | None = None
    ) -> Any:
        """Send a request and return its response. Nothing else may be in flight."""
        assert not self._sent, "the next response belongs to another request"
        deadline = deadline or self._deadline()
        self.send(request, version_max=version_max, deadline=deadline)
        return self.receive(deadline=deadline)

    def send(
        self, request: Any, *, version_max: int | None = None, deadline: Deadline | None = None
    ) -> None:
        """Send a request. Its buffers can be reused when this returns."""
        api = _BY_REQUEST[type(request)]
        version = self.version_of(type(request), version_max=version_max)
        self._send(request, api, version, deadline or self._deadline())

    def receive(self, *, deadline: Deadline | None = None) -> Any:
        """Return the response to the oldest request without one."""
        sent, body = self._receive_body(deadline or self._deadline())
        return self._decode(sent.api, sent.version, body)

    # Version negotiation.

    def _negotiate(self, deadline: Deadline) -> None:
        answer = self._ask_versions(APIS[API_VERSIONS_KEY].versions.last, deadline)
        if answer.error_code:
            self.close()
            raise error_of(answer.error_code, f"{self.address} does not report its API versions")
        self._supported = {
            versions.api_key: (versions.min_version, versions.max_version)
            for versions in answer.api_keys
        }
        self.features = {
            feature.name: feature.max_version_level for feature in answer.finalized_features
        }

    def _ask_versions(self, version: int, deadline: Deadline) -> ApiVersionsResponse:
        """Ask in this version. A node that is too old for it responds in version 0 (KIP-511)."""
        api = APIS[API_VERSIONS_KEY]
        request = ApiVersionsRequest(
            client_software_name=_SOFTWARE, client_software_version=_SOFTWARE_VERSION
        )
        self._send(request, api, version, deadline)
        _, body = self._receive_body(deadline)
        # The error code comes first in every version.
        if int.from_bytes(body[:2], "big") != ErrorCode.UNSUPPORTED_VERSION:
            newest: ApiVersionsResponse = self._decode(api, version, body)
            return newest
        answer: ApiVersionsResponse = self._decode(api, 0, body)
        last = next(
            (
                supported.max_version
                for supported in answer.api_keys
                if supported.api_key == api.key
            ),
            0,
        )
        if version == 0 or last >= version:
            return answer
        return self._ask_versions(max(0, last), deadline)

    # Logging in.

    def _log_in(self, login: KafkaLogin, deadline: Deadline) -> None:
        try:
            exchange = begin_login(login, secrets.token_bytes(_NONCE_BYTES))
            mechanism = login.mechanism.value
            handshake = self.call(SaslHandshakeRequest(mechanism=mechanism), deadline=deadline)
            if handshake.error_code:
                offered = ", ".join(handshake.mechanisms) or "none"
                raise NotAuthenticated(f"{self.address} offers {offered}, not {mechanism}")
            message = next(exchange)
            while True:
                request = SaslAuthenticateRequest(auth_bytes=message)
                answer = self.call(request, deadline=deadline)
                if answer.error_code:
                    raise error_of(answer.error_code, f"{self.address}: {answer.error_message}")
                message = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            return
        except BaseException:
            self.close()
            raise

    # Bytes.

    def _send(self, request: Any, api: Api, version: int, deadline: Deadline) -> None:
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_ID_MASK
        is_flexible = version >= api.versions.flexible
        tail = self._client_id + (b"\0" if is_flexible else b"")
        parts = encode_parts(request, version)
        size = _REQUEST.size - _SIZE_SIZE + len(tail) + sum(len(part) for part in parts)
        head = (
            _REQUEST.pack(size, api.key, version, self._correlation_id, len(self._client_id)) + tail
        )
        self._write([head, *parts], deadline)
        self._sent.append(_Sent(self._correlation_id, api, version))

    def _write(self, parts: list[Buffer], deadline: Deadline) -> None:
        remaining = deque(memoryview(part) for part in parts if len(part))
        while remaining:
            try:
                self._set_timeout(deadline)
                sent_size = self._send_some(remaining)
            except TimeoutError:
                self._raise_unreachable(f"request could not be sent within {deadline.seconds:g} s")
            except OSError as error:
                self._raise_unreachable(f"connection lost: {_describe(error)}")
            while remaining and sent_size >= len(remaining[0]):
                sent_size -= len(remaining.popleft())
            if sent_size:
                remaining[0] = remaining[0][sent_size:]

    def _send_some(self, parts: deque[memoryview]) -> int:
        """Send the first bytes of `parts`; return how many."""
        if not self._is_tls:
            return self._socket.sendmsg([parts[at] for at in range(min(len(parts), _PARTS_MAX))])
        # Small parts together, so that they share a record of TLS.
        if sum(map(len, parts)) <= _TLS_JOINED_MAX:
            return self._socket.send(b"".join(parts))
        return self._socket.send(parts[0])

    def _receive_body(self, deadline: Deadline) -> tuple[_Sent, memoryview]:
        """Read one response, check its correlation id, and return its body."""
        assert self._sent, "no response is expected"
        sent = self._sent.popleft()
        self._read(self._head, deadline)
        size, correlation_id = _RESPONSE.unpack(self._head)
        if not _CORRELATION_ID_SIZE <= size <= self._frame_size_max:
            self._raise_malformed(
                sent.api,
                f"response size must be between {_CORRELATION_ID_SIZE} and {self._frame_size_max}"
                f" bytes, got {size}",
            )
        if correlation_id != sent.correlation_id:
            self._raise_malformed(
                sent.api,
                f"response has correlation id {correlation_id}, expected {sent.correlation_id}",
            )
        body = self._buffers.take(size - _CORRELATION_ID_SIZE)
        self._read(body, deadline)
        return sent, body

    def _read(self, into: memoryview, deadline: Deadline) -> None:
        received = 0
        while received < len(into):
            try:
                self._set_timeout(deadline)
                count = self._socket.recv_into(into[received:])
            except TimeoutError:
                self._raise_unreachable(f"no response within {deadline.seconds:g} s")
            except OSError as error:
                self._raise_unreachable(f"connection lost: {_describe(error)}")
            if not count:
                self._raise_unreachable("connection closed by the node")
            received += count

    def _decode(self, api: Api, version: int, body: memoryview) -> Any:
        try:
            start = 0
            if version >= api.versions.flexible and api.key != API_VERSIONS_KEY:
                start, _ = malformed.skip_tags(body, 0, malformed.ITEM_COUNT_MAX)
            return decode(api.response, body[start:], version)
        except MalformedRequest as error:
            self._raise_malformed(api, str(error))
        except IndexError:
            self._raise_malformed(api, f"response ends at byte {len(body)}, within its header")

    # Errors.

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s, clock=self._clock)

    def _set_timeout(self, deadline: Deadline) -> None:
        left_s = deadline.left_s()
        if not left_s:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _raise_unreachable(self, reason: str) -> Never:
        self.close()
        # Before versions are negotiated, only ApiVersions was sent, which changes nothing.
        may_be_done = bool(self._supported)
        raise NodeUnreachable(str(self.address), reason, may_be_done=may_be_done)

    def _raise_malformed(self, api: Api, reason: str) -> Never:
        self.close()
        raise MalformedAnswer(f"{self.address} on {api.name}: {reason}")


def _connect(address: BrokerAddress, deadline: Deadline) -> socket.socket:
    """Return a socket to the first address of the host that accepts a connection."""
    reason = "the host has no address"
    try:
        addresses = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NodeUnreachable(str(address), _describe(error)) from None
    for family, kind, protocol, _, socket_address in addresses:
        connected = socket.socket(family, kind, protocol)
        try:
            connected.settimeout(deadline.left_s() or 1e-6)  # 0 means non-blocking.
            connected.connect(socket_address)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            connected.close()
            reason = f"cannot connect within {deadline.seconds:g} s"
        except OSError as error:
            connected.close()
            reason = f"cannot connect: {_describe(error)}"
        else:
            return connected
    raise NodeUnreachable(str(address), reason)


def _encrypted(
    plain: socket.socket, tls: ssl.SSLContext, address: BrokerAddress, deadline: Deadline
) -> socket.socket:
    """Return the socket after a TLS handshake."""
    try:
        plain.settimeout(deadline.left_s() or 1e-6)
        return tls.wrap_socket(plain, server_hostname=address.host)
    except OSError as error:
        plain.close()
        raise NodeUnreachable(str(address), f"no TLS connection: {error}") from None


def _is_quiet(connected: socket.socket) -> bool:
    """Return whether there is nothing to read; a closed connection counts as readable."""
    poll = select.poll()
    try:
        poll.register(connected, select.POLLIN)
        return not poll.poll(0)
    except (OSError, ValueError):
        return False


def _describe(error: OSError) -> str:
    return error.strerror or str(error)
