"""Calls and streams to etcd over several endpoints.

A call has one deadline, within which it goes from endpoint to endpoint. Whether it may be sent
again depends on what it does (`Repeat`): a transaction that was sent and has no response is never
repeated, because it may have been made; its error is `OutcomeUnknown`. A refusal that proves that
nothing was made, such as that of a member without a leader, is not an outcome, and the next
endpoint is tried.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from millstream.errors import (
    InvalidConfig,
    MalformedAnswer,
    NodeUnreachable,
    OutcomeUnknown,
    Unavailable,
)
from millstream.http1.connection import AsyncConnection
from millstream.http1.response_reader import SHOWN_MAX, STREAM_PIECE_MAX, ResponseReader
from millstream.metadata.counters import MetadataCounters
from millstream.metadata.etcd.endpoint import EtcdEndpoint
from millstream.metadata.etcd.messages import (
    AuthenticateResponse,
    ErrorResponse,
    Message,
    StatusResponse,
    VersionResponse,
    decoded,
    error_of,
)
from millstream.metadata.etcd.versions import check_version

logger = logging.getLogger(__name__)

T = TypeVar("T")

HEAD_SIZE_MAX = 64 * 1024
RESPONSE_SIZE_MAX = 256 * 1024 * 1024
"""Far above a page of the largest entries."""

LINE_SIZE_MAX = 256 * 1024 * 1024
"""One message of a watch: the changes of up to a thousand transactions."""

CONNECTIONS_MAX = 16
"""Calls that are in flight at the same time; more wait within their deadline."""

PAUSE_S = 0.1
"""Between two rounds over all endpoints."""

_TOKEN_SIZE_MAX = 16 * 1024


class Repeat(enum.Enum):
    """Whether a call that was sent and has no response may be sent again."""

    READ = "read"
    """Yes: it changes nothing."""

    IDEMPOTENT = "idempotent"
    """Yes: the second has no further effect. Without any response the outcome is unknown."""

    NEVER = "never"
    """No. Without a response the outcome is unknown."""


class GrpcCode(enum.IntEnum):
    """Codes of refusals after which it is certain that nothing was made."""

    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    UNAUTHENTICATED = 16


_UNMADE = frozenset(GrpcCode)
_NO_LEADER = "etcdserver: no leader"
"""Refused before the request was read; its code is shared with timeouts, which prove nothing."""

_STALE_TOKEN = ("invalid auth token", "revision of auth store is old")
_COMPACTED = "has been compacted"


class EtcdRefused(Unavailable):
    """etcd refused a call, and nothing was changed."""

    def __init__(self, address: str, code: int, reason: str) -> None:
        super().__init__(f"etcd at {address} refuses: {reason}")
        self.code = code
        self.reason = reason

    @property
    def is_for_another_member(self) -> bool:
        """Whether another member may accept the same call."""
        return _NO_LEADER in self.reason

    @property
    def is_stale_token(self) -> bool:
        return any(text in self.reason for text in _STALE_TOKEN)

    @property
    def is_compacted(self) -> bool:
        return _COMPACTED in self.reason


class EtcdUser(NamedTuple):
    """A user of etcd. The password is read from its file whenever a token is needed."""

    name: str
    password_file: str

    def password(self) -> str:
        """Return the first line of the file."""
        try:
            with open(self.password_file, encoding="utf-8") as file:
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise InvalidConfig(
                f"the password file of etcd cannot be read: {self.password_file}: {reason}"
            ) from None


class EtcdMemberStatus(NamedTuple):
    """State of the member at an endpoint."""

    url: str
    is_healthy: bool
    """Whether it responds and has a leader and no alarm."""
    version: str = ""
    db_size: int = 0
    problem: str = ""
    """Why it is not healthy."""


class EtcdGateway:
    """The members of etcd, as one."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        user: EtcdUser | None = None,
        counters: MetadataCounters,
    ) -> None:
        if not urls:
            raise InvalidConfig("etcd must have at least one endpoint, got none")
        self.timeout_s = timeout_s
        self.on_failure: Callable[[EtcdEndpoint], None] = lambda _: None
        """Called when an endpoint has failed."""
        self._endpoints = [EtcdEndpoint(url, tls) for url in dict.fromkeys(urls)]
        self._current = 0
        self._user = user
        self._token: str | None = None
        self._authentication = asyncio.Lock()
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._counters = counters

    @property
    def current(self) -> EtcdEndpoint:
        """The endpoint that calls begin with."""
        return self._endpoints[self._current]

    def move_on(self, endpoint: EtcdEndpoint) -> None:
        """Begin later calls with the next endpoint, after this one has failed."""
        endpoint.forget()
        if endpoint is self.current:
            self._current = (self._current + 1) % len(self._endpoints)
            self._counters.reconnects += 1
        self.on_failure(endpoint)

    async def close(self) -> None:
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints))

    # Calls.

    async def call(self, path: str, message: Message, kind: type[T], *, repeat: Repeat) -> T:
        """Send a request until it has a response, as far as `repeat` and the deadline allow.

        Raises `EtcdRefused` or `Unavailable` if nothing was changed, and `OutcomeUnknown`.
        """
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        call = _Call(path, msgspec.json.encode(message), repeat, deadline)
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable(
                f"etcd: {CONNECTIONS_MAX} calls are in flight, and none ended in time"
            ) from None
        try:
            while True:
                try:
                    return decoded(await self._attempt(call), kind)
                except MalformedAnswer as error:
                    self._note_failure(call, NodeUnreachable("", str(error), may_be_done=True))
                except NodeUnreachable as error:
                    self._note_failure(call, error)
                except EtcdRefused as error:
                    self._note_refusal(call, error)
                await self._pause(call)
        finally:
            self._slots.release()

    async def _attempt(self, call: _Call) -> bytes:
        """Send a request to the current endpoint; each gets its share of the time that is left."""
        loop = asyncio.get_running_loop()
        endpoint = self.current
        call.endpoint = endpoint
        untried = len(self._endpoints) - call.attempts % len(self._endpoints)
        share = loop.time() + (call.deadline - loop.time()) / untried
        token = await self._prepare(endpoint, share)
        # What may not be repeated is waited for as long as possible.
        answer_by = call.deadline if call.repeat is Repeat.NEVER else share
        return await self._exchange(
            endpoint,
            endpoint.encoded("POST", call.path, call.body, token),
            connect_by=share,
            answer_by=answer_by,
        )

    def _note_failure(self, call: _Call, error: NodeUnreachable) -> None:
        """Move on after an endpoint has failed, unless the call may have been made."""
        assert call.endpoint is not None, "an attempt was made"
        self.move_on(call.endpoint)
        call.attempts += 1
        call.reasons[call.endpoint.url] = error.reason
        if error.may_be_done and call.repeat is not Repeat.READ:
            call.may_be_made = True
        if call.may_be_made and call.repeat is Repeat.NEVER:
            raise self._failed(call)

    def _note_refusal(self, call: _Call, error: EtcdRefused) -> None:
        """Raise a refusal, unless a new token or another member may help."""
        assert call.endpoint is not None, "an attempt was made"
        if error.is_stale_token and self._user is not None and not call.has_new_token:
            self._token = None
            call.has_new_token = True
        elif error.is_for_another_member:
            self.move_on(call.endpoint)
            call.attempts += 1
            call.reasons[call.endpoint.url] = error.reason
        else:  # Of an idempotent call, this is the result even if an earlier attempt was made.
            raise error

    async def _pause(self, call: _Call) -> None:
        """Wait before the next round over all endpoints; raise if the deadline is over."""
        left = call.deadline - asyncio.get_running_loop().time()
        is_round_over = call.attempts > 0 and call.attempts % len(self._endpoints) == 0
        # Another round without time for an answer would only hide why this one failed.
        if left <= 0 or (is_round_over and left < 2 * PAUSE_S):
            raise self._failed(call)
        if is_round_over:
            await asyncio.sleep(PAUSE_S)

    def _failed(self, call: _Call) -> Unavailable | OutcomeUnknown:
        reasons = "; ".join(f"{url}: {reason}" for url, reason in call.reasons.items())
        if call.may_be_made:
            return OutcomeUnknown(
                f"etcd did not respond to a change, which may have been made: {reasons}"
            )
        return Unavailable(f"etcd cannot be reached: {reasons or 'no response in time'}")

    async def _exchange(
        self,
        endpoint: EtcdEndpoint,
        request: Sequence[bytes],
        *,
        connect_by: float,
        answer_by: float,
    ) -> bytes:
        """Send a request and return the body of its response.

        Raises `NodeUnreachable`, with `may_be_done` once it was sent, or `EtcdRefused`.
        """
        try:
            async with asyncio.timeout_at(connect_by):
                connection = await endpoint.take()
        except TimeoutError:
            raise NodeUnreachable(endpoint.url, "cannot connect in time") from None
        reader = ResponseReader(head_size_max=HEAD_SIZE_MAX, body_size_max=RESPONSE_SIZE_MAX)
        try:
            connection.begin(request, reader, is_stream=False)
            async with asyncio.timeout_at(answer_by):
                while not reader.is_done:
                    await connection.more()
        except TimeoutError:
            reason = "no response in time"
            raise NodeUnreachable(endpoint.url, reason, may_be_done=True) from None
        except MalformedAnswer as error:
            raise NodeUnreachable(endpoint.url, str(error), may_be_done=True) from error
        finally:
            endpoint.give_back(connection, keeps=reader.is_done and reader.keeps_alive)
        if reader.status != 200:
            raise refusal_of(endpoint.url, reader.status, reader.body)
        return reader.body

    # Versions and tokens.

    async def check_versions(self) -> None:
        """Check the versions of all members that respond. Raises `Unavailable` if none does."""
        results = await asyncio.gather(*map(self._version_or_error, self._endpoints))
        if all(isinstance(result, Exception) for result in results):
            reasons = "; ".join(map(str, results))
            raise Unavailable(f"etcd cannot be reached: {reasons}")
        for endpoint, result in zip(self._endpoints, results, strict=True):
            if isinstance(result, Exception):
                logger.warning("etcd at %s cannot be reached: %s", endpoint, result)

    async def _version_or_error(
        self, endpoint: EtcdEndpoint
    ) -> NodeUnreachable | EtcdRefused | None:
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        try:
            await self._check_version(endpoint, deadline)
        except (NodeUnreachable, EtcdRefused) as error:
            return error
        return None

    async def _check_version(self, endpoint: EtcdEndpoint, deadline: float) -> None:
        if endpoint.is_checked:
            return
        request = endpoint.encoded("GET", "/version", b"", None)
        try:
            body = await self._exchange(endpoint, request, connect_by=deadline, answer_by=deadline)
            version = decoded(body, VersionResponse).etcdserver
        except (NodeUnreachable, MalformedAnswer) as error:
            # The call for which the version is checked was not sent.
            reason = getattr(error, "reason", str(error))
            raise NodeUnreachable(endpoint.url, reason) from error
        check_version(version, endpoint.url)
        endpoint.is_checked = True

    async def _prepare(self, endpoint: EtcdEndpoint, deadline: float) -> str | None:
        """Check the version of a member, and return a token if there is a user."""
        await self._check_version(endpoint, deadline)
        if self._user is None:
            return None
        async with self._authentication:
            if self._token is None:
                self._token = await self._authenticate(endpoint, self._user, deadline)
            return self._token

    async def _authenticate(self, endpoint: EtcdEndpoint, user: EtcdUser, deadline: float) -> str:
        body = msgspec.json.encode({"name": user.name, "password": user.password()})
        request = endpoint.encoded("POST", "/v3/auth/authenticate", body, None)
        try:
            response = await self._exchange(
                endpoint, request, connect_by=deadline, answer_by=deadline
            )
        except NodeUnreachable as error:
            raise NodeUnreachable(endpoint.url, error.reason) from error
        except EtcdRefused as error:
            if error.is_for_another_member:
                raise
            raise InvalidConfig(
                f"etcd at {endpoint} refuses user {user.name!r}: {error.reason}"
            ) from error
        try:
            token = decoded(response, AuthenticateResponse).token
        except MalformedAnswer:  # Not quoted: it may contain a token.
            raise NodeUnreachable(endpoint.url, "the response has no token") from None
        if not token.isascii() or not token.isprintable() or len(token) > _TOKEN_SIZE_MAX:
            raise NodeUnreachable(endpoint.url, "the token is not printable text")
        return token

    # Members.

    async def statuses(self) -> Sequence[EtcdMemberStatus]:
        """Return the state of the member at each endpoint."""
        return await asyncio.gather(*map(self._status, self._endpoints))

    async def _status(self, endpoint: EtcdEndpoint) -> EtcdMemberStatus:
        deadline = asyncio.get_running_loop().time() + self.timeout_s
        try:
            token = await self._prepare(endpoint, deadline)
            request = endpoint.encoded("POST", "/v3/maintenance/status", b"{}", token)
            body = await self._exchange(endpoint, request, connect_by=deadline, answer_by=deadline)
            status = decoded(body, StatusResponse)
        except NodeUnreachable as error:
            return EtcdMemberStatus(endpoint.url, is_healthy=False, problem=error.reason)
        except (EtcdRefused, MalformedAnswer, InvalidConfig) as error:
            return EtcdMemberStatus(endpoint.url, is_healthy=False, problem=str(error))
        problem = ", ".join(status.errors) or ("" if status.leader else "it has no leader")
        return EtcdMemberStatus(
            endpoint.url,
            is_healthy=not problem,
            version=status.version,
            db_size=status.db_size,
            problem=problem,
        )

    # Streams.

    async def stream(self, path: str, message: Message) -> EtcdStream:
        """Open a stream at the current endpoint, on a connection of its own.

        Raises `NodeUnreachable` or `EtcdRefused`; the caller tries again.
        """
        loop = asyncio.get_running_loop()
        endpoint, deadline = self.current, loop.time() + self.timeout_s
        try:
            token = await self._prepare(endpoint, deadline)
            async with asyncio.timeout_at(deadline):
                connection = await endpoint.connect()
                reader = ResponseReader(head_size_max=HEAD_SIZE_MAX, body_size_max=STREAM_PIECE_MAX)
                try:
                    body = msgspec.json.encode(message)
                    request = endpoint.encoded("POST", path, body, token)
                    connection.begin(request, reader, is_stream=True)
                    while not (reader.has_head and (reader.status == 200 or reader.is_done)):
                        await connection.more()
                except BaseException:
                    connection.close()
                    raise
        except TimeoutError:
            self.move_on(endpoint)
            raise NodeUnreachable(endpoint.url, "no stream in time") from None
        except (NodeUnreachable, MalformedAnswer):
            self.move_on(endpoint)
            raise
        if reader.status != 200:
            connection.close()
            error = refusal_of(endpoint.url, reader.status, reader.body)
            if isinstance(error, EtcdRefused) and error.is_stale_token:
                self._token = None
            else:
                self.move_on(endpoint)
            raise error
        return EtcdStream(endpoint, connection, reader)

    def forget_token(self) -> None:
        """Get a new token before the next call."""
        self._token = None


