"""The in-memory metadata store of the tests passes the same suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.metadata.memory import MemoryMetadata
from tests.metadata.suite import MetadataSuite


class TestMemoryMetadata(MetadataSuite):
    @pytest.fixture
    def open_metadata(self) -> Callable[[], Awaitable[MemoryMetadata]]:
        metadata = MemoryMetadata()

        async def open_it() -> MemoryMetadata:
            nonlocal metadata
            metadata = metadata.reopened()
            return metadata

        return open_it
