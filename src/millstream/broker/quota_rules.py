"""Quotas: who may use how much, and the buckets that measure it. Pure.

A quota names a user, a client id, or both, each by name or as the default for all that have no
quota of their own. Of all quotas that fit a client, the first in this order holds:

    user + client      user + any client      user
    any user + client  any user + any client  any user
    client             any client         the default of the node

As in Kafka, a quota that names no client id is shared by all clients of the user, and one that
names no user by all users of that client id.

A bucket fills at the rate of its quota and holds as much as flows in `BURST_SECONDS`. What a client
used is taken out after the fact, even if the bucket then owes; until it owes nothing any more,
the client has to wait. So over any time, what is used before its last request is at most the rate
times that time and one full bucket.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millstream.errors import InvalidRequest

BURST_SECONDS = 10
"""Kafka's default: it averages over eleven samples of a second, the last of them unfinished."""

THROTTLE_MS_MAX = 2**31 - 1
"""What fits an answer."""

BUCKETS_MAX = 100_000
"""Buckets that are kept; beyond, the one that was idle for longest goes, full or not."""

ANONYMOUS = "ANONYMOUS"
"""The user of a client that did not have to say who it is, at every door. Kafka's name for it."""

NAME_SIZE_MAX = 255
"""Of a user or a client id that has a quota."""


class QuotaKind(enum.Enum):
    """What is measured. The values are Kafka's names."""

    PRODUCE = "producer_byte_rate"
    """Bytes a second that a client sends to be kept."""

    CONSUME = "consumer_byte_rate"
    """Bytes a second that a client fetches."""

    REQUEST = "request_percentage"
    """Share of a core, in percent, that the requests of a client may take; used in seconds."""

    MUTATION = "controller_mutation_rate"
    """Partitions a second that a client creates or deletes."""


class _Default(enum.Enum):
    DEFAULT = "default"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default.DEFAULT
"""In place of a name: all that have no quota of their own."""

EntityName = str | _Default


class ClientQuotaEntity(NamedTuple):
    """Whose quota it is. `None` means that it does not matter."""

    user: EntityName | None
    client_id: EntityName | None

    def __str__(self) -> str:
        names = {"user": self.user, "client-id": self.client_id}
        words = [
            f"default {kind}" if name is DEFAULT else f"{kind} {name!r}"
            for kind, name in names.items()
            if name is not None
        ]
        return ", ".join(words)


def check_entity(entity: ClientQuotaEntity) -> ClientQuotaEntity:
    """Return `entity` if it can have a quota."""
    if entity == (None, None):
        raise InvalidRequest("a quota needs a user, a client id, or both")
    for name in entity:
        if isinstance(name, str) and not 1 <= len(name) <= NAME_SIZE_MAX:
            raise InvalidRequest(
                f"a name of {len(name)} characters cannot have a quota,"
                f" allowed is 1-{NAME_SIZE_MAX}"
            )
    return entity


def check_rate(kind: QuotaKind, rate: float) -> float:
    """Return `rate` if a quota may have it."""
    if not math.isfinite(rate) or rate <= 0:
        raise InvalidRequest(f"{kind.value} is {rate}, a number above 0 is needed")
    is_whole = kind in (QuotaKind.PRODUCE, QuotaKind.CONSUME)
    if is_whole and (rate != int(rate) or rate >= 2**63):
        raise InvalidRequest(f"{kind.value} is {rate}, a whole number of bytes is needed")
    return rate


def quota_kind_named(name: str) -> QuotaKind:
    """Return the kind of quota that Kafka calls `name`."""
    try:
        return QuotaKind(name)
    except ValueError:
        allowed = ", ".join(kind.value for kind in QuotaKind)
        raise InvalidRequest(f"quota {name[:100]!r} is not known, allowed is {allowed}") from None


def quota_candidates(user: str, client_id: str) -> Iterator[ClientQuotaEntity]:
    """Yield whose quota may hold for a client, the first to hold first."""
    for name in (user, DEFAULT):
        yield ClientQuotaEntity(name, client_id)
        yield ClientQuotaEntity(name, DEFAULT)
        yield ClientQuotaEntity(name, None)
    yield ClientQuotaEntity(None, client_id)
    yield ClientQuotaEntity(None, DEFAULT)


def resolve_quota(
    rates: Mapping[ClientQuotaEntity, float],
    user: str,
    client_id: str,
    default: float | None = None,
) -> tuple[ClientQuotaEntity, float] | None:
    """Return the quota that holds for a client: who shares it, and its rate.

    Where none is set that fits, it is `default`, which every client has for itself.
    """
    for entity in quota_candidates(user, client_id):
        rate = rates.get(entity)
        if rate is not None:
            return (
                ClientQuotaEntity(
                    None if entity.user is None else user,
                    None if entity.client_id is None else client_id,
                ),
                rate,
            )
    return None if default is None else (ClientQuotaEntity(user, client_id), default)


@dataclass(slots=True)
class TokenBucket:
    """How much may be used now. Less than nothing: it was used already, and is owed."""

    tokens: float
    filled_at: float

    def fill(self, rate: float, now: float) -> None:
        """Let flow in what time brought."""
        passed = max(0.0, now - self.filled_at)
        self.tokens = min(self.tokens + rate * passed, rate * BURST_SECONDS)
        self.filled_at = max(self.filled_at, now)

    def wait_ms(self, rate: float) -> int:
        """How long until nothing is owed."""
        if self.tokens >= 0:
            return 0
        # Without the rounding, what floats leave over would count as a whole millisecond.
        return min(math.ceil(round(-self.tokens / rate * 1000, 6)), THROTTLE_MS_MAX)


class TokenBuckets:
    """The buckets of one kind of quota.

    A bucket that is full again is like one that never was, so it is forgotten; `BUCKETS_MAX`
    bounds the rest.
    """

    def __init__(self, *, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets: OrderedDict[ClientQuotaEntity, tuple[TokenBucket, float]] = OrderedDict()
        self._buckets_max = buckets_max

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, who: ClientQuotaEntity, rate: float, amount: float, now: float) -> int:
        """Take `amount` out of a bucket; return how many milliseconds `who` has to wait."""
        bucket = self._filled(who, rate, now)
        bucket.tokens -= amount
        return bucket.wait_ms(rate)

    def wait_ms(self, who: ClientQuotaEntity, rate: float, now: float) -> int:
        """How many milliseconds `who` has to wait before the next use."""
        return self._filled(who, rate, now).wait_ms(rate)

    def _filled(self, who: ClientQuotaEntity, rate: float, now: float) -> TokenBucket:
        found = self._buckets.get(who)
        bucket = found[0] if found else TokenBucket(rate * BURST_SECONDS, now)
        bucket.fill(rate, now)
        self._buckets[who] = (bucket, rate)
        self._buckets.move_to_end(who)
        self._forget(now)
        return bucket

    def _forget(self, now: float) -> None:
        """Forget the buckets that were idle for longest, if they are full, or too many."""
        for _ in range(2):  # More than one is added in between: so it ends.
            who, (bucket, rate) = next(iter(self._buckets.items()))
            bucket.fill(rate, now)
            if bucket.tokens < rate * BURST_SECONDS and len(self._buckets) <= self._buckets_max:
                return
            if len(self._buckets) == 1:
                return
            del self._buckets[who]
