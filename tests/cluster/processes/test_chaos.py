"""A cluster of real processes under all kinds of faults: no client loses or repeats anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.testing.cluster import RunningCluster
from millstream.testing.cluster.chaos import chaos_cluster, plan_rounds, run_rounds
from millstream.testing.cluster.namespaces import why_unavailable

IS_LONG = bool(os.environ.get("MILLSTREAM_LONG"))
ROUNDS = 500 if IS_LONG else 20
CHECK_EVERY = 20
SEED = 1
SECONDS_PER_ROUND_MAX = 60
"""Far more than a round takes: tests share slow machines."""


@pytest.fixture
def disturbed(tmp_path: Path) -> Iterator[RunningCluster]:
    with chaos_cluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.timeout(300 + SECONDS_PER_ROUND_MAX * ROUNDS)
def test_no_client_loses_or_repeats_anything_whatever_fails(disturbed: RunningCluster):
    # A failure prints the rounds; `python -m millstream.testing.cluster.chaos` repeats them.
    results = run_rounds(
        disturbed, plan_rounds(SEED, ROUNDS), check_every=CHECK_EVERY, report=print
    )
    assert len(results) == ROUNDS


NETWORK_FAULTS = ("isolate", "cut-peers", "cut-one-way", "slow-network")


@pytest.mark.timeout(300 + SECONDS_PER_ROUND_MAX * len(NETWORK_FAULTS))
def test_no_client_loses_or_repeats_anything_when_the_kernel_drops_packets(tmp_path: Path):
    if (reason := why_unavailable()) is not None:
        pytest.skip(reason)
    with chaos_cluster(tmp_path, has_namespaces=True) as cluster:
        rounds = plan_rounds(SEED, len(NETWORK_FAULTS), NETWORK_FAULTS)
        assert len(run_rounds(cluster, rounds, report=print)) == len(NETWORK_FAULTS)


SPARK_FAULTS = ("kill-one", "isolate", "cut-etcd")


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not IS_LONG, reason="Spark is slow to start: in `make test-long` only")
def test_a_query_of_spark_copies_every_record_once_whatever_fails(
    disturbed: RunningCluster, spark: Any
):
    rounds = plan_rounds(SEED, len(SPARK_FAULTS), SPARK_FAULTS)
    assert len(run_rounds(disturbed, rounds, report=print, spark=spark)) == len(rounds)
