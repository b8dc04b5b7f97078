"""Choice of the format of a topic's values, from options or from the topic's configs."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from millstream.errors import InvalidConfig
from millstream.formats.avro.avro_format import AvroFormat, AvroFraming
from millstream.formats.ddl import parse_ddl
from millstream.formats.json.json_format import JsonFormat
from millstream.formats.names import VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG
from millstream.formats.schema_json import parse_schema_json
from millstream.formats.value_format import RawFormat, SchemaLookup, ValueFormat

VALUE_FORMAT = "valueFormat"
VALUE_SCHEMA = "valueSchema"
AVRO_FRAMING = "avroFraming"
AVRO_SCHEMA_ID = "avroSchemaId"
"""Options of a reader or writer. Their names are not case-sensitive."""

FORMATS = ("raw", "json", "avro")

_SCHEMA_ID_MAX = 2**31 - 1


def choose_format(
    options: Mapping[str, str],
    declared: Mapping[str, str],
    *,
    registry: SchemaLookup | None = None,
) -> ValueFormat:
    """Return the format of the values of a topic with the configs `declared`.

    Options take precedence over configs. If the option `valueFormat` names another format than the
    topic declares, the option `valueSchema` is required too: the declared schema does not fit.
    With a registry, Avro values have schema ids unless an option says otherwise, and each is read
    with the schema of its id.
    Raises `InvalidConfig` for options that are invalid or do not go together.
    """
    given = {name.lower(): value for name, value in options.items()}
    declared_kind = declared.get(VALUE_FORMAT_CONFIG) or "raw"
    if declared_kind == "msgpack":  # It has no schema, so it has no typed columns.
        declared_kind = "raw"
    kind = given.get(VALUE_FORMAT.lower(), declared_kind).strip().lower()
    schema = given.get(VALUE_SCHEMA.lower(), "").strip()
    if not schema and kind == declared_kind:
        schema = declared.get(VALUE_SCHEMA_CONFIG, "")
    if kind not in FORMATS:
        raise InvalidConfig(f"{VALUE_FORMAT} must be one of {', '.join(FORMATS)}, got {kind!r}")
    if kind == "raw":
        if schema:
            raise InvalidConfig(
                f"{VALUE_SCHEMA} requires {VALUE_FORMAT} to be json or avro, got raw"
            )
        return RawFormat()
    if not schema:
        raise InvalidConfig(
            f"{VALUE_FORMAT} is {kind}, which requires a schema: set the option {VALUE_SCHEMA} or"
            f" the topic's {VALUE_SCHEMA_CONFIG}"
        )
    if kind == "json":
        return JsonFormat(arrow_schema(schema))
    framing = _framing(given, AvroFraming.NONE if registry is None else AvroFraming.CONFLUENT)
    return AvroFormat(schema, framing=framing, schema_id=_schema_id(given), registry=registry)


def arrow_schema(text: str) -> pa.Schema:
    """Return the Arrow schema of a Spark schema that is written as JSON or as DDL."""
    return parse_schema_json(text) if text.lstrip().startswith("{") else parse_ddl(text)


def _framing(given: Mapping[str, str], default: AvroFraming) -> AvroFraming:
    text = given.get(AVRO_FRAMING.lower(), default.value).strip().lower()
    try:
        return AvroFraming(text)
    except ValueError:
        allowed = ", ".join(framing.value for framing in AvroFraming)
        raise InvalidConfig(f"{AVRO_FRAMING} must be one of {allowed}, got {text!r}") from None


def _schema_id(given: Mapping[str, str]) -> int | None:
    text = given.get(AVRO_SCHEMA_ID.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) > _SCHEMA_ID_MAX:
        raise InvalidConfig(
            f"{AVRO_SCHEMA_ID} must be between 0 and {_SCHEMA_ID_MAX}, got {text!r}"
        )
    return int(text)
