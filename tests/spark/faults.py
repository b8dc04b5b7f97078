"""A sink that kills a process once, at the step that a test chooses.

Production code knows nothing of it: this is the real data source, with a kill around a step.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from millstream.spark.options import parse_write_options
from millstream.spark.source import MillstreamDataSource
from millstream.spark.write.writer import BatchWriter, StreamWriter

FAULTS = ("step", "victim", "flag")
STEPS = ("before write", "after write", "before commit", "after commit")
VICTIMS = ("worker", "driver")
"""The Python process of the step, or Spark itself with its driver and executors."""


class FaultySource(MillstreamDataSource):
    """`format("faulty")`: the options `step`, `victim` and `flag` select the kill.

    `flag` is a file that remembers that it did.
    """

    @classmethod
    def name(cls):
        return "faulty"

    def writer(self, schema, overwrite):
        return _dying(BatchWriter)(self._parts(schema, overwrite), self._fault())

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return _dying(StreamWriter)(self._parts(schema, overwrite), self._fault())

    def _parts(self, schema, overwrite):
        own = {name: value for name, value in self.options.items() if name not in FAULTS}
        return parse_write_options(own), schema, overwrite

    def _fault(self):
        return tuple(self.options[name] for name in FAULTS)


def _dying(kind):
    class Dying(kind):
        def __init__(self, parts, fault):
            options, schema, overwrite = parts
            super().__init__(options, schema, overwrite=overwrite)
            self._fault = fault

        def write(self, iterator):
            _die_once("before write", self._fault)
            written = super().write(iterator)
            if written.transaction is not None:
                _die_once("after write", self._fault)
            return written

        def commit(self, messages, *batch):
            _die_once("before commit", self._fault)
            super().commit(messages, *batch)
            _die_once("after commit", self._fault)

    return Dying


def _die_once(step, fault):
    wanted, victim, flag = fault
    if step != wanted:
        return
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid() if victim == "worker" else _spark(), signal.SIGKILL)
    signal.pause()  # The killed process takes this one with it.


def _spark():
    """Return the Java process that started this one."""
    process = os.getpid()
    while Path(f"/proc/{process}/comm").read_text().strip() != "java":
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
    return process
