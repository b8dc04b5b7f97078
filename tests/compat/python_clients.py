"""The record batch builders and readers of the clients written in Python."""

from __future__ import annotations

import warnings

import aiokafka.record.default_records as aiokafka_records

with warnings.catch_warnings():
    # kafka-python loads its schemas through a part of the standard library that is on its way out.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.record.default_records as kafka_python_records

# aiokafka has a compiled pair and a plain one.
CLIENTS = {
    "kafka-python": (
        kafka_python_records.DefaultRecordBatchBuilder,
        kafka_python_records.DefaultRecordBatch,
    ),
    "aiokafka": (
        aiokafka_records.DefaultRecordBatchBuilder,
        aiokafka_records.DefaultRecordBatch,
    ),
    "aiokafka-plain": (
        aiokafka_records._DefaultRecordBatchBuilderPy,
        aiokafka_records._DefaultRecordBatchPy,
    ),
}
