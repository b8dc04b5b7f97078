"""Makes the golden files of a log with a segment in a cold store.

    python -m tests.storage.golden.make_v6_cold

Made once and not again, like those of version 1.

    v6_cold/data/                     version 6 of `partition.json`, and version 1 of a marker
    v6_cold/cold/                     the cold store
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

from millstream.config.schema import StoreConfig, TierConfig
from millstream.records.record import Record
from millstream.storage.store import Store
from millstream.storage.tier.cold_store import DirectoryStore
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.storage.golden.make import NOW_MS
from tests.storage.tier.stores import TIERED, InlineThreads

FOLDER = Path(__file__).parent / "v6_cold"
VALUES = [b"%d" % number + b"x" * 300 for number in range(8)]


def open_store(disk: SimulatedFilesystem) -> Store:
    store = Store(
        "/data",
        log_config=TIERED,
        config=StoreConfig(upkeep_interval_ms=0, scrub_interval_ms=0),
        tier=TierConfig(bytes_per_second_max=0),
        cold_store=DirectoryStore("/cold", disk),
        tier_threads=InlineThreads(),
        filesystem=disk,
        clock=ManualClock(wall_ms=NOW_MS),
        background=SeededBackground(0),
    )
    store.open()
    return store


async def _make(disk: SimulatedFilesystem) -> None:
    store = open_store(disk)
    topic_id = uuid.UUID("c7725dd1-09a7-4642-bc9b-662fd694eae7")
    log = await store.log("t", topic_id=topic_id)
    for number, value in enumerate(VALUES):
        await log.append_records([Record(value, timestamp_ms=number)])
    await store.relocator.run_once()
    await store.close()


def make() -> SimulatedFilesystem:
    """Write both stores, and return the disk."""
    disk = SimulatedFilesystem()
    disk.make_directory("/cold")
    asyncio.run(_make(disk))
    return disk.copy()


def main() -> None:
    if FOLDER.exists():
        raise SystemExit(f"{FOLDER} exists: golden files are made once")
    FOLDER.mkdir()
    for path, content in make().contents().items():
        target = FOLDER / path.lstrip("/")
        if target == FOLDER or Path(path).name in {"lock", "spare"}:
            continue
        if content is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(content)


if __name__ == "__main__":
    main()
