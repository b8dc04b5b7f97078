"""Millstream: an append-only log that can be embedded or served.

with millstream.open("data") as store:
    store.log("orders").append(b"first")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.acknowledgements.file import AcknowledgementFile
    from millstream.client.http.async_client import AsyncClient
    from millstream.client.http.client import Client
    from millstream.client.http.config import ClientConfig
    from millstream.client.http.sending import NewRecord
    from millstream.client.http.values import (
        PartitionState,
        Placed,
        QueueState,
        TopicGap,
        TopicInfo,
        TopicRecord,
        TopicState,
    )
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
    "AcknowledgementFile",
    "Address",
    "Appended",
    "AsyncClient",
    "Client",
    "ClientConfig",
    "Codec",
    "Discard",
    "Durability",
    "EmbeddedLog",
    "EmbeddedStore",
    "Gap",
    "Log",
    "LogConfig",
    "MillstreamError",
    "NewRecord",
    "PartitionState",
    "Placed",
    "QueueState",
    "Record",
    "Slice",
    "Store",
    "StoreConfig",
    "StoredRecord",
    "TopicGap",
    "TopicInfo",
    "TopicRecord",
    "TopicState",
    "open",
]

__version__ = "0.1.0"

_HOMES = {
    "AcknowledgementFile": "acknowledgements.file",
    "Address": "storage.reader",
    "Appended": "storage.append",
    "AsyncClient": "client.http.async_client",
    "Client": "client.http.client",
    "ClientConfig": "client.http.config",
    "Codec": "records.compression",
    "Discard": "config",
    "Durability": "config",
    "EmbeddedLog": "embedded",
    "EmbeddedStore": "embedded",
    "Gap": "records.record",
    "Log": "storage.log",
    "LogConfig": "config",
    "MillstreamError": "errors",
    "NewRecord": "client.http.sending",
    "PartitionState": "client.http.values",
    "Placed": "client.http.values",
    "QueueState": "client.http.values",
    "Record": "records.record",
    "Slice": "storage.reader",
    "Store": "storage.store",
    "StoreConfig": "config",
    "StoredRecord": "records.record",
    "TopicGap": "client.http.values",
    "TopicInfo": "client.http.values",
    "TopicRecord": "client.http.values",
    "TopicState": "client.http.values",
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
