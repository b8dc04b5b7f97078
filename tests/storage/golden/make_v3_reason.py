"""Makes the golden files of version 3 of `partition.json` with a gap reason and a topic id.

    python -m tests.storage.golden.make_v3_reason

Made once and not again, like those of version 1.

    v3_reason/node.json
    v3_reason/topics/t/0/     the first records were evicted, by size
"""

from __future__ import annotations

import uuid
from pathlib import Path

from millstream.storage.files.document import write_document
from millstream.storage.files.names import STORE_KIND, STORE_VERSION
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.testing import SimulatedFilesystem
from tests.storage.golden.make import STORE_ID
from tests.storage.rewritten import D, X, make_disk

FOLDER = Path(__file__).parent / "v3_reason"
ROOT = "/data"

PARTITION = PartitionMetadata(
    start_offset=3,
    eviction_floor=3,
    is_rewritten=True,
    eviction_reason="bytes",
    topic_id=uuid.UUID("c7725dd1-09a7-4642-bc9b-662fd694eae7"),
)


def make() -> SimulatedFilesystem:
    """Write the store, and return the disk."""
    disk = make_disk(X, D, partition=PARTITION)
    content = {"store_id": STORE_ID}
    write_document(disk, ROOT, "node.json", content, kind=STORE_KIND, version=STORE_VERSION)
    return disk.copy()


def main() -> None:
    if FOLDER.exists():
        raise SystemExit(f"{FOLDER} exists: golden files are made once")
    for path, content in make().contents().items():
        target = FOLDER / path.removeprefix(ROOT).lstrip("/")
        if content is None:
            target.mkdir()
        else:
            target.write_bytes(content)


if __name__ == "__main__":
    main()
