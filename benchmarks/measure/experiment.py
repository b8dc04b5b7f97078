"""An experiment: arms that take turns, and the rows of the table that their figures make.

    repetition 1   limit, ours, peer   ->  ratios 1  \
    repetition 2   limit, ours, peer   ->  ratios 2   >  median and spread of the ratios
    repetition 3   limit, ours, peer   ->  ratios 3  /

A shared machine is slow for seconds at a time. Arms that take turns are slow together, so each
repetition gives a ratio of its own, and the median is taken of those, not of the figures.

A peer has arms of its own, prepared apart, since it may not be there. Then its lines of the table
say why, and the others are measured all the same.
"""

from __future__ import annotations

import enum
import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from measure.peers import PeerMissing, Peers, PeerServer
from measure.rows import (
    Against,
    Goal,
    Outcome,
    PeerOutcome,
    Row,
    Sample,
    at_least,
    at_most,
    ratio_at_least,
    ratio_at_most,
    ratios,
)

__all__ = [
    "Against",
    "Arm",
    "Experiment",
    "Figures",
    "Goal",
    "PeerArms",
    "PeerMissing",
    "PeerServer",
    "Row",
    "Scale",
    "at_least",
    "at_most",
    "ratio_at_least",
    "ratio_at_most",
    "run_experiment",
]

T = TypeVar("T")

Figures: TypeAlias = Mapping[str, float]
Arm: TypeAlias = Callable[[], Figures]
"""One turn of an arm. It measures its own time, and returns its figures by name."""


class Scale(enum.Enum):
    """Amount of work in a measurement."""

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"

    def pick(self, *, smoke: T, quick: T, full: T) -> T:
        """Return the value for this scale."""
        return {Scale.SMOKE: smoke, Scale.QUICK: quick, Scale.FULL: full}[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerArms:
    """Arms of a peer in an experiment."""

    peer: str
    """Name of the server in `Peers`; it runs before the arms are prepared."""
    arms: Callable[[Scale, Path, PeerServer], AbstractContextManager[Sequence[Arm]]]
    """Prepares the arms in an empty folder. `PeerMissing`, here or in a turn, removes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Arms that are prepared together and measured in turns."""

    title: str
    note: str
    """Description of the work, and of what the figures exclude."""
    rows: tuple[Row, ...]
    arms: Callable[[Scale, Path], AbstractContextManager[Sequence[Arm]]]
    """Prepares the arms in an empty folder, and cleans up after them."""
    peers: tuple[PeerArms, ...] = ()
    repetitions_smoke: int = 2
    repetitions_quick: int = 3
    repetitions_full: int = 7

    def repetitions(self, scale: Scale) -> int:
        """Return how often every arm has its turn."""
        return scale.pick(
            smoke=self.repetitions_smoke,
            quick=self.repetitions_quick,
            full=self.repetitions_full,
        )


def run_experiment(
    experiment: Experiment,
    scale: Scale,
    folder: Path,
    peers: Peers,
    rounds: int | None = None,
) -> list[Outcome]:
    """Run the arms in turns, and return the measured rows.

    `rounds` is how often each has its turn, if not as often as the experiment says.
    """
    with ExitStack() as stack:
        run = _Run(peers)
        own = folder / "ours"
        own.mkdir()
        run.arms += [(None, arm) for arm in stack.enter_context(experiment.arms(scale, own))]
        for number, each in enumerate(experiment.peers):
            if peers.is_asked(each.peer):
                place = folder / f"peer-{number}"
                place.mkdir()
                run.join(each, scale, place, stack)
        repetitions = [run.take_turns() for _ in range(rounds or experiment.repetitions(scale))]
    return [_outcome(row, repetitions, run) for row in experiment.rows]


@dataclass(slots=True)
class _Run:
    """Who takes turns, and why some do not."""

    peers: Peers
    arms: list[tuple[str | None, Arm]] = field(default_factory=list)
    """With the name of the peer; nothing for ours and the limits."""
    missing: dict[str, str] = field(default_factory=dict)

    def join(self, each: PeerArms, scale: Scale, folder: Path, stack: ExitStack) -> None:
        """Let a peer have turns too, if it can be had."""
        try:
            server = self.peers.server(each.peer)
            arms = stack.enter_context(each.arms(scale, folder, server))
        except PeerMissing as error:
            self.missing[each.peer] = str(error)
        else:
            self.arms += [(each.peer, arm) for arm in arms]

    def take_turns(self) -> Figures:
        """Have one turn of each arm."""
        figures: dict[str, float] = {}
        for peer, arm in self._present():
            _settle()
            try:
                figures.update(arm())
            except PeerMissing as error:
                if peer is None:
                    raise
                self.missing[peer] = str(error)
        return figures

    def _present(self) -> Iterator[tuple[str | None, Arm]]:
        return ((peer, arm) for peer, arm in self.arms if peer not in self.missing)


def _settle() -> None:
    """Keep what one arm left behind from being charged to the next."""
    gc.collect()
    os.sync()


def _outcome(row: Row, repetitions: Sequence[Figures], run: _Run) -> Outcome:
    ours = _sample(row.ours, repetitions)
    limit = None if row.limit is None else _sample(row.limit, repetitions)
    ratio = None if limit is None else ratios(ours, limit)
    beside = tuple(
        _peer_outcome(against, ours, repetitions, run.missing.get(against.peer, ""))
        for against in row.peers
        if run.peers.is_asked(against.peer)
    )
    return Outcome(row, ours, limit, ratio, beside)


def _peer_outcome(
    against: Against, ours: Sample, repetitions: Sequence[Figures], missing: str
) -> PeerOutcome:
    if missing:
        return PeerOutcome(against, None, None, missing)
    figure = _sample(against.figure, repetitions)
    return PeerOutcome(against, figure, ratios(ours, figure))


def _sample(name: str, repetitions: Sequence[Figures]) -> Sample:
    return Sample(tuple(figures[name] for figures in repetitions))
