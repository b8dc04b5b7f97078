"""The second chapter: a pipeline, from a topic into a topic and a table."""

from __future__ import annotations

import shutil
from pathlib import Path

from clicks import read_all
from node import Node
from telling import run, say, show

FILE = Path(__file__).with_name("clicks.toml")
COUNTS = "clicks-by-hour"
ARCHIVE = "archive"


def tell(node: Node, directory: Path) -> None:
    """Fill the topic and the table that the file names."""
    say(f"Spark reads the clicks, and writes a topic and a Parquet table. This is {FILE.name}:")
    show(FILE.read_text().partition("\n\n")[2])
    shutil.copy(FILE, directory)
    say("It runs until all is done that is there now. Spark takes a while to start.")
    options = ("--once", "--bootstrap", node.bootstrap)
    run("pipeline", "run", FILE.name, *options, directory=directory)
    run("pipeline", "list", ".", directory=directory)
    say(f"What came of it is a topic like any other. A Kafka client reads `{COUNTS}`:")
    records = read_all(node.bootstrap, COUNTS, 1)
    show("\n".join(record.value().decode() for record in records[:3]))
    doubled = len(records) - len({record.value() for record in records})
    show(f"... {len(records):,} records, {doubled} doubled")
    assert doubled == 0
