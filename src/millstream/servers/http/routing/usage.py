"""What a client uses through the HTTP door, charged to the quotas that hold at every door.

    request ──► owes nothing? ──► work, measured ──► charged ──► answer
                     │
                     └── owes: 429, and nothing happens

Usage is taken after the fact, as at the Kafka door. While a bucket owes, the next request that
would use it is refused before anything happens. What is delivered live is slowed instead: it waits
until nothing is owed (`holding.py`). Where no one has a quota, nothing is measured.

A client says who it is with the header `Client-Id`; without one, its client id is empty, as Kafka
has it.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, NamedTuple, TypeVar

from millstream.broker.quota_rules import ANONYMOUS, NAME_SIZE_MAX
from millstream.broker.quotas import QuotaKind, Quotas
from millstream.clock import Clock
from millstream.errors import MalformedRequest, QuotaExceeded
from millstream.servers.http.counters import HttpCounters

T = TypeVar("T")

CLIENT_ID = "Client-Id"

DELIVERY_QUOTAS = (QuotaKind.CONSUME, QuotaKind.REQUEST)
"""What live delivery uses, and waits for."""

_HEADER = CLIENT_ID.lower().encode()


class QuotaDebt(NamedTuple):
    """What a client has to wait for, and for how long."""

    kind: QuotaKind
    throttle_ms: int


class QuotaMeter:
    """Measures what clients use. One for the door."""

    def __init__(self, quotas: Quotas, clock: Clock, counters: HttpCounters) -> None:
        self.quotas = quotas
        self.clock = clock
        self.counters = counters

    def usage(self, headers: Iterable[tuple[bytes, bytes]]) -> ClientUsage:
        """Return the usage of whoever sent a request; raises where it says that in a wrong way."""
        return ClientUsage(self, client_id_of(headers))


def client_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return what a client calls itself; empty where it does not say."""
    client_id = ""
    is_said = False
    for name, value in headers:
        if name == _HEADER:
            if is_said:
                raise MalformedRequest(f"{CLIENT_ID} is there twice")
            is_said = True
            client_id = _checked(value)
    return client_id


def _checked(value: bytes) -> str:
    try:
        client_id = value.decode()
    except UnicodeDecodeError:
        raise MalformedRequest(f"{CLIENT_ID} is not UTF-8") from None
    if len(client_id) > NAME_SIZE_MAX:
        raise MalformedRequest(
            f"{CLIENT_ID} has {len(client_id)} characters, limit is {NAME_SIZE_MAX}"
        )
    if not client_id.isprintable():
        raise MalformedRequest(f"{CLIENT_ID} has characters that cannot be printed")
    return client_id


class ClientUsage:
    """What one client uses by one request, or over one live connection."""

    __slots__ = ("_busy_seconds", "_meter", "_quotas", "body_bytes", "client_id", "throttle_ms")

    principal = ANONYMOUS
    """Nobody has to say who it is yet."""

    def __init__(self, meter: QuotaMeter, client_id: str) -> None:
        self._meter = meter
        self._quotas = meter.quotas
        self._busy_seconds = 0.0
        self.client_id = client_id
        self.body_bytes = 0
        """What of the request's body has been read."""
        self.throttle_ms = 0
        """How long the client has to wait before its next request, as far as is known."""

    @property
    def is_free(self) -> bool:
        """Whether no one has a quota, so that there is nothing to measure."""
        return self._quotas.is_empty

    def charge(self, kind: QuotaKind, amount: float) -> int:
        """Charge the client for what it used; return how many milliseconds it owes for that."""
        quotas = self._quotas
        if quotas.is_empty:
            return 0
        now = self._meter.clock.monotonic()
        owed_ms = quotas.charge(kind, self.principal, self.client_id, amount, now)
        self.throttle_ms = max(self.throttle_ms, owed_ms)
        return owed_ms

    def owed(self, kinds: Iterable[QuotaKind]) -> QuotaDebt | None:
        """Return which of these the client has to wait for longest; nothing where it need not."""
        quotas = self._quotas
        if quotas.is_empty:
            return None
        now = self._meter.clock.monotonic()
        waits = [
            QuotaDebt(kind, quotas.wait_ms(kind, self.principal, self.client_id, now))
            for kind in kinds
        ]
        longest = max(waits, key=lambda one: one.throttle_ms)
        return longest if longest.throttle_ms else None

    def check(self, *kinds: QuotaKind) -> None:
        """Raise `QuotaExceeded` where the client owes any of these."""
        owed = self.owed(kinds)
        if owed is None:
            return
        kind, self.throttle_ms = owed
        counters = self._meter.counters
        counters.throttled[kind.value] += 1
        counters.throttle_seconds[kind.value] += self.throttle_ms / 1000
        raise QuotaExceeded(kind.value, self.throttle_ms)

    def note_held(self, kind: QuotaKind, seconds: float) -> None:
        """Count a delivery that has to wait."""
        counters = self._meter.counters
        counters.held_deliveries[kind.value] += 1
        counters.throttle_seconds[kind.value] += seconds

    # Time.

    def measured(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return the same work, with the time for which the loop does nothing else measured.

        What waits in between is not counted, nor what is done in threads. Work that began while
        nobody had a quota is not measured to its end.
        """
        return work if self._quotas.is_empty else self._measured(work)

    async def _measured(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._step_by_step(work)

    @types.coroutine
    def _step_by_step(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Do what `await work` does, with a look at the clock around every step."""
        monotonic = self._meter.clock.monotonic
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            begun = monotonic()
            try:
                waited_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._busy_seconds += monotonic() - begun
            sent = thrown = None
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001 - it is the work's to deal with.
                thrown = error

    def settle(self) -> None:
        """Charge the client for the time that was measured since the last call."""
        seconds, self._busy_seconds = self._busy_seconds, 0.0
        if seconds:
            self.charge(QuotaKind.REQUEST, seconds)
