"""Millstream in two minutes: a node, a crash, a pipeline, a query, a plot, a console.

`make demo` runs this. All is in a temporary directory and on free ports, and gone at the end, but
for the plot. On a terminal the node and its console stay until Ctrl-C; elsewhere, all ends by
itself.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import crash
import ending
import pipeline
import query
from node import Node
from telling import chapter, say


def main() -> None:
    """Tell the story, chapter by chapter."""
    with tempfile.TemporaryDirectory(prefix="millstream-demo-") as name:
        directory = Path(name)
        keep_java_short(directory)
        print(f"Everything happens in {directory}, which is removed at the end.")
        chapter("One: a log that loses nothing")
        say("A node. Any Kafka client can connect to it.")
        with Node(directory) as node:
            crash.tell(node, directory)
            chapter("Two: a pipeline that counts everything once")
            pipeline.tell(node, directory)
            chapter("Three: the topic and the table, asked together")
            query.tell(node, directory, crash.EVENTS)
            chapter("Four: look around")
            ending.tell(node)


def keep_java_short(directory: Path) -> None:
    """Have Java compile as fits a run of seconds, and leave nothing outside a directory."""
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
