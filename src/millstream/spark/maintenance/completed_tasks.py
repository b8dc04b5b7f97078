"""Completed tasks of a job, stored in a directory so that the next run can skip them.

Each task has one small file, which is written under another name and then renamed: a run that is
killed leaves complete files or none. Files are named after the input and its state, so a segment
that has changed is processed again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from millstream.errors import CorruptFile

R = TypeVar("R")

_SUFFIX = ".done.json"


@dataclass(frozen=True, slots=True)
class CompletedTasks(Generic[R]):
    """Completed tasks of one kind of job. All workers must have access to the directory."""

    directory: str
    kind: str
    """The operation and its parameters. Results of one kind never count for another."""
    result_type: type[R]

    def make_directory(self) -> None:
        """Create the directory if it does not exist."""
        Path(self.directory).mkdir(parents=True, exist_ok=True)

    def load(self, name: str) -> R | None:
        """Return the result of a task, or `None` if it is not completed."""
        path = self._path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=self.result_type)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CorruptFile(f"{path}: {error}; delete the file to repeat its task") from error

    def save(self, name: str, result: R) -> None:
        """Store the result of a task. It is not synced, so a machine that crashes may lose it."""
        path = self._path(name)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_bytes(msgspec.json.encode(result))
        unfinished.replace(path)

    def recording(self, name: Callable[[Any], str], task: Callable[[Any], R]) -> Callable[[Any], R]:
        """Return a function that calls `task` and stores its result."""

        def recorded(item: Any) -> R:
            result = task(item)
            self.save(name(item), result)
            return result

        return recorded

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(f"{self.kind}\n{name}".encode()).hexdigest()
        return Path(self.directory) / f"{self.kind.split()[0]}-{digest[:32]}{_SUFFIX}"
