"""Logins by JWTs at both servers."""

from __future__ import annotations

from importlib.util import find_spec

from millstream.broker.access.counters import AccessCounters
from millstream.broker.access.jwt.checks import JwtLogin, UnknownJwtKey, check_jwt
from millstream.broker.access.jwt.issuer_keys import IssuerKeys
from millstream.clock import Clock, Timers
from millstream.config.schema import OAuthConfig
from millstream.errors import InvalidConfig
from millstream.http1.outbound import OutboundClient


class JwtLogins:
    """Checks JWTs by the present keys of their issuer."""

    def __init__(
        self,
        config: OAuthConfig,
        outbound: OutboundClient,
        *,
        clock: Clock,
        timers: Timers,
        counters: AccessCounters,
    ) -> None:
        if find_spec("jwt") is None or find_spec("cryptography") is None:
            raise InvalidConfig(
                "logins by JWTs (oauth.issuer) need more packages: pip install 'millstream[access]'"
            )
        self.config = config
        self.keys = IssuerKeys(config, outbound, clock=clock, timers=timers, counters=counters)
        self._clock = clock

    async def open(self) -> None:
        """Read the keys of the issuer."""
        await self.keys.open()

    def close(self) -> None:
        """Read the keys no more."""
        self.keys.close()

    def check(self, text: str) -> JwtLogin:
        """Return the user of a JWT; raise `LoginFailed` if it is not valid.

        If its key is not known, the keys are read again for the next attempt.
        """
        try:
            return check_jwt(text, self.keys.keys, self.config, now_ms=self._clock.wall_ms())
        except UnknownJwtKey:
            self.keys.refresh()
            raise

    async def check_with_new_keys(self, text: str) -> JwtLogin:
        """Do the same, but if the key is not known, read the keys again and wait for it."""
        try:
            return self.check(text)
        except UnknownJwtKey:
            await self.keys.refreshed()
        return self.check(text)
