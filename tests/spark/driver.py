"""A user program that copies a topic to another, as a batch or a stream; tests kill it.

python -m tests.spark.driver stream|batch BOOTSTRAP SOURCE TARGET FOLDER STEP VICTIM
"""

from __future__ import annotations

import sys

from pyspark import cloudpickle

from millstream.spark.session import running_session
from tests.spark import faults


def main(kind, bootstrap, source, target, folder, step, victim):
    with running_session("copy", "local[2,3]", {"spark.sql.shuffle.partitions": "2"}) as spark:
        run(spark, kind, bootstrap, source, target, folder, step, victim)


def run(spark, kind, bootstrap, source, target, folder, step, victim):
    cloudpickle.register_pickle_by_value(faults)
    spark.dataSource.register(faults.FaultySource)
    options = {
        "bootstrap.servers": bootstrap,
        "topic": target,
        "step": step,
        "victim": victim,
        "flag": f"{folder}/died",
    }
    read = {"bootstrap.servers": bootstrap, "topic": source, "startingOffsets": "earliest"}
    if kind == "batch":
        frame = spark.read.format("millstream").options(**read).load().select("key", "value")
        writer = frame.write.format("faulty").options(**options, jobId=f"copy-{folder}")
        writer.mode("append").save()
        return
    stream = spark.readStream.format("millstream").options(**read, maxRecordsPerTrigger="40")
    writer = stream.load().select("key", "value").writeStream.format("faulty").options(**options)
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
