"""Millstream in a minute: a node, a crash, a pipeline, a query, a plot.

`make demo` runs this. All is in a temporary directory and on free ports, and gone at the end, but
for the plot. On a terminal the node stays until you press Enter, so that you can look around.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

import crash
import pipeline
import query
from node import Node
from telling import chapter, say, show


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
            chapter("That was it.")
            finish(node)


def keep_java_short(directory: Path) -> None:
    """Have Java compile as fits a run of seconds, and leave nothing outside a directory."""
    os.environ["TMPDIR"] = str(directory)
    os.environ["JDK_JAVA_OPTIONS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={directory}"
    )


def finish(node: Node) -> None:
    """Show where to look, and stop the node."""
    say("The node tells about itself; a console in the browser is still to come.")
    for path in ("/health/ready", "/metrics", "/v1/topics/clicks", "/v1/topics/clicks-by-hour"):
        show(f"curl {node.url}{path}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        with contextlib.suppress(EOFError):
            input("\nThe node still runs. Enter ends it. ")
    say("SIGTERM: the node answers what is under way, commits, seals its segments and ends.")
    show(f"exit status {node.end(signal.SIGTERM)}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("\nterminated"))
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\ninterrupted")
