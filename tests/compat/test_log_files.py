"""A `.log` file is Kafka's: a reader of another project finds every record in it."""

from __future__ import annotations

import warnings
from pathlib import Path

import aiokafka.record.memory_records as aiokafka_memory

import millstream
from millstream import Codec, LogConfig, Record

with warnings.catch_warnings():
    # kafka-python loads its schemas through a part of the standard library that is on its way out.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.memory_records as kafka_python_memory


def test_other_clients_read_the_files_of_a_closed_log(tmp_path: Path) -> None:
    values = [b"%d" % number * 50 for number in range(60)]
    with millstream.open(tmp_path, config=LogConfig(segment_bytes_max=2048)) as store:
        log = store.log("orders")
        for number, value in enumerate(values):
            codec = list(Codec)[number % len(Codec)]
            log.append_many([Record(value, key=b"k", timestamp_ms=number)], codec=codec)
    files = sorted(tmp_path.glob("topics/orders/0/*.log"))
    assert len(files) > 1
    for reader in (kafka_python_memory.MemoryRecords, aiokafka_memory.MemoryRecords):
        found = []
        for file in files:
            batches = reader(file.read_bytes())
            while batches.has_next():
                batch = batches.next_batch()
                assert batch.validate_crc()
                found += [(record.offset, record.timestamp, record.value) for record in batch]
        assert found == [(offset, offset, value) for offset, value in enumerate(values)]
