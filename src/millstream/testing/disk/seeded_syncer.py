"""Syncer without a kernel queue, with an order of syncs that a seed determines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from millstream.storage.disk.filesystem import File
from millstream.storage.disk.syncer import attempt_sync
from millstream.testing.clocks.seeded_background import TURNS_MAX


class SeededSyncer:
    """Syncs files on the event loop itself, some turns later, one file per turn."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - repeatable, not secret.

    def has_capacity(self, count: int) -> bool:
        """Return true: the capacity is unlimited."""
        return count > 0

    def sync(self, files: Sequence[File], done: Callable[[OSError | None], None]) -> None:
        """Sync all of `files`, then call `done`."""
        self._step(list(files), done, None, self._rng.randrange(1, TURNS_MAX))

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _step(
        self,
        files: list[File],
        done: Callable[[OSError | None], None],
        error: OSError | None,
        turns: int,
    ) -> None:
        if turns == 0:
            if not files:
                done(error)
                return
            error = error or attempt_sync(files.pop(0))
        later = max(turns - 1, 0)
        asyncio.get_running_loop().call_soon(self._step, files, done, error, later)
