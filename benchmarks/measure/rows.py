"""Rows of a result table: figures, comparisons and goals."""

from __future__ import annotations

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure, or on its ratio to what it is held against."""

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
class Against:
    """A peer that a row is held against. Its goal, if any, is one for ours / theirs."""

    peer: str
    """Which server has to be there, as `Peers` knows it."""
    name: str
    """What the table calls it, with the setting that matters: `Kafka, flush.messages=1`."""
    figure: str
    """Which figure of the arms is the peer's."""
    goal: Goal | None = None


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
    peers: tuple[Against, ...] = ()


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


def ratios(ours: Sample, theirs: Sample) -> Sample:
    """Return the ratio of each repetition."""
    pairs = zip(ours.values, theirs.values, strict=True)
    return Sample(tuple(mine / other for mine, other in pairs))


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict on a goal, over all repetitions."""

    goal: Goal | None
    judged: Sample | None

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is met; nothing where there is no goal, or nothing to judge."""
        if self.goal is None or self.judged is None:
            return None
        return self.goal.is_met(self.judged.median)

    @property
    def is_unanimous(self) -> bool:
        """Whether every single repetition says the same of the goal as the median does."""
        if self.goal is None or self.judged is None:
            return True
        return len({self.goal.is_met(value) for value in self.judged.values}) == 1


@dataclass(frozen=True, slots=True)
class PeerOutcome:
    """Figures of a peer, or the reason why there are none."""

    against: Against
    figure: Sample | None
    ratio: Sample | None
    missing: str = ""

    @property
    def judgement(self) -> Judgement:
        """What became of the goal against this peer."""
        return Judgement(self.against.goal, self.ratio)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A measured row. It has only the peers that were requested."""

    row: Row
    ours: Sample
    limit: Sample | None
    ratio: Sample | None
    peers: tuple[PeerOutcome, ...] = ()

    @property
    def judgement(self) -> Judgement:
        """What became of the goal of the row itself."""
        goal = self.row.goal
        judged = self.ratio if goal and goal.is_of_ratio else self.ours
        assert goal is None or judged is not None, f"{self.row.name}: a ratio needs a limit"
        return Judgement(goal, judged)
