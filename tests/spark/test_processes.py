"""Imports of Spark's Python processes: each step of a query loads only what it uses."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMIT = """
from pyspark.sql.types import BinaryType, StructField, StructType
from millstream.clients.kafka.coordinator import ClientProducerId
from millstream.spark.write.task_transaction import TaskTransaction
from millstream.spark.write.writer import SinkCommitMessage
from pyspark_millstream import DefaultSource
source = DefaultSource({"bootstrap.servers": "127.0.0.1:1", "topic": "orders", "timeoutMs": "1"})
writer = source.streamWriter(StructType([StructField("value", BinaryType())]), False)
transaction = TaskTransaction("spark-query/q/1/0/0", ClientProducerId(1, 0), 5)
try:
    writer.commit([SinkCommitMessage("spark-query/q", 1, transaction)], 0)
except Exception as error:
    assert type(error).__name__ == "NodeUnreachable", error
else:
    raise AssertionError("nobody listens on port 1")
"""

WRITER = """
from pyspark.sql.types import BinaryType, StructField, StructType
from pyspark_millstream import DefaultSource
source = DefaultSource({"bootstrap.servers": "127.0.0.1:1", "topic": "orders"})
source.streamWriter(StructType([StructField("value", BinaryType())]), False)
"""

PLAN = """
from pyspark_millstream import DefaultSource
from millstream.spark.read import batch_reader, stream_reader
"""


@pytest.mark.parametrize(
    ("step", "unneeded"),
    [
        pytest.param(COMMIT, ("pyarrow", "numpy", "millstream.spark.write.task"), id="a commit"),
        pytest.param(
            WRITER, ("pyarrow", "numpy", "millstream.clients.kafka.client"), id="making a writer"
        ),
        pytest.param(PLAN, ("millstream.records.arrow.decoder", "pyarrow.compute"), id="planning"),
    ],
)
def test_a_step_loads_no_more_than_it_needs(step, unneeded):
    code = f"{step}\nimport sys\nprint([name for name in {unneeded!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
