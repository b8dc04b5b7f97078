"""A cluster of three nodes, beside three brokers of Apache Kafka and three servers of NATS.

Replicas are on all three. The rows of the nodes alone come first, since peers stay up once they
run.
"""

from __future__ import annotations

from subjects.cluster.failover import FAIL_OVER, FAIL_OVER_MANY
from subjects.cluster.forwarding import FORWARDING
from subjects.cluster.lone import LONE
from subjects.cluster.produce import PRODUCE
from subjects.cluster.roles import ROLES

EXPERIMENTS = (ROLES, FORWARDING, LONE, PRODUCE, FAIL_OVER, FAIL_OVER_MANY)
