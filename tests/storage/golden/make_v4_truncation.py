"""Makes the golden files of an interrupted truncation: version 4 of `partition.json`.

    python -m tests.storage.golden.make_v4_truncation

Made once and not again, like those of version 1.

    v4_truncation/node.json
    v4_truncation/topics/t/0/     to be cut inside its second segment; the last one is gone already
"""

from __future__ import annotations

from pathlib import Path

from millstream.storage.files.document import write_document
from millstream.storage.files.names import STORE_KIND, STORE_VERSION
from millstream.storage.files.partition_metadata import LeaderEpoch, PartitionMetadata, Truncation
from millstream.storage.files.watermark import WatermarkFile
from millstream.testing import SimulatedFilesystem
from tests.storage.golden.make import STORE_ID
from tests.storage.rewritten import DIRECTORY, A, B, C, appended, make_disk

FOLDER = Path(__file__).parent / "v4_truncation"
ROOT = "/data"
END = 14

PARTITION = PartitionMetadata(
    epochs=(LeaderEpoch(0, 0), LeaderEpoch(3, 30)),
    truncation=Truncation(END, 10, 0, len(appended(10, END))),
)


def make() -> SimulatedFilesystem:
    """Write the store, and return the disk."""
    disk = make_disk(A, B, C, partition=PARTITION)
    WatermarkFile(disk, DIRECTORY).write(END)
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
