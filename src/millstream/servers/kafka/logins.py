"""Logins of Kafka clients by SASL.

    SaslHandshake (mechanism)  ─►  SaslAuthenticate (message), until the client is logged in

A connection has one exchange at a time. A client that is logged in may log in again on the same
connection (KIP-368), as the same user; until then it stays logged in. A failed login is answered,
and ends the connection.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from millstream.broker.access.access import Access
from millstream.broker.access.caller import Caller
from millstream.broker.access.credentials import (
    CLEAR_TEXT,
    ScramCredential,
    ScramMechanism,
    ScramShape,
)
from millstream.broker.access.principal import USER, Principal
from millstream.broker.access.sasl import scram
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.broker.access.sasl.login_limits import LoginLimits
from millstream.broker.access.sasl.oauth_bearer import read_bearer
from millstream.broker.access.sasl.plain import PlainLogin, read_plain
from millstream.clock import Clock
from millstream.config.schema import AccessConfig, SaslMechanism
from millstream.errors import CapExceeded

SESSION_MS_MAX = 2**31 - 1
"""Longest session: the timers of some clients are no longer. Then they log in again."""

HASHING_THREADS = 2
HASHING_WAITING_MAX = 32
"""Passwords that may wait to be hashed. A login that comes when there are more is refused."""

_READABLE = (SaslMechanism.PLAIN, SaslMechanism.OAUTHBEARER)
"""Mechanisms whose messages let those on the way log in too."""


class LoginStep(NamedTuple):
    """The answer to a message of a client."""

    answer: bytes
    session_ms: int = 0
    """How long the login is valid; 0 if it has no end, or is not complete."""


class LoginConnection(Protocol):
    """What a login needs of its connection."""

    caller: Caller

    @property
    def host(self) -> str:
        """Address of the client."""
        ...

    def log_in(self, caller: Caller, session_ms: int) -> None:
        """Let a caller send requests from now on, for so long if it is not 0."""
        ...

    def end(self) -> None:
        """Close the connection when its responses are sent."""
        ...


class KafkaLogins:
    """What the logins of all connections share."""

    def __init__(
        self,
        access: Access,
        config: AccessConfig,
        *,
        secret: bytes,
        clock: Clock,
        is_tls: bool,
        draw: Callable[[int], bytes] = secrets.token_bytes,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Offer the mechanisms of `config`.

        PLAIN and OAUTHBEARER only if connections are encrypted, or forced; OAUTHBEARER only if
        there is an issuer.

        Salts of users that do not exist are derived from `secret`.
        """
        self.access = access
        self.config = config
        self.limits = LoginLimits()
        self.mechanisms = tuple(
            mechanism
            for mechanism in config.sasl_mechanisms
            if (mechanism not in _READABLE or is_tls or config.plain_without_tls)
            and (mechanism is not SaslMechanism.OAUTHBEARER or access.jwt is not None)
        )
        self._secret = secret
        self._clock = clock
        self._draw = draw
        self._pause = pause
        self._hashing = ThreadPoolExecutor(HASHING_THREADS, thread_name_prefix="millstream-login")
        self._hashing_count = 0

    def close(self) -> None:
        """End the threads, once they have hashed what waits."""
        self._hashing.shutdown(wait=False)

    def challenge(
        self, mechanism: ScramMechanism, data: bytes
    ) -> tuple[bytes, scram.ScramChallenge]:
        """Return the answer to the first message of a SCRAM exchange, and the exchange."""
        first = scram.read_client_first(data)
        return scram.challenge(
            mechanism,
            first,
            self.access.scram_of(first.user).get(mechanism),
            server_nonce=base64.b64encode(self._draw(scram.NONCE_BYTES)).decode(),
            secret=self._secret,
            iterations=self._assumed_shape(first.user, mechanism.value, mechanism).iterations,
        )

    def _assumed_shape(self, name: str, method: str, mechanism: ScramMechanism) -> ScramShape:
        """Return what the credential of a user that has none looks like."""
        return scram.assumed_shape(
            name,
            self.access.scram_shapes().get(method, ()),
            secret=self._secret,
            default=ScramShape(mechanism, self.config.scram_iterations),
        )

    async def check_password(self, login: PlainLogin) -> ScramCredential:
        """Return the credential of a user whose password is right.

        A user that does not exist takes as much work as one that does.
        """
        stored = self.access.scram_of(login.user)
        assumed = self._assumed_shape(login.user, CLEAR_TEXT, ScramMechanism.SHA_256)
        mechanism = next(iter(stored), assumed.mechanism)
        credential = stored.get(mechanism) or scram.derived_credential(
            mechanism, login.user, secret=self._secret, iterations=assumed.iterations
        )
        if self._hashing_count >= HASHING_WAITING_MAX:
            raise LoginFailed("too many passwords wait to be checked", user=login.user)
        self._hashing_count += 1
        try:
            is_right = await asyncio.get_running_loop().run_in_executor(
                self._hashing, scram.is_password, mechanism, login.password, credential
            )
        finally:
            self._hashing_count -= 1
        if not (is_right and stored):
            raise LoginFailed("wrong password" if stored else "unknown user", user=login.user)
        return credential

    async def wait_for_turn(self, host: str, user: str) -> None:
        """Wait until an attempt may be evaluated; raise `LoginFailed` if there were too many."""
        seconds = self.limits.wait_seconds(host, user, self._clock.monotonic())
        if seconds is None:
            raise LoginFailed("too many failed logins", user=user)
        if seconds:
            await self._pause(seconds)

    def session_ms(self, caller: Caller) -> int:
        """Return how long a login is valid; 0 for as long as the connection."""
        limit = self.config.session_ms_max
        if caller.expires_ms is None:
            return limit
        remaining = max(1, caller.expires_ms - self._clock.wall_ms())
        return min(remaining, limit or remaining, SESSION_MS_MAX)

    def note_failure(self, failed: LoginFailed, host: str, mechanism: str) -> None:
        """Count a failed login."""
        self.limits.note_failure(host, failed.user, self._clock.monotonic())
        self.access.note_failed_login(failed.user, host, mechanism, failed.reason)