class _Call:
    """A request on its way through the endpoints."""

    def __init__(self, path: str, body: bytes, repeat: Repeat, deadline: float) -> None:
        self.path = path
        self.body = body
        self.repeat = repeat
        self.deadline = deadline
        self.endpoint: EtcdEndpoint | None = None
        self.attempts = 0
        self.has_new_token = False
        self.may_be_made = False
        self.reasons: dict[str, str] = {}
        """Why each endpoint failed, at last."""


class EtcdStream:
    """Lines of a response without an end."""

    def __init__(
        self, endpoint: EtcdEndpoint, connection: AsyncConnection, reader: ResponseReader
    ) -> None:
        self.endpoint = endpoint
        self._connection = connection
        self._reader = reader
        self._buffer = bytearray()
        self._searched = 0

    async def line(self, timeout_s: float) -> bytes | None:
        """Return the next line, or `None` if none arrived in time.

        Raises `NodeUnreachable` if the stream ended, or `MalformedAnswer`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                self._searched = 0
                return line
            self._searched = len(self._buffer)
            if len(self._buffer) > LINE_SIZE_MAX:
                raise MalformedAnswer(f"a line has more than {LINE_SIZE_MAX} bytes")
            if data := self._reader.take():
                self._connection.took()
                self._buffer += data
                continue
            if self._reader.is_done:
                raise NodeUnreachable(self.endpoint.url, "the stream ended")
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connection.more()
            except TimeoutError:
                return None

    def close(self) -> None:
        """Close the connection, so that a task that waits for a line gets an error."""
        self._connection.close()


def refusal_of(address: str, status: int, body: bytes) -> EtcdRefused | NodeUnreachable:
    """Return the error for a response with an error status.

    A refusal proves that nothing was made; otherwise the request may have been carried out.
    """
    try:
        response = error_of(body)
    except MalformedAnswer:
        shown = body[:SHOWN_MAX].decode(errors="replace")
        response = ErrorResponse(message=f"HTTP status {status}: {shown!r}")
        if status == 404:
            response.message += "; the gateway of etcd must be enabled (--enable-grpc-gateway)"
        if 400 <= status < 500:
            return EtcdRefused(address, GrpcCode.UNIMPLEMENTED, response.message)
    return stream_error(address, response)


def stream_error(address: str, error: ErrorResponse) -> EtcdRefused | NodeUnreachable:
    """Return the error that a response or a line of a stream describes."""
    if error.number in _UNMADE or _NO_LEADER in error.message:
        return EtcdRefused(address, error.number, error.message)
    return NodeUnreachable(address, error.message or "an error without a message", may_be_done=True)
