"""Counters of a metadata store."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar, get_args

from millstream.clock import Clock
from millstream.errors import MillstreamError, OutcomeUnknown, RequestError, Unavailable
from millstream.histogram import Histogram

T = TypeVar("T")

MetadataCall: TypeAlias = Literal["get", "list", "transact", "grant", "renew", "revoke"]
METADATA_CALLS: tuple[MetadataCall, ...] = get_args(MetadataCall)

MetadataOutcome: TypeAlias = Literal["done", "refused", "unavailable", "unknown", "failed"]
"""`refused` is an error of the caller, such as an expired lease; a transaction whose conditions do
not hold is done."""
METADATA_OUTCOMES: tuple[MetadataOutcome, ...] = get_args(MetadataOutcome)


@dataclass(slots=True)
class MetadataCounters:
    """Running totals of one store."""

    seconds: defaultdict[tuple[MetadataCall, MetadataOutcome], Histogram] = field(
        default_factory=lambda: defaultdict(Histogram)
    )
    """Duration of calls, by kind and outcome."""
    reconnects: int = 0
    """How often another endpoint was tried after one had failed."""
    watch_restarts: int = 0
    """How often the stream of changes had to be opened again."""
    relists: int = 0
    """How often all keys had to be listed because changes were compacted."""
    failed_renewals: int = 0
    """Renewals of leases that failed, for whatever reason."""
    watch_lag_seconds: Callable[[], float] = lambda: 0.0
    """Returns how long a change that is known to exist has not arrived at the watches."""

    async def measure(self, call: MetadataCall, clock: Clock, work: Awaitable[T]) -> T:
        """Await a call, and count its duration and outcome."""
        start = clock.monotonic()
        outcome: MetadataOutcome = "failed"
        try:
            result = await work
            outcome = "done"
        except MillstreamError as error:
            outcome = outcome_of(error)
            raise
        finally:
            self.seconds[call, outcome].observe(clock.monotonic() - start)
        return result


def outcome_of(error: MillstreamError) -> MetadataOutcome:
    """Return the outcome of a call that raised `error`."""
    match error:
        case OutcomeUnknown():
            return "unknown"
        case Unavailable():
            return "unavailable"
        case RequestError():
            return "refused"
        case _:
            return "failed"
