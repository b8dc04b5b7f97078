"""Interface of the metadata store, on which the nodes agree.

A single node keeps it in SQLite, a cluster in etcd; both pass the suite in `tests/metadata`. The
interface is the part of etcd that we need: keys with revisions, a transaction that is applied only
if revisions are what the caller expects, and notification of changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millstream.errors import InvalidRequest, StorageFailed

KEY_SIZE_MAX = 8 * 1024
"""Enough for a user and a client id in one key, escaped; far below the limit of etcd."""

VALUE_SIZE_MAX = 1024 * 1024
"""The default request limit of etcd, minus the overhead of a request."""

ABSENT = 0
"""The revision of a key that does not exist."""

_KEY = re.compile(r"[!-~]+")


class MetadataEntry(NamedTuple):
    """A key, its value, and the revision of its last change."""

    key: str
    value: bytes
    revision: int
    """Counts transactions, from 1 on: all entries put by one transaction have the same."""


class Compare(NamedTuple):
    """Condition of a transaction: `key` has `revision`, or with `ABSENT` does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A key was put, or deleted."""

    key: str
    value: bytes | None
    """The new value; `None` if it was deleted."""
    revision: int


class Watch(Protocol):
    """A subscription to changes."""

    def cancel(self) -> None:
        """End the subscription. Further calls have no effect."""
        ...


class Metadata(Protocol):
    """Durable keys and values on which all nodes agree.

    Keys are printable ASCII without spaces. Every method may be called at any time from the event
    loop; calls take effect one at a time, each atomically. If the disk is full or the store cannot
    be reached, a call raises `Unavailable`, and nothing was changed; if it raises `StorageFailed`,
    a change may or may not have been made, and no more are accepted until the store is closed and
    opened again. Cancelling a caller does not cancel the call.
    """

    @property
    def failure(self) -> StorageFailed | None:
        """The error after which no changes are accepted until the store is opened again."""
        ...

    async def get(self, key: str) -> MetadataEntry | None:
        """Return the entry of `key`; `None` if there is none."""
        ...

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return a consistent list of all entries whose keys start with `prefix`, sorted by key."""
        ...

    async def transact(
        self,
        *,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none of them.

        Returns the revision of the change once it is durable. Returns `None`, and changes nothing,
        if one of `compares` does not hold. A key may be put or deleted, not both. Deleting a key
        that does not exist is not an error, and takes a revision like any other change.
        """
        ...

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        """Call back on the loop for each later change whose key starts with `prefix`.

        Changes arrive in the order of their revisions and completely, regardless of who made them,
        and never before they are durable. A callback must not raise.
        """
        ...

    async def close(self) -> None:
        """Close the store. Changes in flight are completed; later calls raise `StorageFailed`."""
        ...


def check_key(key: str) -> str:
    """Return `key` if it is valid."""
    if not 1 <= len(key) <= KEY_SIZE_MAX:
        raise InvalidRequest(f"key must have 1 to {KEY_SIZE_MAX} characters, got {len(key)}")
    if not _KEY.fullmatch(key):
        raise InvalidRequest(f"key must be printable ASCII without spaces, got {key!r}")
    return key


def check_transaction(puts: Mapping[str, bytes], deletes: Collection[str]) -> None:
    """Raise `InvalidRequest` unless these changes can be made together."""
    for key in (*puts, *deletes):
        check_key(key)
    for key, value in puts.items():
        if len(value) > VALUE_SIZE_MAX:
            raise InvalidRequest(
                f"value of {key} must have at most {VALUE_SIZE_MAX} bytes, got {len(value)}"
            )
    if both := puts.keys() & set(deletes):
        raise InvalidRequest(f"{min(both)} cannot be put and deleted in one transaction")
