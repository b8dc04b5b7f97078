"""Lives of a node: whether its directory is the one that it had in earlier lives.

A node may come back with an empty directory, or with an older copy of it (a restored backup, a
snapshot of a virtual machine). Then it lacks records that it once reported as synced, and must not
be taken for the replica that it was. Neither its id nor an id in the directory can tell; only what
changes with every start can.

So each attempt to register draws a token. The node reads the record of its last life,
`lives/<id>`, which has the token of that life. It adds the new token to those in its directory,
durably, and only then registers, in one transaction that also replaces the record. A directory that
does not have the token of the last registered life is not the one of that life. Tokens before that
one are dropped; those after it are kept, because the outcome of their attempts may be unknown.

An older copy that was made during the very same life cannot be told from the directory itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from millstream.errors import CorruptData, UnknownFormat

VERSION = 1

TOKENS_MAX = 256
"""Attempts to register with an unknown outcome, one after the other, before a node would have to
catch up as if its directory was empty."""

THIS_REVISION = 0
"""Stands for the revision at which a record is stored, which is not known before."""


class LifeRecord(NamedTuple):
    """The record of a node's last life, in the metadata store under `lives/<id>`."""

    token: str
    since: int
    """Broker epoch of the first life with this directory, or `THIS_REVISION`."""

    def continuous_since(self, broker_epoch: int) -> int:
        """Return the broker epoch of the first life with the same directory.

        `broker_epoch` is that of the life of the record, the revision at which it was stored.
        """
        return broker_epoch if self.since == THIS_REVISION else self.since


class NewLife(NamedTuple):
    """What a node that starts has to store: first in its directory, then in the metadata store."""

    tokens: tuple[str, ...]
    record: LifeRecord


def begin_life(
    last: LifeRecord | None, last_broker_epoch: int, tokens: Sequence[str], token: str
) -> NewLife:
    """Return the next life of a node.

    `last` is the record of its last life, stored at revision `last_broker_epoch`, or None; `tokens`
    are those in its directory, oldest first; `token` is a fresh one. If something is missing in the
    directory, pass no tokens: the node begins as if it was empty.
    """
    known = list(tokens)
    if last is not None and last.token in known:
        known = known[known.index(last.token) :]
        record = LifeRecord(token, last.continuous_since(last_broker_epoch))
    else:
        record = LifeRecord(token, THIS_REVISION)
    return NewLife((*known, token)[-TOKENS_MAX:], record)


def encode_life(record: LifeRecord) -> bytes:
    """Return the value to store."""
    return msgspec.json.encode({"version": VERSION, "token": record.token, "since": record.since})


class _StoredLife(msgspec.Struct):
    version: int
    token: str
    since: int


def decode_life(value: bytes) -> LifeRecord:
    """Read a stored value; raise `UnknownFormat` or `CorruptData`."""
    try:
        stored = msgspec.json.decode(value, type=_StoredLife)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"record of a life: {error}") from error
    if stored.version != VERSION:
        raise UnknownFormat(f"record of a life has version {stored.version}, expected {VERSION}")
    return LifeRecord(stored.token, stored.since)
