"""Golden files on a simulated disk, opened as the release that wrote them did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground

from .make import CONFIG, NOW_MS


def golden_files(folder: Path) -> dict[str, bytes]:
    """Return the files below `folder` by their names there."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def golden_disk(files: Mapping[str, bytes], root: str) -> SimulatedFilesystem:
    """Return a disk that holds these files below `root`."""
    contents: dict[str, bytes | None] = {root: None}
    for name, content in files.items():
        for parent in reversed(Path(root, name).parents):
            if parent.is_relative_to(root):
                contents.setdefault(str(parent), None)
        contents[f"{root}/{name}"] = content
    return SimulatedFilesystem(contents)


def open_store(disk: SimulatedFilesystem, root: str) -> Store:
    """Open the store at `root`."""
    store = Store(
        root,
        log_config=CONFIG,
        filesystem=disk,
        clock=ManualClock(wall_ms=NOW_MS),
        background=SeededBackground(0),
    )
    store.open()
    return store
