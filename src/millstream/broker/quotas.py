"""The quotas of a node: stored in metadata, charged in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

import msgspec

from millstream.broker.keyed_locks import KeyedLocks
from millstream.broker.quota_rules import (
    DEFAULT,
    ClientQuotaEntity,
    EntityName,
    QuotaKind,
    TokenBuckets,
    check_entity,
    check_rate,
    quota_kind_named,
    resolve_quota,
)
from millstream.config.schema import BrokerConfig
from millstream.errors import CorruptFile, InvalidRequest, Unavailable, UnknownFormat
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    Metadata,
    MetadataChange,
    Watch,
)

__all__ = ["DEFAULT", "ClientQuotaEntity", "QuotaKind", "Quotas"]

QUOTAS_PREFIX = "quotas/"
ROW_VERSION = 1

REQUEST_PERCENT: Final = 100
"""One second of work per second is a hundred percent."""


QUOTAS_MAX = 10_000
"""Users and clients that may have quotas of their own: a list of them has to fit in one
response."""

NO_DEFAULTS: Mapping[QuotaKind, float] = MappingProxyType({})


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored quotas of one entity. A null name means the default."""

    version: int
    entity: Mapping[str, str | None]
    rates: Mapping[str, float]


class Quotas:
    """Quotas of clients, and how long clients that exceed them have to wait."""

    def __init__(
        self,
        metadata: Metadata,
        *,
        defaults: Mapping[QuotaKind, float] = NO_DEFAULTS,
        buckets: Callable[[], TokenBuckets] = TokenBuckets,
    ) -> None:
        self.defaults = defaults
        """Quotas of clients that have none of their own, from the configs of the node."""
        self._metadata = metadata
        self._rates: dict[QuotaKind, dict[ClientQuotaEntity, float]] = {
            kind: {} for kind in QuotaKind
        }
        self._revisions: dict[ClientQuotaEntity, int] = {}
        self._entities: dict[str, ClientQuotaEntity] = {}
        """Entities with quotas, by their keys."""
        self._locks = KeyedLocks()
        self._buckets = {kind: buckets() for kind in QuotaKind}
        self.is_empty = not defaults
        """Whether nobody has a quota: then there is nothing to charge."""

    async def open(self) -> None:
        """Load the stored quotas."""
        for entry in await self._metadata.list(QUOTAS_PREFIX):
            entity, rates = decode_row(entry.key, entry.value)
            self._apply(entity, rates, entry.revision)

    def follow(self) -> Watch:
        """Apply what other nodes of a cluster change, from now on. Call it before `open`."""
        return self._metadata.watch(QUOTAS_PREFIX, self._on_change)

    def _on_change(self, change: MetadataChange) -> None:
        if change.value is not None:
            entity, rates = decode_row(change.key, change.value)
        elif (known := self._entities.get(change.key)) is not None:
            entity, rates = known, {}
        else:
            return
        if change.revision > self._revisions.get(entity, ABSENT):
            self._apply(entity, rates, change.revision)

    def set_defaults(self, defaults: Mapping[QuotaKind, float]) -> None:
        """Replace the quotas of clients that have none of their own."""
        self.defaults = defaults
        self.is_empty = not self._revisions and not defaults

    # Charging.

    def charge(self, kind: QuotaKind, user: str, client_id: str, amount: float, now: float) -> int:
        """Charge a client for its usage; return how many milliseconds it has to wait.

        `amount` is in bytes, for requests in seconds of work, for mutations in partitions; `now` is
        of the monotonic clock. As in Kafka, the request is answered at once, with this number in
        the response, and then nothing is read from the client for that long.
        """
        quota = self._resolve(kind, user, client_id)
        if quota is None:
            return 0
        if kind is QuotaKind.REQUEST:
            amount *= REQUEST_PERCENT
        return self._buckets[kind].take(*quota, amount, now)

    def wait_ms(self, kind: QuotaKind, user: str, client_id: str, now: float) -> int:
        """Return how many milliseconds a client has to wait, without charging it."""
        quota = self._resolve(kind, user, client_id)
        return self._buckets[kind].wait_ms(*quota, now) if quota else 0

    def _resolve(
        self, kind: QuotaKind, user: str, client_id: str
    ) -> tuple[ClientQuotaEntity, float] | None:
        return resolve_quota(self._rates[kind], user, client_id, self.defaults.get(kind))

    # Reading and altering.

    def all(self) -> Mapping[ClientQuotaEntity, Mapping[str, float]]:
        """Return all quotas by entity, under Kafka's names."""
        return {entity: self.rates_of(entity) for entity in sorted(self._revisions, key=entity_key)}

    def rates_of(self, entity: ClientQuotaEntity) -> Mapping[str, float]:
        """Return the quotas of one entity, under Kafka's names; empty if it has none."""
        return {kind.value: rates[entity] for kind, rates in self._rates.items() if entity in rates}

    async def alter(
        self,
        entity: ClientQuotaEntity,
        changes: Mapping[str, float | None],
        *,
        is_validate_only: bool = False,
    ) -> None:
        """Set quotas of an entity, or remove those that are None; all of them or none."""
        check_entity(entity)
        for name, rate in changes.items():
            kind = quota_kind_named(name)
            if rate is not None:
                check_rate(kind, rate)
        if not is_validate_only:
            await self._locks.run(entity_key(entity), self._alter(entity, changes))

    async def _alter(self, entity: ClientQuotaEntity, changes: Mapping[str, float | None]) -> None:
        known = self.rates_of(entity)
        rates = {name: rate for name, rate in {**known, **changes}.items() if rate is not None}
        if rates == known:
            return
        if not known and len(self._revisions) >= QUOTAS_MAX:
            raise InvalidRequest(
                f"the node has {len(self._revisions)} quotas, limit is {QUOTAS_MAX}"
            )
        key = entity_key(entity)
        compare = Compare(key, self._revisions.get(entity, ABSENT))
        revision = await self._metadata.transact(
            compares=[compare],
            puts={key: encode_row(entity, rates)} if rates else {},
            deletes=() if rates else (key,),
        )
        if revision is None:
            raise Unavailable(f"quotas of {entity} were changed concurrently")
        self._apply(entity, rates, revision)

    def _apply(self, entity: ClientQuotaEntity, rates: Mapping[str, float], revision: int) -> None:
        for kind in QuotaKind:
            if kind.value in rates:
                self._rates[kind][entity] = rates[kind.value]
            else:
                self._rates[kind].pop(entity, None)
        if rates:
            self._revisions[entity] = revision
            self._entities[entity_key(entity)] = entity
        else:
            self._revisions.pop(entity, None)
            self._entities.pop(entity_key(entity), None)
        self.is_empty = not self._revisions and not self.defaults


