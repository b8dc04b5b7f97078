"""Logs of keyed records, prepared once and copied for each turn."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream import Log, LogConfig, Record
from millstream.records.build import build_batch
from subjects.log.common import NOW_MS, UnsyncedFilesystem, opened

BATCH_RECORDS = 140
"""Records of 100 bytes that make a batch of about 16 KB."""

KEY_SIZE = 16
VALUE_SIZE = 76
"""With its key and the overhead of the format, a record has about 100 bytes."""


def keyed_batches(records: int, keys: int) -> list[bytes]:
    """Return batches of records with `keys` distinct keys, each at least once, in random order."""
    chance = random.Random(records)
    numbers = list(range(keys)) + [chance.randrange(keys) for _ in range(records - keys)]
    chance.shuffle(numbers)
    value = chance.randbytes(VALUE_SIZE * 64)
    return [
        build_batch(
            [
                Record(value[n % 64 * VALUE_SIZE :][:VALUE_SIZE], key=key_of(n))
                for n in numbers[first : first + BATCH_RECORDS]
            ],
            now_ms=NOW_MS,
        )
        for first in range(0, len(numbers), BATCH_RECORDS)
    ]


def key_of(number: int) -> bytes:
    """Return one of the keys."""
    return b"%0*d" % (KEY_SIZE, number)


def prepare(folder: Path, config: LogConfig, batches: list[bytes], size: int) -> None:
    """Write a log of at least `size` bytes: all `batches`, as often as it takes; and close it."""

    async def append(log: Log, some: list[bytes]) -> None:
        await asyncio.gather(*(log.append(batch, is_checked=True) for batch in some))

    with opened(folder, config, filesystem=UnsyncedFilesystem()) as store:
        log = store.log()
        while log.size_bytes < size:
            for first in range(0, len(batches), 64):
                store.run(append(log, batches[first : first + 64]))


@contextmanager
def copy_of(prepared: Path) -> Iterator[Path]:
    """Give a copy of a data directory, and remove it afterwards."""
    copy = prepared.with_name(f"{prepared.name}-copy")
    shutil.copytree(prepared, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)
