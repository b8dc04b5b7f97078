"""Messages about quotas: whose they are, and how much they allow.

    {"client_id": "etl", "rates": {"producer_byte_rate": 1048576}}
    {"client_id": {"default": true}, "rates": {"request_percentage": 50}}
    {"user": "alice", "client_id": {"default": true}, "rates": {"consumer_byte_rate": 4194304}}

A name that is left out does not matter; `{"default": true}` stands for all that have no quota of
their own. These are Kafka's own entities, and its names for what is limited.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

NAME_LENGTH_MAX = 255
"""Of a user or a client id."""

QuotaName = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]


class DefaultQuotaEntity(Struct, frozen=True, forbid_unknown_fields=True):
    """In place of a name: all that have no quota of their own."""

    default: bool
    """Always true: there is nothing else to say."""


QuotaEntityName = QuotaName | DefaultQuotaEntity

Rate = Annotated[float, Meta(gt=0)]


class RateChanges(Struct, kw_only=True, forbid_unknown_fields=True):
    """How much may be used: a number sets it, null removes it, what is left out stays."""

    producer_byte_rate: Rate | UnsetType | None = UNSET
    consumer_byte_rate: Rate | UnsetType | None = UNSET
    request_percentage: Rate | UnsetType | None = UNSET
    controller_mutation_rate: Rate | UnsetType | None = UNSET


class Rates(Struct, kw_only=True):
    """How much may be used: bytes a second, percent of a core, partitions a second."""

    producer_byte_rate: float | UnsetType = UNSET
    consumer_byte_rate: float | UnsetType = UNSET
    request_percentage: float | UnsetType = UNSET
    controller_mutation_rate: float | UnsetType = UNSET


class QuotaBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose quotas are to be changed, and how."""

    rates: RateChanges
    user: QuotaEntityName | UnsetType = UNSET
    client_id: QuotaEntityName | UnsetType = UNSET


class QuotaEntityShape(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whose quotas are meant."""

    user: QuotaEntityName | UnsetType = UNSET
    client_id: QuotaEntityName | UnsetType = UNSET


class QuotaAnswer(Struct, kw_only=True):
    """The quotas of a user, a client, or both."""

    user: QuotaEntityName | UnsetType = UNSET
    client_id: QuotaEntityName | UnsetType = UNSET
    rates: Rates


class QuotasAnswer(Struct, kw_only=True):
    """All quotas, and what every client may use that has none."""

    quotas: list[QuotaAnswer]
    defaults: Rates
    """As the node is set; a rate that is not there is not limited."""


class RemovalAnswer(Struct, kw_only=True):
    """Which quotas were there and are gone."""

    removed: list[str]
