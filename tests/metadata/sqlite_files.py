"""SQLite files for tests of metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from millstream.metadata.sqlite import SqliteMetadata


async def opened(path: Path) -> SqliteMetadata:
    metadata = SqliteMetadata(str(path))
    await metadata.open()
    return metadata


def write(path: Path, entries: Mapping[str, bytes]) -> None:
    """Make a file that was closed cleanly."""

    async def fill() -> None:
        async with SqliteMetadata(str(path)) as metadata:
            await metadata.transact(puts=entries)

    asyncio.run(fill())
