"""Which format the values of a topic have: as an option says, or as the topic declares."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from millstream.errors import InvalidConfig
from millstream.formats.avro.avro_format import AvroFormat, AvroFraming
from millstream.formats.ddl import parse_ddl
from millstream.formats.json.json_format import JsonFormat
from millstream.formats.names import VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG
from millstream.formats.value_format import RawFormat, ValueFormat

VALUE_FORMAT = "valueFormat"
VALUE_SCHEMA = "valueSchema"
AVRO_FRAMING = "avroFraming"
AVRO_SCHEMA_ID = "avroSchemaId"
"""Options of the Spark source and sink. Their names are compared without regard to case."""

FORMATS = ("raw", "json", "avro")

_SCHEMA_ID_MAX = 2**31 - 1


def choose_format(options: Mapping[str, str], declared: Mapping[str, str]) -> ValueFormat:
    """Return the format of a topic that has the configs `declared`.

    An option goes before the declaration. An option `valueFormat` that names another format than
    the topic does needs a `valueSchema` of its own, since the declared one is of no use for it.
    Raises `InvalidConfig` with what is not allowed.
    """
    given = {name.lower(): value for name, value in options.items()}
    declared_kind = declared.get(VALUE_FORMAT_CONFIG) or "raw"
    kind = given.get(VALUE_FORMAT.lower(), declared_kind).strip().lower()
    schema = given.get(VALUE_SCHEMA.lower(), "").strip()
    if not schema and kind == declared_kind:
        schema = declared.get(VALUE_SCHEMA_CONFIG, "")
    if kind not in FORMATS:
        raise InvalidConfig(f"{VALUE_FORMAT} is {kind!r}, allowed is {', '.join(FORMATS)}")
    if kind == "raw":
        if schema:
            raise InvalidConfig(
                f"{VALUE_SCHEMA} is given, and {VALUE_FORMAT} is raw: allowed with json and avro"
            )
        return RawFormat()
    if not schema:
        raise InvalidConfig(
            f"{VALUE_FORMAT} is {kind}, and there is no {VALUE_SCHEMA}: neither an"
            f" option nor the topic's {VALUE_SCHEMA_CONFIG} gives one"
        )
    if kind == "json":
        return JsonFormat(arrow_schema(schema))
    return AvroFormat(schema, framing=_framing(given), schema_id=_schema_id(given))


def arrow_schema(text: str) -> pa.Schema:
    """Return a Spark schema, written as JSON or as DDL, in Arrow's words."""
    struct = _from_json(text) if text.lstrip().startswith("{") else parse_ddl(text)
    try:
        return to_arrow_schema(struct, timezone="UTC")
    except PySparkException as error:
        raise InvalidConfig(f"schema has a type that a column cannot have: {error}") from None


def _from_json(text: str) -> StructType:
    """Read what `StructType.json()` writes. Spark asserts some of what it expects of it."""
    try:
        return StructType.fromJson(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise InvalidConfig(f"schema is not what StructType.json() writes: {error!r}") from None
    except RecursionError:
        raise InvalidConfig("schema is nested too deeply") from None
    except PySparkException as error:
        raise InvalidConfig(f"schema is not what StructType.json() writes: {error}") from None


def _framing(given: Mapping[str, str]) -> AvroFraming:
    text = given.get(AVRO_FRAMING.lower(), AvroFraming.NONE.value).strip().lower()
    try:
        return AvroFraming(text)
    except ValueError:
        allowed = ", ".join(framing.value for framing in AvroFraming)
        raise InvalidConfig(f"{AVRO_FRAMING} is {text!r}, allowed is {allowed}") from None


def _schema_id(given: Mapping[str, str]) -> int | None:
    text = given.get(AVRO_SCHEMA_ID.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) > _SCHEMA_ID_MAX:
        raise InvalidConfig(f"{AVRO_SCHEMA_ID} is {text!r}, allowed is 0 to {_SCHEMA_ID_MAX}")
    return int(text)
