"""Which call of a file system fails, and how."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

FaultKind: TypeAlias = Literal["error", "short write"]

OPENING = frozenset(
    {
        "open",
        "open_readonly",
        "create",
        "list",
        "remove_tree",
        "sync_directory",
        "lock",
        "map",
    }
)
"""The calls that need a descriptor, and so can fail for want of one (`EMFILE`)."""

GROWING = frozenset(
    {
        "create",
        "make_directory",
        "rename",
        "lock",
        "write_at",
        "reserve",
        "truncate",
        "sync",
        "sync_directory",
        "close",
    }
)
"""The calls that need room, and so can fail for want of it (`ENOSPC`)."""

CALLS_MAX = 1_000_000
"""Ends the sweep over a workload that never ends; far above what any makes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a `Filesystem` or of a `File`."""

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} of {self.path}"


@dataclass(slots=True, kw_only=True)
class Fault:
    """Fails the N-th call that matches, or all from that one on.

    A call matches if it is among `only`, where that is given, and its path contains `path`. Short
    writes happen to `write_at` alone.
    """

    call: int
    """Which of the matching calls fails; the first is 1."""
    error: int = errno.EIO
    forever: bool = False
    kind: FaultKind = "error"
    only: Collection[str] | None = None
    path: str = ""
    hits: list[Call] = field(default_factory=list, init=False)
    """The calls that failed so far."""
    _matched: int = field(default=0, init=False)

    def strikes(self, call: Call) -> bool:
        """Count the call, and say whether it has to fail."""
        if not self._matches(call):
            return False
        self._matched += 1
        strikes = self._matched == self.call or (self.forever and self._matched > self.call)
        if strikes:
            self.hits.append(call)
        return strikes

    def describe(self) -> str:
        """Say what fails, how, and which call that was, for the report of a failure."""
        what = self.kind if self.kind == "short write" else errno.errorcode[self.error]
        where = str(self.hits[0]) if self.hits else "not reached"
        return f"{what} at call {self.call} ({where}), {'for ever' if self.forever else 'once'}"

    def _matches(self, call: Call) -> bool:
        if self.kind == "short write" and call.name != "write_at":
            return False
        return (self.only is None or call.name in self.only) and self.path in call.path


def sweep(
    *,
    error: int = errno.EIO,
    forever: bool = False,
    kind: FaultKind = "error",
    only: Collection[str] | None = None,
    path: str = "",
) -> Iterator[Fault]:
    """Yield a fault for the first matching call, the second, the third ... until one is not hit.

    The loop body runs the workload with the fault, from the start each time. The last fault is
    the one that the workload did not reach, so it has to succeed with that one.
    """
    for call in itertools.count(1):
        fault = Fault(call=call, error=error, forever=forever, kind=kind, only=only, path=path)
        yield fault
        if not fault.hits:
            return
        if call == CALLS_MAX:
            raise RuntimeError(f"the workload makes more than {CALLS_MAX} calls")
