"""The kit: fakes and suites that Millstream is tested with, for its users too.

    clock.py, timers.py  a clock that only moves when told, and what is due by it
    filesystem.py        a disk in memory that loses power and decays on command
    crash_states.py      every state that a power cut could have left of a workload
    fault.py, faulty.py  a file system whose N-th call fails
    filesystem_suite.py  what every `Filesystem` must pass: `file_suite.py` and `names_suite.py`

The suites need pytest, so they are not imported here. Behind the disk: `changes.py` and `trace.py`
have its events, `image.py` what they make of it, `disk.py` which of them are certain to survive a
power cut, and `variants.py` which of the others did.
"""

from __future__ import annotations

from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimer, ManualTimers
from millstream.testing.disk.crash_states import CrashState, crash_states, sample_crash_states
from millstream.testing.disk.fault import GROWING, OPENING, Call, Fault, sweep
from millstream.testing.disk.faulty_filesystem import FaultyFilesystem
from millstream.testing.disk.simulated_filesystem import SimulatedFilesystem

__all__ = [
    "GROWING",
    "OPENING",
    "Call",
    "CrashState",
    "Fault",
    "FaultyFilesystem",
    "ManualClock",
    "ManualTimer",
    "ManualTimers",
    "SimulatedFilesystem",
    "crash_states",
    "sample_crash_states",
    "sweep",
]
