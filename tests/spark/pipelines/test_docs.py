"""The guide lists exactly the keys of a pipeline, with their defaults."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from millstream.spark.pipelines import (
    Pipeline,
    SqlStep,
    TableSource,
    TableTarget,
    TopicSource,
    TopicTarget,
    Watermark,
)
from millstream.spark.pipelines.definition.setting import keys_of
from millstream.spark.pipelines.definition.toml import parse

GUIDE = (Path(__file__).parents[3] / "docs/guides/pipelines.md").read_text()
HEADINGS = {
    "`[pipeline]`": Pipeline,
    "`[sources.NAME]`, a topic": TopicSource,
    "`[sources.NAME]`, a table": TableSource,
    "`[steps.NAME]`": SqlStep,
    "`watermark`": Watermark,
    "`[targets.NAME]`, a topic": TopicTarget,
    "`[targets.NAME]`, a table": TableTarget,
}


def shown(field: dataclasses.Field) -> str:
    """Return a default as the guide shows it."""
    if field.default is dataclasses.MISSING:
        return "needed" if field.default_factory is dataclasses.MISSING else ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f'`"{field.default}"`' if field.default else ""


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_key_is_in_the_guide_with_its_default(heading: str):
    kind = HEADINGS[heading]
    section = GUIDE.split(f"\n### {heading}\n", 1)[1].split("\n### ", 1)[0]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    assert re.findall(r"^\| `(\w+)` \| (.*?) ?\|", section, re.MULTILINE) == [
        (key, shown(fields[name])) for key, name in keys_of(kind).items()
    ]


def test_the_example_of_the_guide_is_a_pipeline():
    (text,) = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert parse(text, "/").name == "orders-by-country"
