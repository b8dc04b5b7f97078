"""Interface of the metadata store, on which the nodes agree.

A single node keeps it in SQLite, a cluster in etcd; both pass the suite in `tests/metadata`. The
interface is the part of etcd that we need: keys with revisions, a transaction that is applied only
if revisions are what the caller expects, and notification of changes. A cluster also needs leases:
keys that are deleted when the node that put them stops renewing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias, overload

from millstream.errors import InvalidRequest, StorageFailed
from millstream.metadata.counters import MetadataCounters

KEY_SIZE_MAX = 8 * 1024
"""Enough for a user and a client id in one key, escaped; far below the limit of etcd."""

VALUE_SIZE_MAX = 1024 * 1024
"""The default request limit of etcd, minus the overhead of a request."""

ABSENT = 0
"""The revision of a key that does not exist."""

_KEY = re.compile(r"[!-~]+")


class MetadataEntry(NamedTuple):
    """A key, its value, and the revisions of its last change and of its creation."""

    key: str
    value: bytes
    revision: int
    """Rises with each transaction: all entries put by one transaction have the same."""
    created: int
    """The revision at which the key was created: it stays while the key is put again, and is a
    new one after the key was deleted."""


class Compare(NamedTuple):
    """Condition of a transaction: `key` has `revision`, or with `ABSENT` does not exist."""

    key: str
    revision: int

    def holds(self, entry: MetadataEntry | None) -> bool:
        """Return whether it holds for the entry of the key."""
        return (entry.revision if entry else ABSENT) == self.revision


class CompareCreated(NamedTuple):
    """Condition of a transaction: `key` was created at `created`, or with `ABSENT` does not exist.

    Unlike `Compare` it still holds after the key was put again.
    """

    key: str
    created: int

    def holds(self, entry: MetadataEntry | None) -> bool:
        """Return whether it holds for the entry of the key."""
        return (entry.created if entry else ABSENT) == self.created


Condition: TypeAlias = Compare | CompareCreated


class MetadataList(Sequence[MetadataEntry]):
    """Entries sorted by key, all as they were at one revision of the store."""

    def __init__(self, entries: Sequence[MetadataEntry], revision: int) -> None:
        self._entries = entries
        self.revision = revision
        """Changes with a higher revision are not in the list, all others are."""

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> MetadataEntry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[MetadataEntry]: ...
    def __getitem__(self, index: int | slice) -> MetadataEntry | Sequence[MetadataEntry]:
        return self._entries[index]


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
    loop; calls take effect one at a time, each atomically. Cancelling a caller does not cancel the
    call. Errors say what happened to a change:

    - `Unavailable`: nothing was changed. The disk is full, or the store cannot be reached.
    - `OutcomeUnknown`: it may or may not have been made, or may still be made. The caller reads
      before it does anything else; the store repeats nothing. A change that compares revisions
      can be repeated after the read: of the two, one is applied.
    - `StorageFailed`: it may or may not have been made, and no more are accepted until the store
      is closed and opened again.
    """

    @property
    def failure(self) -> StorageFailed | None:
        """The error after which no changes are accepted until the store is opened again."""
        ...

    @property
    def revision(self) -> int:
        """The highest revision that this node has seen; 0 before the first change."""
        ...

    @property
    def counters(self) -> MetadataCounters:
        """Durations and outcomes of calls."""
        ...

    async def get(self, key: str) -> MetadataEntry | None:
        """Return the entry of `key`; `None` if there is none."""
        ...

    async def list(self, prefix: str) -> MetadataList:
        """Return a consistent list of all entries whose keys start with `prefix`, sorted by key."""
        ...

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none of them.

        Returns the revision of the change once it is durable. Returns `None`, and changes nothing,
        if one of `compares` does not hold. A key may be put or deleted, not both. Deleting a key
        that does not exist is not an error; a transaction that changes nothing returns the current
        revision or a new one.
        """
        ...

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        """Call back on the loop for each later change whose key starts with `prefix`.

        Later are all changes with a revision above `revision` at the time of this call. They arrive
        in the order of their revisions and completely, regardless of who made them, and never
        before they are durable. Of several changes of one key while the store could not be
        reached, only the last may arrive, after a deletion if the key was deleted in between. A
        callback must not raise.

        To follow a prefix, watch it first, then list it, and ignore the changes whose revision is
        not above that of the list.
        """
        ...

    async def close(self) -> None:
        """Close the store. Changes in flight are completed; later calls raise `StorageFailed`."""
        ...


class Lease(Protocol):
    """A promise to renew. If it is broken, the keys that were put with the lease are deleted."""

    @property
    def id(self) -> int:
        """Number of the lease, for logs."""
        ...

    @property
    def ttl_seconds(self) -> int:
        """Time from a renewal to the expiry; may be longer than what was asked for."""
        ...

    async def renew(self) -> None:
        """Extend the lease to `ttl_seconds` from now.

        Raises `LeaseExpired` if it is gone. After `Unavailable` it is as it was, and after
        `OutcomeUnknown` it may have been extended; either way the call may be repeated.
        """
        ...

    async def revoke(self) -> None:
        """End the lease now, and delete its keys. Succeeds if it is already gone."""
        ...


class LeasedMetadata(Metadata, Protocol):
    """Metadata with leases: what a cluster needs to notice that a node has failed.

    The keys of a lease that expires or is revoked are deleted in one transaction, which watches
    see as deletions. The store expires leases by its own clock, never early; a node must measure
    its own lease from before it sent a renewal.
    """

    async def grant(self, ttl_seconds: int) -> Lease:
        """Return a new lease."""
        ...

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
        lease: Lease | None = None,
        unbound: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none of them, and bind the keys put to `lease`.

        The keys in `unbound` are put without it. A put without a lease unbinds its key. Raises
        `LeaseExpired`, and changes nothing, if the lease is gone.
        """
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
