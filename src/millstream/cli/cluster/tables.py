"""Tables of nodes, partitions and moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click

from millstream.cli.support.output import print_table, printable, time_text

NONE = "-"


def print_nodes(nodes: Iterable[Any]) -> None:
    rows = [
        [
            node["node_id"],
            node_state(node),
            node["kafka"] or NONE,
            node["http"] or NONE,
            node["peer"] or NONE,
            node["rack"] or NONE,
            node["release"] or NONE,
            node["leaders"],
            node["replicas"],
            NONE if node["drift_ms"] is None else node["drift_ms"],
            time_text(node["started_at"]),
        ]
        for node in nodes
    ]
    head = ["NODE", "STATE", "KAFKA", "HTTP", "PEER", "RACK", "RELEASE", "LEADS", "REPLICAS"]
    print_table([*head, "DRIFT_MS", "STARTED"], rows)


def node_state(node: Any) -> str:
    """Return the state of a node in words."""
    words = ["alive" if node["is_alive"] else "gone"]
    if node["is_controller"]:
        words.append("controller")
    if node["is_stopping"]:
        words.append("stopping")
    if node["is_removed"]:
        words.append("being removed")
    if node["breaker"] not in (None, "closed"):
        words.append(f"breaker {node['breaker']}")
    return ", ".join(words)


def print_partitions(partitions: Sequence[Any]) -> None:
    rows = [
        [
            partition["topic"],
            partition["partition"],
            NONE if partition["leader"] is None else partition["leader"],
            partition["leader_epoch"],
            listed(partition["replicas"]),
            listed(partition["isr"]),
            NONE if partition["high_watermark"] is None else partition["high_watermark"],
            lag_text(partition),
            partition_state(partition),
        ]
        for partition in partitions
    ]
    head = ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN_SYNC", "COMMITTED"]
    print_table([*head, "LAG", "STATE"], rows)


def lag_text(partition: Any) -> str:
    """Return the greatest lag of the followers, in records and seconds."""
    lags = [
        (follower["lag_records"], follower["lag_ms"])
        for follower in partition["followers"]
        if follower["lag_records"] is not None
    ]
    if not lags:
        return NONE
    records, lag_ms = max(lags)
    return f"{records} ({lag_ms / 1000:.1f} s)" if records else "0"


def partition_state(partition: Any) -> str:
    if partition["leader"] is None:
        return "no leader"
    if len(partition["isr"]) < partition["min_insync"]:
        return "too few in sync"
    if partition["adding"] or partition["removing"]:
        return "moving"
    copying = [
        f"{follower['node_id']} ({follower['resync_bytes_left']} bytes left)"
        for follower in partition["followers"]
        if follower.get("resync_bytes_left") is not None
    ]
    if copying:
        return f"copying: {', '.join(copying)}"
    missing = set(partition["replicas"]) - set(partition["isr"])
    return f"behind: {listed(sorted(missing))}" if missing else "well"


def print_moves(moves: Sequence[Any]) -> None:
    rows = [
        [move["topic"], move["partition"], listed(move["before"]), listed(move["after"])]
        for move in moves
    ]
    print_table(["TOPIC", "PARTITION", "FROM", "TO"], rows)


def print_problems(problems: Iterable[str]) -> None:
    for problem in problems:
        click.echo(printable(f"problem: {problem}"))


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(printable(f"warning: {warning}"))


def listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes)) or NONE
