"""Principals: who sends requests. Pure.

A principal is a type and a name, written `User:alice` as in Kafka. Clients are users, however they
have logged in. The nodes of the cluster are principals of the type `Node`; no client can be one.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.errors import InvalidRequest

USER = "User"
NODE = "Node"

NAME_SIZE_MAX = 255
"""Characters of a name, as of a user with a quota."""


class Principal(NamedTuple):
    """Someone who can be given rights."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""A client that has not logged in, at every server. Kafka's name for it."""

EVERY_USER = Principal(USER, "*")
"""In an ACL: all users."""


def user(name: str) -> Principal:
    """Return the principal of a user."""
    return Principal(USER, check_name(name))


def parse_principal(text: str) -> Principal:
    """Parse `User:<name>`."""
    kind, colon, name = text.partition(":")
    if not colon or kind != USER:
        raise InvalidRequest(f"principal must be {USER}:<name>, got {text[:300]!r}")
    return Principal(USER, check_name(name))


def check_name(name: str) -> str:
    """Return the name of a user if it is valid."""
    if not 1 <= len(name) <= NAME_SIZE_MAX or not name.isprintable():
        raise InvalidRequest(
            f"name of a user must have 1 to {NAME_SIZE_MAX} printable characters,"
            f" got {name[:300]!r}"
        )
    return name
