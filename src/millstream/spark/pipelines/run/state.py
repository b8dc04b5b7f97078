"""How far the queries of a pipeline came, read from their checkpoints without Spark."""

from __future__ import annotations

import os
from dataclasses import dataclass

from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.table import is_url


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """What the checkpoint of a target says."""

    target: str
    planned: int | None
    """The last batch that was begun; `None` where none was."""
    committed: int | None
    """The last batch that is done; the next run begins with the one after it."""
    at: float | None
    """When that was, in seconds since 1970."""


def states_of(pipeline: Pipeline) -> list[TargetState] | None:
    """Return how far each target came; nothing where the checkpoints are not on this machine."""
    if is_url(pipeline.checkpoint_directory):
        return None
    return [_state(target.name, pipeline.checkpoint_of(target)) for target in pipeline.targets]


def _state(target: str, checkpoint: str) -> TargetState:
    planned = _last(os.path.join(checkpoint, "offsets"))
    commits = os.path.join(checkpoint, "commits")
    committed = _last(commits)
    at = None if committed is None else _time(os.path.join(commits, str(committed)))
    return TargetState(target=target, planned=planned, committed=committed, at=at)


def _last(directory: str) -> int | None:
    """Return the highest batch that has a file in a directory."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return None
    return max((int(name) for name in names if name.isdecimal()), default=None)


def _time(path: str) -> float | None:
    """Return when a file was written; nothing where a running pipeline has removed it since."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return None
