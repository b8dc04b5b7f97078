"""Report of a started node: log events, and a summary on a terminal."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import millstream
from millstream.config.loader import Configuration
from millstream.config.origins import FromFile, FromFlag, FromHostName, FromVariable
from millstream.config.units import BINARY_UNITS
from millstream.node import Node
from millstream.observe.logging.event_writer import EventWriter
from millstream.observe.logging.formatter import PrettyFormatter
from millstream.observe.logging.printable import printable
from millstream.observe.machine import (
    Machine,
    detect_machine,
    machine_warnings,
    process_age_ms,
)

_PLACES: dict[type, str] = {
    FromVariable: "variables",
    FromFlag: "options",
    FromHostName: "the host name",
}

logger = logging.getLogger(__name__)


def report(configuration: Configuration, events: EventWriter, server: Node) -> None:
    """Report the machine, the recovery of the data, the source of settings and the servers."""
    store = server.broker.store
    machine = detect_machine(store.path)
    warnings = machine_warnings(machine, maps_open_max=store.config.maps_open_max)
    if isinstance(events.formatter, PrettyFormatter) and events.is_terminal:
        events.write(block(configuration, machine, server))
        _warn(warnings)
        return
    logger.info(
        "detected",
        extra={
            "version": millstream.__version__,
            **asdict(machine),
            "event_loop": f"uvloop {version('uvloop')}",
            "commits": store.sync_backend,
            "durability": store.log_config.durability.value,
            "replays": store.replay_priority.value,
            "data": store.path,
        },
    )
    _warn(warnings)
    logger.info("configured", extra=_configured(configuration))
    for name, opening in server.broker.openings.items():
        logger.info("opened %s", name, extra=opening._asdict())
    logger.info(
        "ready",
        extra={
            "kafka": str(server.kafka),
            "http": server.http_url,
            **({} if server.native is None else {"native": str(server.native)}),
            **({} if server.peer is None else {"peer": str(server.peer)}),
            "advertised": str(server.broker.advertised),
            "after_ms": process_age_ms(),
        },
    )


def _warn(warnings: Sequence[str]) -> None:
    """Report what is unsuitable for a node."""
    for warning in warnings:
        logger.warning("%s", warning)


def _configured(configuration: Configuration) -> dict[str, Any]:
    """Return the sources of settings without their values, which `config show` prints."""
    origins = {path: origin.place for path, origin in configuration.origins.items()}
    return {"file": configuration.file, "set": origins}


def block(configuration: Configuration, machine: Machine, server: Node) -> str:
    """Return the summary for a terminal."""
    broker = server.broker
    quota = f", {machine.cpu_quota:g} of them to use" if machine.cpu_quota else ""
    numbers = f" ({machine.cpu_list})" if machine.cpu_list else ""
    rows = [
        ("machine", f"{machine.cpus} processors{numbers}{quota}, {_size(machine.memory_bytes)} of"
         f" memory, {machine.descriptors_max} descriptors, {machine.kernel}, clock"
         f" {machine.clock_source}"),
        ("runs on", f"{machine.python}, uvloop {version('uvloop')}, commits by"
         f" {broker.store.sync_backend}, durability class"
         f" {broker.store.log_config.durability.value}, checksums by {machine.checksums}, replays"
         f" at {broker.store.replay_priority.value} disk priority"),
        ("data", f"{broker.store.path}, {machine.file_system}, {_size(machine.free_bytes)} free"),
        ("opened", _opened(server)),
        *([] if server.peer is None else [("cluster", _cluster(configuration))]),
        ("settings", _settings(configuration)),
    ]  # fmt: skip
    if not sys.stdout.isatty():  # Otherwise they are log events.
        rows += [("kafka", str(server.kafka)), ("http", server.http_url)]
        if server.native is not None:
            rows.append(("native", str(server.native)))
        if server.peer is not None:
            rows.append(("peer", str(server.peer)))
    lines = [f"millstream {millstream.__version__}"]
    lines += [f"  {name:9} {printable(text)}" for name, text in rows]
    return "\n".join(lines)


def _cluster(configuration: Configuration) -> str:
    node = configuration.node
    return f"{node.cluster.name}, node {node.broker.node_id}, etcd {', '.join(node.cluster.etcd)}"


def _opened(server: Node) -> str:
    openings = server.broker.openings.values()
    logs = sum(opening.logs for opening in openings)
    scanned = sum(opening.scanned_bytes for opening in openings)
    damaged = sum(opening.damaged_logs for opening in openings)
    how = f"{_size(scanned)} scanned" if scanned else "clean, nothing scanned"
    return f"{logs} logs, {how}" + f", {damaged} damaged" * bool(damaged)


def _settings(configuration: Configuration) -> str:
    """Return the number of settings by source."""
    places = Counter(
        origin.place if isinstance(origin, FromFile) else _PLACES[type(origin)]
        for origin in configuration.origins.values()
    )
    return ", ".join(f"{count} from {place}" for place, count in places.items()) or "all default"


def _size(number: int | None) -> str:
    """Return a size with three digits and a suitable unit."""
    if number is None:
        return "unknown"
    name, size = next(
        (unit for unit in reversed(list(BINARY_UNITS.items())) if number >= unit[1]), ("B", 1)
    )
    return f"{number / size:.3g} {name}"
