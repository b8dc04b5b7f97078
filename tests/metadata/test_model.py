"""Each metadata store against a dictionary as model."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings

from millstream.metadata.sqlite import SqliteMetadata
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.memory_metadata import MemoryMetadata, MetadataServer
from tests.metadata.model import LeasedMachine, MetadataMachine

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200

SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class SqliteMachine(MetadataMachine):
    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="millstream-metadata-"))
        super().__init__()

    async def open_store(self) -> SqliteMetadata:
        path = str(self.directory / "meta.db")
        metadata = SqliteMetadata(path, background=SeededBackground(1, width=1))
        await metadata.open()
        return metadata

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.directory)


class MemoryMachine(LeasedMachine):
    def __init__(self) -> None:
        self.server = MetadataServer()
        super().__init__()

    async def open_store(self) -> MemoryMetadata:
        return self.server.connect()


TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.settings = SETTINGS
TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = SETTINGS
