"""Comparison of the replicas of a partition by their segment files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class _SegmentFile(NamedTuple):
    size: int
    digest: str


def compare_replicas(data: Sequence[Path], topic: str, partition: int) -> list[str]:
    """Return how replicas of a partition in several data directories differ; empty if equal.

    Replicas have the same segments, with the same bytes, as long as nothing was rewritten. A
    segment without a batch is not compared.
    """
    name = f"{topic}-{partition}"
    folders = [directory / "topics" / topic / str(partition) for directory in data]
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        return [f"{name}: there is no {folder}" for folder in missing]
    first, *others = (_segments(folder) for folder in folders)
    differences = []
    for directory, other in zip(data[1:], others, strict=True):
        for file in sorted(first.keys() | other.keys()):
            here, there = first.get(file), other.get(file)
            if here != there:
                message = f"{name}: {file} is {_text(here)} in {data[0].name}"
                differences.append(f"{message} and {_text(there)} in {directory.name}")
    return differences


def _segments(folder: Path) -> dict[str, _SegmentFile]:
    found = {}
    for path in folder.glob("*.log"):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # Removed meanwhile; a difference if others keep it.
            continue
        if content:
            digest = hashlib.sha256(content).hexdigest()
            found[path.name] = _SegmentFile(len(content), digest[:12])
    return found


def _text(segment: _SegmentFile | None) -> str:
    return "missing" if segment is None else f"{segment.size} bytes ({segment.digest})"
