"""Checks the clients on whose behalf other nodes send messages."""

from __future__ import annotations

from millstream.broker.access.access import Access
from millstream.broker.access.caller import Caller
from millstream.broker.access.principal import parse_principal
from millstream.broker.access.resources import Resource, ResourceType
from millstream.servers.peer.access_table import PEER_NEEDS

CALLERS_MAX = 10_000
"""Clients that are remembered between messages."""


class PeerGate:
    """Asks the gate of this node about the clients of other nodes."""

    def __init__(self, access: Access | None) -> None:
        """`access` is None on a node without logins, which checks nothing."""
        self._access = access
        self._callers: dict[tuple[str, str, str], Caller] = {}
        self._version = -1

    def require_topic(
        self, api_key: int, topic: str, *, principal: str, token_id: str, client_address: str
    ) -> None:
        """Raise unless the client that a message names may do what the message does to a topic.

        Messages that name no client are those of the node itself.
        """
        operation = PEER_NEEDS[api_key].topic
        assert operation is not None, f"peer API {api_key} has a row for topics"
        access = self._access
        if access is None or not principal:
            return
        caller = self._caller(access, principal, token_id, client_address)
        access.require(caller, operation, Resource(ResourceType.TOPIC, topic))

    def _caller(self, access: Access, principal: str, token_id: str, address: str) -> Caller:
        """Return the caller that a message names, with what was decided for it before."""
        if self._version != access.version or len(self._callers) >= CALLERS_MAX:
            self._callers.clear()
            self._version = access.version
        key = (principal, token_id, address)
        caller = self._callers.get(key)
        if caller is None or not access.is_current(caller):
            if token_id:
                caller = access.caller_by_token_id(token_id, address)
            else:
                caller = Caller(parse_principal(principal), address)
            self._callers[key] = caller
        return caller
