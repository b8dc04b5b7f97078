"""Messages about quotas: the entities and their rates.

    {"client_id": "etl", "rates": {"producer_byte_rate": 1048576}}
    {"client_id": {"default": true}, "rates": {"request_percentage": 50}}
    {"user": "alice", "client_id": {"default": true}, "rates": {"consumer_byte_rate": 4194304}}

A name that is left out matches everything; `{"default": true}` matches all that have no quota of
their own. Entities and names of rates are those of Kafka.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

NAME_LENGTH_MAX = 255
"""Characters of a user or a client id."""

QuotaName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class DefaultQuotaEntity(Struct, frozen=True, forbid_unknown_fields=True):
    """In place of a name: all that have no quota of their own."""

    default: Annotated[bool, Meta(extra_json_schema={"const": True})]
    """Always true."""


QuotaEntityName = QuotaName | DefaultQuotaEntity

Rate = Annotated[float, Meta(gt=0)]


class RateChanges(Struct, kw_only=True, forbid_unknown_fields=True):
    """Changes of rates: a number sets a rate, null removes it, a missing field keeps it."""

    producer_byte_rate: Rate | UnsetType | None = UNSET
    consumer_byte_rate: Rate | UnsetType | None = UNSET
    request_percentage: Rate | UnsetType | None = UNSET
    controller_mutation_rate: Rate | UnsetType | None = UNSET


class Rates(Struct, kw_only=True):
    """Rates: bytes per second, percent of a core, partitions per second."""

    producer_byte_rate: float | UnsetType = UNSET
    consumer_byte_rate: float | UnsetType = UNSET
    request_percentage: float | UnsetType = UNSET
    controller_mutation_rate: float | UnsetType = UNSET


class QuotaBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The entity whose quotas are changed, and the changes."""

    rates: RateChanges
    user: QuotaEntityName | UnsetType = UNSET
    client_id: QuotaEntityName | UnsetType = UNSET


class QuotaEntityShape(Struct, kw_only=True, forbid_unknown_fields=True):
    """The entity of a quota."""

    user: QuotaEntityName | UnsetType = UNSET
    client_id: QuotaEntityName | UnsetType = UNSET


class QuotaAnswer(Struct, kw_only=True):
    """The quotas of a user, a client, or both."""

    user: QuotaEntityName | UnsetType = UNSET
    client_id: QuotaEntityName | UnsetType = UNSET
    rates: Rates


class QuotasAnswer(Struct, kw_only=True):
    """All quotas, and the rates of clients that have none."""

    quotas: list[QuotaAnswer]
    defaults: Rates
    """From the node's configuration; a missing rate is not limited."""


class RemovalAnswer(Struct, kw_only=True):
    """The quotas that were removed."""

    removed: list[str]
