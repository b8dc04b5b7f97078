"""Every state in which a power cut could leave the disk of a workload.

    for state in sample_crash_states(filesystem.trace, 10_000, seed=1):
        recovered = open_the_log(state.filesystem())
        assert recovered.has_all_of(state.notes), state

The states of a point are those of `prefixes` and `variants`. Right after a change, the prefixes
are left out: the loss of the change, and perhaps others before it, was a state of the point
before.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from millstream.testing.disk.changes import Change
from millstream.testing.disk.disk_state import DiskState, PendingChange
from millstream.testing.disk.image import Image
from millstream.testing.disk.simulated_filesystem import BYTES_MAX_DEFAULT, SimulatedFilesystem
from millstream.testing.disk.trace import Event, Note, Trace
from millstream.testing.disk.variants import Variant, prefixes, variants

RANDOMS_DEFAULT = 3
"""Random outcomes per point; there are many points, so few are enough for each."""


@dataclass(frozen=True, slots=True)
class CrashState:
    """A disk after a power cut. Small until `filesystem` builds it."""

    point: int
    """Number of events of the trace before the power cut."""
    notes: Sequence[object]
    """The notes of the test up to then."""
    last_event: Event | None
    certain: Image
    pending: Sequence[PendingChange]
    outcome: Variant

    @property
    def variant(self) -> str:
        """Short name of the set of unsynced changes that survived."""
        return self.outcome.name

    def filesystem(self, *, bytes_max: int = BYTES_MAX_DEFAULT) -> SimulatedFilesystem:
        """Build a new disk with that content, all of it durable."""
        image = self.certain.after(self.outcome.survivors(self.pending))
        return SimulatedFilesystem(image.contents(), bytes_max=bytes_max)

    def __str__(self) -> str:
        return f"power cut at point {self.point}, after {self.last_event}: {self.variant}"


def crash_states(
    trace: Trace,
    *,
    seed: int,
    randoms: int = RANDOMS_DEFAULT,
    points: Collection[int] | None = None,
) -> Iterator[CrashState]:
    """Yield every state once, point by point; or all states of the given points.

    Point 0 is before the first event. There are one or two states for each change that is pending
    at a point, so a workload that rarely syncs has very many: sample those.
    """
    disk = DiskState(trace.start)
    events = tuple(trace.events)
    notes: tuple[object, ...] = ()
    for point, event in enumerate((None, *events)):
        if event is not None:
            disk.take(event)
        if isinstance(event, Note):
            notes = (*notes, event.event)
        if points is not None and point not in points:
            continue
        pending = disk.pending
        outcomes = variants(pending, seed=f"{seed}, point {point}", randoms=randoms)
        if points is not None or not isinstance(event, Change):
            outcomes = itertools.chain(prefixes(pending), outcomes)
        for outcome in outcomes:
            yield CrashState(point, notes, event, disk.certain, pending, outcome)


def sample_crash_states(
    trace: Trace, count: int, seed: int, *, randoms: int = RANDOMS_DEFAULT
) -> Iterator[CrashState]:
    """Yield `count` different states in order, all equally likely; all if there are fewer.

    The same trace and seed give the same states.
    """
    total = sum(1 for _ in crash_states(trace, seed=seed, randoms=randoms))
    rng = random.Random(seed)  # noqa: S311 - repeatable, not secret.
    chosen = set(rng.sample(range(total), min(count, total)))
    for index, state in enumerate(crash_states(trace, seed=seed, randoms=randoms)):
        if index in chosen:
            yield state
