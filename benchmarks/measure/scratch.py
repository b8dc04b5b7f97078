"""Temporary folder for a measurement."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield an empty folder below `parent`, and remove it with its contents."""
    folder = Path(tempfile.mkdtemp(prefix="data-", dir=parent))
    try:
        yield folder
    finally:
        # Ignoring errors: after Ctrl-C a process may still be letting go of its files.
        shutil.rmtree(folder, ignore_errors=True)
