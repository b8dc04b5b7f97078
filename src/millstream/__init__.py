"""Millstream: an append-only log that can be embedded or served.

with millstream.open("data") as store:
    store.log("orders").append(b"first")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millstream.audit.acknowledgements.file import AcknowledgementFile
    from millstream.clients.http.aio.client import AsyncClient
    from millstream.clients.http.core.append.new_record import NewRecord
    from millstream.clients.http.core.config import ClientConfig
    from millstream.clients.http.core.values import (
        PartitionState,
        Placed,
        QueueState,
        TopicGap,
        TopicInfo,
        TopicRecord,
        TopicState,
    )
    from millstream.clients.http.sync.client import Client
    from millstream.clients.tls import ClientTls
    from millstream.config.schema import Discard, Durability, LogConfig, StoreConfig
    from millstream.embedded import EmbeddedLog, EmbeddedStore
    from millstream.embedded import open_store as open  # noqa: A004 - `millstream.open` reads best.
    from millstream.errors import MillstreamError
    from millstream.records.compression import Codec
    from millstream.records.record import Gap, Record, StoredRecord
    from millstream.storage.append.pending_append import Appended
    from millstream.storage.log import Log
    from millstream.storage.segment.reader import Address, Slice
    from millstream.storage.store import Store

__all__ = [
    "AcknowledgementFile",
    "Address",
    "Appended",
    "AsyncClient",
    "Client",
    "ClientConfig",
    "ClientTls",
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
    "AcknowledgementFile": "audit.acknowledgements.file",
    "Address": "storage.segment.reader",
    "Appended": "storage.append.pending_append",
    "AsyncClient": "clients.http.aio.client",
    "Client": "clients.http.sync.client",
    "ClientConfig": "clients.http.core.config",
    "ClientTls": "clients.tls",
    "Codec": "records.compression",
    "Discard": "config.schema",
    "Durability": "config.schema",
    "EmbeddedLog": "embedded",
    "EmbeddedStore": "embedded",
    "Gap": "records.record",
    "Log": "storage.log",
    "LogConfig": "config.schema",
    "MillstreamError": "errors",
    "NewRecord": "clients.http.core.append.new_record",
    "PartitionState": "clients.http.core.values",
    "Placed": "clients.http.core.values",
    "QueueState": "clients.http.core.values",
    "Record": "records.record",
    "Slice": "storage.segment.reader",
    "Store": "storage.store",
    "StoreConfig": "config.schema",
    "StoredRecord": "records.record",
    "TopicGap": "clients.http.core.values",
    "TopicInfo": "clients.http.core.values",
    "TopicRecord": "clients.http.core.values",
    "TopicState": "clients.http.core.values",
    "open": "embedded",
}
"""Module of each public name, which is imported at the first access.

Importing the storage takes a tenth of a second, which each Spark process would pay to read a
few batches.
"""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = import_module(f"{__name__}.{_HOMES[name]}")
    value = getattr(home, "open_store" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
