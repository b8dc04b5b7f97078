"""A pipeline as a value, however it was defined.

It is checked when it is created, before Spark starts: every name exists, there is no cycle, no
table has two writers, and every target depends on a stream.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from millstream.clients.kafka.security import (
    SECURITY_SETTINGS,
    absolute_files,
    parse_security,
)
from millstream.errors import InvalidConfig, InvalidPipeline
from millstream.spark.options import security_options
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
"""Default address of a node."""

AVAILABLE_NOW = "available-now"

DEFAULT_DIRECTORY = "millstream-pipelines"
"""Default directory of checkpoints, beside the pipeline's file."""


def _list_of(*kinds: type) -> SettingKind:
    return SettingKind(
        f"a list of {' or '.join(kind.__name__ for kind in kinds)}",
        lambda value: (
            isinstance(value, list | tuple) and all(isinstance(item, kinds) for item in value)
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
    security: Mapping[str, str] = setting(OPTIONS, default_factory=dict)
    """How to connect to the node and as whom: settings of `KafkaSecurity`."""
    master: str = setting(TEXT, default="local[*]")
    conf: Mapping[str, str] = setting(OPTIONS, default_factory=dict)
    sources: tuple[Source, ...] = ()
    steps: tuple[Step, ...] = ()
    targets: tuple[Target, ...] = ()
    home: str = ""
    """Start of relative paths: the directory of the pipeline's file, or the working directory."""

    def __post_init__(self) -> None:
        check_settings(self, "pipeline")
        for part, kind in _PARTS.items():
            if not kind.is_allowed(value := getattr(self, part)):
                raise InvalidPipeline(f"{part} must be {kind.expected}, got {value!r}")
            object.__setattr__(self, part, tuple(value))
        for name in self.security:
            if name not in SECURITY_SETTINGS:
                raise InvalidPipeline(
                    f"pipeline.security has no key {name!r}, the keys are"
                    f" {', '.join(SECURITY_SETTINGS)}"
                )
        check_graph(self.sources, self.steps, self.targets)

    @property
    def checkpoint_directory(self) -> str:
        """Directory of the checkpoints of all targets."""
        return resolved(self.checkpoint or os.path.join(DEFAULT_DIRECTORY, self.name), self.home)

    def node_options(self) -> dict[str, str]:
        """Return the options of `format("millstream")` for the node, with no secret."""
        given = absolute_files(self.security, self.home)
        names = {name: f"pipeline.security.{name}" for name in SECURITY_SETTINGS}
        try:
            security = parse_security(given, names=names)
        except InvalidConfig as error:
            raise InvalidPipeline(str(error)) from error
        return {"bootstrap.servers": self.bootstrap, **security_options(security)}

    def checkpoint_of(self, target: Target) -> str:
        """Return the directory of Spark's checkpoint for a target."""
        return os.path.join(self.checkpoint_directory, target.name)

    def path(self, table: str) -> str:
        """Return the absolute path of a table that is named by a path."""
        return resolved(table, self.home)


_PARTS = {
    "sources": _list_of(TopicSource, TableSource),
    "steps": _list_of(SqlStep, FunctionStep),
    "targets": _list_of(TopicTarget, TableTarget, FunctionTarget),
}
