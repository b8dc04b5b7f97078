"""Quota rules: which quota applies to a client, and the token buckets that measure it. Pure.

A quota is for a user, a client id, or both, each by name or as the default for all that have no
quota of their own. Of all quotas that match a client, the first in this order applies:

    user + client      user + any client      user
    any user + client  any user + any client  any user
    client             any client         the default of the node

As in Kafka, a quota without a client id is shared by all clients of the user, and one without a
user by all users of that client id.

A bucket fills at the rate of its quota and holds as much as flows in `BURST_SECONDS`. What a client
used is taken out afterwards, even if the bucket is then in debt; until the debt is paid off, the
client has to wait. So over any time, usage before the last request is at most the rate times that
time plus one full bucket.
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
"""Kafka's default: it averages over eleven samples of a second, of which the last is incomplete."""

THROTTLE_MS_MAX = 2**31 - 1
"""The largest value that fits in a response."""

BUCKETS_MAX = 100_000
"""Buckets that are kept; above that, the one that was idle longest is removed, full or not."""

NAME_SIZE_MAX = 255
"""Characters of a user or a client id with a quota."""


class QuotaKind(enum.Enum):
    """What is measured. The values are Kafka's names."""

    PRODUCE = "producer_byte_rate"
    """Bytes per second that a client produces."""

    CONSUME = "consumer_byte_rate"
    """Bytes per second that a client fetches."""

    REQUEST = "request_percentage"
    """Share of a core, in percent, that the requests of a client may use; charged in seconds."""

    MUTATION = "controller_mutation_rate"
    """Partitions per second that a client creates or deletes."""


class _Default(enum.Enum):
    DEFAULT = "default"

    def __repr__(self) -> str:
        return "DEFAULT"


DEFAULT = _Default.DEFAULT
"""In place of a name: all that have no quota of their own."""

EntityName = str | _Default


class ClientQuotaEntity(NamedTuple):
    """The user and client id of a quota. None means any."""

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
        raise InvalidRequest("a quota requires a user, a client id, or both")
    for name in entity:
        if isinstance(name, str) and not 1 <= len(name) <= NAME_SIZE_MAX:
            raise InvalidRequest(
                f"name of a quota must have between 1 and {NAME_SIZE_MAX} characters,"
                f" got {len(name)}"
            )
    return entity


def check_rate(kind: QuotaKind, rate: float) -> float:
    """Return `rate` if a quota may have it."""
    if not math.isfinite(rate) or rate <= 0:
        raise InvalidRequest(f"{kind.value} must be a finite number above 0, got {rate}")
    is_whole = kind in (QuotaKind.PRODUCE, QuotaKind.CONSUME)
    if is_whole and (rate != int(rate) or rate >= 2**63):
        raise InvalidRequest(f"{kind.value} must be a whole number of bytes, got {rate}")
    return rate


def quota_kind_named(name: str) -> QuotaKind:
    """Return the kind of quota with Kafka's name `name`."""
    try:
        return QuotaKind(name)
    except ValueError:
        allowed = ", ".join(kind.value for kind in QuotaKind)
        raise InvalidRequest(f"quota must be one of {allowed}, got {name[:100]!r}") from None


def quota_candidates(user: str, client_id: str) -> Iterator[ClientQuotaEntity]:
    """Yield the entities whose quota may apply to a client, in order of precedence."""
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
    """Return the quota that applies to a client: the entity that shares it, and its rate.

    If no quota matches, it is `default`, which every client has for itself.
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
    """The amount that may be used now. A negative number is a debt."""

    tokens: float
    filled_at: float

    def fill(self, rate: float, now: float) -> None:
        """Add what has flowed in since the last call."""
        passed = max(0.0, now - self.filled_at)
        self.tokens = min(self.tokens + rate * passed, rate * BURST_SECONDS)
        self.filled_at = max(self.filled_at, now)

    def wait_ms(self, rate: float) -> int:
        """Return the time until the debt is paid off."""
        if self.tokens >= 0:
            return 0
        # Without the rounding, a float error would count as a whole millisecond.
        return min(math.ceil(round(-self.tokens / rate * 1000, 6)), THROTTLE_MS_MAX)


class TokenBuckets:
    """The buckets of one kind of quota.

    A bucket that is full again equals one that never existed, so it is forgotten; `BUCKETS_MAX`
    limits the others.
    """

    def __init__(self, *, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets: OrderedDict[ClientQuotaEntity, tuple[TokenBucket, float]] = OrderedDict()
        self._buckets_max = buckets_max

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, entity: ClientQuotaEntity, rate: float, amount: float, now: float) -> int:
        """Take `amount` out of a bucket; return how many milliseconds its entity has to wait."""
        bucket = self._filled(entity, rate, now)
        bucket.tokens -= amount
        return bucket.wait_ms(rate)

    def wait_ms(self, entity: ClientQuotaEntity, rate: float, now: float) -> int:
        """Return how many milliseconds an entity has to wait before the next use."""
        return self._filled(entity, rate, now).wait_ms(rate)

    def _filled(self, entity: ClientQuotaEntity, rate: float, now: float) -> TokenBucket:
        known = self._buckets.get(entity)
        bucket = known[0] if known else TokenBucket(rate * BURST_SECONDS, now)
        bucket.fill(rate, now)
        self._buckets[entity] = (bucket, rate)
        self._buckets.move_to_end(entity)
        self._forget(now)
        return bucket

    def _forget(self, now: float) -> None:
        """Forget the buckets that were idle longest, if they are full or too many."""
        for _ in range(
            2
        ):  # At most one was added since the last call, so two keep the number bounded.
            entity, (bucket, rate) = next(iter(self._buckets.items()))
            bucket.fill(rate, now)
            if bucket.tokens < rate * BURST_SECONDS and len(self._buckets) <= self._buckets_max:
                return
            if len(self._buckets) == 1:
                return
            del self._buckets[entity]
