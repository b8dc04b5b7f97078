"""Writes the pages of docs/reference that are derived from the code.

`make docs` runs this; `tests/test_docs.py` fails when a page is not what this would write.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path

import click

from millstream import errors
from millstream.broker.quota_rules import QuotaKind
from millstream.broker.topics.configs.node_settings import BROKER_NAMES, KAFKA_SERVER_NAMES
from millstream.broker.topics.configs.topic_setting import SettingEffect
from millstream.broker.topics.configs.topic_settings import REMOVED_CONFIGS, TOPIC_CONFIGS
from millstream.cli.main import main as command_line
from millstream.cli.support.command_group import walk
from millstream.cli.support.exit import Exit
from millstream.config import schema as config
from millstream.config.keys import KEYS, PARTS, TABLES, TOPIC_ONLY_FIELDS, ConfigKey
from millstream.config.schema import BrokerConfig, KafkaConfig, LogConfig
from millstream.config.units import BYTE_UNITS, TIME_UNITS
from millstream.config.values import describe_allowed, display_value
from millstream.observe.metrics.metric import LISTED_MAX
from millstream.observe.metrics.node_metrics import SECTIONS
from millstream.protocols.kafka.apis import APIS, Api
from millstream.protocols.kafka.errors import CODES
from millstream.servers.http.routing.errors import STATUSES
from millstream.servers.kafka.apis import HANDLERS
from millstream.servers.kafka.handlers.versions import FEATURES
from millstream.spark.columns import TABLE
from millstream.spark.options import READ_OPTIONS, WRITE_OPTIONS, OptionHelp
from millstream.spark.write.sink_schema import SINK_TYPES

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `make docs`. Do not edit. -->\n\n"
MORE = {
    "topics": " Where a limit is `none` here, they have the one that Kafka has: seven days for"
    " `retention_ms`, and none for the others."
}
LOG_NAMES = {one.log_field: one.name for one in TOPIC_CONFIGS.values() if one.log_field}
KAFKA_NAMES = {BrokerConfig: BROKER_NAMES, KafkaConfig: KAFKA_SERVER_NAMES, LogConfig: LOG_NAMES}


def pages() -> dict[str, str]:
    """Return every generated page, by file name."""
    return {
        "cli.md": cli_page(),
        "config.md": config_page(),
        "errors.md": errors_page(),
        "kafka.md": kafka_page(),
        "metrics.md": metrics_page(),
        "spark.md": spark_page(),
    }


def spark_page() -> str:
    """Return the options and columns of `format("millstream")`."""
    columns = [(f"`{one.name}`", f"`{one.dataType.simpleString()}`") for one in TABLE]
    sink = [
        (f"`{name}`", " or ".join(f"`{kind}`" for kind in kinds))
        for name, kinds in SINK_TYPES.items()
    ]
    return (
        '# Spark: `format("millstream")`\n\n'
        + NOTE
        + "Names are compared without regard to case. An option that is not listed is refused.\n\n"
        + "## Reading\n\n"
        + _options(READ_OPTIONS)
        + "\n## Columns\n\n`headers` is there with `includeHeaders`, typed columns where values"
        + " have a [schema](../guides/schemas.md).\n\n"
        + table(("column", "type"), columns)
        + "\n## Writing\n\n"
        + _options(WRITE_OPTIONS)
        + "\n## Columns of a sink\n\n"
        + "Needed is `value`, or typed columns; and `topic`, or the option of that name.\n\n"
        + table(("column", "type"), sink)
    )


def _options(options: Mapping[str, OptionHelp]) -> str:
    rows = [
        (f"`{name}`", one.meaning, ", ".join(f"`{alias}`" for alias in one.aliases))
        for name, one in options.items()
    ]
    return table(("option", "what it says", "also called"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(_cell(cell) for cell in line)}|\n" for line in lines)


def _cell(value: object) -> str:
    text = str(value)
    return text if text == "---" else f" {text} " if text else " "


def words_of(thing: object) -> str:
    """Return the docstring of something, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split())


# The command line.


