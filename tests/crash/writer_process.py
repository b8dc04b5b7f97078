"""A process that appends until it is killed, and says what was acknowledged.

Run as `python -m tests.crash.writer_process DIRECTORY ROUND`. One line on standard output for
each acknowledged record: its offset and its value. The line leaves after the acknowledgement, so
the reader may rely on it.
"""

from __future__ import annotations

import asyncio
import sys

from millstream.config.schema import LogConfig, StoreConfig
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.store import Store

SMALL = LogConfig(segment_bytes_max=64 * 1024, index_interval_bytes=1024)
APPENDERS = 8


async def main(directory: str, name: str) -> None:
    store = Store(directory, log_config=SMALL, config=StoreConfig(sync_threads=2))
    print("opening", flush=True)
    store.open()
    print("open", flush=True)
    log = await store.log("killed")
    await asyncio.gather(*(append(log, f"{name}.{number}") for number in range(APPENDERS)))


async def append(log: Log, name: str) -> None:
    number = 0
    while True:
        value = f"{name}.{number}:".encode() + b"x" * (number * 37 % 2000)
        appended = await log.append_records([Record(value)])
        sys.stdout.write(f"{appended.offset} {value.decode()}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