class ConnectionLogin:
    """The logins of one connection."""

    def __init__(self, logins: KafkaLogins, connection: LoginConnection) -> None:
        self.logins = logins
        self._connection = connection
        self._mechanism: SaslMechanism | None = None
        """Of the exchange that was begun; `None` before and after."""
        self._challenge: scram.ScramChallenge | None = None
        self._user: str | None = None
        """Who has logged in by SASL."""

    @property
    def has_begun(self) -> bool:
        """Whether a message of the client is expected."""
        return self._mechanism is not None

    def begin(self, mechanism: SaslMechanism) -> None:
        """Begin an exchange; one that was not finished is forgotten."""
        self._mechanism, self._challenge = mechanism, None

    async def step(self, data: bytes) -> LoginStep:
        """Process a message of the client; raise `LoginFailed` if the login has failed."""
        mechanism = self._mechanism
        assert mechanism is not None, "an exchange was begun"
        logins, host = self.logins, self._connection.host
        try:
            if mechanism is SaslMechanism.OAUTHBEARER:
                self._mechanism = None
                return LoginStep(b"", await self._log_in_by_jwt(data))
            if mechanism is not SaslMechanism.PLAIN and self._challenge is None:
                kind = ScramMechanism(mechanism.value)
                answer, self._challenge = logins.challenge(kind, data)
                return LoginStep(answer)
            exchange, self._mechanism, self._challenge = self._challenge, None, None
            if exchange is None:
                login = read_plain(data)
                await logins.wait_for_turn(host, login.user)
                user, answer = login.user, b""
                credential = await logins.check_password(login)
            else:
                user = exchange.user
                await logins.wait_for_turn(host, user)
                answer = scram.finish(exchange, data)
                credential = exchange.credential
            caller = Caller(Principal(USER, user), host, credential=credential)
            session_ms = self._complete(caller, mechanism)
        except LoginFailed as failed:
            self._mechanism = self._challenge = None
            logins.note_failure(failed, host, mechanism.value)
            self._connection.end()
            raise
        except CapExceeded:
            self._connection.end()
            raise
        return LoginStep(answer, session_ms)

    async def _log_in_by_jwt(self, data: bytes) -> int:
        """Log the user of a JWT in; return how long the login is valid."""
        logins, host = self.logins, self._connection.host
        bearer = read_bearer(data)
        await logins.wait_for_turn(host, "")
        assert logins.access.jwt is not None, "the mechanism was offered"
        login = await logins.access.jwt.check_with_new_keys(bearer.token)
        if bearer.user not in (None, login.user):
            raise LoginFailed("a user cannot act for another one", user=login.user)
        caller = Caller(Principal(USER, login.user), host, expires_ms=login.expires_ms)
        return self._complete(caller, SaslMechanism.OAUTHBEARER)

    def _complete(self, caller: Caller, mechanism: SaslMechanism) -> int:
        """Log a caller in; return how long the login is valid."""
        logins, connection = self.logins, self._connection
        user = caller.principal.name
        if self._user not in (None, user):
            raise LoginFailed("a connection cannot change its user", user=user)
        if not logins.access.is_current(caller):
            raise LoginFailed("the password was changed during the login", user=user)
        self._user = user
        session_ms = logins.session_ms(caller)
        connection.log_in(caller, session_ms)
        logins.limits.note_success(connection.host, user)
        logins.access.note_login(caller, mechanism.value)
        return session_ms
