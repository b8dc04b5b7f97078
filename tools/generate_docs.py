"""Generator of the pages of docs/reference that are derived from the code.

`make docs` runs it; `tests/test_docs.py` fails if a page is not up to date.
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
    "topics": " If a limit is `none` here, Kafka's default applies: seven days for"
    " `retention_ms`, and no limit for the others."
}
LOG_NAMES = {
    setting.log_field: setting.name for setting in TOPIC_CONFIGS.values() if setting.log_field
}
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
    columns = [(f"`{field.name}`", f"`{field.dataType.simpleString()}`") for field in TABLE]
    sink = [
        (f"`{name}`", " or ".join(f"`{kind}`" for kind in kinds))
        for name, kinds in SINK_TYPES.items()
    ]
    return (
        '# Spark: `format("millstream")`\n\n'
        + NOTE
        + "Names are not case-sensitive. An option that is not listed is refused.\n\n"
        + "## Reading\n\n"
        + _options(READ_OPTIONS)
        + "\n## Columns\n\n`headers` requires `includeHeaders`. If values have a"
        + " [schema](../guides/schemas.md), there are also typed columns.\n\n"
        + table(("column", "type"), columns)
        + "\n## Writing\n\n"
        + _options(WRITE_OPTIONS)
        + "\n## Columns of a sink\n\n"
        + "Required are `value` or typed columns, and `topic` or the option `topic`.\n\n"
        + table(("column", "type"), sink)
    )


def _options(options: Mapping[str, OptionHelp]) -> str:
    rows = [
        (f"`{name}`", option.meaning, ", ".join(f"`{alias}`" for alias in option.aliases))
        for name, option in options.items()
    ]
    return table(("option", "meaning", "aliases"), rows)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"|{'|'.join(_cell(cell) for cell in line)}|\n" for line in lines)


def _cell(value: object) -> str:
    text = str(value)
    return text if text == "---" else f" {text} " if text else " "


def docstring_of(item: object) -> str:
    """Return a docstring on one line."""
    return " ".join((inspect.getdoc(item) or "").split())


# The command line.


def cli_page() -> str:
    """Return the help of every command."""
    docstrings = _field_docstrings(Exit)
    codes = [(f"`{status.value}`", docstrings[status.name]) for status in Exit]
    parts = [
        NOTE,
        "# Command line\n\nData is written to standard output, everything else to standard error."
        " On a terminal, data is a table; with `--json` it is JSON with stable names."
        " [Example session](../guides/command-line.md).\n\n## Exit status\n\n"
        + table(("status", "meaning"), codes)
        + "\n## Variables\n\n"
        "`MILLSTREAM_SERVER`, `MILLSTREAM_BOOTSTRAP` and `MILLSTREAM_DATA` are the defaults of"
        " `--server`, `--bootstrap` and `--data`. `NO_COLOR` disables colours in tables. There are"
        " none if standard output is not a terminal.\n",
    ]
    for name, command in walk(command_line):
        context = click.Context(command, info_name=name, **command.context_settings)
        parts.append(f"\n## {name}\n\n```\n{command.get_help(context)}\n```\n")
    return "".join(parts)


# Settings.


def config_page() -> str:
    """Return every key of the configuration, with its default, limits and other names."""
    parts = [
        NOTE,
        "# Settings\n\nSettings of a node: from a file, an environment variable, or an option of"
        " [`millstream serve`](cli.md), in order of increasing precedence. See"
        " [Configuring](../operating/configuring.md). A setting without an option of its own is set"
        " with `--set KEY=VALUE`. An invalid value is refused with its key, its origin and the"
        " allowed values.\n\n"
        "Sizes may have a unit (`"
        + "`, `".join(BYTE_UNITS)
        + "`) and times too (`"
        + "`, `".join(TIME_UNITS)
        + "`); a number without a unit is in bytes or milliseconds, as the name says. `none`"
        " means no limit, or that the feature is off.\n",
    ]
    for name, about in TABLES.items():
        if keys := [key for key in KEYS.values() if key.table == name]:
            more = MORE.get(name, "")
            parts.append(f"\n## {name}\n\n`[{name}]`: {about}.{more}\n\n{_key_table(keys)}")
    parts.append(_fields_page())
    parts += _members("Durability", config.Durability, "class", "guarantee of an acknowledgement")
    parts += _members("Discard", config.Discard, "discard", "action when a log is full")
    parts += _members("Levels", config.EventLevel, "level", "logged events")
    parts += _members("Formats", config.EventFormat, "format", "form of a line")
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
                + (f" Kafka's name: `{kafka}`." if kafka else ""),
                ", ".join((f"`{key.variable}`", *others)),
            )
        )
    return table(["key", "default", "allowed", "meaning", "also set by"], rows)


def allowed_briefly(key: ConfigKey) -> str:
    """Return the allowed values, without units, which are the same for all keys."""
    if key.limits is None:
        return describe_allowed(key)
    lowest, highest = (display_value(key, limit) for limit in key.limits)
    return f"{lowest} to {_abbreviated(highest)}" + ", or `none`" * key.is_optional


def _fields_page() -> str:
    """Return the settings as fields of Python classes."""
    parts = [
        "\n## In Python\n\nFor an [embedded store](../guides/embedding.md) and a"
        " [broker in tests](../guides/testing.md), the same settings are fields of these classes."
        " `NodeConfig` contains the others as "
        + ", ".join(f"`{part}`" for part in PARTS if part)
        + ". Sizes are in bytes, times in milliseconds, and `None` means no limit.\n"
    ]
    for part, (kind, _) in PARTS.items():
        keys = {key.field: key.path for key in KEYS.values() if key.part == part}
        docstrings = _field_docstrings(kind)
        rows = []
        for field in fields(kind):
            if field.name in docstrings:
                key = keys.get(field.name)
                location = f"`{key}`" if key else f"none: {TOPIC_ONLY_FIELDS[part, field.name]}"
                default = getattr(kind(), field.name)
                default = default.value if isinstance(default, Enum) else default
                rows.append(
                    (
                        f"`{field.name}`",
                        f"`{default}`",
                        location,
                        "" if key else docstrings[field.name],
                    )
                )
        has_more = any(row[3] for row in rows)
        head = ["field", "default", "key", *(["meaning"] if has_more else [])]
        rows = rows if has_more else [row[:3] for row in rows]
        parts.append(f"\n### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{table(head, rows)}")
    return "".join(parts)


def _members(title: str, kind: type[Enum], *head: str) -> list[str]:
    docstrings = _field_docstrings(kind)
    rows = [(f"`{member.value}`", docstrings[member.name]) for member in kind]
    return [f"\n## {title}\n\n", table(head, rows)]


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    docstrings = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        target = field.target if isinstance(field, ast.AnnAssign) else None
        if isinstance(field, ast.Assign):
            target = field.targets[0]
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr):
            assert isinstance(below.value, ast.Constant)
            docstrings[target.id] = " ".join(str(below.value.value).split())
    return docstrings


# Errors.


def errors_page() -> str:
    """Return every error, indented below its base class."""
    rows = _error_rows(errors.MillstreamError, 0)
    return (
        f"{NOTE}# Errors\n\nAn `except` clause for an error also catches those below it. A Kafka"
        " client sees the code, an HTTP client the status. An error without one has that of the"
        " nearest error above it. [Errors over HTTP](http.md#errors).\n\n"
        + table(["error", "meaning", "Kafka's code", "HTTP status"], rows)
    )


def _error_rows(kind: type[errors.MillstreamError], depth: int) -> list[Sequence[str]]:
    indent = "&nbsp;&nbsp;" * depth
    code = f"`{CODES[kind].name}`" if kind in CODES else ""
    status = str(STATUSES[kind].value) if kind in STATUSES else ""
    name = f"{indent}`{kind.__name__}`"
    rows: list[Sequence[str]] = [(name, docstring_of(kind), code, status)]
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            rows += _error_rows(below, depth + 1)
    return rows


# The Kafka protocol.


def kafka_page() -> str:
    """Return the supported requests, features, topic configs, quotas and error codes."""
    return "\n".join(
        [
            f"{NOTE}# Kafka protocol\n\n"
            "Derived from the code. See also the [known differences](kafka-differences.md) from"
            " Kafka and [the guide](../guides/kafka.md).\n",
            _apis(),
            _features(),
            _topic_configs(),
            _quotas(),
            _codes(),
        ]
    )


def _apis() -> str:
    rows = [
        (key, api.name, _versions(api), docstring_of(HANDLERS[key]))
        for key, api in sorted(APIS.items())
    ]
    return (
        "## Requests\n\nThe versions are those in the ApiVersions response.\n\n"
        + table(["key", "API", "versions", "behaviour"], rows)
        + "\nProduce is announced from version 0 and supported from version 3: older versions of"
        " librdkafka check for version 0 before they compress.\n"
    )


def _versions(api: Api) -> str:
    first, last = api.announced.first, api.announced.last
    return str(first) if first == last else f"{first}-{last}"


def _features() -> str:
    rows = [(f"`{name}`", f"{lowest}-{highest}") for name, (lowest, highest) in FEATURES.items()]
    return (
        "## Features\n\nFeatures in the ApiVersions response, finalized at the highest level.\n\n"
        + table(["feature", "levels"], rows)
    )


def _topic_configs() -> str:
    effects = _field_docstrings(SettingEffect)
    rows = [
        (
            f"`{setting.name}`",
            _abbreviated(setting.default) or "empty",
            _abbreviated(setting.allowed),
            setting.effect.value,
            setting.meaning,
        )
        for setting in TOPIC_CONFIGS.values()
    ]
    removed = [(f"`{name}`", why) for name, why in sorted(REMOVED_CONFIGS.items())]
    return (
        "## Topic configs\n\nAll configs of Kafka 4, and those of Millstream. Others are refused"
        " with `INVALID_CONFIG`, as are invalid values.\n\n"
        + "".join(f"- **{effect.value}**: {effects[effect.name]}\n" for effect in SettingEffect)
        + "\n"
        + table(["config", "default", "allowed", "effect", "meaning"], rows)
        + "\nThese were removed in Kafka 4, and are refused with an explanation:\n\n"
        + table(["config", "why"], removed)
    )


def _abbreviated(text: str) -> str:
    """Write the largest numbers as powers."""
    for number, name in ((2**63 - 1, "2^63-1"), (2**31 - 1, "2^31-1")):
        text = text.replace(str(number), name)
    return text


def _quotas() -> str:
    docstrings = _field_docstrings(QuotaKind)
    rows = [(f"`{kind.value}`", docstrings[kind.name]) for kind in QuotaKind]
    return "## Quotas\n\nSet with AlterClientQuotas, per user, client id, or both.\n\n" + table(
        ["quota", "limit"], rows
    )


def _codes() -> str:
    rows = sorted(
        (code.value, f"`{code.name}`", f"`{kind.__name__}`") for kind, code in CODES.items()
    )
    return (
        "## Error codes\n\nKafka's codes for the [errors](errors.md). In responses about groups and"
        " transactions, codes that would make a client give up are replaced by codes that it"
        " retries.\n\n" + table(["code", "name", "error"], rows)
    )


# Metrics.


def metrics_page() -> str:
    """Return every metric, with its kind, labels and help."""
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
        f"{NOTE}# Metrics\n\nA node serves them at `/metrics`, with those of its process"
        " (`process_*`, `python_*`). The first"
        f" {LISTED_MAX:,} partitions that were opened, and the first {LISTED_MAX:,} committed"
        " offsets, have metrics of their own; the others are only in the totals.\n\n"
        + table(["metric", "kind", "labels", "meaning"], rows)
    )


if __name__ == "__main__":
    for name, text in pages().items():
        (REFERENCE / name).write_text(text)
