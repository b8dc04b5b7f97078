"""Compaction of a log of small records with many keys, beside a copy with a checksum."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c
from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least

from millstream import LogConfig, StoreConfig
from subjects.life.data import copy_of, keyed_batches, prepare
from subjects.log.common import MB, MIB, fresh_file, log_files, opened

CONFIG = LogConfig(segment_bytes_max=64 * MIB, is_compacted=True)
UNLIMITED = StoreConfig(cleaning_bytes_per_second_max=0)


@contextmanager
def _arms(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
    keys = scale.pick(smoke=1_000, quick=1_000_000, full=1_000_000)
    size = scale.pick(smoke=MB, quick=1_000 * MB, full=1_000 * MB)
    prepared = folder / "prepared"
    prepare(prepared, CONFIG, keyed_batches(keys + keys // 2, keys), size)
    bytes_before = sum(path.stat().st_size for path in log_files(prepared))

    def copy() -> Figures:
        began = time.thread_time()
        with fresh_file(folder / "copy") as descriptor:
            for path in log_files(prepared):
                _copy(path, descriptor)
            os.fsync(descriptor)
        return {"copy": bytes_before / MB / (time.thread_time() - began)}

    def compact() -> Figures:
        with copy_of(prepared) as data, opened(data, CONFIG, store_config=UNLIMITED) as store:
            log = store.log()
            cpu, began = time.process_time(), time.perf_counter()
            store.look_after()
            elapsed, used = time.perf_counter() - began, time.process_time() - cpu
            left = sum(path.stat().st_size for path in log_files(data))
            assert log.record_count == keys, f"{log.record_count} records of {keys} keys"
        return {
            "compact": bytes_before / MB / used,
            "compact rate": bytes_before / MB / elapsed,
            "left": left / bytes_before * 100,
        }

    compact()  # The first run compiles, or loads what was compiled before.
    yield copy, compact


def _copy(path: Path, descriptor: int) -> None:
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for start in range(0, len(view), 4 * MIB):
        piece = view[start : start + 4 * MIB]
        crc32c(piece)
        os.write(descriptor, piece)


COMPACTION = Experiment(
    title="compaction",
    note=(
        "1 GB of records of 100 bytes with a million distinct keys, in batches of 16 KB, not"
        " compressed, in segments of 64 MiB: compacted to the latest of each key, with every"
        " checksum verified and every byte synced. Bytes read for each second of CPU, all threads"
        " of the process together. The limit reads, checksums and writes all bytes once."
    ),
    rows=(
        Row(
            name="compaction, 100-byte records, 1M keys",
            unit="MB per CPU second",
            ours="compact",
            limit="copy",
            limit_name="read, sum and write",
            goal=at_least(100),
        ),
        Row(name="compaction, as the clock has it", unit="MB/s", ours="compact rate"),
        Row(name="compaction: what is left", unit="%", ours="left"),
    ),
    arms=_arms,
    repetitions_quick=3,
    repetitions_full=5,
)
