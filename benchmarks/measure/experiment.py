"""An experiment: arms that take turns, and the rows of the table that their figures make.

    repetition 1   limit, ours   ->  ratio 1  \
    repetition 2   limit, ours   ->  ratio 2   >  median and spread of the ratios
    repetition 3   limit, ours   ->  ratio 3  /

A shared machine is slow for seconds at a time. Arms that take turns are slow together, so each
repetition gives a ratio of its own, and the median is taken of those, not of the figures.
"""

from __future__ import annotations

import enum
import gc
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Figures: TypeAlias = Mapping[str, float]
Arm: TypeAlias = Callable[[], Figures]
"""One turn of one arm. It does its own timing, and returns its figures by name."""


class Scale(enum.Enum):
    """How much is measured."""

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"

    def pick(self, *, smoke: T, quick: T, full: T) -> T:
        """Return what belongs to this scale."""
        return {Scale.SMOKE: smoke, Scale.QUICK: quick, Scale.FULL: full}[self]


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure, or on its ratio to the limit."""

    bound: float
    is_floor: bool
    is_of_ratio: bool

    def is_met(self, found: float) -> bool:
        """Whether `found` is on the good side of the bound."""
        return found >= self.bound if self.is_floor else found <= self.bound


def ratio_at_least(bound: float) -> Goal:
    return Goal(bound, is_floor=True, is_of_ratio=True)


def ratio_at_most(bound: float) -> Goal:
    return Goal(bound, is_floor=False, is_of_ratio=True)


def at_least(bound: float) -> Goal:
    return Goal(bound, is_floor=True, is_of_ratio=False)


def at_most(bound: float) -> Goal:
    return Goal(bound, is_floor=False, is_of_ratio=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. Without a goal it is there for information."""

    name: str
    unit: str
    ours: str
    """Which figure of the arms is ours."""
    limit: str | None = None
    """Which figure of the arms is the limit."""
    limit_name: str = ""
    goal: Goal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is prepared together and measured in turns."""

    title: str
    note: str
    """What is done, and what the figures leave out."""
    rows: tuple[Row, ...]
    arms: Callable[[Scale, Path], AbstractContextManager[Sequence[Arm]]]
    """Prepares the arms in an empty folder, and tidies up after them."""
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


@dataclass(frozen=True, slots=True)
class Sample:
    """One figure, once per repetition."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value in the middle."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half of the distance between the extremes, as a share of the median."""
        distance = max(self.values) - min(self.values)
        return distance / 2 / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A row, measured."""

    row: Row
    ours: Sample
    limit: Sample | None
    ratio: Sample | None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; nothing where there is none."""
        goal = self.row.goal
        return None if goal is None else goal.is_met(self._judged(goal).median)

    @property
    def is_unanimous(self) -> bool:
        """Whether every single repetition says the same of the goal as the median does."""
        goal = self.row.goal
        return goal is None or len({goal.is_met(v) for v in self._judged(goal).values}) == 1

    def _judged(self, goal: Goal) -> Sample:
        judged = self.ratio if goal.is_of_ratio else self.ours
        assert judged is not None, f"{self.row.name}: a goal for a ratio needs a limit"
        return judged


def run_experiment(experiment: Experiment, scale: Scale, folder: Path) -> list[Outcome]:
    """Let the arms take turns, and return the rows that come of it."""
    with experiment.arms(scale, folder) as arms:
        repetitions = [_take_turns(arms) for _ in range(experiment.repetitions(scale))]
    return [_outcome(row, repetitions) for row in experiment.rows]


def _take_turns(arms: Sequence[Arm]) -> Figures:
    figures: dict[str, float] = {}
    for arm in arms:
        _settle()
        figures.update(arm())
    return figures


def _settle() -> None:
    """Keep what one arm left behind from being charged to the next."""
    gc.collect()
    os.sync()


def _outcome(row: Row, repetitions: Sequence[Figures]) -> Outcome:
    ours = Sample(tuple(figures[row.ours] for figures in repetitions))
    if row.limit is None:
        return Outcome(row, ours, None, None)
    limit = Sample(tuple(figures[row.limit] for figures in repetitions))
    pairs = zip(ours.values, limit.values, strict=True)
    return Outcome(row, ours, limit, Sample(tuple(mine / bound for mine, bound in pairs)))
