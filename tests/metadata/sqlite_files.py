"""SQLite files for tests of the metadata store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from millstream.metadata.sqlite import SqliteMetadata


async def opened(path: Path) -> SqliteMetadata:
    metadata = SqliteMetadata(str(path))
    await metadata.open()
    return metadata


def write(path: Path, entries: Mapping[str, bytes]) -> None:
    """Create a file and close it cleanly."""

    async def fill() -> None:
        async with SqliteMetadata(str(path)) as metadata:
            await metadata.transact(puts=entries)

    asyncio.run(fill())


class FailingConnection:
    """A connection whose next statement of one kind fails."""

    def __init__(self, connection: sqlite3.Connection, statement: str, code: int) -> None:
        self._connection = connection
        self._statement = statement
        self._code = code
        self.is_failing = True

    def execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        if self.is_failing and statement.startswith(self._statement):
            self.is_failing = False
            error = sqlite3.OperationalError("on purpose")
            error.sqlite_errorcode = self._code
            raise error
        return self._connection.execute(statement, values)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        self._connection.close()
