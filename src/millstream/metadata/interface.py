"""What the nodes agree on, behind one small interface.

A lone node keeps it in SQLite, a cluster in etcd; both pass the suite in `tests/metadata`. The
interface is the part of etcd that we need: keys with revisions, a transaction that happens only
if revisions are what the caller believes, and a way to hear of changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from millstream.errors import InvalidRequest, StorageFailed

KEY_SIZE_MAX = 8 * 1024
"""Room for a user and a client id in one key, escaped; far below what etcd takes."""

VALUE_SIZE_MAX = 1024 * 1024
"""As much as etcd takes in one request by default, less what surrounds it."""

ABSENT = 0
"""The revision of a key that is not there."""

_KEY = re.compile(r"[!-~]+")


class MetadataEntry(NamedTuple):
    """A key, what is kept under it, and when that was put there."""

    key: str
    value: bytes
    revision: int
    """Counts transactions, from 1 on: all that one of them put have the same."""


class Compare(NamedTuple):
    """A transaction happens only if `key` has `revision`; `ABSENT`: only if it is not there."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A key was put, or deleted."""

    key: str
    value: bytes | None
    """What it has now; `None` where it was deleted."""
    revision: int


class Watch(Protocol):
    """Someone who hears of changes."""

    def cancel(self) -> None:
        """Hear of no more. Repeating it does nothing."""
        ...


class Metadata(Protocol):
    """Keys and values that survive, and on which all nodes agree.

    Keys are printable ASCII without spaces. Every method may be called at any time from the event
    loop; calls take effect one after the other, each as a whole. Where the disk is full or the
    store cannot be reached, a call raises `Unavailable`, and nothing was changed; where it raises
    `StorageFailed`, a change may or may not have been made, and no more are taken until it was
    closed and opened again. Someone who stops waiting for a call does not stop the call.
    """

    @property
    def failure(self) -> StorageFailed | None:
        """Why no changes are taken until it is opened again, if they are not."""
        ...

    async def get(self, key: str) -> MetadataEntry | None:
        """Return what is kept under `key`; `None` where there is nothing."""
        ...

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return all entries whose keys begin with `prefix`, sorted by key, of one moment."""
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
        where one of `compares` does not hold. A key may be put or deleted, not both. Deleting what
        is not there is no error, and takes a revision like everything else.
        """
        ...

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        """Call back on the loop for each change from now on whose key begins with `prefix`.

        Changes come in the order of their revisions and none is left out, whoever made them; none
        comes before it is durable. A callback must not raise.
        """
        ...

    async def close(self) -> None:
        """Let go. Changes that were begun are made; whoever calls later gets `StorageFailed`."""
        ...


def check_key(key: str) -> str:
    """Return `key` if something may be kept under it."""
    if not 1 <= len(key) <= KEY_SIZE_MAX:
        raise InvalidRequest(f"key has {len(key)} characters, allowed is 1-{KEY_SIZE_MAX}")
    if not _KEY.fullmatch(key):
        raise InvalidRequest(f"key {key!r}: allowed is printable ASCII without spaces")
    return key


def check_transaction(puts: Mapping[str, bytes], deletes: Collection[str]) -> None:
    """Raise `InvalidRequest` unless these changes can be made together."""
    for key in (*puts, *deletes):
        check_key(key)
    for key, value in puts.items():
        if len(value) > VALUE_SIZE_MAX:
            raise InvalidRequest(f"{key}: value has {len(value)} bytes, limit is {VALUE_SIZE_MAX}")
    if both := puts.keys() & set(deletes):
        raise InvalidRequest(f"{min(both)} cannot be put and deleted at once")
