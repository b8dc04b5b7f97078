"""Makes the golden files of version 3 of `partition.json`: a log with a rewritten segment.

    python -m tests.storage.golden.make_v3

Made once and not again, like those of version 1.

    v3/node.json
    v3/topics/t/0/     a segment of generation 1, one of generation 0, and rules that still hold
"""

from __future__ import annotations

from pathlib import Path

from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.files.document import write_document
from millstream.storage.files.names import STORE_KIND, STORE_VERSION
from millstream.storage.files.partition_metadata import DeletionRule, PartitionMetadata
from millstream.testing import SimulatedFilesystem
from tests.storage.golden.make import STORE_ID
from tests.storage.rewritten import D, X, make_disk

FOLDER = Path(__file__).parent / "v3"
ROOT = "/data"

PARTITION = PartitionMetadata(
    start_offset=3,
    eviction_floor=2,
    cleaned_offset=30,
    is_rewritten=True,
    deletions=(
        DeletionRule(KeyMatch(b"key 33", is_prefix=False), 40),
        DeletionRule(KeyMatch(b"key 2", is_prefix=True), 25),
    ),
)
DELETED = {20, 21, 22, 23, 24, 33}
"""What the rules hit of what the files hold, from the first offset on."""


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
