"""What happened to the numbered records of one partition: sent, acknowledged, read.

    sent ──► acknowledged ──► read            as it should be
      │            └────────► never read      lost
      └────► unknown outcome ──► read, or not  both are right
                     read twice               doubled, whatever its outcome

A writer sends the numbers from 0 on in batches, and the next batch when the outcome of the last one
is known. So acknowledged records must be read in the order of their numbers. A record with an
unknown outcome may arrive late: its request can be on the way when the next one is acknowledged.

Only numbers that are not settled are kept, so memory grows with the lag of the reader and not with
the length of the run. Events carry their time; there is no clock here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

EXAMPLES_MAX = 5
"""Records of each kind of problem that a report names."""


@dataclass(slots=True, kw_only=True)
class DeliveryCounts:
    """Totals of one partition, or of several."""

    sent: int = 0
    acknowledged: int = 0
    in_flight: int = 0
    """Records whose outcome is waited for."""
    unknown: int = 0
    """Records with an unknown outcome."""
    unknown_stored: int = 0
    """Those of them that were read."""
    read: int = 0
    lost: int = 0
    """Acknowledged, and not read so far."""
    doubled: int = 0
    out_of_order: int = 0
    unexpected: int = 0
    """Records of this run that were not sent, or not to this partition."""
    gaps: int = 0
    """Offsets between the batches that were read, with no batch."""
    write_pause_s: float = 0.0
    """Longest time in which a record was due and none was acknowledged."""
    read_pause_s: float = 0.0
    """Longest time in which an acknowledged record could be read and none was."""
    examples: list[str] = field(default_factory=list)
    """The first problems, one sentence for each."""


class PartitionLedger:
    """The records of one partition. Not thread-safe."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self._counts = DeliveryCounts()
        self._in_flight: set[int] = set()
        self._read_early: set[int] = set()
        """Read before their acknowledgement arrived."""
        self._unread: dict[int, float] = {}
        """When a record that was not read yet was acknowledged; the earliest first."""
        self._unknown: set[int] = set()
        """Records with an unknown outcome that were not read."""
        self._read_max = -1
        self._next_offset: int | None = None
        self._due_at: float | None = None
        """When the first record was due that has no acknowledgement."""
        self._acknowledged_at = self._read_at = float("-inf")

    @property
    def next_number(self) -> int:
        """The number of the next record to send."""
        return self._counts.sent

    @property
    def unread(self) -> int:
        """How many acknowledged records were not read so far."""
        return len(self._unread)

    # What the writer tells.

    def send(self, count: int, due_at: float) -> range:
        """Note that records are sent, the first due at `due_at`; return their numbers."""
        numbers = range(self.next_number, self.next_number + count)
        self._counts.sent += count
        self._in_flight.update(numbers)
        if self._due_at is None:
            self._due_at = due_at
        return numbers

    def acknowledge(self, numbers: Iterable[int], now: float) -> None:
        """Note that records were acknowledged."""
        for number in numbers:
            self._in_flight.discard(number)
            self._counts.acknowledged += 1
            if number in self._read_early:
                self._read_early.discard(number)
            else:
                self._unread[number] = now
        self._counts.write_pause_s = self._write_pause(now)
        self._due_at = None
        self._acknowledged_at = now

    def give_up(self, numbers: Iterable[int]) -> None:
        """Note that records were not acknowledged in time: they may be stored or not."""
        for number in numbers:
            self._in_flight.discard(number)
            self._counts.unknown += 1
            if number in self._read_early:
                self._read_early.discard(number)
                self._counts.unknown_stored += 1
            else:
                self._unknown.add(number)

    # What the reader tells.

    def cover(self, first_offset: int, next_offset: int) -> None:
        """Note that a batch with these offsets was read, of any client."""
        if self._next_offset is not None and first_offset > self._next_offset:
            self._counts.gaps += first_offset - self._next_offset
            self._example(f"no record has the offsets {self._next_offset} to {first_offset - 1}")
        self._next_offset = next_offset

    def read(self, number: int, offset: int, now: float) -> None:
        """Note that a record was read."""
        place = f"record {number} at offset {offset}"
        if number >= self.next_number or number < 0:
            self.reject(f"{place} was never sent")
            return
        is_late = False
        if number in self._unread:
            self._counts.read_pause_s = self._read_pause(now)
            del self._unread[number]
        elif number in self._in_flight and number not in self._read_early:
            self._read_early.add(number)
        elif number in self._unknown:
            self._unknown.discard(number)
            self._counts.unknown_stored += 1
            is_late = True
        else:
            self._counts.doubled += 1
            self._example(f"{place} was read before")
            return
        self._counts.read += 1
        self._read_at = now
        if number < self._read_max and not is_late:
            self._counts.out_of_order += 1
            self._example(f"{place} was read after record {self._read_max}")
        self._read_max = max(self._read_max, number)

    def reject(self, problem: str) -> None:
        """Note a record of this run that cannot be right."""
        self._counts.unexpected += 1
        self._example(problem)

    # Results.

    def counts(self, now: float) -> DeliveryCounts:
        """Return the totals so far. Pauses that have not ended count up to now."""
        counts = self._counts
        examples = list(counts.examples)
        if self._unread:
            numbers = [str(number) for number in list(self._unread)[:EXAMPLES_MAX]]
            which = f"partition {self.partition}: acknowledged and not read: record"
            examples.append(f"{which} {', '.join(numbers)}")
        return DeliveryCounts(
            sent=counts.sent,
            acknowledged=counts.acknowledged,
            in_flight=len(self._in_flight),
            unknown=counts.unknown,
            unknown_stored=counts.unknown_stored,
            read=counts.read,
            lost=len(self._unread),
            doubled=counts.doubled,
            out_of_order=counts.out_of_order,
            unexpected=counts.unexpected,
            gaps=counts.gaps,
            write_pause_s=self._write_pause(now),
            read_pause_s=self._read_pause(now),
            examples=examples,
        )

    def _write_pause(self, now: float) -> float:
        if self._due_at is None:
            return self._counts.write_pause_s
        since = max(self._due_at, self._acknowledged_at)
        return max(self._counts.write_pause_s, now - since)

    def _read_pause(self, now: float) -> float:
        if not self._unread:
            return self._counts.read_pause_s
        since = max(next(iter(self._unread.values())), self._read_at)
        return max(self._counts.read_pause_s, now - since)

    def _example(self, problem: str) -> None:
        if len(self._counts.examples) < EXAMPLES_MAX:
            self._counts.examples.append(f"partition {self.partition}: {problem}")


def total(parts: Iterable[DeliveryCounts]) -> DeliveryCounts:
    """Return the totals of all partitions; of pauses, the longest one."""
    result = DeliveryCounts()
    for part in parts:
        result.sent += part.sent
        result.acknowledged += part.acknowledged
        result.in_flight += part.in_flight
        result.unknown += part.unknown
        result.unknown_stored += part.unknown_stored
        result.read += part.read
        result.lost += part.lost
        result.doubled += part.doubled
        result.out_of_order += part.out_of_order
        result.unexpected += part.unexpected
        result.gaps += part.gaps
        result.write_pause_s = max(result.write_pause_s, part.write_pause_s)
        result.read_pause_s = max(result.read_pause_s, part.read_pause_s)
        result.examples += part.examples
    return result
