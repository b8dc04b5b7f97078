"""Makes the golden files: a store of format version 1, as small as it can be and show everything.

    python -m tests.storage.golden.make

They were made once and are not made again: the files in this folder are what earlier releases
wrote, and every later one has to read them. Run it only to add files for a new format version,
beside the old ones.

    v1/node.json
    v1/topics/sealed/0/      three sealed segments, two leader epochs, jumping timestamps
    v1/topics/growing/0/     what a killed process leaves: no seal, a checkpoint
    v1/topics/packed/0/      one sealed segment with a batch of each codec
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.config.schema import Durability, LogConfig
from millstream.records.compression import Codec
from millstream.records.record import Record
from millstream.storage.files.document import write_document
from millstream.storage.files.names import STORE_KIND, STORE_VERSION
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground

FOLDER = Path(__file__).parent / "v1"
ROOT = "/v1"
STORE_ID = "00000000-0000-4000-8000-000000000001"
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes_max=1024, index_interval_bytes=200)

BATCHES: list[list[Record]] = [
    [Record(b"first", key=b"k", timestamp_ms=NOW_MS)],
    [
        Record(b"jumps back", timestamp_ms=NOW_MS - 5_000),
        Record(None, key=b"deleted", timestamp_ms=NOW_MS + 9_000),
        Record(b"", timestamp_ms=NOW_MS + 1),
    ],
    [Record(b"headers", headers=(("a", b"1"), ("a", None), ("\u00e9", b"")), timestamp_ms=NOW_MS)],
    [Record(b"undated")],
    [Record(b"x" * 300, timestamp_ms=0)],
    [Record(b"y" * 300, timestamp_ms=NOW_MS + 2)],
    [Record(b"last of epoch 0", timestamp_ms=NOW_MS + 3)],
]
AFTER_EPOCH = [[Record(b"epoch 4", timestamp_ms=NOW_MS + 4)]]
PACKED = [(codec, [Record(b"packed " * 20, timestamp_ms=NOW_MS)] * 3) for codec in Codec]


async def make() -> SimulatedFilesystem:
    """Write the store, and return the disk with one log still open, as a kill would leave it."""
    disk = SimulatedFilesystem({ROOT: None})
    write_document(
        disk,
        ROOT,
        "node.json",
        {"store_id": STORE_ID},
        kind=STORE_KIND,
        version=STORE_VERSION,
    )
    store = Store(
        ROOT,
        log_config=CONFIG,
        filesystem=disk,
        clock=ManualClock(wall_ms=NOW_MS),
        background=SeededBackground(0),
    )
    store.open()
    await _make_sealed(store)
    await _make_growing(store)
    await _make_packed(store)
    return disk.copy()


async def _make_sealed(store: Store) -> None:
    log = await store.log("sealed")
    for records in BATCHES:
        await log.append_records(records)
    await log.begin_epoch(4)
    for records in AFTER_EPOCH:
        await log.append_records(records)
    await log.close()


async def _make_growing(store: Store) -> None:
    log = await store.log("growing")
    for records in BATCHES[:3]:
        await log.append_records(records)


async def _make_packed(store: Store) -> None:
    log = await store.log("packed", config=LogConfig(durability=Durability.DISK))
    for codec, records in PACKED:
        await log.append_records(records, codec=codec)
    await log.close()


def main() -> None:
    if FOLDER.exists():
        raise SystemExit(f"{FOLDER} exists: golden files are made once")
    disk = asyncio.run(make())
    for path, content in disk.contents().items():
        target = FOLDER.parent / path.lstrip("/")
        if content is None:
            target.mkdir()
        elif target.name != "lock":
            target.write_bytes(content)


if __name__ == "__main__":
    main()
