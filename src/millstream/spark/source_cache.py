"""Places that this process reads from: opened once, and kept for the tasks that follow.

Spark keeps its Python workers, so a connection serves many tasks. It is never shared by two
processes: where one was forked that had a place open, the copy is left alone.
"""

from __future__ import annotations

import os

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import RecordSource
from millstream.spark.options import SourceOptions

SOURCES_MAX = 16
"""Places that a process keeps open; beyond, the oldest is closed."""

_places: dict[tuple[int, SourceOptions], RecordSource] = {}


def open_source(options: SourceOptions) -> RecordSource:
    """Return the place that the options name, opened at most once in a process."""
    key = (os.getpid(), options)
    place = _places.pop(key, None) or _open(options)
    _places[key] = place
    while len(_places) > SOURCES_MAX:
        _places.pop(next(iter(_places))).close()
    return place


def close_sources() -> None:
    """Close all that this process has open."""
    while _places:
        (process, _), place = _places.popitem()
        if process == os.getpid():
            place.close()


def open_client(options: SourceOptions) -> KafkaClient:
    """Return the node that the options name: what is written goes to a node."""
    place = open_source(options)
    assert isinstance(place, KafkaClient), "options of a sink name a node"
    return place


def _open(options: SourceOptions) -> RecordSource:
    match options:
        case SourceOptions(path=str(path)):
            # It brings all of the storage along, which readers of a node do without.
            from millstream.spark.read.data_directory import DataDirectory  # noqa: PLC0415

            return DataDirectory(path)
        case SourceOptions(bootstrap=str(bootstrap)):
            timeout_s = options.timeout_ms / 1000
            return KafkaClient(bootstrap, client_id=options.client_id, timeout_s=timeout_s)
    raise AssertionError("one of path and bootstrap is set")