def defaults_of(config: BrokerConfig) -> Mapping[QuotaKind, float]:
    """Return the node's quotas for clients that have none of their own."""
    rates = {
        QuotaKind.PRODUCE: config.limit_producer_bytes_per_second,
        QuotaKind.CONSUME: config.limit_consumer_bytes_per_second,
        QuotaKind.REQUEST: config.limit_request_percent,
        QuotaKind.MUTATION: config.limit_mutations_per_second,
    }
    return {kind: float(rate) for kind, rate in rates.items() if rate is not None}


def entity_key(entity: ClientQuotaEntity) -> str:
    """Return the metadata key of an entity's quotas."""
    parts = [
        f"{kind}:default" if name is DEFAULT else f"{kind}={quote(str(name), safe='')}"
        for kind, name in (("user", entity.user), ("client-id", entity.client_id))
        if name is not None
    ]
    return QUOTAS_PREFIX + "/".join(parts)


def encode_row(entity: ClientQuotaEntity, rates: Mapping[str, float]) -> bytes:
    names = {"user": entity.user, "client-id": entity.client_id}
    row = QuotaRow(
        version=ROW_VERSION,
        entity={
            kind: None if name is DEFAULT else str(name)
            for kind, name in names.items()
            if name is not None
        },
        rates=rates,
    )
    return msgspec.json.encode(row)


def decode_row(key: str, value: bytes) -> tuple[ClientQuotaEntity, Mapping[str, float]]:
    """Return the entity of a row, and its quotas."""
    try:
        row = msgspec.json.decode(value, type=QuotaRow)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"{key} is not a valid quota: {error}") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{key} has version {row.version}, expected {ROW_VERSION}")
    return ClientQuotaEntity(_name(row.entity, "user"), _name(row.entity, "client-id")), row.rates


def _name(entity: Mapping[str, str | None], kind: str) -> EntityName | None:
    if kind not in entity:
        return None
    name = entity[kind]
    return DEFAULT if name is None else name
