"""A pipeline: one value, whichever way it was described.

Where everything fits together is checked when it is made, before Spark is started: every name is
known, no step needs its own result, nothing is written by two, and something streams.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.graph import check_graph
from millstream.spark.pipelines.definition.setting import (
    FILE_NAME,
    OPTIONS,
    TEXT,
    TRIGGER,
    SettingKind,
    check_settings,
    setting,
    settings,
)
from millstream.spark.pipelines.definition.source import Source, TableSource, TopicSource
from millstream.spark.pipelines.definition.step import FunctionStep, SqlStep, Step
from millstream.spark.pipelines.definition.table import resolved
from millstream.spark.pipelines.definition.target import (
    FunctionTarget,
    TableTarget,
    Target,
    TopicTarget,
)

BOOTSTRAP = "127.0.0.1:9092"
"""Where a node listens that was started without saying where."""

AVAILABLE_NOW = "available-now"

DEFAULT_DIRECTORY = "millstream-pipelines"
"""Where checkpoints are, beside the file of the pipeline, unless it says otherwise."""


def _several(*kinds: type) -> SettingKind:
    return SettingKind(
        f"some of {', '.join(kind.__name__ for kind in kinds)}",
        lambda value: (
            isinstance(value, list | tuple) and all(isinstance(one, kinds) for one in value)
        ),
        tuple,
    )


@settings
class Pipeline:
    """Sources, steps and targets, and how to run them."""

    name: str = setting(FILE_NAME)
    checkpoint: str | None = setting(TEXT, default=None)
    trigger: str = setting(TRIGGER, default="1 second")
    bootstrap: str = setting(TEXT, default=BOOTSTRAP)
    master: str = setting(TEXT, default="local[*]")
    conf: Mapping[str, str] = setting(OPTIONS, default_factory=dict)
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    targets: tuple[Target, ...] = ()
    home: str = ""
    """The directory that relative paths start from: that of the pipeline's file, or where the
    process is."""

    def __post_init__(self) -> None:
        check_settings(self, "pipeline")
        for part, kind in _PARTS.items():
            if not kind.is_allowed(found := getattr(self, part)):
                raise InvalidPipeline(f"{part} are {found!r}, needed is {kind.needed}")
            object.__setattr__(self, part, tuple(found))
        check_graph(self.sources, self.steps, self.targets)

    @property
    def checkpoint_directory(self) -> str:
        """Where the checkpoints of all targets are."""
        return resolved(self.checkpoint or os.path.join(DEFAULT_DIRECTORY, self.name), self.home)

    def checkpoint_of(self, target: Target) -> str:
        """Return where Spark keeps how far the query of a target came."""
        return os.path.join(self.checkpoint_directory, target.name)

    def path(self, table: str) -> str:
        """Return where the files of a table are that is named by its path."""
        return resolved(table, self.home)


_PARTS = {
    "sources": _several(TopicSource, TableSource),
    "steps": _several(SqlStep, FunctionStep),
    "targets": _several(TopicTarget, TableTarget, FunctionTarget),
}
