"""A schema as a schema registry has it, and where the registry is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

CREDENTIALS_VARIABLE = "MILLSTREAM_SCHEMA_REGISTRY_CREDENTIALS"
"""Variable with the credentials themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistryConfig:
    """Where a schema registry is, and how it is asked. It has no secrets."""

    url: str
    credentials_file: str | None = None
    """File with `user:password` or `Bearer <token>` in its first line."""
    ca_file: str | None = None
    """File with the authorities that sign the registry's certificate, if not the system's."""
    allowed_networks: tuple[str, ...] = ()
    """Networks of addresses that are not public and may be connected to."""


class RegisteredSchema(NamedTuple):
    """A schema, which never changes."""

    kind: str
    """`AVRO`, `PROTOBUF` or `JSON`."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Name and text of the schemas that it uses, each after those that it uses itself."""
