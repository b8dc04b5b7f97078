"""Millstream: an append-only log that can be embedded or served.

with millstream.open("data") as store:
    store.log("orders").append(b"first")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "Address": "storage.reader",
    "Appended": "storage.append",
    "Codec": "records.compression",
    "Discard": "config",
    "Durability": "config",
    "EmbeddedLog": "embedded",
    "EmbeddedStore": "embedded",
    "Gap": "records.record",
    "Log": "storage.log",
    "LogConfig": "config",
    "MillstreamError": "errors",
    "Record": "records.record",
    "Slice": "storage.reader",
    "Store": "storage.store",
    "StoreConfig": "config",
    "StoredRecord": "records.record",
    "open": "embedded",
}
"""Where each name comes from; it is loaded when it is first asked for.

Loading all of the storage takes a tenth of a second, which each process of Spark would pay to read
a few batches.
"""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    found = getattr(home, "open_store" if name == "open" else name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
