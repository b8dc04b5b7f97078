r"""Encoding of a publisher's last publication, in the same state log as transactional ids.

The key is a byte that does not occur in UTF-8, a word, and the publisher, so that it cannot be the
key of a transactional id. The value is one JSON object:

    \xff  publication: <publisher>    {"version": 1, "sequence": 41, "update_ms": 1700000000000}

A value of a newer version is rejected.
"""

from __future__ import annotations

import msgspec

from millstream.broker.transactions.publication import Publication
from millstream.errors import CorruptData, UnknownFormat

VERSION = 1

_MARK = b"\xffpublication:"


class _Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    sequence: int
    update_ms: int


class _Version(msgspec.Struct):
    version: int


def is_publication_key(key: bytes) -> bool:
    """Return whether a key is that of a publisher, not of a transactional id."""
    return key.startswith(_MARK)


def encode_publication_key(publisher: str) -> bytes:
    """Return the key of the last publication of a publisher."""
    return _MARK + publisher.encode()


def publisher_of(key: bytes) -> str:
    """Return the publisher whose key this is."""
    try:
        return key.removeprefix(_MARK).decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"publication {key!r}: {error}") from error


def encode_publication(publication: Publication) -> bytes:
    """Return the stored form of a publication."""
    stored = _Stored(
        version=VERSION, sequence=publication.sequence, update_ms=publication.update_ms
    )
    return msgspec.json.encode(stored)


def decode_publication(key: bytes, value: bytes) -> Publication:
    """Decode the result of `encode_publication`."""
    try:
        publisher = publisher_of(key)
        version = msgspec.json.decode(value, type=_Version).version
        if version != VERSION:
            raise UnknownFormat(
                f"publisher {publisher!r} has version {version}, expected {VERSION}"
            )
        stored = msgspec.json.decode(value, type=_Stored)
    except msgspec.DecodeError as error:
        raise CorruptData(f"publication {key!r}: {error}") from error
    return Publication(publisher=publisher, sequence=stored.sequence, update_ms=stored.update_ms)
