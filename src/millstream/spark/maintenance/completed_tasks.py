"""What of a job is finished, kept in a directory so that the next run can go on from there.

One small file for each piece of work, written whole under another name first: a run that is killed
leaves files that are right, or none. They are named after what was worked on and its state, so a
segment that has changed since is worked on again.
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
    """The finished pieces of one kind of job. The directory must be there for all workers."""

    directory: str
    kind: str
    """What was done, with all that it depends on: another kind never counts for this one."""
    result_type: type[R]

    def make_directory(self) -> None:
        """Create the directory if it is not there."""
        Path(self.directory).mkdir(parents=True, exist_ok=True)

    def load(self, name: str) -> R | None:
        """Return the result of a piece of work that was finished."""
        path = self._path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=self.result_type)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CorruptFile(f"{path}: {error}; remove it to have that done again") from error

    def save(self, name: str, result: R) -> None:
        """Take note that a piece of work is finished. A node that dies may forget it."""
        path = self._path(name)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        unfinished.write_bytes(msgspec.json.encode(result))
        unfinished.replace(path)

    def around(self, name: Callable[[Any], str], work: Callable[[Any], R]) -> Callable[[Any], R]:
        """Return `work` that takes note of each piece it has finished."""

        def noted(item: Any) -> R:
            result = work(item)
            self.save(name(item), result)
            return result

        return noted

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(f"{self.kind}\n{name}".encode()).hexdigest()
        return Path(self.directory) / f"{self.kind.split()[0]}-{digest[:32]}{_SUFFIX}"
