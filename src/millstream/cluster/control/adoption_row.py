"""Keys in the metadata store that tell of the adoption of a lone node's directory.

    adopting    while its metadata is being copied: no node can register
    adopted     from then on, for good

Both name the directory and the node. Who copies compares the first with every transaction, and the
last transaction replaces it by the second: so the cluster has either nothing that counts, or all of
it.
"""

from __future__ import annotations

import msgspec

from millstream.errors import CorruptData, UnknownFormat

ADOPTING_KEY = "adopting"
ADOPTED_KEY = "adopted"
ROW_VERSION = 1


class AdoptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of an adoption."""

    version: int = ROW_VERSION
    directory: str
    """Id of the data directory."""
    node_id: int
    """Id that the node has in the cluster."""
    started_ms: int
    """When it was begun, by the wall clock; for people."""


def encode_adoption(row: AdoptionRow) -> bytes:
    return msgspec.json.encode(row)


def decode_adoption(key: str, value: bytes) -> AdoptionRow:
    """Read a stored value; raise `UnknownFormat` or `CorruptData`."""
    try:
        row = msgspec.json.decode(value, type=AdoptionRow)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"{key} is not a valid adoption: {error}") from error
    if row.version != ROW_VERSION:
        raise UnknownFormat(f"{key} has version {row.version}, expected {ROW_VERSION}")
    return row


def describe_adoption(row: AdoptionRow) -> str:
    """Say why nodes cannot register now."""
    return (
        f"the directory of node {row.node_id} is being adopted as the first of the cluster; if"
        " nothing does that any more, run `millstream cluster adopt` there again"
    )
