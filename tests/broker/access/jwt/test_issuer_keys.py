"""Keys of an issuer: read at the start, from time to time, and for a JWT with an unknown key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.access.counters import AccessCounters
from millstream.broker.access.jwt.issuer_keys import IssuerKeys
from millstream.broker.access.jwt.jwt_logins import JwtLogins
from millstream.broker.access.sasl.failure import LoginFailed
from millstream.config.schema import OAuthConfig
from millstream.errors import InvalidConfig, Unavailable
from millstream.testing import ManualClock
from tests.in_loop import in_loop

from .issuer import AUDIENCE, ISSUER, Issuer


class ServedKeys:
    """An `OutboundClient` that answers with the keys of an issuer, and counts requests."""

    def __init__(self, issuer: Issuer) -> None:
        self.issuer = issuer
        self.requests = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def check(self, url: str) -> None:
        assert url.startswith("https://")

    async def get(self, url: str, *, size_max: int, seconds_max: float) -> bytes:
        self.requests += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.issuer.jwks


class NoTimers:
    """Timers that a test fires."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Any]] = []

    def call_later(self, seconds: float, callback: Any) -> Any:
        self.calls.append((seconds, callback))
        return self

    def cancel(self) -> None:
        self.calls.clear()


@pytest.fixture(scope="module")
def keyed() -> Issuer:
    return Issuer().add_rsa("one").add_rsa("two").add_rsa("three")


def fresh(keyed: Issuer, *key_ids: str) -> Issuer:
    issuer = Issuer()
    issuer.keys = keyed.keys
    issuer.entries = {key_id: keyed.entries[key_id] for key_id in key_ids}
    return issuer


class Setup:
    def __init__(self, issuer: Issuer) -> None:
        self.clock = ManualClock()
        self.now_s = self.clock.wall_ms() / 1000
        self.timers = NoTimers()
        self.counters = AccessCounters()
        self.served = ServedKeys(issuer)
        self.issuer = issuer
        config = OAuthConfig(
            issuer=ISSUER, audience=AUDIENCE, jwks_url="https://login.example/jwks"
        )
        self.logins = JwtLogins(
            config,
            self.served,  # type: ignore[arg-type]
            clock=self.clock,
            timers=self.timers,  # type: ignore[arg-type]
            counters=self.counters,
        )

    def token(self, key_id: str) -> str:
        return self.issuer.token(key_id, now_s=self.clock.wall_ms() / 1000)


async def settled(logins: JwtLogins) -> None:
    while (reading := logins.keys._reading) is not None:
        await reading


@in_loop
async def test_an_unknown_key_is_looked_for_once_in_ten_seconds(keyed: Issuer) -> None:
    setup = Setup(fresh(keyed, "one"))
    await setup.logins.open()
    await settled(setup.logins)
    assert setup.served.requests == 1
    assert setup.logins.check(setup.token("one")).user == "alice"
    for _ in range(100):  # Anyone can send these.
        with pytest.raises(LoginFailed):
            await setup.logins.check_with_new_keys(setup.token("two"))
    assert setup.served.requests == 1
    setup.clock.advance(10)
    setup.issuer.entries["two"] = keyed.entries["two"]
    assert (await setup.logins.check_with_new_keys(setup.token("two"))).user == "alice"
    assert setup.served.requests == 2


@in_loop
async def test_logins_that_wait_for_the_same_key_share_one_request(keyed: Issuer) -> None:
    setup = Setup(fresh(keyed, "one"))
    setup.served.gate.clear()
    await setup.logins.open()
    waiting = [
        asyncio.ensure_future(setup.logins.check_with_new_keys(setup.token("one")))
        for _ in range(20)
    ]
    await asyncio.sleep(0)
    setup.served.gate.set()
    assert {login.user for login in await asyncio.gather(*waiting)} == {"alice"}
    assert setup.served.requests == 1


@in_loop
async def test_a_login_that_is_given_up_does_not_end_the_reading_for_others(keyed: Issuer) -> None:
    setup = Setup(fresh(keyed, "one"))
    setup.served.gate.clear()
    await setup.logins.open()
    first, second = (
        asyncio.ensure_future(setup.logins.check_with_new_keys(setup.token("one")))
        for _ in range(2)
    )
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    setup.served.gate.set()
    assert (await second).user == "alice"


@in_loop
async def test_a_key_that_the_issuer_has_withdrawn_is_refused_after_the_next_reading(
    keyed: Issuer,
) -> None:
    setup = Setup(fresh(keyed, "one", "two"))
    await setup.logins.open()
    await settled(setup.logins)
    dropped: list[int] = []
    setup.logins.keys.on_change = lambda: dropped.append(1)
    setup.issuer.remove("one")
    setup.clock.advance(3600)
    seconds, callback = setup.timers.calls[-1]
    assert seconds == 3600
    callback()
    await settled(setup.logins)
    assert dropped == [1]
    with pytest.raises(LoginFailed):
        setup.logins.check(setup.token("one"))
    assert setup.logins.check(setup.token("two")).user == "alice"


@in_loop
async def test_if_the_issuer_cannot_be_reached_the_former_keys_stay(keyed: Issuer) -> None:
    setup = Setup(fresh(keyed, "one"))
    await setup.logins.open()
    await settled(setup.logins)
    setup.served.error = Unavailable("no answer")
    setup.clock.advance(3600)
    setup.timers.calls[-1][1]()
    await settled(setup.logins)
    assert setup.logins.check(setup.token("one")).user == "alice"
    assert setup.counters.key_reads == {"read": 1, "failed": 1}


@in_loop
async def test_a_node_starts_although_the_issuer_cannot_be_reached(keyed: Issuer) -> None:
    setup = Setup(fresh(keyed, "one"))
    setup.served.error = Unavailable("no answer")
    await setup.logins.open()
    with pytest.raises(LoginFailed):
        await setup.logins.check_with_new_keys(setup.token("one"))
    setup.served.error = None
    setup.clock.advance(10)
    assert (await setup.logins.check_with_new_keys(setup.token("one"))).user == "alice"


def file_keys(path: Path) -> IssuerKeys:
    config = OAuthConfig(issuer=ISSUER, audience=AUDIENCE, jwks_file=str(path))
    return IssuerKeys(
        config,
        object(),  # type: ignore[arg-type]
        clock=ManualClock(),
        timers=NoTimers(),  # type: ignore[arg-type]
        counters=AccessCounters(),
    )


@in_loop
async def test_a_file_that_cannot_be_read_at_the_start_is_an_error(
    tmp_path: Path, keyed: Issuer
) -> None:
    file = tmp_path / "jwks.json"
    for content, words in ((None, "cannot be read"), (b"{}", "must have a list")):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidConfig, match=words):
            await file_keys(file).open()
    file.write_bytes(b"x" * (512 * 1024 + 1))
    with pytest.raises(Unavailable, match="more than"):
        await file_keys(file).open()
    file.write_bytes(fresh(keyed, "one").jwks)
    keys = file_keys(file)
    await keys.open()
    assert [key.id for key in keys.keys.keys] == ["one"]
