"""Makes the golden files of version 2 of `partition.json`: a log whose front was deleted.

    python -m tests.storage.golden.make_v2

Made once and not again, like those of version 1.

    v2/node.json
    v2/topics/deleted/0/     starts inside its first segment; the one before that is gone
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.storage.files.document import write_document
from millstream.storage.files.names import STORE_KIND, STORE_VERSION
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.storage.golden.make import AFTER_EPOCH, BATCHES, CONFIG, NOW_MS, STORE_ID

FOLDER = Path(__file__).parent / "v2"
ROOT = "/v2"
START = 8


async def make() -> SimulatedFilesystem:
    """Write the store, delete from its front, close it, and return the disk."""
    disk = SimulatedFilesystem({ROOT: None})
    content = {"store_id": STORE_ID}
    write_document(disk, ROOT, "node.json", content, kind=STORE_KIND, version=STORE_VERSION)
    store = Store(
        ROOT,
        log_config=CONFIG,
        filesystem=disk,
        clock=ManualClock(wall_ms=NOW_MS),
        background=SeededBackground(0),
    )
    store.open()
    log = await store.log("deleted")
    for records in BATCHES:
        await log.append_records(records)
    await log.begin_epoch(4)
    for records in AFTER_EPOCH:
        await log.append_records(records)
    await log.delete_before(START)
    await store.close()
    return disk.copy()


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
