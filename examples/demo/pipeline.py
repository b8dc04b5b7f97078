"""The second chapter: a pipeline is killed within a batch, and nothing is counted twice."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from clicks import read_all
from node import Node
from telling import run, say, show, show_command

FILE = Path(__file__).with_name("clicks.toml")
COUNTS = "clicks-by-hour"
ARCHIVE = "archive"


def tell(node: Node, directory: Path) -> None:
    """Fill the topic and the table that the file names."""
    say(f"Spark reads the clicks, and writes a topic and a Parquet table. This is {FILE.name}:")
    show(FILE.read_text().partition("\n\n")[2])
    shutil.copy(FILE, directory)
    command = ("pipeline", "run", FILE.name, "--once", "--bootstrap", node.bootstrap)
    say("It runs, and is killed with SIGKILL within its first batch. Spark takes a while to start.")
    kill_within_a_batch(command, directory)
    run("pipeline", "list", ".", directory=directory)
    say("It runs again: it goes on with the batch that was begun and is not done.")
    run(*command, directory=directory)
    say(f"What came of it is a topic like any other. A Kafka client reads `{COUNTS}`:")
    records = read_all(node.bootstrap, COUNTS, 1)
    show("\n".join(record.value().decode() for record in records[:3]))
    doubled = len(records) - len({record.value() for record in records})
    show(f"... {len(records):,} records, {doubled} doubled")
    assert doubled == 0


def kill_within_a_batch(command: tuple[str, ...], directory: Path) -> None:
    """Run a command until a batch has begun, and kill it; Spark notices and ends as well."""
    process = subprocess.Popen(
        show_command(*command), cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None and not has_begun(directory):
            time.sleep(0.02)
    finally:
        process.kill()
        process.communicate()  # Until Spark has closed its end, too.
    show(f"killed, exit status {process.returncode}")


def has_begun(directory: Path) -> bool:
    """Whether a batch was begun: its checkpoint says so before anything else happens."""
    return any(directory.glob("millstream-pipelines/*/*/offsets/0"))
