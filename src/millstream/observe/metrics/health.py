"""How a node is, as Prometheus reads it: what `/health/ready` says, and how late its loop is."""

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
        read=lambda seen: sum(one.code is code for one in seen.health.problems),
    )


HEALTH_METRICS: Sequence[MetricDeclaration[NodeCondition]] = (
    gauge(
        "millstream_node_ready_flag",
        "1 while clients should be sent to the node, as `/health/ready` says, else 0.",
        lambda seen: seen.health.is_ready,
    ),
    MetricDeclaration(
        name="millstream_node_problems",
        kind=MetricKind.GAUGE,
        help="What `/health/ready` tells that is wrong, by its code; 20 in all at the most.",
        labels=("code",),
        samples=tuple(map(_problems_of, ProblemCode)),
    ),
    gauge(
        "millstream_node_loop_lag_seconds",
        "How late the event loop was when it was looked at last, which is twice a second.",
        lambda seen: seen.watch.lag_seconds,
    ),
    counter(
        "millstream_node_late_loops_total",
        "How often it was later than `loop_lag_ms_max`.",
        lambda seen: seen.watch.late_ticks,
    ),
)

HEALTH = MetricSection(metrics=HEALTH_METRICS)
