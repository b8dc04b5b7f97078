"""Cache of record sources that this process has open.

Spark keeps its Python workers, so a connection serves many tasks. It is never shared by two
processes: after a fork, the child does not use the sources of its parent.
"""

from __future__ import annotations

import os

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import RecordSource
from millstream.spark.options import SourceOptions

SOURCES_MAX = 16
"""Sources that a process keeps open. Above that, the least recently used is closed."""

_sources: dict[tuple[int, SourceOptions], RecordSource] = {}


def open_source(options: SourceOptions) -> RecordSource:
    """Return the source of the options, opened at most once per process."""
    key = (os.getpid(), options)
    source = _sources.pop(key, None) or _open(options)
    _sources[key] = source
    while len(_sources) > SOURCES_MAX:
        _sources.pop(next(iter(_sources))).close()
    return source


def open_client(options: SourceOptions) -> KafkaClient:
    """Return the client of the node in the options. Writes always go to a node."""
    source = open_source(options)
    assert isinstance(source, KafkaClient), "the options of a sink name a node"
    return source


def _open(options: SourceOptions) -> RecordSource:
    match options:
        case SourceOptions(path=str(path)):
            # Imports all of storage, which readers of a node do not need.
            from millstream.spark.read.data_directory import DataDirectory  # noqa: PLC0415

            return DataDirectory(path)
        case _:
            return make_client(options)


def make_client(options: SourceOptions) -> KafkaClient:
    """Return a new client of the node in the options, which the caller closes."""
    assert options.bootstrap is not None, "one of path and bootstrap is set"
    return KafkaClient(
        options.bootstrap,
        client_id=options.client_id,
        timeout_s=options.timeout_ms / 1000,
        security=options.security,
    )
