"""Settings of topics and queues on the command line: KEY=VALUE.

Times and sizes may have a unit, as in the configuration of a node: `retention_ms=7d`,
`max.message.bytes=2MiB`. The node validates keys and values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from millstream.cli.support.output import printable
from millstream.config.units import BYTE_UNITS, TIME_UNITS, quantity

TOPIC_FIELDS = frozenset(
    {
        "partitions",
        "durability",
        "retention_ms",
        "retention_bytes",
        "retention_records",
        "discard",
        "cleanup",
    }
)
"""Settings that are fields of the HTTP API; all others are configs by their Kafka names."""


class Quantity(click.ParamType):
    """An integer, optionally with a unit; -1 means no limit if the node allows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number = value if isinstance(value, int) else number_of(f"_{self.name}", str(value))
        if not isinstance(number, int):
            units = ", ".join(TIME_UNITS if self.name == "ms" else BYTE_UNITS)
            self.fail(f"must be a number, optionally with {units}, got {value!r}", param, ctx)
        return number


MILLISECONDS = Quantity("ms")
BYTES = Quantity("bytes")


def number_of(key: str, text: str) -> int | str:
    """Return the number in `text`, in the unit that the key ends with, or the text itself."""
    units = {"ms": TIME_UNITS, "bytes": BYTE_UNITS}.get(key.replace(".", "_").rsplit("_", 1)[-1])
    if text == "-1":
        return -1
    with contextlib.suppress(ValueError):
        return quantity(text, units or {})
    return text


def pairs_of(pairs: Sequence[str], *, hint: str) -> dict[str, str]:
    """Parse KEY=VALUE pairs with distinct keys; an invalid one ends the command."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"must be KEY=VALUE, got {pair!r}", param_hint=hint)
        if key in values:
            raise click.BadParameter(f"{key} is set twice", param_hint=hint)
        values[key] = value
    return values


def topic_body(
    pairs: Sequence[str], unset: Sequence[str] = (), *, hint: str, **fields: object
) -> dict[str, Any]:
    """Return the settings of a topic in the form of the HTTP API."""
    body: dict[str, Any] = {key: value for key, value in fields.items() if value is not None}
    settings: dict[str, Any] = {}
    for key, text in pairs_of(pairs, hint=hint).items():
        # Configs are passed as text; the node parses them.
        settings[key] = number_of(key, text)
    for key in unset:
        if key in settings:
            raise click.BadParameter(f"{key} is both set and unset", param_hint="--unset")
        settings[key] = None
    for key, value in settings.items():
        if key not in TOPIC_FIELDS:
            body.setdefault("configs", {})[key] = value
        elif key in body:
            raise click.BadParameter(f"{key} is set twice", param_hint=hint)
        else:
            body[key] = value
    return body


def settings_of(topic: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a topic description."""
    return {key: topic[key] for key in ("name", "id", "partition_count", "durability", "configs")}


def settings_line(topic: Mapping[str, Any]) -> str:
    """Return the settings of a topic on one line, with control characters escaped."""
    count = topic["partition_count"]
    words = [f"{count} partition{'' if count == 1 else 's'}", topic["durability"]]
    words += [f"{key}={value}" for key, value in sorted(topic["configs"].items())]
    return printable(f"{topic['name']}: {', '.join(words)}")
