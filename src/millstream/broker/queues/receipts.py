r"""Receipts: tokens by which a worker names the delivery of a job that it has.

    +---------+-----------+--------+----------+------------------+
    | version | partition | offset | delivery | seal             |   33 bytes, in base64url:
    | 1       | 4         | 8      | 4        | 16               |   44 characters
    +---------+-----------+--------+----------+------------------+
     \________________ covered by ____________/ keyed BLAKE2b

The key is derived from a secret of the queue and the generation of its state: a receipt can neither
be guessed nor be used at another queue. Receipts are not stored; whether one is the newest of its
job follows from the state.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import struct
from typing import NamedTuple

_CONTENT = struct.Struct(">BIQI")
_VERSION = 1
_SEAL_SIZE = 16
_TO_URL = bytes.maketrans(b"+/", b"-_")
_FROM_URL = bytes.maketrans(b"-_", b"+/")

RECEIPT_SIZE = 4 * (_CONTENT.size + _SEAL_SIZE) // 3


class Delivery(NamedTuple):
    """One delivery of one job."""

    partition: int
    offset: int
    number: int
    """1 for the first delivery of the job."""


class Receipts:
    """Issues and reads the receipts of one queue."""

    def __init__(self, secret: bytes, queue_id: bytes, generation: int) -> None:
        key = hashlib.blake2b(
            queue_id + generation.to_bytes(8, "big"), key=secret, digest_size=32
        ).digest()
        self._keyed = hashlib.blake2b(key=key, digest_size=_SEAL_SIZE)

    def make(self, partition: int, offset: int, number: int) -> str:
        """Return the receipt of a delivery."""
        content = _CONTENT.pack(_VERSION, partition, offset, number)
        sealed = binascii.b2a_base64(content + self._seal(content), newline=False)
        return sealed.translate(_TO_URL).decode("ascii")

    def read(self, receipt: str) -> Delivery | None:
        """Return the delivery of a receipt; `None` if this queue did not issue it."""
        if len(receipt) != RECEIPT_SIZE:
            return None
        try:
            data = binascii.a2b_base64(receipt.encode("ascii").translate(_FROM_URL))
        except ValueError:  # Not ASCII, or not base64.
            return None
        content = data[: _CONTENT.size]
        if len(data) != _CONTENT.size + _SEAL_SIZE or content[0] != _VERSION:
            return None
        if not hmac.compare_digest(self._seal(content), data[_CONTENT.size :]):
            return None
        return Delivery(*_CONTENT.unpack(content)[1:])

    def _seal(self, content: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(content)
        return keyed.digest()
