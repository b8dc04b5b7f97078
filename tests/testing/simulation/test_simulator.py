"""Seeded simulations of clocks, network, disks and faults keep the promises of replication."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from millstream.testing.simulation.simulator import Simulation

SEEDS = 100_000 if os.environ.get("MILLSTREAM_LONG") else 2000
CHUNKS = 20


@pytest.mark.timeout(20_000 if os.environ.get("MILLSTREAM_LONG") else 300)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_seed_breaks_a_promise(chunk):
    size = SEEDS // CHUNKS
    total = Counter()
    for seed in range(chunk * size, (chunk + 1) * size):
        total.update(Simulation(seed).run()._asdict())
    # Otherwise the seeds would show little.
    names = ("acknowledged", "cuts", "disk_losses", "record_losses", "hand_overs", "isr_changes")
    for name in (*names, "crashes"):
        assert total[name] > 0, name
    assert total["epochs"] > 2 * size


def test_a_seed_is_repeated_exactly():
    runs = [Simulation(7, is_verbose=True) for _ in range(2)]
    results = [simulation.run() for simulation in runs]
    assert results[0] == results[1]
    assert runs[0].lines == runs[1].lines


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "millstream.testing.simulation", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_seed_is_a_command_line():
    replayed = run("--seed", "7", "--verbose")
    assert replayed.returncode == 0
    lines = replayed.stdout.splitlines()
    assert lines[:-1] == _lines(7)
    assert lines[-1].startswith("seed 7: SimulationResult(")


def _lines(seed: int) -> list[str]:
    simulation = Simulation(seed, is_verbose=True)
    simulation.run()
    return simulation.lines


def test_many_seeds_and_explorations_are_command_lines():
    assert run("--seeds", "0-3").stdout.startswith("4 seeds, 0 violations, ")
    assert "is_exhausted=True" in run("--explore", "1/1/1", "--crashes", "0").stdout
    losses = ("--record-losses", "1", "--end-losses", "1")
    assert "is_exhausted=True" in run("--explore", "1/1/1", *losses).stdout
    assert run().returncode == 2
