"""Injected faults: which call of a file system fails, and how."""

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
"""Calls that need a file descriptor, and so can fail without one (`EMFILE`)."""

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
"""Calls that need disk space, and so can fail without it (`ENOSPC`)."""

CALLS_MAX = 1_000_000
"""Ends the sweep over a workload that never ends; far more calls than any makes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a `Filesystem` or of a `File`."""

    name: str
    path: str

    def __str__(self) -> str:
        return f"{self.name} of {self.path}"


@dataclass(slots=True, kw_only=True)
class Fault:
    """Fails the N-th matching call, or all from that one on.

    A call matches if it is among `only`, if that is given, and its path contains `path`. Short
    writes apply to `write_at` only.
    """

    call: int
    """Number of the matching call that fails; the first is 1."""
    error: int = errno.EIO
    forever: bool = False
    kind: FaultKind = "error"
    only: Collection[str] | None = None
    path: str = ""
    hits: list[Call] = field(default_factory=list, init=False)
    """The calls that failed so far."""
    _matched: int = field(default=0, init=False)

    def strikes(self, call: Call) -> bool:
        """Count the call, and return whether it has to fail."""
        if not self._matches(call):
            return False
        self._matched += 1
        strikes = self._matched == self.call or (self.forever and self._matched > self.call)
        if strikes:
            self.hits.append(call)
        return strikes

    def describe(self) -> str:
        """Return a description for the report of a failure: what fails, how, and in which call."""
        failure = self.kind if self.kind == "short write" else errno.errorcode[self.error]
        place = str(self.hits[0]) if self.hits else "not reached"
        return f"{failure} at call {self.call} ({place}), {'forever' if self.forever else 'once'}"

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
    """Yield a fault for the first matching call, the second, ... until one is not reached.

    The loop body runs the workload with the fault, from the start each time. The last fault is the
    one that the workload did not reach, so it has to succeed with that one.
    """
    for call in itertools.count(1):
        fault = Fault(call=call, error=error, forever=forever, kind=kind, only=only, path=path)
        yield fault
        if not fault.hits:
            return
        if call == CALLS_MAX:
            raise RuntimeError(f"the workload makes more than {CALLS_MAX} calls")
