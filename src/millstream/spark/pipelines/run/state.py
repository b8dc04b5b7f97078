"""Progress of a pipeline's queries, read from their checkpoints without Spark."""

from __future__ import annotations

import os
from dataclasses import dataclass

from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.table import is_url


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """State in the checkpoint of a target."""

    target: str
    planned: int | None
    """The last batch that was started, or `None`."""
    committed: int | None
    """The last completed batch; the next run starts with the one after it."""
    at: float | None
    """Time of its completion, in seconds since 1970."""


def states_of(pipeline: Pipeline) -> list[TargetState] | None:
    """Return the state of each target; `None` if the checkpoints are not on this machine."""
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
    """Return the modification time of a file; `None` if a running pipeline has removed it."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return None
