"""Chapter 2: a pipeline from a topic to a topic and a table."""

from __future__ import annotations

import shutil
from pathlib import Path

from clicks import read_all
from node import Node
from output import explain, run, show

FILE = Path(__file__).with_name("clicks.toml")
COUNTS = "clicks-by-hour"
ARCHIVE = "archive"


def present(node: Node, directory: Path) -> None:
    """Run the pipeline, and show the topic that it writes."""
    explain(f"Define a pipeline from the clicks to a topic and a Parquet table, in {FILE.name}:")
    show(FILE.read_text().partition("\n\n")[2])
    shutil.copy(FILE, directory)
    explain("Run it until all present records are processed. Spark takes a while to start.")
    options = ("--once", "--bootstrap", node.bootstrap)
    run("pipeline", "run", FILE.name, *options, directory=directory)
    run("pipeline", "list", ".", directory=directory)
    explain(f"Read the resulting topic `{COUNTS}` with a Kafka client:")
    records = read_all(node.bootstrap, COUNTS, 1)
    show("\n".join(record.value().decode() for record in records[:3]))
    duplicates = len(records) - len({record.value() for record in records})
    show(f"... {len(records):,} records, {duplicates} duplicates")
    assert duplicates == 0
