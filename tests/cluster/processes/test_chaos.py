"""A cluster of real processes under all kinds of faults: no client loses or repeats anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.cluster import RunningCluster
from millstream.testing.cluster.chaos import chaos_cluster, plan_rounds, run_rounds

ROUNDS = 500 if os.environ.get("MILLSTREAM_LONG") else 20
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
    results = run_rounds(disturbed, plan_rounds(SEED, ROUNDS), report=print)
    assert len(results) == ROUNDS
