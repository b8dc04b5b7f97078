"""Parser of pipelines in TOML: SQL between topics and tables."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING
from typing import Any

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.setting import keys_of
from millstream.spark.pipelines.definition.source import Source, TableSource, TopicSource, Watermark
from millstream.spark.pipelines.definition.step import SqlStep
from millstream.spark.pipelines.definition.target import TableTarget, Target, TopicTarget

SECTIONS = ("pipeline", "sources", "steps", "targets")
SOURCES = {"topic": TopicSource, "table": TableSource}
TARGETS = {"topic": TopicTarget, "table": TableTarget}
"""Kinds of sources and targets, by the key that names their location."""


def parse(text: str, home: str) -> Pipeline:
    """Parse a pipeline; relative paths in it start at `home`.

    Raises `InvalidPipeline` with the key, its value and the allowed values.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPipeline(f"not valid TOML: {error}") from error
    _check_keys("the file", document, SECTIONS)
    head = _table(document, "pipeline")
    _check_keys("pipeline", head, keys_of(Pipeline))
    _check_required("pipeline", head, Pipeline)
    return Pipeline(
        **head,
        sources=tuple(_source(name, table) for name, table in _tables(document, "sources")),
        steps=tuple(
            _value(SqlStep, f"steps.{name}", name, table)
            for name, table in _tables(document, "steps")
        ),
        targets=tuple(_target(name, table) for name, table in _tables(document, "targets")),
        home=home,
    )


def _source(name: str, table: Mapping[str, Any]) -> Source:
    section = f"sources.{name}"
    source: Source = _value(_kind(section, table, SOURCES), section, name, table)
    return source


def _target(name: str, table: Mapping[str, Any]) -> Target:
    section = f"targets.{name}"
    target: Target = _value(_kind(section, table, TARGETS), section, name, table)
    return target


def _kind(section: str, table: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    present = [key for key in kinds if key in table]
    if len(present) != 1:
        shown = " and ".join(present) or "neither"
        raise InvalidPipeline(f"{section} must have either {' or '.join(kinds)}, got {shown}")
    return kinds[present[0]]


def _value(kind: Any, section: str, name: str, table: Mapping[str, Any]) -> Any:
    """Return the value that a TOML table defines."""
    keys = keys_of(kind)
    _check_keys(section, table, keys)
    _check_required(section, table, kind)
    settings = {keys[key]: value for key, value in table.items()}
    if "watermark" in settings:
        settings["watermark"] = _watermark(f"{section}.watermark", settings["watermark"])
    return kind(name=name, **settings)


def _watermark(section: str, table: Any) -> Watermark:
    if not isinstance(table, dict):
        raise InvalidPipeline(
            f'{section} must be a table such as {{ column = "at", delay = "10 minutes" }},'
            f" got {table!r}"
        )
    _check_keys(section, table, keys_of(Watermark))
    _check_required(section, table, Watermark)
    try:
        return Watermark(**table)
    except InvalidPipeline as error:
        raise InvalidPipeline(f"{section.removesuffix('watermark')}{error}") from error


def _table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InvalidPipeline(f"{name} must be a table ([{name}]), got {table!r}")
    return table


def _tables(document: Mapping[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    tables = _table(document, section)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidPipeline(
                f"{section}.{name} must be a table ([{section}.{name}]), got {table!r}"
            )
    return list(tables.items())


def _check_keys(section: str, table: Mapping[str, Any], allowed: Collection[str]) -> None:
    for key in table:
        if key not in allowed:
            similar = difflib.get_close_matches(key, allowed, n=1)
            hint = f"; did you mean {similar[0]!r}?" if similar else ""
            raise InvalidPipeline(
                f"{section} has no key {key!r}, the keys are {', '.join(allowed)}{hint}"
            )


def _check_required(section: str, table: Mapping[str, Any], kind: Any) -> None:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key, name in keys_of(kind).items():
        field = fields[name]
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if key not in table and not has_default:
            raise InvalidPipeline(f"{section}.{key} is required: {field.metadata['kind'].expected}")
