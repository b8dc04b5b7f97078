"""Metrics of the health of a node: what `/health/ready` reports, and the lag of its event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.problems import ProblemCode
from millstream.observe.loop_watch import LoopWatch
from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricKind,
    MetricSample,
    MetricSection,
    counter,
    gauge,
)
from millstream.servers.http.handlers.health import Health


class NodeCondition(NamedTuple):
    """A node at one moment."""

    health: Health
    watch: LoopWatch


def _problems_of(code: ProblemCode) -> MetricSample[NodeCondition]:
    return MetricSample(
        labels=(code.value,),
        read=lambda node: sum(problem.code is code for problem in node.health.problems),
    )


HEALTH_METRICS: Sequence[MetricDeclaration[NodeCondition]] = (
    gauge(
        "millstream_node_ready_flag",
        "1 if `/health/ready` reports that the node is ready, otherwise 0.",
        lambda node: node.health.is_ready,
    ),
    MetricDeclaration(
        name="millstream_node_problems",
        kind=MetricKind.GAUGE,
        help="Problems reported by `/health/ready`, by code; at most 20 in total.",
        labels=("code",),
        samples=tuple(map(_problems_of, ProblemCode)),
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
