"""Credentials with which users log in by password. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class ScramMechanism(enum.Enum):
    """Mechanisms that prove a password without sending it."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a node keeps to check a password, as in RFC 5802."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
