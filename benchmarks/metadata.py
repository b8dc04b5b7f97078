"""Measures one change of the metadata of a node, beside its limit and a plain SQLite database.

    python benchmarks/metadata.py                   300 changes each
    python benchmarks/metadata.py --changes 1000

In one run and in turns, so that all see the same machine:

- limit: one write of 4 KiB and one `fdatasync`, which is the least that a durable change needs;
- wal: one row in a plain SQLite database with a write-ahead log and `synchronous=FULL`;
- millstream: one put through `SqliteMetadata`, with its rollback journal, checksums and checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from millstream.metadata.sqlite import SqliteMetadata

PAGE = bytes(4096)
VALUE = b"x" * 200
TURN = 10
"""Changes of one kind before the next kind has its turn."""


async def measure(folder: Path, changes: int) -> dict[str, list[float]]:
    """Return the seconds of each change, by kind."""
    seconds: dict[str, list[float]] = {"limit": [], "wal": [], "millstream": []}
    file = os.open(folder / "limit", os.O_CREAT | os.O_RDWR)
    os.pwrite(file, PAGE, 0)
    os.fsync(file)
    async with SqliteMetadata(str(folder / "meta.db")) as metadata:
        with contextlib.closing(_plain(folder / "plain.db")) as plain:
            for number in range(0, changes, TURN):
                for _ in range(number, number + TURN):
                    seconds["limit"].append(_timed(lambda: _sync(file)))
                for step in range(number, number + TURN):
                    seconds["wal"].append(_timed(lambda step=step: _put(plain, step)))
                for step in range(number, number + TURN):
                    began = time.perf_counter()
                    await metadata.transact(puts={f"topics/t{step}": VALUE})
                    seconds["millstream"].append(time.perf_counter() - began)
    os.close(file)
    return seconds


def _plain(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value BLOB)")
    return connection


def _put(connection: sqlite3.Connection, step: int) -> None:
    connection.execute("INSERT INTO entries VALUES (?, ?)", (f"topics/t{step}", VALUE))


def _sync(file: int) -> None:
    os.pwrite(file, PAGE, 0)
    os.fdatasync(file)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Print p50 and p99 of each kind, and the ratio to the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=300, help="changes of each kind")
    changes = parser.parse_args().changes
    with tempfile.TemporaryDirectory(dir=".") as folder:
        seconds = asyncio.run(measure(Path(folder), changes))
    limit = statistics.median(seconds["limit"])
    for kind, times in seconds.items():
        p50, p99 = statistics.median(times), sorted(times)[len(times) * 99 // 100]
        print(f"{kind:12} p50 {p50 * 1e3:.2f} ms  p99 {p99 * 1e3:.2f} ms  {p50 / limit:.1f}x limit")


if __name__ == "__main__":
    main()
