"""Pipelines described in TOML: SQL between topics and tables."""

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
"""What a source or target is, by the key that says where it is."""


def parse(text: str, home: str) -> Pipeline:
    """Read a pipeline; relative paths in it start from `home`.

    Raises `InvalidPipeline` with the key, what was found and what is allowed.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidPipeline(f"it is no TOML: {error}") from error
    _check_keys("the file", document, SECTIONS)
    head = _table(document, "pipeline")
    _check_keys("pipeline", head, keys_of(Pipeline))
    _check_needed("pipeline", head, Pipeline)
    return Pipeline(
        **head,
        sources=tuple(_source(name, one) for name, one in _tables(document, "sources")),
        steps=tuple(
            _value(SqlStep, f"steps.{name}", name, one) for name, one in _tables(document, "steps")
        ),
        targets=tuple(_target(name, one) for name, one in _tables(document, "targets")),
        home=home,
    )


def _source(name: str, table: Mapping[str, Any]) -> Source:
    place = f"sources.{name}"
    found: Source = _value(_kind(place, table, SOURCES), place, name, table)
    return found


def _target(name: str, table: Mapping[str, Any]) -> Target:
    place = f"targets.{name}"
    found: Target = _value(_kind(place, table, TARGETS), place, name, table)
    return found


def _kind(place: str, table: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    given = [key for key in kinds if key in table]
    if len(given) != 1:
        found = " and ".join(given) or "neither"
        raise InvalidPipeline(f"{place} has {found}, needed is one of {', '.join(kinds)}")
    return kinds[given[0]]


def _value(kind: Any, place: str, name: str, table: Mapping[str, Any]) -> Any:
    """Make the value that a table describes."""
    keys = keys_of(kind)
    _check_keys(place, table, keys)
    _check_needed(place, table, kind)
    settings = {keys[key]: value for key, value in table.items()}
    if "watermark" in settings:
        settings["watermark"] = _watermark(f"{place}.watermark", settings["watermark"])
    return kind(name=name, **settings)


def _watermark(place: str, table: Any) -> Watermark:
    if not isinstance(table, dict):
        raise InvalidPipeline(
            f'{place} is {table!r}, needed is {{ column = "at", delay = "10 minutes" }}'
        )
    _check_keys(place, table, keys_of(Watermark))
    _check_needed(place, table, Watermark)
    try:
        return Watermark(**table)
    except InvalidPipeline as error:
        raise InvalidPipeline(f"{place.removesuffix('watermark')}{error}") from error


def _table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = document.get(name, {})
    if not isinstance(found, dict):
        raise InvalidPipeline(f"{name} is {found!r}, needed is a table: [{name}]")
    return found


def _tables(document: Mapping[str, Any], section: str) -> list[tuple[str, dict[str, Any]]]:
    tables = _table(document, section)
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidPipeline(
                f"{section}.{name} is {table!r}, needed is a table: [{section}.{name}]"
            )
    return list(tables.items())


def _check_keys(place: str, table: Mapping[str, Any], allowed: Collection[str]) -> None:
    for key in table:
        if key not in allowed:
            near = difflib.get_close_matches(key, allowed, n=1)
            meant = f", perhaps {near[0]!r}" if near else ""
            raise InvalidPipeline(
                f"{place} has the key {key!r}, allowed are {', '.join(allowed)}{meant}"
            )


def _check_needed(place: str, table: Mapping[str, Any], kind: Any) -> None:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key, name in keys_of(kind).items():
        field = fields[name]
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        if key not in table and not has_default:
            raise InvalidPipeline(
                f"{place}.{key} is missing, needed is {field.metadata['kind'].needed}"
            )
