"""Testing kit: the fakes and suites that Millstream is tested with, for its users too.

    clocks/                  a clock that moves only on command, its timers, seeded executors
    disk/simulated_filesystem.py  a disk in memory that loses power and decays on command
    disk/crash_states.py     every state in which a power cut could leave the disk of a workload
    disk/fault.py, faulty_filesystem.py   a file system whose N-th call fails
    simulation/              replication explored and simulated; `python -m` runs it
    suites/                  suites that every `Filesystem` must pass
    memory_metadata.py       metadata in memory for several nodes, with leases on a manual clock
    broker.py                a real broker in a thread
    cluster/                 a real cluster: etcd, and nodes as processes that can be killed; a
                             network, disks and clocks that fail; loads and a checker of histories
    replica_files.py         comparison of replicas by their files
    etcd.py                  a real etcd of one or more members, which can be killed
    pytest_plugin.py         fixtures for all three

The suites need pytest, so they are not imported here. Inside the disk: `changes.py` and `trace.py`
have its events, `image.py` its content, `disk_state.py` which changes are certain to survive a
power cut, and `variants.py` which of the others do.
"""

from __future__ import annotations

from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimer, ManualTimers
from millstream.testing.disk.crash_states import CrashState, crash_states, sample_crash_states
from millstream.testing.disk.fault import GROWING, OPENING, Call, Fault, sweep
from millstream.testing.disk.faulty_filesystem import FaultyFilesystem
from millstream.testing.disk.simulated_filesystem import SimulatedFilesystem
from millstream.testing.memory_metadata import MemoryMetadata, MetadataServer

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
    "MemoryMetadata",
    "MetadataServer",
    "SimulatedFilesystem",
    "crash_states",
    "sample_crash_states",
    "sweep",
]
