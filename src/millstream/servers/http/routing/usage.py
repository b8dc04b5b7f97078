"""Charges HTTP clients for their usage, to the quotas that hold for all servers of the node.

    request ──► owes nothing? ──► handler, measured ──► charged ──► response
                     │
                     └── owes: 429, and nothing happens

Usage is charged after the fact, as by the Kafka server. While a client owes, its next request that
would use the same quota is refused before anything happens. Live delivery is delayed instead, until
nothing is owed (`throttle.py`). If nobody has a quota, nothing is measured.

A client identifies itself with the header `Client-Id`; without one, its client id is empty, as in
Kafka.
"""

from __future__ import annotations

import types
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, NamedTuple, TypeVar

from millstream.broker.access.principal import ANONYMOUS
from millstream.broker.quota_rules import NAME_SIZE_MAX
from millstream.broker.quotas import QuotaKind, Quotas
from millstream.clock import Clock
from millstream.errors import MalformedRequest, QuotaExceeded
from millstream.servers.http.counters import HttpCounters

T = TypeVar("T")

CLIENT_ID = "Client-Id"

DELIVERY_QUOTAS = (QuotaKind.CONSUME, QuotaKind.REQUEST)
"""Quotas that live delivery uses and waits for."""

_HEADER = CLIENT_ID.lower().encode()


class QuotaDebt(NamedTuple):
    """A quota that a client has exceeded, and how long it has to wait."""

    kind: QuotaKind
    throttle_ms: int


class QuotaMeter:
    """Measures the usage of clients. One for each server."""

    def __init__(self, quotas: Quotas, clock: Clock, counters: HttpCounters) -> None:
        self.quotas = quotas
        self.clock = clock
        self.counters = counters

    def usage(
        self, headers: Iterable[tuple[bytes, bytes]], *, is_charged: bool = True
    ) -> ClientUsage:
        """Return the usage of the sender; raises `MalformedRequest` for a bad `Client-Id`.

        Without `is_charged`, another node charges the client for it.
        """
        return ClientUsage(self, client_id_of(headers), is_charged=is_charged)


def client_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client id; empty if there is none."""
    client_id = ""
    is_given = False
    for name, value in headers:
        if name == _HEADER:
            if is_given:
                raise MalformedRequest(f"{CLIENT_ID} must be given once, got several")
            is_given = True
            client_id = _checked(value)
    return client_id


def _checked(value: bytes) -> str:
    try:
        client_id = value.decode()
    except UnicodeDecodeError:
        raise MalformedRequest(f"{CLIENT_ID} must be UTF-8") from None
    if len(client_id) > NAME_SIZE_MAX:
        raise MalformedRequest(
            f"{CLIENT_ID} must have at most {NAME_SIZE_MAX} characters, got {len(client_id)}"
        )
    if not client_id.isprintable():
        raise MalformedRequest(f"{CLIENT_ID} must be printable")
    return client_id


class ClientUsage:
    """The usage of one client by one request, or by one live connection."""

    __slots__ = (
        "_busy_seconds",
        "_is_charged",
        "_meter",
        "_quotas",
        "body_bytes",
        "client_id",
        "throttle_ms",
        "user",
    )

    def __init__(self, meter: QuotaMeter, client_id: str, *, is_charged: bool = True) -> None:
        self._meter = meter
        self._is_charged = is_charged
        self._quotas = meter.quotas
        self._busy_seconds = 0.0
        self.client_id = client_id
        self.user = ANONYMOUS.name
        """The user whose quotas apply; another one once the caller is known."""
        self.body_bytes = 0
        """Bytes of the request body that were read."""
        self.throttle_ms = 0
        """How long the client has to wait before its next request, as far as is known."""

    @property
    def is_free(self) -> bool:
        """Return whether nobody has a quota, so that nothing has to be measured."""
        return not self._is_charged or self._quotas.is_empty

    def charge(self, kind: QuotaKind, amount: float) -> int:
        """Charge the client; return the milliseconds that it owes after that."""
        quotas = self._quotas
        if self.is_free:
            return 0
        now = self._meter.clock.monotonic()
        owed_ms = quotas.charge(kind, self.user, self.client_id, amount, now)
        self.throttle_ms = max(self.throttle_ms, owed_ms)
        return owed_ms

    def owed(self, kinds: Iterable[QuotaKind]) -> QuotaDebt | None:
        """Return the quota with the longest wait; nothing if the client owes none of them."""
        quotas = self._quotas
        if self.is_free:
            return None
        now = self._meter.clock.monotonic()
        waits = [
            QuotaDebt(kind, quotas.wait_ms(kind, self.user, self.client_id, now)) for kind in kinds
        ]
        longest = max(waits, key=lambda debt: debt.throttle_ms)
        return longest if longest.throttle_ms else None

    def check(self, *kinds: QuotaKind) -> None:
        """Raise `QuotaExceeded` if the client owes one of these quotas."""
        owed = self.owed(kinds)
        if owed is None:
            return
        kind, self.throttle_ms = owed
        counters = self._meter.counters
        counters.throttled[kind.value] += 1
        counters.throttle_seconds[kind.value] += self.throttle_ms / 1000
        raise QuotaExceeded(kind.value, self.throttle_ms)

    def note_held(self, kind: QuotaKind, seconds: float) -> None:
        """Count a delivery that is delayed."""
        counters = self._meter.counters
        counters.held_deliveries[kind.value] += 1
        counters.throttle_seconds[kind.value] += seconds

    # Time.

    def measured(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return the same coroutine, measured while it occupies the event loop.

        Waits and work in threads are not counted. A coroutine that starts while nobody has a quota
        is not measured at all.
        """
        return work if self.is_free else self._measured(work)

    async def _measured(self, work: Coroutine[Any, Any, T]) -> T:
        return await self._step_by_step(work)

    @types.coroutine
    def _step_by_step(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Do what `await work` does, and measure every step."""
        monotonic = self._meter.clock.monotonic
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = monotonic()
            try:
                waited_for = work.send(sent) if thrown is None else work.throw(thrown)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._busy_seconds += monotonic() - began
            sent = thrown = None
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001 - passed on to the work.
                thrown = error

    def settle(self) -> None:
        """Charge the client for the time that was measured since the last call."""
        seconds, self._busy_seconds = self._busy_seconds, 0.0
        if seconds:
            self.charge(QuotaKind.REQUEST, seconds)
