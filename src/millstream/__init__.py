"""Millstream: an append-only log that can be embedded or served.

with millstream.open("data") as store:
    store.log("orders").append(b"first")
"""

from __future__ import annotations

from millstream.config import Discard, Durability, LogConfig, StoreConfig
from millstream.embedded import EmbeddedLog, EmbeddedStore
from millstream.embedded import open_store as open  # noqa: A004 - `millstream.open` reads best.
from millstream.errors import MillstreamError
from millstream.records.compression import Codec
from millstream.records.record import Gap, Record, StoredRecord
from millstream.storage.append import Appended
from millstream.storage.log import Log
from millstream.storage.reader import Address, Slice
from millstream.storage.store import Store

__all__ = [
    "Address",
    "Appended",
    "Codec",
    "Discard",
    "Durability",
    "EmbeddedLog",
    "EmbeddedStore",
    "Gap",
    "Log",
    "LogConfig",
    "MillstreamError",
    "Record",
    "Slice",
    "Store",
    "StoreConfig",
    "StoredRecord",
    "open",
]

__version__ = "0.1.0"
