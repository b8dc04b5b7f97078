"""Metrics of the health of a node: what `/health/ready` reports, and the lag of its event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.problems import ProblemCode
from millstream.observe.loop_watch import LoopWatch
from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricSection,
    counter,
    gauge,
    gauge_by,
)
from millstream.servers.http.handlers.health import Health


class NodeCondition(NamedTuple):
    """A node at one moment."""

    health: Health
    watch: LoopWatch


HEALTH_METRICS: Sequence[MetricDeclaration[NodeCondition]] = (
    gauge(
        "millstream_node_ready_flag",
        "1 if `/health/ready` reports that the node is ready, otherwise 0.",
        lambda node: node.health.is_ready,
    ),
    gauge_by(
        "code",
        (code.value for code in ProblemCode),
        "millstream_node_problems",
        "Problems reported by `/health/ready`, by code; at most 20 in total.",
        lambda node, code: sum(problem.code.value == code for problem in node.health.problems),
    ),
    gauge(
        "millstream_node_loop_lag_seconds",
        "How late the event loop was at the last check; it is checked twice a second.",
        lambda node: node.watch.lag_seconds,
    ),
    counter(
        "millstream_node_late_loops_total",
        "Checks at which the event loop was later than `loop_lag_ms_max`.",
        lambda node: node.watch.late_ticks,
    ),
)

HEALTH = MetricSection(metrics=HEALTH_METRICS)
