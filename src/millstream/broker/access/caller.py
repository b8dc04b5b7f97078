"""Callers: a principal at the other end of a connection, and how it has logged in."""

from __future__ import annotations

from millstream.broker.access.principal import ANONYMOUS, Principal
from millstream.broker.access.resources import Operation, Resource
from millstream.broker.access.tokens import Token

DECISIONS_MAX = 4096
"""Decisions that are remembered for one caller; above that, they are made again."""


class Caller:
    """Who sends the requests of a connection. Remembers what the gate has decided for it.

    Decisions are valid for one version of the rules. Equality is identity: two connections of a
    principal are two callers.
    """

    __slots__ = (
        "credential",
        "decisions",
        "expires_ms",
        "host",
        "principal",
        "refused",
        "token",
        "version",
        "writable",
    )

    def __init__(
        self,
        principal: Principal = ANONYMOUS,
        host: str = "",
        *,
        token: Token | None = None,
        credential: object = None,
        expires_ms: int | None = None,
    ) -> None:
        self.principal = principal
        self.host = host
        self.token = token
        """The token by which it has logged in, which may narrow its rights."""
        self.credential = credential
        """What it has proved to know; `None` if nothing of it is stored by the node. As soon as
        another one is stored in its place, or none, the caller is no longer logged in."""
        self.expires_ms = expires_ms
        """When the login ends, in Unix time; `None` for never."""
        self.decisions: dict[tuple[Operation, Resource], bool] = {}
        self.writable: set[str] = set()
        """Topics that it may write to: what most requests ask for, with the least work."""
        self.refused: set[tuple[Operation, Resource]] = set()
        """What it was refused and that is logged: repetitions are only counted."""
        self.version = -1
        """The version of the rules for which the decisions were made."""

    def forget(self, version: int) -> None:
        """Forget the decisions: the rules have another version."""
        self.decisions.clear()
        self.writable.clear()
        self.refused.clear()
        self.version = version

    def __repr__(self) -> str:
        return f"<Caller {self.principal} at {self.host}>"


NOBODY = Caller()
"""The caller on a node without logins. It remembers nothing: no gate is asked."""
