"""One connection to a node: requests out, answers in, in order.

    request:   int32 size, int16 key, int16 version, int32 correlation id, client id, body
    response:  int32 size, int32 correlation id, body

The first request asks what the node speaks. From then on every request goes out in the highest
version that both sides know. Records are never copied here: a request is sent from where its parts
lie, and the records of an answer are views into the buffer that it was read into.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Never, Self

from millstream.clients.kafka.address import BrokerAddress
from millstream.clients.kafka.buffers import AlternatingBuffers
from millstream.clients.kafka.deadline import Deadline
from millstream.clock import Clock, SystemClock
from millstream.errors import (
    MalformedAnswer,
    MalformedRequest,
    NodeUnreachable,
    UnsupportedVersion,
)
from millstream.protocols.kafka.apis import API_VERSIONS_KEY, APIS, Api
from millstream.protocols.kafka.codec import malformed as refusal
from millstream.protocols.kafka.codec.message import decode, encode_parts
from millstream.protocols.kafka.codec.primitives import Buffer
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import error_of
from millstream.protocols.kafka.messages.versions import ApiVersionsRequest, ApiVersionsResponse

FRAME_SIZE_MAX: Final = 128 * 1024 * 1024
"""The largest answer that is read: twice the largest batch, since one batch comes whole however
little was asked for. What claims more is refused before anything is allocated."""

_SOFTWARE = "millstream"
_SOFTWARE_VERSION = "1"  # Of this client's manners, which nodes count and show.

_REQUEST = struct.Struct(">ihhih")
_RESPONSE = struct.Struct(">ii")
_SIZE_SIZE = 4
_NUMBER_SIZE = 4
_NUMBER_MASK = 2**31 - 1
_PARTS_MAX = 512
"""Buffers for one call of the system, which takes 1,024 on Linux and may take fewer elsewhere."""

_BY_REQUEST: Mapping[type, Api] = {api.request: api for api in APIS.values()}


class _Sent(NamedTuple):
    """A request that has no answer yet."""

    number: int
    api: Api
    version: int


class BrokerConnection:
    """One socket to one node, for one thread.

    `send` and `receive` may be apart: answers come in the order of the requests. Every wait ends at
    an absolute deadline, `timeout_s` from the call where none is passed. A connection that failed
    in any way is closed, since nobody knows what would come next, and raises `NodeUnreachable` from
    then on.

    The records in an answer are views into one of two buffers of the connection, which take turns:
    they are valid until two further answers were received. Everything else in it was copied.
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
    ) -> None:
        self.address = BrokerAddress(host, port)
        self._client_id = client_id.encode()
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        self._frame_size_max = frame_size_max
        self._number = 0
        self._sent: deque[_Sent] = deque()
        self._buffers = AlternatingBuffers()
        self._head = memoryview(bytearray(_RESPONSE.size))
        self._spoken: dict[int, tuple[int, int]] = {}
        self.features: Mapping[str, int] = {}
        """What the node has turned on, and at which level."""
        deadline = deadline or self._deadline()
        self._socket = _connect(self.address, deadline)
        self._negotiate(deadline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self._sent)

    def close(self) -> None:
        """End the connection. Views into its buffers stay valid."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def is_usable(self) -> bool:
        """Whether nothing is on its way, and the node has not hung up meanwhile."""
        if self._sent:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False  # The end, or bytes that nobody asked for.

    def version_of(self, request: type, *, version_max: int | None = None) -> int:
        """Return in which version such a request goes out; `UnsupportedVersion` where in none."""
        api = _BY_REQUEST[request]
        first, last = self._spoken.get(api.key, (0, -1))
        newest = api.versions.last if version_max is None else min(version_max, api.versions.last)
        version = min(last, newest)
        if version < max(first, api.versions.first):
            spoken = f"versions {first} to {last}" if last >= first else "no version"
            raise UnsupportedVersion(
                f"{self.address} speaks {spoken} of {api.name},"
                f" needed is one of {api.versions.first} to {newest}"
            )
        return version

    def speaks(self, request: type, *, version_min: int = 0) -> bool:
        """Whether the node takes such a request, in this version or a newer one."""
        api = _BY_REQUEST[request]
        first, last = self._spoken.get(api.key, (0, -1))
        version = min(last, api.versions.last)
        return version >= max(first, api.versions.first, version_min)

    def call(
        self, request: Any, *, version_max: int | None = None, deadline: Deadline | None = None
    ) -> Any:
        """Send a request and return the answer to it; nothing else may be on its way."""
        assert not self._sent, "the next answer belongs to another request"
        deadline = deadline or self._deadline()
        self.send(request, version_max=version_max, deadline=deadline)
        return self.receive(deadline=deadline)

    def send(
        self, request: Any, *, version_max: int | None = None, deadline: Deadline | None = None
    ) -> None:
        """Send a request. Its buffers are not needed any more when this returns."""
        api = _BY_REQUEST[type(request)]
        version = self.version_of(type(request), version_max=version_max)
        self._send(request, api, version, deadline or self._deadline())

    def receive(self, *, deadline: Deadline | None = None) -> Any:
        """Return the answer to the oldest request that has none yet."""
        sent, body = self._receive_body(deadline or self._deadline())
        return self._decode(sent.api, sent.version, body)

    # What the node speaks.

    def _negotiate(self, deadline: Deadline) -> None:
        answer = self._ask_versions(APIS[API_VERSIONS_KEY].versions.last, deadline)
        if answer.error_code:
            self.close()
            raise error_of(answer.error_code, f"{self.address} does not say what it speaks")
        self._spoken = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
        self.features = {one.name: one.max_version_level for one in answer.finalized_features}

    def _ask_versions(self, version: int, deadline: Deadline) -> ApiVersionsResponse:
        """Ask in this version; a node that is too old for it answers in version 0 (KIP-511)."""
        api = APIS[API_VERSIONS_KEY]
        asked = ApiVersionsRequest(
            client_software_name=_SOFTWARE, client_software_version=_SOFTWARE_VERSION
        )
        self._send(asked, api, version, deadline)
        _, body = self._receive_body(deadline)
        # The error code comes first in every version.
        if int.from_bytes(body[:2], "big") != ErrorCode.UNSUPPORTED_VERSION:
            newest: ApiVersionsResponse = self._decode(api, version, body)
            return newest
        answer: ApiVersionsResponse = self._decode(api, 0, body)
        last = next((one.max_version for one in answer.api_keys if one.api_key == api.key), 0)
        if version == 0 or last >= version:
            return answer
        return self._ask_versions(max(0, last), deadline)

    # Bytes.

    def _send(self, request: Any, api: Api, version: int, deadline: Deadline) -> None:
        self._number = (self._number + 1) & _NUMBER_MASK
        is_flexible = version >= api.versions.flexible
        tail = self._client_id + (b"\0" if is_flexible else b"")
        parts = encode_parts(request, version)
        size = _REQUEST.size - _SIZE_SIZE + len(tail) + sum(len(part) for part in parts)
        head = _REQUEST.pack(size, api.key, version, self._number, len(self._client_id)) + tail
        self._write([head, *parts], deadline)
        self._sent.append(_Sent(self._number, api, version))

    def _write(self, parts: list[Buffer], deadline: Deadline) -> None:
        left = deque(memoryview(part) for part in parts if len(part))
        while left:
            try:
                self._wait_at_most(deadline)
                done = self._socket.sendmsg([left[at] for at in range(min(len(left), _PARTS_MAX))])
            except TimeoutError:
                self._lose(f"took no request within {deadline.seconds:g} s")
            except OSError as error:
                self._lose(f"connection lost: {_reason(error)}")
            while left and done >= len(left[0]):
                done -= len(left.popleft())
            if done:
                left[0] = left[0][done:]

    def _receive_body(self, deadline: Deadline) -> tuple[_Sent, memoryview]:
        """Read one answer, from behind its correlation id on, which is checked before."""
        assert self._sent, "no answer is on its way"
        sent = self._sent.popleft()
        self._read(self._head, deadline)
        size, number = _RESPONSE.unpack(self._head)
        if not _NUMBER_SIZE <= size <= self._frame_size_max:
            self._refuse(
                sent.api,
                f"answer claims {size} bytes, allowed is {_NUMBER_SIZE} to {self._frame_size_max}",
            )
        if number != sent.number:
            self._refuse(sent.api, f"answer is to request {number}, expected {sent.number}")
        body = self._buffers.take(size - _NUMBER_SIZE)
        self._read(body, deadline)
        return sent, body

    def _read(self, into: memoryview, deadline: Deadline) -> None:
        done = 0
        while done < len(into):
            try:
                self._wait_at_most(deadline)
                count = self._socket.recv_into(into[done:])
            except TimeoutError:
                self._lose(f"no answer within {deadline.seconds:g} s")
            except OSError as error:
                self._lose(f"connection lost: {_reason(error)}")
            if not count:
                self._lose("hung up")
            done += count

    def _decode(self, api: Api, version: int, body: memoryview) -> Any:
        try:
            start = 0
            if version >= api.versions.flexible and api.key != API_VERSIONS_KEY:
                start, _ = refusal.skip_tags(body, 0, refusal.ITEM_COUNT_MAX)
            return decode(api.response, body[start:], version)
        except MalformedRequest as error:
            self._refuse(api, str(error))
        except IndexError:
            self._refuse(api, f"answer ends at byte {len(body)}, within its header")

    # Failing.

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout_s, clock=self._clock)

    def _wait_at_most(self, deadline: Deadline) -> None:
        left_s = deadline.left_s()
        if not left_s:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _lose(self, reason: str) -> Never:
        self.close()
        is_asked = bool(self._spoken)  # Before, there was but the question what is spoken.
        raise NodeUnreachable(str(self.address), reason, may_be_done=is_asked)

    def _refuse(self, api: Api, reason: str) -> Never:
        self.close()
        raise MalformedAnswer(f"{self.address} on {api.name}: {reason}")


def _connect(address: BrokerAddress, deadline: Deadline) -> socket.socket:
    """Return a socket to the first address of the host that takes one."""
    reason = "the host has no address"
    try:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NodeUnreachable(str(address), _reason(error)) from None
    for family, kind, protocol, _, place in found:
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(deadline.left_s() or 1e-6)  # 0 would not wait at all, and not say so.
            made.connect(place)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except TimeoutError:
            made.close()
            reason = f"cannot connect within {deadline.seconds:g} s"
        except OSError as error:
            made.close()
            reason = f"cannot connect: {_reason(error)}"
        else:
            return made
    raise NodeUnreachable(str(address), reason)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
