"""Credentials with which users log in by password. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple


class ScramMechanism(enum.Enum):
    """Mechanisms that prove a password without sending it."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"


CLEAR_TEXT = "PLAIN"
"""The mechanism that compares a password in clear text with a SCRAM credential."""


class ScramShape(NamedTuple):
    """What clients can tell about a credential: from the exchange, or from the time it takes."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a node keeps to check a password, as in RFC 5802."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
