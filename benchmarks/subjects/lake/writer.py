"""The lake writer, in bytes of record values for each second of the processor."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from measure.experiment import Arm, Experiment, Figures, Row, Scale, at_least

from millstream.clients.kafka.client import KafkaClient
from millstream.lake.writer import LakeWriter
from millstream.records.build import build_batch
from millstream.records.record import Record
from subjects.kafka.client import answer_size, await_leader, produce_frame, send_pipelined
from subjects.kafka.processes import node
from subjects.log.common import KIB, MIB, NOW_MS

TOPIC = "written"
PARTITIONS = 4
BATCH_SIZE = 512 * KIB
_RECORD_OVERHEAD = 10
_ALL = -1


def fill(port: int, topic: str, size: int, total: int) -> int:
    """Produce records with values like those of logs, and keys that repeat; return their bytes."""
    records = [
        Record(_value(number, size), key=b"customer-%d" % (number % 1000))
        for number in range(BATCH_SIZE // (size + _RECORD_OVERHEAD))
    ]
    batch = build_batch(records, now_ms=NOW_MS)
    each = max(3, total // BATCH_SIZE // PARTITIONS)
    for partition in range(PARTITIONS):
        frame = produce_frame(topic, batch, acks=_ALL, partition=partition)
        await_leader(port, frame)
        answer = answer_size(port, frame)
        send_pipelined(port, frame, each - 2, answer=answer, window=8)
    return each * PARTITIONS * sum(len(record.value or b"") for record in records)


def _value(number: int, size: int) -> bytes:
    text = b"".join(
        b'{"id": %d, "path": "/shop/%d", "ms": %d} ' % (number * 7919 + part, part, number % 977)
        for part in range(size // 30 + 1)
    )
    return text[:size]


def _arms(size: int) -> Callable[[Scale, Path], AbstractContextManager[Sequence[Arm]]]:
    @contextmanager
    def prepared(scale: Scale, folder: Path) -> Iterator[Sequence[Arm]]:
        total = scale.pick(smoke=8 * BATCH_SIZE, quick=256 * MIB, full=1024 * MIB)
        numbers = itertools.count()
        with node(folder / "data") as server, KafkaClient(f"127.0.0.1:{server.port}") as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
            value_bytes = fill(server.port, TOPIC, size, total)

            def write() -> Figures:
                writer = LakeWriter(client, TOPIC, str(folder / f"table-{next(numbers)}"))
                started = time.process_time()
                writer.run()
                return {"write": value_bytes / (time.process_time() - started) / 1e6}

            if scale is not Scale.SMOKE:
                write()  # Which imports and compiles.
            yield (write,)

    return prepared


def _experiment(size: int, name: str) -> Experiment:
    return Experiment(
        title=f"write {name} records to the lake",
        note=(
            f"A topic of {name} records in 4 partitions, text with keys that repeat, is written to"
            " a new table in a local directory, through the node. The processor's time is that of"
            " the writer with all its threads: reading, decoding, Parquet with zstd, commit."
        ),
        rows=(
            Row(
                name=f"write {name} records, bytes of values",
                unit="MB per CPU second",
                ours="write",
                goal=at_least(100),
            ),
        ),
        arms=_arms(size),
        repetitions_smoke=1,
        repetitions_quick=2,
        repetitions_full=4,
    )


WRITE_1_KB = _experiment(KIB, "1 KB")
WRITE_100_BYTES = _experiment(100, "100-byte")
