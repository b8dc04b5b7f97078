"""Deletion of one key among a million, beside one durable replacement of a file."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_most

from millstream import LogConfig, StoreConfig
from subjects.life.data import copy_of, key_of, keyed_batches, prepare
from subjects.log.common import MIB, opened

CONFIG = LogConfig(segment_bytes_max=256 * MIB)
QUIET = StoreConfig(upkeep_interval_ms=0)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    count = scale.pick(smoke=10_000, quick=1_000_000, full=1_000_000)
    prepared = folder / "prepared"
    prepare(prepared, CONFIG, keyed_batches(count, count), 1)
    chance = random.Random(1)
    numbers = iter(chance.sample(range(count), 2_000))

    def commit() -> Figures:
        began = time.perf_counter()
        _replace(folder)
        return {"commit": (time.perf_counter() - began) * 1000}

    def delete() -> Figures:
        figures = {}
        with copy_of(prepared) as data, opened(data, CONFIG, store_config=QUIET) as store:
            log = store.log()
            for name in ("first", "second", "third"):
                key = key_of(next(numbers))
                began = time.perf_counter()
                found = store.run(log.delete_keys(key=key))
                figures[name] = (time.perf_counter() - began) * 1000
                assert found == 1, f"{found} records had the key"
            began = time.perf_counter()
            found = store.run(log.delete_keys(prefix=key_of(next(numbers))[:-2]))
            figures["prefix"] = (time.perf_counter() - began) * 1000
            assert 97 <= found <= 100, f"{found} records had the prefix"
        return {**figures, "next": min(figures["second"], figures["third"])}

    delete()  # The first run compiles, or loads what was compiled before.
    yield commit, delete


def _replace(folder: Path) -> None:
    """Replace a small file so that a power cut leaves the old one or the new."""
    temporary, target = folder / "small.tmp", folder / "small"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(descriptor, bytes(500))
    os.fsync(descriptor)
    os.close(descriptor)
    temporary.rename(target)
    directory = os.open(folder, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


DELETION = Experiment(
    title="deletion",
    note=(
        "A sealed log of a million records of 100 bytes, each with a key of its own: the records"
        " of one key are deleted, durably, until no reader sees them. The first deletion has to"
        " index the keys of the segment; those that follow use that. The limit replaces a small"
        " file durably, as each deletion does once."
    ),
    rows=(
        Row(
            name="deletion of one key among 1M records",
            unit="ms",
            ours="next",
            limit="commit",
            limit_name="replace a file",
            goal=at_most(10),
        ),
        Row(
            name="deletion of one key, the first time",
            unit="ms",
            ours="first",
            limit="commit",
            limit_name="replace a file",
        ),
        Row(
            name="deletion of a prefix with 100 records",
            unit="ms",
            ours="prefix",
            limit="commit",
            limit_name="replace a file",
        ),
    ),
    arms=_arms,
)
