"""A folder for what is measured, gone at the end, however the end comes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Give an empty folder below `parent`, and remove it with all that it holds."""
    folder = Path(tempfile.mkdtemp(prefix="data-", dir=parent))
    try:
        yield folder
    finally:
        # Ignoring errors: after Ctrl-C a process may still be letting go of its files.
        shutil.rmtree(folder, ignore_errors=True)
