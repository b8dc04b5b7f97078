"""Run seeds of the simulation, or an exploration.

python -m millstream.testing.simulation --seed 17 --verbose   replay one seed
python -m millstream.testing.simulation --seeds 0-99999       run many
python -m millstream.testing.simulation --explore 2/2/4       records / epochs / versions
python -m millstream.testing.simulation --explore 2/2/4 --record-losses 1
"""

from __future__ import annotations

import argparse
import sys
import time

from millstream.testing.simulation.explorer import Bounds, Explorer
from millstream.testing.simulation.simulator import Simulation
from millstream.testing.simulation.violation import Violation


def main() -> int:
    """Run the command; return the exit status: 1 if a promise is broken."""
    parser = argparse.ArgumentParser(
        prog="python -m millstream.testing.simulation",
        description="Simulate or explore replication.",
    )
    parser.add_argument("--seed", type=int, help="Replay one seed.")
    parser.add_argument("--seeds", help="Run seeds FIRST-LAST.")
    parser.add_argument("--explore", help="Explore RECORDS/EPOCHS/VERSIONS.")
    parser.add_argument("--crashes", type=int, default=1, help="Crashes to explore. Default: 1.")
    parser.add_argument(
        "--record-losses",
        type=int,
        default=0,
        help="Nodes that lose records when they crash, and say so when they start. Default: 0.",
    )
    parser.add_argument(
        "--end-losses",
        type=int,
        default=0,
        help="Followers that find while they run that their last records are lost. Default: 0.",
    )
    parser.add_argument("--verbose", action="store_true", help="Print the events of the seed.")
    options = parser.parse_args()
    try:
        if options.explore is not None:
            records, epochs, versions = (int(number) for number in options.explore.split("/"))
            return _explore(
                Bounds(
                    records,
                    epochs,
                    versions,
                    crashes=options.crashes,
                    record_losses=options.record_losses,
                    end_losses=options.end_losses,
                )
            )
        if options.seed is not None:
            return _replay(options.seed, is_verbose=options.verbose)
        if options.seeds is not None:
            return _run(options.seeds)
    except ValueError as error:
        parser.error(str(error))
    parser.print_usage()
    return 2


def _replay(seed: int, *, is_verbose: bool) -> int:
    simulation = Simulation(seed, is_verbose=is_verbose)
    try:
        result = simulation.run()
    except Violation as violation:
        _print(*simulation.lines, f"VIOLATION {violation}")
        return 1
    _print(*simulation.lines, f"seed {seed}: {result}")
    return 0


def _run(seeds: str) -> int:
    first, last = (int(number) for number in seeds.split("-"))
    failed = 0
    started = time.process_time()
    for seed in range(first, last + 1):
        try:
            Simulation(seed).run()
        except Violation as violation:
            failed += 1
            _print(f"VIOLATION {violation}")
    seconds = time.process_time() - started
    _print(f"{last + 1 - first} seeds, {failed} violations, {seconds:.0f} s of CPU")
    return 1 if failed else 0


def _explore(bounds: Bounds) -> int:
    started = time.process_time()
    try:
        result = Explorer(bounds).run()
    except Violation as violation:
        _print(f"VIOLATION {violation}")
        return 1
    _print(f"{result}, {time.process_time() - started:.0f} s of CPU")
    return 0


def _print(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
