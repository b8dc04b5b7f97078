"""What workers and producers were told about jobs, and whether all of it can be true.

A job is known by the offset of its record. Every delivery has a number, which its receipt contains.
From these the rules follow without looking at any clock:

    a number is handed out once                     so no two workers have a job at the same time
    an ack that was answered 200 was of the newest  so no delivery of a higher number exists
    numbers rise from each delivery to the next     for deliveries of which one ended before the
                                                    other was asked for
"""

from __future__ import annotations

import base64
import itertools
import struct
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """A delivery of a job to a worker."""

    number: int
    asked: int
    """When it was requested, and when it arrived, counted by the history itself."""
    came: int
    worker: str


def number_of(job: dict[str, Any]) -> int:
    """Return the number of a delivery. `deliveries` does not count those that were released."""
    _, _, _, number = struct.unpack_from(">BIQI", base64.urlsafe_b64decode(job["receipt"]))
    return number


@dataclass
class QueueHistory:
    """Everything that happened so far; written by many threads."""

    deliveries: dict[int, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    """By offset."""
    acked: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By offset, the numbers of the deliveries whose ack was answered 200."""
    stale: Counter[str] = field(default_factory=Counter)
    """How often a receipt was refused, by request."""
    appended: set[str] = field(default_factory=set)
    """Names of jobs whose append was acknowledged."""
    done: Counter[str] = field(default_factory=Counter)
    """How often each kind of thing was done, so that a run that did nothing is noticed."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _moments: Any = field(default_factory=itertools.count)

    def moment(self) -> int:
        """Return a number that is larger than all before."""
        with self._lock:
            return next(self._moments)

    def note_jobs(self, worker: str, asked: int, jobs: list[dict[str, Any]]) -> None:
        """Record jobs that were delivered."""
        came = self.moment()
        with self._lock:
            for job in jobs:
                found = Delivery(number_of(job), asked, came, worker)
                self.deliveries[job["offset"]].append(found)

    def note_acks(self, jobs: list[dict[str, Any]]) -> None:
        """Record jobs whose ack was answered 200."""
        with self._lock:
            for job in jobs:
                self.acked[job["offset"]].add(number_of(job))

    def note_appended(self, names: list[str]) -> None:
        """Record jobs whose append was acknowledged."""
        with self._lock:
            self.appended.update(names)

    def note(self, what: str, count: int = 1) -> None:
        """Count something that was done."""
        with self._lock:
            self.done[what] += count

    def check(self) -> None:
        """Raise if two recorded facts contradict each other."""
        for offset, found in self.deliveries.items():
            numbers = [one.number for one in found]
            assert len(numbers) == len(set(numbers)), f"{offset}: delivered twice as one: {found}"
            for one, other in itertools.permutations(found, 2):
                if one.came < other.asked:
                    assert one.number < other.number, f"{offset}: counts fell: {one}, {other}"
        for offset, acked in self.acked.items():
            assert len(acked) == 1, f"{offset}: acked by several receipts: {sorted(acked)}"
            newest = max(one.number for one in self.deliveries[offset])
            assert {newest} == acked, f"{offset}: delivered after its ack: {newest}, {acked}"
