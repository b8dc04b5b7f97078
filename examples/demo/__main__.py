"""Demo of Millstream in two minutes: a node, a crash, a pipeline, a query, a cluster, a console.

`make demo` runs it. It uses a temporary directory and free ports, and leaves only the plot. On a
terminal, the node and its console run until Ctrl-C; otherwise the demo ends by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import cluster
import console
import crash
import pipeline
import query
from node import Node
from output import chapter, explain


def main() -> None:
    """Run all chapters."""
    with tempfile.TemporaryDirectory(prefix="millstream-demo-") as name:
        directory = Path(name)
        configure_java(directory)
        print(f"All files are in {directory}, which is deleted at the end.")
        chapter("1: A log that loses nothing")
        explain("Start a node. Any Kafka client can connect to it.")
        with Node(directory) as node:
            crash.present(node, directory)
            chapter("2: A pipeline that counts every record once")
            pipeline.present(node, directory)
            chapter("3: One query over a topic and a table")
            query.present(node, directory, crash.EVENTS)
            chapter("4: A cluster that goes on without its leader")
            cluster.present(directory)
            chapter("5: The console")
            console.present(node)


def configure_java(directory: Path) -> None:
    """Configure Java for a run of seconds, with its temporary files in `directory`."""
    os.environ["TMPDIR"] = str(directory)
    os.environ["JDK_JAVA_OPTIONS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={directory}"
    )


if __name__ == "__main__":
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("\nterminated"))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
