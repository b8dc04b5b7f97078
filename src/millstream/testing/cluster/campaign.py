"""The results of many rounds of chaos, kept in a file, so that they can be run in pieces.

Each line is a JSON object: a round that was run and checked, or a failure with the rounds that it
ended. A run that is interrupted goes on with the rounds that the file does not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class CheckedRound(msgspec.Struct, frozen=True, tag="round", tag_field="kind"):
    """A round after which no rule was broken."""

    seed: int
    number: int
    fault: str
    write_pause_s: float
    slowest_load: str
    slowest_pause_s: float
    resumed_s: float
    in_sync_s: float


class FailedRounds(msgspec.Struct, frozen=True, tag="failure", tag_field="kind"):
    """Rounds that were run, and are not proved to have kept every promise."""

    seed: int
    first: int
    last: int
    reason: str


class Campaign:
    """All rounds of a file. One process at a time uses it."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one. Raises `ValueError` if it is not one of these."""
        self._path = path
        self.rounds: dict[tuple[int, int], CheckedRound] = {}
        self.failures: list[FailedRounds] = []
        lines = path.read_bytes().splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                self._take(_decoder.decode(line))
            except msgspec.DecodeError as error:
                raise ValueError(f"{path}: line {number}: {error}") from error

    def has(self, seed: int, number: int) -> bool:
        """Return whether a round was run and checked."""
        return (seed, number) in self.rounds

    def add(self, entries: Iterable[CheckedRound | FailedRounds]) -> None:
        """Add entries to the file."""
        with self._path.open("ab") as file:
            for entry in entries:
                self._take(entry)
                file.write(msgspec.json.encode(entry) + b"\n")

    def _take(self, entry: CheckedRound | FailedRounds) -> None:
        if isinstance(entry, CheckedRound):
            self.rounds[entry.seed, entry.number] = entry
        else:
            self.failures.append(entry)

    def summary(self) -> list[str]:
        """Return the figures of all rounds, one sentence in each line."""
        rounds = list(self.rounds.values())
        if not rounds:
            return [f"{self._path}: no round was checked, {len(self.failures)} failures"]
        faults = Counter(each.fault for each in rounds)
        lines = [
            f"{len(rounds)} rounds of {_seeds(rounds)} were run and checked,"
            f" {len(self.failures)} failures",
            f"producers paused {_figures([each.write_pause_s for each in rounds])}",
            f"after healing, clients went on in {_figures([each.resumed_s for each in rounds])}",
            f"replicas were in sync in {_figures([each.in_sync_s for each in rounds])}",
            "faults: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items())),
        ]
        return lines + [
            f"failed: seed {failure.seed}, rounds {failure.first} to {failure.last}:"
            f" {failure.reason}"
            for failure in self.failures
        ]


def _seeds(rounds: Sequence[CheckedRound]) -> str:
    seeds = sorted({each.seed for each in rounds})
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _figures(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    count = len(ordered)
    return (
        f"{ordered[count // 2]:.1f} s (median), {ordered[count * 99 // 100]:.1f} s (99 %),"
        f" {ordered[-1]:.1f} s (longest)"
    )


_decoder = msgspec.json.Decoder(CheckedRound | FailedRounds)