def cli_page() -> str:
    """Every command, as its help describes it."""
    words = _field_docstrings(Exit)
    codes = [(f"`{one.value}`", words[one.name]) for one in Exit]
    parts = [
        NOTE,
        "# Command line\n\nData goes to standard output, everything else to standard error. On a"
        " terminal data is a table; with `--json` it is JSON, in which names do not change."
        " [A session](../guides/command-line.md).\n\n## Exit status\n\n"
        + table(("status", "what it says"), codes)
        + "\n## Variables\n\n"
        "`MILLSTREAM_SERVER`, `MILLSTREAM_BOOTSTRAP` and `MILLSTREAM_DATA` stand for `--server`,"
        " `--bootstrap` and `--data` where these are not given. `NO_COLOR` has tables be without"
        " colour, as they are where standard output is no terminal.\n",
    ]
    for name, command in walk(command_line):
        context = click.Context(command, info_name=name, **command.context_settings)
        parts.append(f"\n## {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "".join(parts)


# Settings.


def config_page() -> str:
    """Every key of the configuration, with all that sets it, its default and its limits."""
    parts = [
        NOTE,
        "# Settings\n\nWhat a node can be set to: in a file, by a variable, or by an option of"
        " [`millstream serve`](cli.md), of which the later win."
        " [Configuring](../operating/configuring.md) tells how. What has no option of its own is"
        " set by `--set KEY=VALUE`. A wrong value is refused with its key, where it came from and"
        " what is allowed.\n\n"
        "Sizes may have a unit (`"
        + "`, `".join(BYTE_UNITS)
        + "`) and times too (`"
        + "`, `".join(TIME_UNITS)
        + "`); a bare number is in bytes or in milliseconds, as the name says. `none` is for no"
        " limit, or no such thing.\n",
    ]
    for name, about in TABLES.items():
        if keys := [key for key in KEYS.values() if key.table == name]:
            more = MORE.get(name, "")
            parts.append(f"\n## {name}\n\n`[{name}]` is for {about}.{more}\n\n{_key_table(keys)}")
    parts.append(_fields_page())
    parts += _members("Durability", config.Durability, "class", "what an acknowledgement promises")
    parts += _members("Discard", config.Discard, "discard", "what happens when a log is full")
    parts += _members("Levels", config.EventLevel, "level", "how much is said")
    parts += _members("Formats", config.EventFormat, "format", "how it is said")
    return "".join(parts)


def _key_table(keys: Sequence[ConfigKey]) -> str:
    rows = []
    for key in keys:
        kind = PARTS[key.part][0]
        others = (f"`{key.short_variable}`", f"`{key.flag}`") if key.flag else ()
        kafka = KAFKA_NAMES.get(kind, {}).get(key.field)
        rows.append(
            (
                f"`{key.name}`",
                display_value(key, key.default),
                allowed_briefly(key),
                _field_docstrings(kind)[key.field]
                + (f" Kafka clients know it as `{kafka}`." if kafka else ""),
                ", ".join((f"`{key.variable}`", *others)),
            )
        )
    return table(["key", "default", "allowed", "what it is for", "also set by"], rows)


def allowed_briefly(key: ConfigKey) -> str:
    """Return what is allowed, without the units, which are the same for all."""
    if key.limits is None:
        return describe_allowed(key)
    least, most = (display_value(key, limit) for limit in key.limits)
    return f"{least} to {_kept_short(most)}" + ", or `none`" * key.is_optional


def _fields_page() -> str:
    """The same settings, as Python has them."""
    parts = [
        "\n## In Python\n\nFor an [embedded store](../guides/embedding.md) and a"
        " [broker in tests](../guides/testing.md), the same settings are fields of these classes."
        " `NodeConfig` holds the others as "
        + ", ".join(f"`{part}`" for part in PARTS if part)
        + ". Sizes are in bytes, times in milliseconds, and `None` is for no limit.\n"
    ]
    for part, (kind, _) in PARTS.items():
        keys = {key.field: key.path for key in KEYS.values() if key.part == part}
        words = _field_docstrings(kind)
        rows = []
        for field in fields(kind):
            if field.name in words:
                key = keys.get(field.name)
                place = f"`{key}`" if key else f"none: {TOPIC_ONLY_FIELDS[part, field.name]}"
                default = getattr(kind(), field.name)
                default = default.value if isinstance(default, Enum) else default
                rows.append(
                    (f"`{field.name}`", f"`{default}`", place, "" if key else words[field.name])
                )
        has_more = any(row[3] for row in rows)
        head = ["field", "default", "key", *(["what it is for"] if has_more else [])]
        rows = rows if has_more else [row[:3] for row in rows]
        parts.append(f"\n### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{table(head, rows)}")
    return "".join(parts)


def _members(title: str, kind: type[Enum], *head: str) -> list[str]:
    words = _field_docstrings(kind)
    rows = [(f"`{member.value}`", words[member.name]) for member in kind]
    return [f"\n## {title}\n\n", table(head, rows)]


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the string that stands below each field of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        target = field.target if isinstance(field, ast.AnnAssign) else None
        if isinstance(field, ast.Assign):
            target = field.targets[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            found[target.id] = " ".join(str(below.value.value).split())
    return found


# Errors.


def errors_page() -> str:
    """Every error, indented below the one that it is a kind of."""
    rows = _error_rows(errors.MillstreamError, 0)
    return (
        f"{NOTE}# Errors\n\nCatch a branch to catch all below it. A Kafka client sees the code, an"
        " HTTP client the status; where there is none, it is that of the nearest error above. [The"
        " shape of an error over HTTP](http.md#errors).\n\n"
        + table(["error", "what it means", "Kafka's code", "HTTP status"], rows)
    )


def _error_rows(kind: type[errors.MillstreamError], depth: int) -> list[Sequence[str]]:
    indent = "&nbsp;&nbsp;" * depth
    code = f"`{CODES[kind].name}`" if kind in CODES else ""
    status = str(STATUSES[kind].value) if kind in STATUSES else ""
    name = f"{indent}`{kind.__name__}`"
    rows: list[Sequence[str]] = [(name, words_of(kind), code, status)]
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            rows += _error_rows(below, depth + 1)
    return rows


# The Kafka door.


def kafka_page() -> str:
    """What is spoken: requests, features, topic configs, quotas, error codes."""
    return "\n".join(
        [
            f"{NOTE}# Kafka: what is spoken\n\n"
            "Derived from the code. How it differs from Kafka is told in"
            " [known differences](kafka-differences.md), how it is used in"
            " [the guide](../guides/kafka.md).\n",
            _apis(),
            _features(),
            _topic_configs(),
            _quotas(),
            _codes(),
        ]
    )


def _apis() -> str:
    rows = [
        (key, api.name, _versions(api), words_of(HANDLERS[key]))
        for key, api in sorted(APIS.items())
    ]
    return (
        "## Requests\n\nThe versions are those that ApiVersions announces.\n\n"
        + table(["key", "API", "versions", "what it does here"], rows)
        + "\nProduce is announced from version 0 on, and taken from version 3 on: older librdkafka"
        " looks for version 0 to see whether it may compress.\n"
    )


def _versions(api: Api) -> str:
    first, last = api.announced.first, api.announced.last
    return str(first) if first == last else f"{first}-{last}"


def _features() -> str:
    rows = [(f"`{name}`", f"{least}-{most}") for name, (least, most) in FEATURES.items()]
    return (
        "## Features\n\nWhat ApiVersions says is on, at the highest of these levels.\n\n"
        + table(["feature", "levels"], rows)
    )


def _topic_configs() -> str:
    effects = _field_docstrings(SettingEffect)
    rows = [
        (
            f"`{one.name}`",
            _kept_short(one.default) or "empty",
            _kept_short(one.allowed),
            one.effect.value,
            one.meaning,
        )
        for one in TOPIC_CONFIGS.values()
    ]
    removed = [(f"`{name}`", why) for name, why in sorted(REMOVED_CONFIGS.items())]
    return (
        "## Topic configs\n\nAll that Kafka 4 knows, and ours. Others are refused with"
        " `INVALID_CONFIG`, as are values that are not allowed.\n\n"
        + "".join(f"- **{effect.value}**: {effects[effect.name]}\n" for effect in SettingEffect)
        + "\n"
        + table(["config", "default", "allowed", "effect", "meaning"], rows)
        + "\nThese went with Kafka 4, and are refused with a word of advice:\n\n"
        + table(["config", "why"], removed)
    )


def _kept_short(text: str) -> str:
    """Name the largest numbers by what they are."""
    for number, name in ((2**63 - 1, "2^63-1"), (2**31 - 1, "2^31-1")):
        text = text.replace(str(number), name)
    return text


def _quotas() -> str:
    words = _field_docstrings(QuotaKind)
    rows = [(f"`{kind.value}`", words[kind.name]) for kind in QuotaKind]
    return "## Quotas\n\nSet with AlterClientQuotas, per user, client id, or both.\n\n" + table(
        ["quota", "what it limits"], rows
    )


def _codes() -> str:
    rows = sorted(
        (code.value, f"`{code.name}`", f"`{kind.__name__}`") for kind, code in CODES.items()
    )
    return (
        "## Error codes\n\nWhich of [our errors](errors.md) a client sees as what. Requests about"
        " groups and transactions turn codes that their clients would not survive into such as"
        " they retry.\n\n" + table(["code", "name", "error"], rows)
    )


# Metrics.


def metrics_page() -> str:
    """Every metric, with its kind, its labels and what it counts."""
    rows = [
        (
            f"`{metric.name}`",
            metric.kind.value,
            ", ".join(f"`{label}`" for label in (*section.labels, *metric.labels)),
            metric.help,
        )
        for section in SECTIONS
        for metric in section.metrics
    ]
    return (
        f"{NOTE}# Metrics\n\nA node tells them at `/metrics`, with those of its process"
        " (`process_*`, `python_*`). The first"
        f" {LISTED_MAX:,} partitions that were opened, and the first {LISTED_MAX:,} committed"
        " offsets, have metrics of their own; the others count in totals.\n\n"
        + table(["metric", "kind", "labels", "what it is"], rows)
    )


if __name__ == "__main__":
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
