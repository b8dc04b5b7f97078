"""Metrics of the gate: logins, refusals and changes of rights. All 0 on a node without logins."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.access.counters import CHANGES, KEY_READS, METHODS, REFUSED, AccessCounters
from millstream.observe.metrics.metric import (
    MetricDeclaration,
    MetricSection,
    counter,
    counter_by,
)

ACCESS_METRICS: Sequence[MetricDeclaration[AccessCounters]] = (
    counter_by(
        "method",
        METHODS,
        "millstream_access_logins_total",
        "Logins that succeeded. Requests by HTTP with the token of a known caller are not counted.",
        lambda counters, method: counters.logins[method],
    ),
    counter_by(
        "method",
        METHODS,
        "millstream_access_failed_logins_total",
        "Logins that failed.",
        lambda counters, method: counters.failed_logins[method],
    ),
    counter_by(
        "resource",
        REFUSED,
        "millstream_access_refusals_total",
        "Operations that callers were refused, by the type of the resource.",
        lambda counters, resource: counters.refusals[resource],
    ),
    counter_by(
        "kind",
        CHANGES,
        "millstream_access_changes_total",
        "Changes of ACLs, tokens, users, topics, groups and the cluster, by callers of this node.",
        lambda counters, kind: counters.changes[kind],
    ),
    counter_by(
        "outcome",
        KEY_READS,
        "millstream_access_key_reads_total",
        "Attempts to read the keys of the issuer of JWTs.",
        lambda counters, outcome: counters.key_reads[outcome],
    ),
    counter(
        "millstream_access_cut_off_total",
        "Connections and requests that were ended because their caller lost its login or right.",
        lambda counters: counters.cut_off,
    ),
)

ACCESS = MetricSection(metrics=ACCESS_METRICS)
